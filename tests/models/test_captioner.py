"""Behaviour that a user-defined captioner inherits from the base class."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyNet, TinyPairs, TinySource
from helpers.training import QUIET, assert_same, fit, host_state
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from lightning_idc.data.source import PairSource, View
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.metric import CaptionScores
from lightning_idc.models.captioner import CHECKPOINT_HPARAMS
from lightning_idc.models.captions import chosen_captions, pad_captions
from lightning_idc.models.loading import load_captioner, strip_aux
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError


def untrained() -> TinyCaptioner:
    return TinyCaptioner(dropout=0.0, optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.01))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TinyCaptioner:
    folder = tmp_path_factory.mktemp("trained")
    model = fit([], folder, untrained(), max_epochs=8)
    model.trainer.save_checkpoint(folder / "tiny.ckpt")
    model.folder = folder  # type: ignore[assignment]
    return model


@pytest.mark.slow
def test_a_tiny_subclass_learns_to_describe(tmp_path: Path) -> None:
    trained = fit([], tmp_path, untrained(), max_epochs=60)
    report = Trainer(**QUIET).test(trained, TinyPairs(batch_size=4), verbose=False)[0]
    assert report["test/CIDEr-D"] > 100
    assert {r["change_type"] for r in trained.predictions} == {"red", "green", "blue"}
    sample = TinySource(3, 900).load(1)
    assert trained.describe_all([]) == []
    caption = trained.describe(sample.before, sample.after)
    assert TinySource(3, 900).color(1) in caption.text.split()
    assert caption.log_prob <= 0


@pytest.mark.slow
def test_init_from_does_not_change_max_length(trained: TinyCaptioner) -> None:
    start = str(trained.folder / "tiny.ckpt")  # type: ignore[operator]
    for asked, expected in ((23, 23), (None, trained.hparams["max_length"])):
        tuned = TinyCaptioner(dropout=0.0, init_from=start, max_length=asked)
        tuned.build()
        assert tuned.hparams["max_length"] == expected


class LongerPairs(TinyPairs):
    """Pairs whose captions are longer than those of `TinyPairs` and contain other words."""

    def source(self, split: str) -> PairSource:
        return LongerCaptions(super().source(split))

    def no_change_captions(self) -> list[str]:
        return ["all is as it was"]


class LongerCaptions(View):
    def captions(self, index: int) -> list[str]:
        return [f"{caption} although everything else stays as it was before" for caption in super().captions(index)]

    def load(self, index: int) -> PairSample:
        return replace(super().load(index), captions=self.captions(index))


@pytest.mark.slow
def test_training_goes_on_with_longer_captions_and_new_words(trained: TinyCaptioner, tmp_path: Path) -> None:
    start = str(trained.folder / "tiny.ckpt")  # type: ignore[operator]
    tuned = TinyCaptioner(dropout=0.0, init_from=start, optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.01))
    fit([], tmp_path, tuned, data=LongerPairs(batch_size=4), max_epochs=20)
    words, before = tuned.built_vocabulary.words, trained.built_vocabulary.words
    assert words[: len(before)] == before and "although" in words
    assert tuned.hparams["no_change_captions"] == ["all is as it was"]
    sample = TinySource(3, 900).load(1)
    assert tuned.describe(sample.before, sample.after).text.endswith("although everything else stays as it was before")
    tuned.trainer.save_checkpoint(tmp_path / "tuned.ckpt")
    loaded = load_captioner(tmp_path / "tuned.ckpt")
    assert_same(host_state(loaded), host_state(tuned))


@pytest.mark.slow
def test_weights_of_the_old_words_are_those_of_init_from(trained: TinyCaptioner, tmp_path: Path) -> None:
    tuned = TinyCaptioner(dropout=0.0, init_from=str(trained.folder / "tiny.ckpt"))  # type: ignore[operator]
    fit([], tmp_path, tuned, data=LongerPairs(batch_size=4), max_epochs=0)
    state, count = host_state(tuned), len(trained.built_vocabulary)
    for name, value in host_state(trained).items():
        same = state[name] if state[name].shape == value.shape else state[name][:count]
        torch.testing.assert_close(same, value)


@pytest.mark.slow
def test_a_trainer_predicts_every_pair_once_and_as_describe_does(trained: TinyCaptioner) -> None:
    data = TinyPairs(batch_size=4)
    batches = Trainer(**QUIET).predict(trained, data)
    assert batches is not None
    records = [record for batch in batches for record in batch]
    assert [record["id"] for record in records] == data.pairs_of("predict").ids
    sample = data.pairs_of("predict").load(5)
    assert records[5]["caption"] == trained.describe(sample.before, sample.after).text


def test_k_captions_share_one_look_and_score_as_if_alone(trained: TinyCaptioner) -> None:
    samples = [TinySource(4, 700).load(i) for i in range(4)]
    batch = trained.collate(samples)
    assert batch.tokens.shape[:2] == (4, 2)
    features = trained.encode(batch)
    together = trained.score(features, batch.tokens, batch.caption_mask)
    for k in range(2):
        alone = trained.score(features, batch.tokens[:, k : k + 1], batch.caption_mask[:, k : k + 1])
        torch.testing.assert_close(together[:, k : k + 1], alone)


def test_a_test_encodes_and_scores_a_pair_once(trained: TinyCaptioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change scores come with the losses: no-change sentences are appended to the captions of each pair."""
    batch = trained.collate([TinySource(4, 750).load(i) for i in range(4)])
    features = trained.encode(batch)
    sentences = [*{caption.text for caption in trained.generate(features)}][:2]
    monkeypatch.setitem(trained.hparams, "no_change_captions", [*sentences, f"{sentences[0]} which is longer"])
    losses, scores = trained.caption_losses(features, batch), trained.change_scores(features)
    assert len(set(scores)) == 4 and None not in scores
    joint, together = trained.losses_and_change_scores(features, batch)
    torch.testing.assert_close(joint, losses)
    assert together == pytest.approx(scores, abs=1e-6)

    calls: list[str] = []

    def counted(name: str, real: Any) -> Any:
        return lambda *given: (calls.append(name), real(*given))[1]

    for name in ("encode", "log_probs"):
        monkeypatch.setattr(trained, name, counted(name, getattr(trained, name)))
    Trainer(**QUIET, limit_test_batches=1).test(trained, TinyPairs(batch_size=4), verbose=False)
    assert sorted(calls) == ["encode", "log_probs"]
    assert all(0 <= record["change_score"] <= 1 for record in trained.predictions)


def test_a_no_change_sentence_counts_once_in_whatever_letters_it_is_written() -> None:
    batch_of = [TinySource(2, 760).load(i) for i in range(2)]
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "same"]
    result = []
    for sentences in (["same", "same thing"], ["same", "Same", "same thing", "same object", "SAME"]):
        torch.manual_seed(0)
        model = TinyCaptioner(dropout=0.0, vocabulary=words, max_length=4, no_change_captions=sentences).eval()
        model.build()
        batch = model.collate(batch_of)
        features = model.encode(batch)
        # the expected score is that of two sentences, because case and unknown words do not distinguish the five
        tokens, mask = pad_captions([[[1, 4, 2], [1, 4, 3, 2]]] * 2, captions=2)
        wanted = (1 - model.score(features, tokens, mask).exp().sum(-1)).tolist()
        assert model.change_scores(features) == pytest.approx(wanted, abs=1e-6)
        assert model.losses_and_change_scores(features, batch)[1] == pytest.approx(wanted, abs=1e-6)
        result.append(wanted)
    assert result[0] == result[1] and max(result[0]) < 0.99


def test_a_loaded_captioner_trains_like_a_new_one(trained: TinyCaptioner, tmp_path: Path) -> None:
    trainer = Trainer(**QUIET, enable_checkpointing=False, max_steps=0)
    trainer.strategy.connect(trained)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    asked = load_captioner(tmp_path / "first.ckpt")
    assert not asked.training
    modes: list[bool] = []
    asked.training_step = lambda *given: modes.append(asked.net.dropout.training)  # type: ignore[method-assign,union-attr]
    Trainer(**QUIET, enable_checkpointing=False, max_epochs=1).fit(asked, TinyPairs())
    assert modes and all(modes)


def test_unknown_words_are_reported_when_a_loaded_captioner_is_trained(
    trained: TinyCaptioner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captioner = load_captioner(trained.folder / "tiny.ckpt")  # type: ignore[operator]
    with caplog.at_level("INFO"):
        fit([], tmp_path, captioner, data=LongerPairs(batch_size=4), max_epochs=0)
    assert "are learned as <unk>; a captioner that starts from `init_from` adds them" in caplog.text


def test_endings_that_are_spared_are_a_list() -> None:
    # a string would be read as a list of its letters, and most names end with one of them
    with pytest.raises(ConfigError, match="expected a list of suffixes"):
        TinyCaptioner(no_decay="bias")


def test_an_unknown_max_length_is_required() -> None:
    model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "same"]).eval()
    model.build()
    sample = TinySource(1, 770).load(0)
    batch = model.collate([sample])
    features = model.encode(batch)
    for ask in (
        lambda: model.describe(sample.before, sample.after),
        lambda: model.generate(features, num_beams=2),
        lambda: model.decoder.sample(features, samples=2),
    ):
        with pytest.raises(ConfigError, match="max_length is not set"):
            ask()
    assert len(model.generate(features, max_length=2)) == 1


def test_image_size_comes_from_the_data() -> None:
    data = TinyPairs(image_size=(16, 24))
    for inputs in ({}, {"vocabulary": ["<pad>", "<bos>", "<eos>", "<unk>", "it", "turned", "red"]}):
        model = TinyCaptioner(**inputs, max_length=6, no_change_captions=["nothing"])
        Trainer(**QUIET, fast_dev_run=1).fit(model, data)
        assert tuple(model.hparams["image_size"]) == (16, 24), inputs
    kept = TinyCaptioner(**inputs, max_length=6, no_change_captions=["nothing"], image_size=(8, 8))
    Trainer(**QUIET, fast_dev_run=1).fit(kept, data)
    assert tuple(kept.hparams["image_size"]) == (8, 8)


@pytest.mark.parametrize("words", [None, ["<pad>", "<bos>", "<eos>", "<unk>", "it", "turned", "red"]])
def test_a_checkpoint_is_tested_as_it_was_trained_whoever_made_the_network(
    words: list[str] | None, tmp_path: Path
) -> None:
    trained = TinyCaptioner(vocabulary=words, dropout=0.0, max_length=3, no_change_captions=["red"])
    trainer = Trainer(**QUIET, max_steps=1, enable_checkpointing=False)
    trainer.fit(trained, TinyPairs(image_size=(4, 4)))
    trainer.save_checkpoint(tmp_path / "short.ckpt")

    # the words are those of the checkpoint, so the network is not rebuilt
    def tested(**asked: Any) -> TinyCaptioner:
        model = TinyCaptioner(vocabulary=words, dropout=0.0, **asked)
        files = {"ckpt_path": tmp_path / "short.ckpt", "weights_only": True}
        Trainer(**QUIET).test(model, TinyPairs(), verbose=False, **files)  # type: ignore[arg-type]
        return model

    model = tested()
    assert {name: model.hparams[name] for name in CHECKPOINT_HPARAMS} == {
        name: trained.hparams[name] for name in CHECKPOINT_HPARAMS
    }
    Trainer(**QUIET).test(trained, TinyPairs(image_size=(4, 4)), verbose=False)
    assert model.predictions == trained.predictions, "images have the size of the training"
    longer = tested(max_length=5)
    assert longer.hparams["max_length"] == 5


def test_log_prob_of_a_generated_caption_is_its_teacher_forced_one(trained: TinyCaptioner) -> None:
    batch = trained.collate([TinySource(4, 800).load(i) for i in range(4)])
    features = trained.encode(batch)
    captions = trained.generate(features)
    tokens, mask = pad_captions([trained.tokenize([c.text]) for c in captions], captions=1)
    mean = trained.score(features, tokens, mask)[:, 0] / mask.sum(-1)[:, 0]
    torch.testing.assert_close(torch.tensor([c.log_prob for c in captions]), mean.detach(), rtol=1e-4, atol=1e-5)


def test_save_and_load_as_a_folder(trained: TinyCaptioner, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path / "tiny")
    again = TinyCaptioner.from_pretrained(tmp_path / "tiny")
    assert_same(dict(again.state_dict()), host_state(trained))
    sample = TinySource(1, 901).load(0)
    assert again.describe(sample.before, sample.after).text == trained.describe(sample.before, sample.after).text


def test_a_folder_cannot_name_foreign_code(trained: TinyCaptioner, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["class_path"] = "os.system"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"os\.system"):
        TinyCaptioner.from_pretrained(tmp_path)


def test_a_flipped_bit_of_the_weights_of_a_folder_is_refused(trained: TinyCaptioner, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    intact, random_bits = weights.read_bytes(), random.Random(0)
    for _ in range(15):
        damaged = bytearray(intact)
        damaged[random_bits.randrange(len(intact))] ^= 1 << random_bits.randrange(8)
        weights.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            TinyCaptioner.from_pretrained(tmp_path)


def test_the_configuration_of_a_folder_may_be_edited(trained: TinyCaptioner, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["init_args"]["max_length"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert TinyCaptioner.from_pretrained(tmp_path).hparams["max_length"] == 4


def test_words_of_the_checkpoint_win_over_those_of_the_data(trained: TinyCaptioner) -> None:
    class Other(TinyPairs):
        def train_captions(self) -> list[str]:
            return ["quite another thing altogether"]

    fresh = TinyCaptioner()
    Trainer(**QUIET).test(fresh, Other(), ckpt_path=trained.folder / "tiny.ckpt", verbose=False)  # type: ignore[operator]
    assert fresh.hparams["vocabulary"] == trained.hparams["vocabulary"]


def test_captions_are_drawn_by_the_seed_of_the_sample() -> None:
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    captions = [f"caption {i}" for i in range(6)]

    def draw(seed: int | None) -> list[str]:
        meta = {} if seed is None else {"seed": seed}
        return chosen_captions(PairSample("a", image, image, captions, meta=meta), 2)

    assert draw(None) == captions[:2]
    assert draw(7) == draw(7)
    assert len({tuple(draw(s)) for s in range(20)}) > 5


def test_pairs_without_captions_are_named(trained: TinyCaptioner) -> None:
    sample = TinySource(1, 0).load(0)
    sample.captions = []
    batch = trained.collate([sample])
    with pytest.raises(DataError, match="no caption to train on for 000"):
        trained.caption_loss(trained.encode(batch), batch)


def test_a_nan_loss_stops_the_run_and_names_the_pairs(tmp_path: Path) -> None:
    class Broken(TinyCaptioner):
        def build_net(self, vocabulary: object) -> TinyNet:
            net = super().build_net(vocabulary)  # type: ignore[arg-type]
            torch.nn.init.constant_(net.head.bias, float("nan"))
            return net  # type: ignore[return-value]

    with pytest.raises(ConfigError, match="became nan on the pairs"):
        fit([], tmp_path, Broken(), enable_checkpointing=True)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_captioner_without_vocabulary_raises_an_error_with_advice() -> None:
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="load a checkpoint, or fit it"):
        TinyCaptioner().describe(image, image)


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        fit([], tmp_path, TinyCaptioner(init_from=str(tmp_path / "nowhere.ckpt")))


def test_strip_aux_leaves_the_host(tmp_path: Path) -> None:
    torch.save({"state_dict": {"net.a": torch.ones(1), "aux_addons.x.b": torch.ones(1)}}, tmp_path / "a.ckpt")
    assert strip_aux(tmp_path / "a.ckpt", tmp_path / "b.ckpt") == ["aux_addons.x.b"]
    assert list(torch.load(tmp_path / "b.ckpt", weights_only=True)["state_dict"]) == ["net.a"]


def test_duplicates_are_dropped_by_id() -> None:
    scores = CaptionScores()
    scores.update([{"id": "b", "caption": "first", "references": []}, {"id": "a", "caption": "x", "references": []}])
    scores.update([{"id": "b", "caption": "second", "references": []}])
    records, values = scores.compute()
    assert [(r["id"], r["caption"]) for r in records] == [("a", "x"), ("b", "first")]
    assert values is None


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [None, "clip"])
def test_a_checkpoint_needs_no_training_captions(vocabulary: str | None, tmp_path: Path) -> None:
    class NothingToTrainOn(TinyPairs):
        def train_captions(self) -> list[str]:
            return []

    trainer = Trainer(**QUIET, max_steps=1, default_root_dir=tmp_path)
    trainer.fit(TinyCaptioner(vocabulary=vocabulary), TinyPairs(batch_size=4))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    again = TinyCaptioner.load_from_checkpoint(tmp_path / "whole.ckpt", weights_only=True)
    (scores,) = Trainer(**QUIET).test(again, NothingToTrainOn(batch_size=4), verbose=False)
    assert "test/CIDEr-D" in scores


def test_words_are_needed_from_somewhere() -> None:
    class NothingToTrainOn(TinyPairs):
        def train_captions(self) -> list[str]:
            return []

    with pytest.raises(DataError, match="has no captions to build the vocabulary from"):
        Trainer(**QUIET).test(TinyCaptioner(), NothingToTrainOn(batch_size=4))


def test_the_size_of_the_training_images_travels_with_the_checkpoint(trained: TinyCaptioner, tmp_path: Path) -> None:
    sample = TinySource(1, 901).load(0)
    side = list(sample.before.shape[1:])
    again = load_captioner(trained.folder / "tiny.ckpt")  # type: ignore[operator]
    assert again.hparams["input_spec"]["size"] == side and again.input_spec.channels == 3
    twice = [
        torch.nn.functional.interpolate(image[None].float(), scale_factor=2).to(torch.uint8)[0]
        for image in (sample.before, sample.after)
    ]
    assert again.describe(*twice).text == again.describe(sample.before, sample.after).text
    again.save_pretrained(tmp_path / "folder")
    assert TinyCaptioner.from_pretrained(tmp_path / "folder").input_spec.size == tuple(side)


def test_a_prediction_of_larger_files_is_made_at_the_trained_size(trained: TinyCaptioner) -> None:
    class Larger(TinyPairs):
        def source(self, split: Any) -> Any:
            return _Enlarged(super().source(split))

    again = load_captioner(trained.folder / "tiny.ckpt")  # type: ignore[operator]
    plain, larger = (
        [record for batch in Trainer(**QUIET).predict(again, data) or [] for record in batch]
        for data in (TinyPairs(batch_size=4), Larger(batch_size=4))
    )
    assert [record["caption"] for record in larger] == [record["caption"] for record in plain]


class _Enlarged:
    """Pairs of another source, enlarged to twice the size."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def load(self, index: int) -> PairSample:
        sample = self.source.load(index)
        sides = (
            torch.nn.functional.interpolate(i[None].float(), scale_factor=2)[0].to(torch.uint8)
            for i in (sample.before, sample.after)
        )
        return PairSample(sample.id, *sides, captions=sample.captions, change_type=sample.change_type)


def test_loaders_without_a_data_module_raise_an_error_with_advice(tmp_path: Path) -> None:
    """Without its data module, the trainer gets batches for modules that are not captioners."""
    data, trainer = TinyPairs(batch_size=4), Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path)
    with pytest.raises(ConfigError, match="TinyCaptioner has no network yet: set `vocabulary`"):
        trainer.fit(TinyCaptioner(), data.train_dataloader())
    known = TinyCaptioner(vocabulary=Vocabulary.build(data.train_captions()).words)
    with pytest.raises(
        ConfigError, match=r"TinyCaptioner got a batch that is a dict; expected .*trainer\.fit\(model, data\)"
    ):
        trainer.fit(known, data.train_dataloader())
    with pytest.raises(ConfigError, match="got a batch that is a dict"):
        trainer.test(known, data.test_dataloader(), verbose=False)
    dataset = data.dataset("train")
    trainer.fit(known, DataLoader(dataset, batch_size=4, collate_fn=known.collate))  # type: ignore[arg-type]

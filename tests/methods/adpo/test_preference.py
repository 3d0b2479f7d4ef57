"""Direct preference optimisation on a captioner. Oracle: the loss with each caption scored separately."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.plugins import GridCaptioner, GridPairs
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET, Losses, assert_same, fit, host_state
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.negatives import (
    FromData,
    Mixture,
    NegativeSource,
    RandomCaption,
    RejectedCaptions,
    SameScene,
    SelfSampled,
)
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.preference_addon import Preference, concatenate_captions
from lightning_idc.methods.adpo.preference_losses import SimPO, SmoothedDPO, ipo
from lightning_idc.methods.policy.references import NoReference, ReferencePolicy
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.models.captions import pad_captions
from lightning_idc.utils.errors import ConfigError, DataError


class RecordingNegatives(RandomCaption):
    """Records the negatives that it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[list[list[str]], list[list[str]]]] = []

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        negatives = super().draw(step, count, generator)
        self.drawn.append((step.batch.references, negatives.texts))
        return negatives


class Fixed(NegativeSource):
    """Draws the same sentence for every pair."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        return RejectedCaptions([["it turned green"] * count for _ in step.batch.ids])


def test_initial_loss_is_log_2_with_dropout_off(tmp_path: Path) -> None:
    losses = Losses()
    fit([PreferenceOptimization(), losses], tmp_path, TinyCaptioner(dropout=0.5), max_steps=1)
    assert losses.values == [pytest.approx(math.log(2), abs=1e-6)]
    with_dropout = Losses()
    fit([PreferenceOptimization(dropout=True), with_dropout], tmp_path, TinyCaptioner(dropout=0.5), max_steps=1)
    assert with_dropout.values != [pytest.approx(math.log(2), abs=1e-6)]


def test_loss_equals_scoring_each_caption_separately(tmp_path: Path) -> None:
    start = fit([], tmp_path, max_steps=3, enable_checkpointing=True)
    start.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    callback = PreferenceOptimization(beta=0.3, negatives=Fixed())
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), captions_per_pair=2)
    fit([callback], tmp_path, model, max_steps=3)
    policy, reference = model.eval(), start.eval()
    source = TinySource(4, 0)
    batch = policy.collate([source.load(i) for i in range(4)])
    addon: Any = addons_of(policy)["preference"]
    addon._log = lambda *unused: None  # the run is over
    # with gradients, as in training: under no_grad policy and reference would share the features
    loss = addon.objective(TrainingStep(policy, batch, 0, policy.encode(batch)))

    def log_prob(model: Any, index: int, caption: str) -> float:
        alone = model.collate([source.load(index)])
        tokens, mask = pad_captions([model.tokenize([caption])], 1)
        with torch.no_grad():
            return float(model.score(model.encode(alone), tokens, mask))

    expected = 0.0
    for index in range(4):
        for chosen in source.captions(index)[:2]:
            ratio = [
                log_prob(policy, index, text) - log_prob(reference, index, text) for text in (chosen, "it turned green")
            ]
            expected += math.log1p(math.exp(-0.3 * (ratio[0] - ratio[1]))) / 8
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(math.log(2), abs=1e-4)


def test_references_are_never_rejected(tmp_path: Path) -> None:
    recorder = RecordingNegatives()
    fit([PreferenceOptimization(negatives=recorder)], tmp_path)
    assert len(recorder.drawn) == 8
    for references, rejected in recorder.drawn:
        for references_of_pair, others in zip(references, rejected, strict=True):
            assert len(others) == 2 and not set(references_of_pair) & set(others)
    assert len({text for _, rows in recorder.drawn for row in rows for text in row}) > 5


@pytest.mark.slow
def test_training_prefers_chosen_captions(tmp_path: Path) -> None:
    sft = fit([], tmp_path, max_epochs=10, enable_checkpointing=True)
    sft.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    losses = Losses()
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), learning_rates={"vision": 5.0, "language": 5.0})
    fit([PreferenceOptimization(), losses], tmp_path, model, max_epochs=8)
    assert sum(losses.values[-8:]) / 8 < 0.9 * math.log(2)
    metrics = model.trainer.callback_metrics
    assert metrics["train/rewards/margins"] > 0 and 0.5 <= metrics["train/rewards/accuracies"] <= 1
    assert metrics["train/kl_proxy"] > 0
    assert metrics["train/rewards/margins"] == pytest.approx(
        metrics["train/rewards/chosen"] - metrics["train/rewards/rejected"]
    )


@pytest.mark.slow
def test_weight_zero_equals_absent(tmp_path: Path) -> None:
    absent = fit([], tmp_path)
    off = fit([PreferenceOptimization(weight=0.0)], tmp_path)
    assert_same(host_state(off), host_state(absent))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"loss": ipo}, {"loss": SmoothedDPO(0.2)}, {"length_normalise": True}, {"caption_weight": 0.5}]
)
def test_variants_train_differently(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = fit([PreferenceOptimization()], tmp_path, max_steps=3)
    varied = fit([PreferenceOptimization(**options)], tmp_path, max_steps=3)
    assert not torch.equal(plain.net.head.weight, varied.net.head.weight)


class Unchanged(TinySource):
    """Every other pair is unchanged; its captions are two of the three no-change sentences."""

    def captions(self, index: int) -> list[str]:
        return super().captions(index) if index % 2 else list(NO_CHANGE_SENTENCES[:2])


NO_CHANGE_SENTENCES = ["nothing changed", "there is no change", "both are the same"]


class HalfUnchanged(TinyPairs):
    def source(self, split: str) -> TinySource:
        return Unchanged(self.pairs if split == "train" else 5, 0 if split == "train" else 500)

    def no_change_captions(self) -> list[str]:
        return NO_CHANGE_SENTENCES


class Alternating(NegativeSource):
    """Rejects "nothing changed" in the first half of a batch and a change in the second; records ``present``."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        half = len(step.batch) // 2
        rows = [["Nothing changed" if index < half else "it turned green"] * count for index in range(len(step.batch))]
        return RejectedCaptions(rows)

    def update(self, negatives: RejectedCaptions, losses: torch.Tensor, present: torch.Tensor) -> None:
        self.present = present


def test_no_change_anchor_replaces_comparisons_with_a_change(tmp_path: Path) -> None:
    start = fit([], tmp_path, data=HalfUnchanged(), max_steps=2, enable_checkpointing=True)
    start.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    source = Alternating()
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), captions_per_pair=1, dropout=0.0)
    callback = PreferenceOptimization(beta=0.3, anchor=2.0, negatives=source)
    policy = fit([callback], tmp_path, model, data=HalfUnchanged(), max_steps=3).eval()
    batch = policy.collate([Unchanged(4, 0).load(index) for index in range(4)])
    addon: Any = addons_of(policy)["preference"]
    addon._log = lambda *unused: None  # the run is over
    step = TrainingStep(policy, batch, 0, policy.encode(batch))
    # with gradients, as in training: under no_grad policy and reference would share the features
    loss = float(addon.objective(step).detach())
    pairs = addon.compare(step, source.draw(step, 1, torch.Generator()).texts)
    # pair 0: both say that nothing changed; 1: change over no change; 2: no change over a change; 3: two changes
    chosen, rejected = (values[:, 0].tolist() for values in (pairs.chosen_logratios, pairs.rejected_logratios))
    compared_loss = sum(math.log1p(math.exp(-0.3 * (chosen[index] - rejected[index]))) for index in (0, 3))
    anchor_loss = 2.0 * 0.3 * (((chosen[1] - rejected[1]) ** 2 + rejected[1] ** 2) / 2 + chosen[2] ** 2)
    assert loss == pytest.approx((compared_loss + anchor_loss) / 4, rel=1e-4) and anchor_loss > 1e-6
    assert source.present[:, 0].tolist() == [True, False, False, True], "anchored comparisons do not reward a retriever"


@pytest.mark.slow
def test_anchor_has_no_effect_without_unchanged_pairs_or_reference(tmp_path: Path) -> None:
    with_anchor = fit([PreferenceOptimization(anchor=5.0)], tmp_path, max_steps=3)
    without = fit([PreferenceOptimization(anchor=0.0)], tmp_path, max_steps=3)
    assert_same(dict(with_anchor.state_dict()), dict(without.state_dict()))
    free = {"loss": SimPO(), "beta": 2.0, "negatives": Alternating(), "reference": NoReference()}
    models = [
        fit([PreferenceOptimization(**free, anchor=anchor)], tmp_path, data=HalfUnchanged(), max_steps=3)
        for anchor in (0.0, None)
    ]
    assert_same(*(dict(model.state_dict()) for model in models))
    with pytest.raises(ConfigError, match=r"anchor is 5, .* and reference is NoReference; leave anchor out"):
        fit([PreferenceOptimization(**free, anchor=5.0)], tmp_path, data=HalfUnchanged(), max_steps=1)
    with pytest.raises(ConfigError, match="anchor is -1"):
        PreferenceOptimization(anchor=-1.0)


def test_caption_weight_adds_the_caption_loss(tmp_path: Path) -> None:
    model = fit([PreferenceOptimization(negatives=Fixed())], tmp_path, max_steps=2)
    batch = model.eval().collate([TinySource(4, 0).load(i) for i in range(4)])
    addon: Any = addons_of(model)["preference"]
    addon._log = lambda *unused: None  # the run is over
    step = TrainingStep(model, batch, 0, model.encode(batch))
    alone = addon.objective(step)
    addon.options = replace(addon.options, caption_weight=0.25)
    torch.testing.assert_close(addon.objective(step) - alone, 0.25 * model.caption_loss(step.features, batch))


def test_absent_chosen_captions_are_masked() -> None:
    tokens, mask = pad_captions([[[1, 5, 2], [1, 6, 7, 2]], [[1, 5, 2]]], 2)
    batch = PairBatch(
        images=torch.zeros(2, 2, 3, 8, 8, dtype=torch.uint8),
        tokens=tokens,
        caption_mask=mask,
        ids=["a", "b"],
        references=[[], []],
        change_types=[None, None],
    )
    both, kept = concatenate_captions(batch, [[1, 8, 8, 8, 2]] * 4)
    assert both.shape == kept.shape == (2, 4, 5)
    assert kept.sum(-1).tolist() == [[2, 3, 4, 4], [2, 0, 4, 0]]
    assert both[1, 2].tolist() == [1, 8, 8, 8, 2]


@pytest.mark.slow
def test_mean_chosen_logratio_counts_optimizer_steps(tmp_path: Path) -> None:
    """Four accumulated batches of one pair count as much as one batch of four."""

    class LogRatios(Callback):
        def __init__(self) -> None:
            self.values: list[float] = []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *unused: Any) -> None:
            value = float(addons_of(pl_module)["preference"].mean_chosen_logratio)
            if not self.values or self.values[-1] != value:
                self.values.append(value)

    logratios = []
    for options in ({"batch_size": 4}, {"batch_size": 1, "accumulate_grad_batches": 4}):
        preference = PreferenceOptimization(negatives=FromData())
        logratios.append(LogRatios())
        data = GridPairs(batch_size=options.pop("batch_size"), seed=1)
        model = fit([preference, logratios[-1]], tmp_path, GridCaptioner(), data=data, **options)
        assert addons_of(model)["preference"]._num_steps == model.trainer.global_step == 8
    assert logratios[0].values == pytest.approx(logratios[1].values, abs=1e-6) and len(logratios[0].values) == 8


def test_displacement_warning_beyond_the_threshold(tmp_path: Path) -> None:
    model = fit([PreferenceOptimization(displacement_threshold=2.0)], tmp_path, max_steps=1)
    addon = addons_of(model)["preference"]
    assert isinstance(addon, Preference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        addon._check_displacement(-1.9)
    with pytest.warns(UserWarning, match=r"2\.5 nats less likely.*caption_weight"):
        addon._check_displacement(-2.5)


@pytest.mark.slow
def test_displacement_warning_appears_once_per_run(tmp_path: Path) -> None:
    class Certain(ReferencePolicy):
        """Gives every caption a probability of 1, so that likelihood displacement is detected for the policy."""

        def score(self, step: TrainingStep, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.zeros(mask.shape[:2])

    with pytest.warns(UserWarning, match="likelihood displacement") as caught:
        # one epoch has only 4 steps, fewer than CHECK_EVERY
        fit([PreferenceOptimization(reference=Certain())], tmp_path, max_epochs=12)
    assert sum("likelihood displacement" in str(warning.message) for warning in caught) == 1


@pytest.mark.slow
def test_negatives_json_records_every_pair(tmp_path: Path) -> None:

    fit([PreferenceOptimization(negatives=Fixed())], tmp_path)
    records = json.loads((tmp_path / "negatives.json").read_text())
    assert len(records) == 16
    first = records["000"]
    assert first["negative"] == "it turned green" and first["positive"] in TinySource(16, 0).captions(0)


def test_the_negatives_of_a_plain_trainer_go_to_the_folder_of_its_logger(tmp_path: Path) -> None:
    fit([PreferenceOptimization(negatives=Fixed())], tmp_path, logger=CSVLogger(tmp_path), max_steps=1)
    (file,) = tmp_path.rglob("negatives.json")
    assert file.parent == tmp_path / "lightning_logs" / "version_0"


@pytest.mark.slow
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole = fit([PreferenceOptimization()], tmp_path, max_epochs=3)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit([PreferenceOptimization(), saver], tmp_path, max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    # different initial weights: the reference comes from the checkpoint, not from the resumed module
    other = TinyCaptioner(captions_per_pair=2)
    resumed = fit([PreferenceOptimization()], tmp_path, other, max_epochs=3, ckpt_path=tmp_path / "half.ckpt")
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))


@pytest.mark.slow
def test_same_scene_draws_captions_of_the_scene(tmp_path: Path) -> None:
    drawn: list[tuple[list[str], list[list[str]]]] = []

    class Watched(SameScene):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            negatives = super().draw(step, count, generator)
            drawn.append((step.batch.ids, negatives.texts))
            return negatives

    # pairs 000 to 009 belong to scene 00, pairs 010 to 015 to scene 01; red, green and blue alternate
    fit([PreferenceOptimization(negatives=Watched(r"^(\d\d)\d$"))], tmp_path)
    assert drawn
    captions = TinySource(16, 0)
    for ids, rows in drawn:
        for id, row in zip(ids, rows, strict=True):
            scene = [c for i in range(16) if captions.ids[i][:2] == id[:2] for c in captions.captions(i)]
            assert set(row) <= set(scene) - set(captions.captions(int(id)))
    with pytest.raises(ConfigError, match="one scene"):
        SameScene(r"^(0)").setup(TinyPairs())
    with pytest.raises(ConfigError, match="0 groups"):
        SameScene("0")
    with pytest.raises(DataError, match="does not match the id"):
        SameScene("(x)").setup(TinyPairs())


def test_rejects_invalid_arguments(tmp_path: Path) -> None:
    for options in ({"beta": 0}, {"beta": math.nan}, {"caption_weight": -1.0}, {"image_weight": -1.0}):
        ((name, value),) = options.items()
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            PreferenceOptimization(**options)
    for sampling, message in (
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5; .* at most 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            SelfSampled(**sampling)
    model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "red"], max_length=4)
    loader = torch.utils.data.DataLoader([0])
    with pytest.raises(ConfigError, match="the trainer has none"):
        Trainer(callbacks=[PreferenceOptimization()], max_steps=1, enable_checkpointing=False, **QUIET).fit(
            model, loader
        )


# ---- sources of negatives --------------------------------------------------------------------------------


class Preferred(TinySource):
    """Pairs with a rejected caption and a margin in their meta."""

    def load(self, index: int) -> Any:
        sample = super().load(index)
        sample.meta |= {"rejected": [f"wrong of {sample.id}"], "worse": float(sample.id)}
        return sample


class PreferredPairs(TinyPairs):
    def source(self, split: str) -> Any:
        return Preferred(self.pairs if split == "train" else 7, 0 if split == "train" else 500)


class RecordingSource(NegativeSource):
    """Draws the same sentence for every pair and records the arguments of ``update``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.updates: list[tuple[RejectedCaptions, torch.Tensor, torch.Tensor]] = []

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        return RejectedCaptions([[self.text] * count for _ in step.batch.ids])

    def update(self, negatives: RejectedCaptions, losses: torch.Tensor, present: torch.Tensor) -> None:
        self.updates.append((negatives, losses, present))


@pytest.mark.slow
def test_from_data_reads_rejected_captions_and_margins(tmp_path: Path) -> None:
    plain, with_margin = Losses(), Losses()
    data = PreferredPairs(batch_size=4, seed=1)
    fit([PreferenceOptimization(negatives=FromData()), plain], tmp_path, data=data)
    records = json.loads((tmp_path / "negatives.json").read_text())
    assert len(records) == 16
    assert {id: row["negative"] for id, row in records.items()} == {id: f"wrong of {id}" for id in records}
    negatives = FromData(margin="worse")
    fit([PreferenceOptimization(negatives=negatives), with_margin], tmp_path, data=PreferredPairs(batch_size=4, seed=1))
    # M = 0 at the start, so the loss depends on the margin alone; the margin of a pair is its number
    assert plain.values[0] == pytest.approx(math.log(2), abs=1e-6) and with_margin.values[0] > 2
    with pytest.raises(DataError, match="no 'rejected' is in its meta"):
        fit([PreferenceOptimization(negatives=FromData())], tmp_path)


@pytest.mark.slow
def test_sources_receive_the_losses_of_their_negatives(tmp_path: Path) -> None:
    alone = RecordingSource("it turned green")
    fit([PreferenceOptimization(negatives=alone)], tmp_path, max_steps=2)
    assert len(alone.updates) == 2
    negatives, losses, present = alone.updates[0]
    assert losses.shape == present.shape == (4, 2) and not losses.requires_grad and len(negatives.texts) == 4
    torch.testing.assert_close(losses, torch.full((4, 2), math.log(2)))
    first, second, never = RecordingSource("one"), RecordingSource("two"), RecordingSource("three")
    mixture = Mixture([first, second, never], [3.0, 1.0, 0.0])
    fit([PreferenceOptimization(negatives=mixture)], tmp_path, max_epochs=10)
    counts = [sum(int(present.sum()) for _, _, present in source.updates) for source in (first, second, never)]
    assert sum(counts) == 10 * 16 * 2 and counts[2] == 0
    # the standard deviation of this binomial with 320 draws is 7.8; 35 are 4.5 of them
    assert abs(counts[0] - 240) < 35
    with pytest.raises(ConfigError, match="2 sources have the weights"):
        Mixture([first, second], [1.0])


@pytest.mark.slow
def test_self_sampled_negatives_are_never_references(tmp_path: Path) -> None:
    seen: list[tuple[list[list[str]], list[list[str]]]] = []

    class Watched(SelfSampled):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            negatives = super().draw(step, count, generator)
            seen.append((step.batch.references, negatives.texts))
            return negatives

    sft = fit([], tmp_path, max_epochs=25, enable_checkpointing=True)
    sft.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    fit([PreferenceOptimization(negatives=Watched())], tmp_path, TinyCaptioner(init_from=str(tmp_path / "sft.ckpt")))
    pool = {text for i in range(16) for text in TinySource(16, 0).captions(i)}
    texts = [text for references, rows in seen for row in rows for text in row]
    for references, rows in seen:
        for references_of_pair, row in zip(references, rows, strict=True):
            assert not set(references_of_pair) & set(row)
    assert any(text not in pool for text in texts), "some samples are not training captions"


def test_validation_metrics_have_trl_names(tmp_path: Path) -> None:
    callback = PreferenceOptimization(validation=True)
    model = fit([callback], tmp_path, max_epochs=1, limit_val_batches=1.0)
    names = {name for name in model.trainer.callback_metrics if name.startswith("val/")}
    assert {"val/rewards/chosen", "val/rewards/margins", "val/rewards/accuracies", "val/logps/chosen"} <= names
    assert "val/preference_loss" in names


@pytest.mark.slow
def test_negatives_json_records_the_compared_caption(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    class Watched(RandomCaption):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            for id, row in zip(step.batch.ids, step.batch.tokens[:, 0].tolist(), strict=True):
                seen[id] = step.module.vocabulary.decode(row[1:])
            return super().draw(step, count, generator)

    fit([PreferenceOptimization(negatives=Watched())], tmp_path, max_epochs=3)
    records = json.loads((tmp_path / "negatives.json").read_text())
    assert {id: row["positive"] for id, row in records.items()} == seen
    firsts = {f"{i:03d}": TinySource(16, 0).captions(i)[0] for i in range(16)}
    assert seen != firsts, "the compared caption is sampled; it is not always the first reference"

"""CLIP4IDC. Oracles: the official implementation (shared/parity/clip4idc), open_clip, and the paper's settings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import launch
from helpers.training import SILENT as QUIET
from lightning.pytorch import Trainer
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_idc.cli import main
from lightning_idc.cli.recipes.compose import load
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairFeatures, PairSample
from lightning_idc.methods.clip4idc.convert import _SHARED, _decoder, _encoder, from_official
from lightning_idc.methods.clip4idc.module import Clip4Idc, Clip4IdcRetrieval
from lightning_idc.methods.clip4idc.net import Clip4IdcNet, PairClip
from lightning_idc.methods.clip4idc.pretrain import PairNaming
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.pretraining.cell_classification import ObjectNaming
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.decoding.beam_search import beam_search, beam_search_uncached
from lightning_idc.nn.decoding.decoding import greedy, greedy_uncached
from lightning_idc.nn.retrieval import PairTextEncoder, recall_at, symmetric_cross_entropy
from lightning_idc.nn.vocabulary import EOS, SPECIALS, SpecialIds, Vocabulary, load_vocabulary
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError
from lightning_idc.utils.names import class_of

TINY: dict[str, Any] = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "head_width": 16, "layers": 3},
    "text_cfg": {"context_length": 24, "width": 32, "heads": 2, "layers": 2},
}
PAPER = Path(__file__).resolve().parents[3] / "recipes" / "paper" / "clip4idc.yaml"
COLORS = ("red", "green", "blue")


class Painted(PairSource):
    """Grey pairs in which the left or right half of the second image turns red, green or blue."""

    def __init__(self, count: int, first: int) -> None:
        self.first, self.ids = first, [f"{first + index:03d}" for index in range(count)]

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, index: int) -> tuple[int, int]:
        number = self.first + index
        return number % 3, number // 3 % 2

    def change_type(self, index: int) -> str:
        return "paint"

    def captions(self, index: int) -> list[str]:
        color, side = self.where(index)
        return [
            f"{COLORS[color]} on the {('left', 'right')[side]}",
            f"the {('left', 'right')[side]} is {COLORS[color]}",
        ]

    def load(self, index: int) -> PairSample:
        color, side = self.where(index)
        generator = torch.Generator().manual_seed(self.first + index)
        images = torch.randint(90, 110, (2, 3, 16, 16), generator=generator, dtype=torch.uint8)
        images[1, color, :, 8 * side : 8 * side + 8] = 220
        return PairSample(self.ids[index], images[0], images[1], self.captions(index))


class PaintedPairs(PairDataModule):
    def source(self, split: str) -> PairSource:
        return Painted(24, 0) if split == "train" else Painted(7, 900)


def tiny_net(seed: int = 0) -> Clip4IdcNet:
    torch.manual_seed(seed)
    vocabulary = Vocabulary([*SPECIALS, *map(str, range(20))])
    net = Clip4IdcNet(PairClip(build_clip(TINY, vocabulary), vocabulary, 2), layers=2, heads=2).eval()
    # large weights, so that an untrained network generates captions that depend on the pair and differ in length
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1 and not name.startswith("encoder.clip.transformer"):
            torch.nn.init.normal_(parameter, std=0.3)
    return net


def images(count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, 2, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


# ---- parity with the official code -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def official(shared: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    folder = shared / "parity" / "clip4idc"
    if not folder.is_dir():
        pytest.skip("the parity fixtures of CLIP4IDC are not in the shared folder")
    words = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["config"]["vocab"]
    return load_file(folder / "weights.safetensors"), load_file(folder / "io.safetensors"), words


def imported(official: tuple[dict[str, Tensor], dict[str, Tensor], int], stage: str) -> Any:
    weights, _, words = official
    stage_weights = {
        key.removeprefix(f"{stage}."): value for key, value in weights.items() if key.startswith(f"{stage}.")
    }
    return from_official(stage_weights, 3, heads=2, vocabulary=[*SPECIALS, *map(str, range(4, words))])


@pytest.mark.slow
@torch.no_grad()
def test_captioning_equals_the_official_code(official: tuple[dict[str, Tensor], dict[str, Tensor], int]) -> None:
    net, io = imported(official, "caption").net, official[1]
    tokens = net.encoder.encode_pair(torch.cat([io["batch.3"], io["batch.4"]], 1))
    torch.testing.assert_close(tokens, io["visual"], atol=1e-4, rtol=0)
    torch.testing.assert_close(net.encoder.pooled(tokens), io["pair_embedding"][:, 0], atol=1e-4, rtol=0)
    logits = net.logits(PairFeatures(tokens), io["batch.6"])
    # the official loss is the mean over all tokens of a batch; ours is the mean over pairs of each pair's token mean
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), io["batch.8"].flatten(), ignore_index=0)
    assert loss.item() == pytest.approx(io["caption_loss"].item(), abs=1e-4)
    begin = int(io["batch.6"][0, 0, 0])
    forever = SpecialIds(pad=0, bos=begin, eos=-1, suppress_tokens=())
    for search in (greedy, greedy_uncached):
        assert search(net, PairFeatures(tokens), 32, forever).ids == io["greedy_ids"].tolist()


@torch.no_grad()
def test_retrieval_equals_the_official_code(official: tuple[dict[str, Tensor], dict[str, Tensor], int]) -> None:
    net, io, words = imported(official, "retrieval").net, official[1], official[2]
    net.vocabulary.special = SpecialIds(pad=0, bos=words - 2, eos=words - 1)
    pairs = net.pooled(net.encode_pair(torch.cat([io["batch.3"], io["batch.4"]], 1)))
    # the recorded run embedded the decoder's input, which has no end token; both implementations then read the text
    # tower at the begin token
    texts = net.embed_tokens(io["batch.6"][:, 0])
    logits = net.scale * texts @ torch.nn.functional.normalize(pairs, dim=-1).T
    torch.testing.assert_close(logits, io["retrieval_logits"], atol=1e-4, rtol=0)
    assert symmetric_cross_entropy(logits).item() == pytest.approx(io["retrieval_loss"].item(), abs=1e-4)


@torch.no_grad()
def test_caption_embeddings_equal_open_clip() -> None:
    import open_clip

    torch.manual_seed(0)
    vocabulary = load_vocabulary("clip")
    clip = build_clip({**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": 20}}, vocabulary).eval()
    captions = ["The red cube moved.", "no change", "a very " * 30 + "long one"]
    expected = clip.encode_text(open_clip.tokenize(captions, context_length=20), normalize=True)
    torch.testing.assert_close(PairClip(clip, vocabulary, 2).embed_captions(captions), expected)


def test_convert_names_unknown_missing_and_untied_weights(
    official: tuple[dict[str, Tensor], dict[str, Tensor], int],
) -> None:
    weights = {k.removeprefix("caption."): v for k, v in official[0].items() if k.startswith("caption.")}
    words = [*SPECIALS, *map(str, range(4, official[2]))]
    with pytest.raises(CheckpointError, match=r"decoder\.pooler\.weight"):
        from_official({**weights, "decoder.pooler.weight": torch.zeros(2)}, 3, 2, words)
    untied = {**weights, "decoder.embeddings.position_embeddings.weight": torch.zeros(77, 64)}
    with pytest.raises(CheckpointError, match="expected tied weights"):
        from_official(untied, 3, 2, words)
    del weights["clip.ln_final.bias"]
    with pytest.raises(CheckpointError, match=r"ln_final\.bias"):
        from_official(weights, 3, 2, words)


def test_number_of_parameters_equals_table_5_of_namc() -> None:
    with torch.device("meta"):
        model = Clip4Idc()
        model.build()
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == 173.7


# ---- the network -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_cached_decoding_equals_uncached() -> None:
    net = tiny_net()
    net.bias.data[EOS] = 2.0
    features = PairFeatures(3 * torch.randn(24, 10, 32, generator=torch.Generator().manual_seed(2)))
    cached, reference = greedy(net, features, 12), greedy_uncached(net, features, 12)
    assert cached.ids == reference.ids and len({len(ids) for ids in cached.ids}) > 2
    assert cached.mean_log_probs == pytest.approx(reference.mean_log_probs, abs=1e-5)
    assert beam_search(net, features, 9, 3).ids == beam_search_uncached(net, features, 9, 3).ids


@torch.no_grad()
def test_masked_tokens_are_ignored() -> None:
    net = tiny_net()
    features = net.encode(images(2))
    mask = torch.ones(features.memory.shape[:2], dtype=torch.bool)
    mask[:, 3:6] = False
    tokens = torch.tensor([[[1, 5, 6]], [[1, 7, 8]]])
    unmasked = PairFeatures(features.memory[:, mask[0]])
    torch.testing.assert_close(net.logits(PairFeatures(features.memory, mask), tokens), net.logits(unmasked, tokens))
    greedy_unmasked, greedy_masked = greedy(net, unmasked, 8), greedy(net, PairFeatures(features.memory, mask), 8)
    assert greedy_unmasked.ids == greedy_masked.ids


def test_encoder_depends_on_the_order_and_attends_to_both_images() -> None:
    net = tiny_net().encoder
    pairs = images(1)
    tokens = net.encode_pair(net.normalized(pairs))
    swapped = net.encode_pair(net.normalized(pairs.flip(1)))
    count = net.tokens_per_image
    assert not torch.allclose(tokens[:, :count], swapped[:, count:], atol=1e-3)
    changed = pairs.clone()
    changed[:, 1] = 255 - changed[:, 1]
    assert not torch.allclose(net.encode_pair(net.normalized(changed))[:, :count], tokens[:, :count], atol=1e-4)


def test_every_trained_parameter_gets_a_gradient() -> None:
    net = tiny_net().train()
    net.logits(net.encode(images(2)), torch.tensor([[[1, 5, 6], [1, 7, 2]]] * 2)).square().mean().backward()
    without = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    frozen = {name.split(".")[2] for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {"transformer", "ln_final", "text_projection", "logit_scale"}


def test_embeddings_are_unit_vectors_and_long_captions_are_truncated() -> None:
    encoder = tiny_net().encoder
    assert isinstance(encoder, PairTextEncoder)
    long = " ".join(["5"] * 40)
    texts = encoder.embed_captions(["5 6", long, " ".join(["5"] * 22)])
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(texts[1], texts[2])
    torch.testing.assert_close(encoder.embed_pairs(images(2)).norm(dim=1), torch.ones(2))
    # padding does not change the embedding of a caption
    torch.testing.assert_close(encoder.embed_captions(["5 6"])[0], texts[0])


def test_rejects_wrong_sizes_and_settings() -> None:
    net = tiny_net()
    with pytest.raises(DataError, match="images are 8x8; expected 16x16"):
        net.encode(images()[..., :8, :8])
    with pytest.raises(ConfigError, match="intra_layers is 3"):
        PairClip(net.encoder.clip, net.encoder.vocabulary, 3)
    with pytest.raises(ConfigError, match="ViT-Q"):
        build_clip("ViT-Q", net.encoder.vocabulary)
    with pytest.raises(ConfigError, match="vocabulary: clip"):
        build_clip("ViT-B-32", net.encoder.vocabulary, "openai")
    with pytest.raises(DataError, match="more than the 24"):
        net.logits(net.encode(images(1)), torch.ones(1, 1, 25, dtype=torch.long))


def test_rejects_long_training_captions_whatever_max_length() -> None:
    class Long(Painted):
        def captions(self, index: int) -> list[str]:
            return [" ".join(["red"] * 30)]

    class LongPairs(PaintedPairs):
        def source(self, split: str) -> PairSource:
            return Long(6, 0)

    model = Clip4Idc(TINY, vocabulary=None, max_length=5, intra_layers=2, decoder_layers=1, heads=2)
    expected = r"a caption has 31 tokens, more than the 24 .*max_length.*; shorten the captions"
    with pytest.raises(DataError, match=expected):
        Trainer(max_steps=1, **QUIET).fit(model, LongPairs(batch_size=6))


# ---- the authors' optimisation ---------------------------------------------------------------------------


def paper_stage(official: tuple[dict[str, Tensor], dict[str, Tensor], int], stage: str, weights: str) -> Any:
    """Return the module and optimizer of a stage of the paper's recipe, with the network sizes of the recorded run."""
    recipe = load(PAPER, {"dataset": "clevr_change", "clip_weights": weights})
    config = next(part.config["model"]["init_args"] for part in recipe.stages if part.name == stage)
    sizes = dict(imported(official, {"adapt": "retrieval"}.get(stage, stage)).hparams)
    kind, decoder = (Clip4IdcRetrieval, {}) if stage == "adapt" else (Clip4Idc, {"decoder_layers": 3, "heads": 2})
    model = kind(
        **{name: sizes[name] for name in ("clip", "intra_layers", "vocabulary")},
        **decoder,
        learning_rates=config["learning_rates"],
        no_decay=config["no_decay"],
        optimizer=partial(class_of(config["optimizer"]["class_path"]), **config["optimizer"]["init_args"]),
    )
    model.build()
    model.trainer = Trainer(**QUIET)
    return model, model.configure_optimizers()


@pytest.mark.parametrize("weights", ["float32", "float16"])
@pytest.mark.parametrize("stage", ["adapt", "caption"])
def test_learning_rates_and_decay_equal_the_official_optimizer(
    stage: str, weights: str, official: tuple[dict[str, Tensor], dict[str, Tensor], int]
) -> None:
    new = ("ln_mid", "joint_positional_embedding", "bef_embedding", "aft_embedding")

    def rule(name: str) -> tuple[float, float]:
        """Learning rate and weight decay by name, as in the official ``prep_optimizer``."""
        has_no_decay = any(part in name for part in ("bias", "LayerNorm.bias", "LayerNorm.weight"))
        decay = 0.0 if has_no_decay else {"adapt": 0.2, "caption": 0.01}[stage]
        is_slow = "clip." in name and not (stage == "adapt" and any(f"clip.visual.{part}" in name for part in new))
        return (1e-7 if is_slow else 1e-4), decay

    prefix = {"adapt": "retrieval.", "caption": "caption."}[stage]
    names = [name.removeprefix(prefix) for name in official[0] if name.startswith(prefix)]
    # each weight is replaced by its learning rate and decay, so that the converter maps them to our names
    rates_and_decay = {name: torch.tensor([rule(name)], dtype=torch.float64) for name in names}
    expected = {f"net.{name}": value for name, value in _encoder(rates_and_decay).items()}
    if stage == "caption":
        expected = {name.replace("net.", "net.encoder."): value for name, value in expected.items()}
        expected |= {f"net.{name}": value for name, value in _decoder(_shared_as_clip(rates_and_decay), "").items()}
    model, optimizer = paper_stage(official, stage, weights)
    rate_of = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    trained = {name: rate_of[id(p)] for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) > 40 and trained.keys() <= expected.keys()
    for name, value in trained.items():
        assert value == pytest.approx(expected[name].flatten(0, -2).unique(dim=0).squeeze(0).tolist()), name
    betas = {group["betas"] for group in map(dict, optimizer.param_groups)}
    assert {tuple(pair) for pair in betas} == {(0.9, {"adapt": 0.98, "caption": 0.999}[stage])}
    assert {group["eps"] for group in optimizer.param_groups} == {1e-6}


def _shared_as_clip(rates_and_decay: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give tied weights, which the official optimizer lists once under CLIP's name, the values of that name."""
    return {
        name: rates_and_decay[_SHARED[name]] if name in _SHARED else value for name, value in rates_and_decay.items()
    }


def test_new_parameters_form_the_group_joint() -> None:
    model = Clip4IdcRetrieval(TINY, intra_layers=2, vocabulary=[*SPECIALS, "moved"], learning_rates={"joint": 10.0})
    model.build()
    groups = {group["name"]: len(group["params"]) for group in model.parameter_groups()}
    assert groups.keys() == {"joint", "vision", "language"} and groups["joint"] == 4
    for stage in load(PAPER, {"dataset": "spot_the_diff", "clip_weights": "float32"}).stages[:1]:
        schedule = stage.config["model"]["init_args"]["schedule"]
        assert schedule["class_path"].endswith("BertWarmupCosine") and schedule["init_args"] == {"warmup": 0.1}


# ---- both stages -----------------------------------------------------------------------------------------


@pytest.mark.dist
def test_two_processes_equal_one(tmp_path: Path) -> None:
    results = []
    for processes in (1, 2):
        script = Path(__file__).with_name("clip4idc_processes.py")
        launch(script, str(processes), tmp_path / f"{processes}.pt", processes=processes)
        results.append(torch.load(tmp_path / f"{processes}.pt", weights_only=True))
    single, distributed = results
    assert (
        single["metrics"].keys() == distributed["metrics"].keys() >= {"val/pair_to_text/R@1", "val/text_to_pair/R@10"}
    )
    for name, value in single["metrics"].items():
        assert name.startswith("train/") or distributed["metrics"][name] == pytest.approx(value, abs=1e-4), name
    assert max(float((value - single["start"][name]).abs().max()) for name, value in single["weights"].items()) > 1e-2
    for name, value in single["weights"].items():
        torch.testing.assert_close(distributed["weights"][name], value, rtol=0, atol=1e-12, msg=name)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Clip4IdcRetrieval]:
    torch.manual_seed(0)
    model = Clip4IdcRetrieval(TINY, intra_layers=2, vocabulary=None, optimizer=lambda p: torch.optim.AdamW(p, lr=3e-3))
    trainer = Trainer(max_epochs=2, default_root_dir=tmp_path_factory.mktemp("adapt"), **QUIET)
    trainer.fit(model, PaintedPairs(batch_size=6))
    path = tmp_path_factory.mktemp("adapted") / "adapted.ckpt"
    trainer.save_checkpoint(path)
    return path, model


@pytest.mark.slow
def test_recall_over_the_whole_split(adapted: tuple[Path, Clip4IdcRetrieval]) -> None:
    path, _ = adapted
    loaded = Clip4IdcRetrieval.load_from_checkpoint(path, weights_only=True).eval()
    metrics = Trainer(**QUIET).test(loaded, PaintedPairs(batch_size=3), verbose=False)[0]
    source = Painted(7, 900)
    samples = [source.load(index) for index in range(7)]
    texts = sorted({caption for sample in samples for caption in sample.captions})
    relevant = torch.tensor([[text in sample.captions for text in texts] for sample in samples])
    with torch.no_grad():
        stacked = torch.stack([torch.stack([sample.before, sample.after]) for sample in samples])
        similarity = loaded.embed_pairs(stacked) @ loaded.embed_captions(texts).T
    for direction, matrix, answers in (
        ("pair_to_text", similarity, relevant),
        ("text_to_pair", similarity.T, relevant.T),
    ):
        for name, value in recall_at(matrix, answers).items():
            assert metrics[f"test/{direction}/{name}"] == pytest.approx(value, abs=1e-4)


def test_mask_equal_leaves_out_shared_captions() -> None:
    model = Clip4IdcRetrieval(TINY, intra_layers=1, vocabulary=[*SPECIALS, "same", "moved"], mask_equal=True)
    model.build()
    model.trainer = Trainer(**QUIET)
    batch = {"ids": ["a", "b", "c"], "captions": [["same"], ["Same "], ["moved"]], "images": images(3)}
    features = model.encode(batch)
    logits = model.built_net.scale * features["pairs"] @ features["captions"].T
    masked = logits.clone()
    masked[0, 1] = masked[1, 0] = float("-inf")
    torch.testing.assert_close(model.training_loss(features, batch), symmetric_cross_entropy(masked))
    model.hparams["mask_equal"] = False
    torch.testing.assert_close(model.training_loss(features, batch), symmetric_cross_entropy(logits))


def test_references_take_turns_by_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Clip4IdcRetrieval(TINY, vocabulary=None)
    captions_by_epoch = []
    for epoch in range(3):
        monkeypatch.setattr(Clip4IdcRetrieval, "current_epoch", epoch)
        captions_by_epoch.append(model._captions_of_epoch(["x", "y"], [["a", "b", "c"], ["d"]]))
    assert sorted(first_id for first_id, _ in captions_by_epoch) == ["a", "b", "c"] and {
        second for _, second in captions_by_epoch
    } == {"d"}
    with pytest.raises(DataError, match="no caption to train on for y"):
        model._captions_of_epoch(["x", "y"], [["a"], []])


@pytest.mark.slow
def test_captioner_loads_the_adapted_encoder(adapted: tuple[Path, Clip4IdcRetrieval], tmp_path: Path) -> None:
    path, retrieval = adapted
    options: dict[str, Any] = {"intra_layers": 2, "decoder_layers": 1, "heads": 2, "dropout": 0.0}
    model = Clip4Idc(TINY, encoder_weights=str(path), vocabulary=None, learning_rates={"vision": 0.0}, **options)
    trainer = Trainer(max_epochs=1, **QUIET)
    trainer.fit(model, PaintedPairs(batch_size=6))
    assert model.hparams["vocabulary"] == retrieval.hparams["vocabulary"]
    assert 0 < model.hparams["max_length"] <= 24, "at most the context length of the text tower"
    assert model.hparams["no_change_captions"] == PaintedPairs().no_change_captions(), (
        "no-change captions come from the data, whatever the source of the vocabulary"
    )
    assert model.net is not None and retrieval.net is not None
    loaded_weights, expected = model.net.encoder.state_dict(), retrieval.net.state_dict()
    assert loaded_weights.keys() == expected.keys() and all(
        torch.equal(loaded_weights[key], expected[key]) for key in loaded_weights
    )
    trainer.save_checkpoint(tmp_path / "captioner.ckpt")
    path.rename(path.with_suffix(".away"))  # the captioner's checkpoint must not need this file
    try:
        loaded = load_captioner(tmp_path / "captioner.ckpt")
    finally:
        path.with_suffix(".away").rename(path)
    sample = Painted(1, 900).load(0)
    assert loaded.describe(sample.before, sample.after) == model.eval().describe(sample.before, sample.after)
    with pytest.raises(CheckpointError, match="another encoder"):
        Clip4Idc({**TINY, "embed_dim": 48}, encoder_weights=str(path), **options).build()


@pytest.mark.slow
def test_pair_naming_trains_the_tower_of_retrieval(tmp_path: Path) -> None:
    """Each token classifies its cell in both images; the class in the other image requires the joint blocks."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(0, 3, (128, 2, 1, 2, 2), generator=generator)
    images = torch.full((128, 2, 3, 16, 16), 90, dtype=torch.uint8)
    pixel_classes = cells[:, :, 0].repeat_interleave(8, 2).repeat_interleave(8, 3)
    images[:, :, 0] += (100 * (pixel_classes == 1)).to(torch.uint8)
    images[:, :, 2] += (100 * (pixel_classes == 2)).to(torch.uint8)
    torch.manual_seed(0)
    naming = PairNaming(TINY, 1, stem=True, classes=[3], optimizer=lambda p: torch.optim.AdamW(p, lr=5e-3))
    trainer = Trainer(max_epochs=16, **QUIET)
    with pytest.raises(DataError, match="2 attributes on a 4x4 grid; PairNaming predicts 2 on 2x2"):
        naming.training_step((images[:2], torch.zeros(2, 2, 1, 4, 4, dtype=torch.long)), 0)
    loaders = [DataLoader(TensorDataset(images[part], cells[part]), 16) for part in (slice(96), slice(96, 128))]
    trainer.fit(naming, *loaders)
    assert trainer.callback_metrics["val/cells_named"] > 80, "a third without joint attention"
    trainer.save_checkpoint(tmp_path / "tower.ckpt")

    options: dict[str, Any] = {"intra_layers": 1, "vocabulary": None}
    model = Clip4IdcRetrieval(TINY, stem=True, tower_weights=str(tmp_path / "tower.ckpt"), **options)
    trainer = Trainer(max_steps=0, **QUIET)
    trainer.fit(model, PaintedPairs(batch_size=6))
    learned, loaded_state = naming.tower.state_dict(), model.net.state_dict()  # type: ignore[union-attr]
    vision_keys = [key for key in learned if key.startswith("clip.visual.") or not key.startswith("clip.")]
    assert len(vision_keys) > 30 and all(torch.equal(learned[key], loaded_state[key]) for key in vision_keys)
    trainer.save_checkpoint(tmp_path / "adapted.ckpt")
    (tmp_path / "tower.ckpt").unlink()  # the checkpoint holds all weights
    again = Clip4IdcRetrieval.load_from_checkpoint(tmp_path / "adapted.ckpt", weights_only=True)
    assert torch.equal(again.net.side, model.net.side)  # type: ignore[union-attr]
    plain = Clip4IdcRetrieval(TINY, tower_weights=str(tmp_path / "adapted.ckpt"), **options)
    with pytest.raises(CheckpointError, match="holds no image tower"):
        Trainer(max_steps=0, **QUIET).fit(plain, PaintedPairs(batch_size=6))


def test_stem_normalises_images_for_its_pretrained_cnn(tmp_path: Path) -> None:
    """The tower gets images normalised for CLIP, but its CNN must get them normalised as in its own training."""
    torch.manual_seed(0)
    named = ObjectNaming(classes=[3]).eval()
    for norm in (module for module in named.backbone.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        torch.nn.init.normal_(norm.running_mean)
    trainer = Trainer(max_epochs=0, **QUIET)
    trainer.strategy.connect(named)
    trainer.save_checkpoint(tmp_path / "cnn.ckpt")
    stem = PairNaming(TINY, 1, stem=True, stem_weights=str(tmp_path / "cnn.ckpt")).eval().tower
    pairs = images()
    features = stem.clip.visual.conv1.cnn.grid(
        stem.normalized(pairs).flatten(0, 1) * stem.clip.visual.conv1.scale + stem.clip.visual.conv1.shift
    )
    torch.testing.assert_close(features, named.backbone(pairs.flatten(0, 1)), rtol=1e-4, atol=1e-5)
    assert stem.clip.visual.conv1(stem.normalized(pairs).flatten(0, 1)).shape == (6, 32, 2, 2)
    with pytest.raises(ConfigError, match="stem: true"):
        PairNaming(TINY, 1, stem_weights=str(tmp_path / "cnn.ckpt"))


def test_stem_rejects_other_patch_sizes() -> None:
    vocabulary = Vocabulary(SPECIALS)
    large = {**TINY, "vision_cfg": {**TINY["vision_cfg"], "patch_size": 16}}
    with pytest.raises(ConfigError, match="patches of 8 pixels"):
        PairClip(build_clip(large, vocabulary), vocabulary, 1, stem=True)


@pytest.mark.slow
def test_convert_command_writes_a_loadable_captioner(
    official: tuple[dict[str, Tensor], dict[str, Tensor], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # extend the embedding to CLIP's 49,408 words; the text tower of the fixture has only 300
    weights = {k.removeprefix("caption."): v for k, v in official[0].items() if k.startswith("caption.")}
    words = torch.randn(49408, 64)
    for key in list(weights):
        if weights[key].shape == (300, 64):
            weights[key] = words
    weights["decoder.classifier.cls.predictions.bias"] = torch.zeros(49408)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    source = str(tmp_path / "pytorch_model.bin")
    assert (
        main(
            ["convert", "clip4idc", source, "--out", str(tmp_path / "out.ckpt"), "--intra_layers", "3", "--heads", "2"]
        )
        == 0
    )
    assert (
        main(["convert", "clip4idc", source, "--out", str(tmp_path / "out"), "--intra_layers", "3", "--heads", "2"])
        == 0
    )
    assert "Clip4Idc with" in capsys.readouterr().out
    pair = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
    one, other = (load_captioner(tmp_path / name).describe(*pair) for name in ("out.ckpt", "out"))
    assert one == other and one.text
    assert main(["convert", "clip4idc", source, "--out", str(tmp_path / "out.ckpt")]) == 1
    assert main(["convert", "clip5idc", source, "--out", str(tmp_path / "new")]) == 2
    assert main(["convert", "clip4idc", source, "--out", str(tmp_path / "new"), "--intra_layer", "3"]) == 1
    errors = capsys.readouterr().err
    assert "exists" in errors and "clip4idc" in errors and "intra_layers" in errors
    assert main(["convert", "clip4idc"]) == 2

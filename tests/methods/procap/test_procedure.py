"""ProCap's first stage. Oracles: losses of single samples in float64, ids in float32, and an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.procap_tiny import QUIET, data, first_stage, prepared
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.methods.procap.losses import discrimination_loss, masked_sequence_loss
from lightning_idc.methods.procap.procedure import ProcedureModel, WarmupHold
from lightning_idc.nn.image_tokenizer import as_pixels
from lightning_idc.utils.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("procap"))


def built(folder: Path, **options: object) -> ProcedureModel:
    seed_everything(1, verbose=False)
    model = first_stage(folder, **options)
    model.hparams["vocabulary"] = ["<pad>", "<bos>", "<eos>", "<unk>", "the", "cube", "moved", "left", "is", "gone"]
    model.build()
    return model.eval()


def samples(folder: Path, count: int, captions: list[list[str]] | None = None) -> list[PairSample]:
    source = data(folder).pairs_of("train")
    loaded = [source.load(index) for index in range(count)]
    for index, sample in enumerate(loaded):
        sample.meta["seed"] = 100 + index
        if captions is not None:
            sample.captions = captions[index]
    return loaded


CAPTIONS = [["the cube moved"], ["the cube is gone"], ["the cube moved left"]]


def test_losses_equal_their_formulas(folder: Path) -> None:
    model = built(folder).double()
    batch = model.collate(samples(folder, 3, CAPTIONS))
    masked = torch.zeros(3, 4 * 16, dtype=torch.bool)
    masked[0, 5:40] = masked[2, ::2] = True
    masked[1] = True
    batch.model_inputs["masked"] = masked
    with torch.no_grad():
        features = model.encode(batch)
        actual = model.losses(features, batch)
        # oracle: each version of each sample is encoded alone, without padding
        msm, align, order = [], [], []
        net = model.net
        for row in range(3):
            frames, warped = (
                net.tokenizer_features(batch.model_inputs[name][row : row + 1]) for name in ("frames", "warped")
            )
            words_of_pair, other = words_of(batch, row), words_of(batch, int(batch.model_inputs["wrong_caption"][row]))
            true, swapped, broken = (
                net(visual, masked[row : row + 1], words, torch.ones_like(words).bool())
                for visual, words in ((frames, words_of_pair), (frames, other), (warped, words_of_pair))
            )
            logits = net.code_head(true.visual[0, masked[row]])
            msm.append(F.cross_entropy(logits, net.targets(None, frames)[0, masked[row]], reduction="none"))
            if row != 1:
                align.append(bce(net.align_head(true.align), 1) + bce(net.align_head(swapped.align), 0))
                heads = net.consistency_head
                order.append(bce(heads(true.consistency), 1) + bce(heads(broken.consistency), 0))
    assert torch.allclose(actual["msm"].double(), torch.cat(msm).mean(), atol=1e-6)
    assert torch.allclose(actual["align"].double(), torch.stack(align).mean(), atol=1e-6)
    assert torch.allclose(actual["consistency"].double(), torch.stack(order).mean(), atol=1e-6)


def words_of(batch: PairBatch, row: int) -> Tensor:
    tokens = batch.tokens[row, 0, 1:]
    return tokens[tokens != 0][None]


def bce(logit: Tensor, target: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logit[0, 0], torch.tensor(target).to(logit))


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ((0.1, 0.7, 0.1), "expected 4 values"),
        ((0.0, 0.0, 0.0, 0.0), "expected the probabilities of .*at least one above 0"),
        ((1.0, -0.1, 0.1, 0.0), r"mask_probabilities\[1\] is -0.1; expected at least 0"),
    ],
)
def test_rejects_invalid_mask_probabilities(probabilities: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProcedureModel("procedures", mask_probabilities=probabilities)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss_weights": (1.0, 1.0)}, r"loss_weights is \(1.0, 1.0\); expected 3 values"),
        ({"loss_weights": (0.0, 0.0, 0.0)}, "at least one above 0"),
        (
            {"loss_weights": (0.0, 1.0, 0.0), "read_caption": False},
            "without `read_caption` the one of alignment does not count",
        ),
        ({"loss_weights": (1.0, -1.0, 0.0)}, r"loss_weights\[1\] is -1.0; expected at least 0"),
        ({"keyframes": -1}, "keyframes is -1; expected at least 0"),
    ],
)
def test_rejects_invalid_arguments(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ProcedureModel("procedures", **options)


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_targets_under_autocast_equal_float32(kind: torch.dtype, variant: str, folder: Path) -> None:
    model = built(folder, variant=variant)
    frames = model.collate(samples(folder, 8, [["the cube moved"]] * 8)).model_inputs["frames"]
    net, tokenizer = model.built_net, model.built_net.tokenizer
    # many entries near the cells, so that rounding would change ids
    cells = tokenizer.quant_conv(tokenizer.features(as_pixels(frames.flatten(0, 1)))).movedim(1, -1).flatten(0, 2)
    entries = cells[torch.randperm(len(cells))[:512]] + 0.02 * torch.randn(512, cells.shape[1])
    tokenizer.codebook.weight = torch.nn.Parameter(entries.detach(), requires_grad=False)
    expected = tokenizer.encode(frames.flatten(0, 1)).view(len(frames), -1)
    assert len(expected.unique()) > 50
    with torch.autocast("cpu", kind):
        assert torch.equal(net.targets(frames, net.tokenizer_features(frames)), expected)


def test_losses_without_samples_are_zero() -> None:
    logits = torch.randn(4, requires_grad=True)
    no_samples = torch.zeros(4, dtype=torch.bool)
    loss = discrimination_loss(logits, logits, no_samples, no_samples) + masked_sequence_loss(
        torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.long)
    )
    assert float(loss.detach()) == 0
    loss.backward()
    assert logits.grad is not None and not logits.grad.any()


def test_negative_captions_are_never_references(folder: Path) -> None:
    model = built(folder)
    same = [["the cube moved"], ["the cube moved"], ["the cube is gone"]]
    assert model.collate(samples(folder, 3, same)).model_inputs["wrong_caption"].tolist() == [2, 2, 0]
    captions_of_pairs = [["the cube moved"], ["the cube is gone"], ["the cube is gone"]]
    chosen = samples(folder, 3, captions_of_pairs)
    chosen[1].captions.append("the cube moved")
    # no matter which of its two captions is sampled for the second pair, the other one is not its negative
    assert model.collate(chosen).model_inputs["wrong_caption"][1] == -1
    alone = model.collate(samples(folder, 1, CAPTIONS))
    assert alone.model_inputs["wrong_caption"].tolist() == [-1]
    actual = model.losses(model.encode(alone), alone)
    assert all(bool(torch.isfinite(value)) for value in actual.values())


def test_captions_of_unchanged_pairs_are_not_negatives_of_unchanged_pairs(folder: Path) -> None:
    model = built(folder)
    chosen = samples(folder, 3, [["the cube is left"], ["the cube is the cube"], ["the cube moved"]])
    for sample, kind in zip(chosen, ("no_change", "no_change", "move"), strict=True):
        sample.change_type = kind
    assert model.collate(chosen).model_inputs["wrong_caption"].tolist() == [2, 2, 0]


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_read_caption_false(folder: Path, variant: str) -> None:
    model = built(folder, read_caption=False, variant=variant, dropout=0.0, keyframes=0)
    actual = []
    for captions in (CAPTIONS, [["the cube moved"], ["left gone"], ["the"]]):
        batch = model.collate(samples(folder, 3, captions))
        assert batch.model_inputs["frames"].shape[1] == 2, "k = 0 is the pair"
        features = model.encode(batch)
        actual.append((features.memory, model.training_loss(features, batch)))
    assert torch.allclose(actual[0][0], actual[1][0], atol=1e-6) and torch.allclose(
        actual[0][1], actual[1][1], atol=1e-5
    )
    losses, weights = model.losses(features, batch), model.hparams["loss_weights"]
    assert torch.allclose(actual[1][1], weights[0] * losses["msm"] + weights[2] * losses["consistency"])


def test_masks_and_warps_do_not_depend_on_the_batch(folder: Path) -> None:
    model = built(folder)
    torch.manual_seed(1)
    batch = model.collate(samples(folder, 3, CAPTIONS))
    torch.manual_seed(2)
    again = model.collate(samples(folder, 2, CAPTIONS))
    assert torch.equal(batch.model_inputs["masked"][:2], again.model_inputs["masked"])
    assert torch.equal(batch.model_inputs["frames"][:2], again.model_inputs["frames"])
    assert not torch.equal(batch.model_inputs["warped"], batch.model_inputs["frames"])


def test_long_and_missing_captions(folder: Path) -> None:
    model = built(folder)
    batch = model.collate(samples(folder, 2, [["cube " * 300], ["left"]]))
    assert batch.tokens.shape[-1] > 300
    assert all(bool(torch.isfinite(value)) for value in model.losses(model.encode(batch), batch).values())
    with pytest.raises(DataError, match="1 pairs have no caption"):
        model.collate(samples(folder, 2, [["left"], []]))


def fit(folder: Path, home: Path, resume: Path | None = None) -> ProcedureModel:
    seed_everything(7, verbose=False)
    model = first_stage(folder, optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3), schedule=WarmupHold(0.5))
    saver = ModelCheckpoint(dirpath=home, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    Trainer(**QUIET, max_epochs=2, callbacks=[saver]).fit(model, data(folder), ckpt_path=resume, weights_only=True)
    return model


@pytest.mark.slow
def test_resume_equals_uninterrupted_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    expected = fit(folder, tmp_path / "whole").state_dict()
    # an epoch has three steps, so the second and the fourth are in the middle of an epoch
    for step in (2, 4):
        resumed = fit(folder, tmp_path / "rest", tmp_path / "whole" / f"step={step}.ckpt").state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in resumed.items())


@pytest.mark.slow
def test_training_metrics_and_reconstruction(folder: Path, tmp_path: Path) -> None:
    seed_everything(3, verbose=False)
    model = first_stage(folder, dropout=0.0, optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3))
    trainer = Trainer(**QUIET, max_epochs=12, default_root_dir=tmp_path, enable_checkpointing=False)
    trainer.fit(model, data(folder, val_pairs=2))
    after = trainer.callback_metrics
    fresh = first_stage(folder, dropout=0.0)
    before = Trainer(**QUIET, enable_checkpointing=False).validate(fresh, data(folder, val_pairs=2), verbose=False)[0]
    assert float(after["val/msm"]) < before["val/msm"] - 0.1
    assert set(before) == {
        f"val/{name}"
        for name in ("loss", "msm", "align", "consistency", "patches_right", "alignment_right", "consistency_right")
    }
    batch = model.collate(samples(folder, 3))
    pictures = model.reconstruct(batch)
    assert pictures.shape == batch.model_inputs["frames"].shape and pictures.dtype == torch.uint8
    batch.model_inputs["masked"][:] = False
    ids = model.net.tokenizer.encode(batch.model_inputs["frames"].flatten(0, 1))
    assert torch.equal(model.reconstruct(batch).flatten(0, 1), (model.net.tokenizer.decode(ids) * 255).round().byte())


def test_warmup_hold() -> None:
    schedule = WarmupHold()
    assert schedule(0.0) == pytest.approx(0.01) and schedule(0.025) == schedule(1.0) == 1.0
    assert schedule(0.0125) == pytest.approx(0.505)

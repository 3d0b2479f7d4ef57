"""Interpolation: known motions, the null model, and a folder of procedures that an interrupted run continues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_idc.data.store.growing import KeyedStore
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.methods.procap.flow import CrossFade, DISMidpoint, FlowMidpoint, RAFTMidpoint, blend, warp
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator, FrameSimilarity, interpolate
from lightning_idc.methods.procap.procedures import SIMILARITIES, ProcedureFolder
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError

pytest.importorskip("cv2", reason="OpenCV is not installed; it also sets environment variables when first imported")


def texture(height: int = 64, width: int = 96) -> Tensor:
    """Return a smooth random image ``(3, H, W)``."""
    coarse = torch.rand(1, 3, height // 8, width // 8, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0].clamp(0, 1) * 255


def sliding(shift: int) -> Tensor:
    """Crop the texture; the crop is shifted to the right by ``shift`` pixels."""
    return texture()[:, :, 16 + shift : 80 + shift]


def pair(shift: int = 8) -> Tensor:
    return torch.stack([sliding(0), sliding(shift)])[None].round().byte()


def error(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float())[..., 8:-8, 8:-8].abs().mean())


def test_cross_fade_is_linear() -> None:
    images = torch.tensor([0, 80], dtype=torch.uint8).view(1, 2, 1, 1, 1).expand(1, 2, 3, 4, 4)
    frames = interpolate(images, 7, CrossFade())
    assert frames.dtype == torch.uint8 and frames.shape == (1, 7, 3, 4, 4)
    assert frames[0, :, 0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize("frames", [3, 7, 15])
def test_translation_is_interpolated_evenly(frames: int) -> None:
    actual = interpolate(pair(), frames, DISMidpoint())[0]
    faded = interpolate(pair(), frames, CrossFade())[0]
    for step in range(frames):
        displacement = 8 * (step + 1) / (frames + 1)
        if displacement == int(displacement):
            true = sliding(int(displacement))
            assert error(actual[step], true) < 0.25 * error(faded[step], true)


def test_blend_with_the_true_flow() -> None:
    images = pair().float()
    # the content at p in the first image is 8 pixels further left in the second
    forth = torch.zeros(1, 2, 64, 64)
    forth[:, 0] = -8
    middle = blend(images[:, 0], images[:, 1], forth, -forth)
    assert error(middle[0], sliding(4)) < 1.0


def test_pixels_come_from_the_image_whose_flows_agree() -> None:
    before, after = torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), 200.0)
    forward_flow, backward_flow = torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 16)
    assert torch.allclose(blend(before, after, forward_flow, backward_flow), torch.full((1, 3, 16, 16), 100.0))
    # the left half of before moves to the right half of after; the flows of both other halves are 0, which is wrong
    forward_flow[:, 0, :, :8], backward_flow[:, 0, :, 8:] = 8.0, -8.0
    frame = blend(before, after, forward_flow, backward_flow)
    assert frame[..., :4].max() < 1 and frame[..., 12:].min() > 199
    assert torch.allclose(frame[..., 7], torch.tensor(100.0))  # both agree here


def test_warp_samples_along_the_flow() -> None:
    image = torch.arange(5.0).view(1, 1, 1, 5)
    flow = torch.zeros(1, 2, 1, 5)
    flow[:, 0] = 1.5
    assert warp(image, flow).flatten().tolist() == [1.5, 2.5, 3.5, 4.0, 4.0]


def test_rejects_other_numbers_of_frames() -> None:
    for frames in (0, 2, 8):
        with pytest.raises(ConfigError, match="1, 3, 7, 15"):
            interpolate(pair(), frames, CrossFade())


def test_raft_midpoint(tmp_path: Path) -> None:
    from torchvision.models.optical_flow import raft_small

    with pytest.raises(CheckpointError, match="no RAFT weights"):
        RAFTMidpoint(str(tmp_path / "absent.pth"))
    torch.manual_seed(0)
    torch.save(raft_small(weights=None).state_dict(), tmp_path / "raft.pth")
    with pytest.raises(CheckpointError, match="raft_large"):
        RAFTMidpoint(str(tmp_path / "raft.pth"), size="large")
    actual = interpolate(pair(), 1, RAFTMidpoint(str(tmp_path / "raft.pth"), size="small", updates=1))
    assert actual.shape == (1, 1, 3, 64, 64)


class Sideways(FlowMidpoint):
    """A user-defined backend: every pixel moves by the same offset."""

    def flow(self, start: Tensor, end: Tensor) -> Tensor:
        return torch.ones(len(start), 2, *start.shape[2:])


def test_custom_midpoint() -> None:
    assert interpolate(pair(), 1, Sideways()).shape == (1, 1, 3, 64, 64)


class Counting(CrossFade):
    """Counts the frames that it computes, and can stop like a killed process."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.made, self.stop_after = 0, stop_after

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        if self.stop_after is not None and self.made >= self.stop_after:
            raise KeyboardInterrupt
        self.made += len(before)
        return super().forward(before, after)


class Faded(CrossFade):
    """Has the qualified name of CrossFade, but also a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))


Faded.__qualname__ = CrossFade.__qualname__


def likeness(pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
    ends, between = pairs.float().mean((2, 3, 4)), frames.float().mean((2, 3, 4))
    return (ends[:, :, None] - between[:, None]).abs()


class Likeness(torch.nn.Module):
    forward = staticmethod(likeness)


def data(folder: Path) -> EveryPair:
    inner = SyntheticPairs(
        train_pairs=5, val_pairs=2, test_pairs=2, render_size=16, cache_dir=folder / "cache", progress=False
    )
    return EveryPair(inner, splits=["train", "val"], batch_size=2)


def predict(model: pl.LightningModule, pairs: EveryPair) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.predict(model, pairs, return_predictions=False)


def test_stopped_interpolation_continues(tmp_path: Path) -> None:
    pairs = data(tmp_path)
    predict(FrameInterpolator(str(tmp_path / "whole"), 3, CrossFade(), Likeness()), pairs)
    # the class name is part of the settings, so both runs use the same class
    first, second = Counting(stop_after=6), Counting()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        predict(FrameInterpolator(str(tmp_path / "parts"), 3, first, Likeness()), pairs)
    assert 0 < len(ProcedureFolder(tmp_path / "parts")) < 7
    predict(FrameInterpolator(str(tmp_path / "parts"), 3, second, Likeness()), pairs)
    assert first.made + second.made == 7 * 3, "no frame was made twice"
    complete, parts = ProcedureFolder(tmp_path / "whole"), ProcedureFolder(tmp_path / "parts")
    assert len(complete) == len(parts) == 7
    for split in ("train", "val"):
        source = pairs.data.pairs_of(split)  # type: ignore[arg-type]
        for sample in (source.load(index) for index in range(len(source))):
            one, other = (folder.of(sample.id, sample.before, sample.after) for folder in (complete, parts))
            assert torch.equal(one.frames, other.frames)
            assert one.similarities is not None and torch.equal(one.similarities, other.similarities)
            expected = interpolate(torch.stack([sample.before, sample.after])[None], 3, CrossFade())[0]
            assert torch.equal(one.frames, expected)
    assert not list((tmp_path / "parts").glob("*.partial"))


def test_rejects_other_images_and_settings(tmp_path: Path) -> None:
    pairs = data(tmp_path)
    predict(FrameInterpolator(str(tmp_path / "frames"), 1, CrossFade()), pairs)
    folder = ProcedureFolder(tmp_path / "frames")
    sample = pairs.data.pairs_of("val").load(0)
    with pytest.raises(DataError, match="other images; use the same `image_size` and `interpolation`"):
        folder.of(sample.id, sample.after, sample.before)
    with pytest.raises(DataError, match="no procedure of the pair 'nobody'"):
        folder.of("nobody", sample.before, sample.after)
    with pytest.raises(ConfigError, match="another folder"):
        predict(FrameInterpolator(str(tmp_path / "frames"), 3, CrossFade()), pairs)
    with pytest.raises(ConfigError, match="midpoint_weights"):
        predict(FrameInterpolator(str(tmp_path / "frames"), 1, Faded(0.5)), pairs)


def test_frames_use_the_interpolation_of_the_data(tmp_path: Path) -> None:
    settings = {"train_pairs": 2, "val_pairs": 2, "test_pairs": 1, "render_size": 32, "cache_dir": tmp_path / "cache"}
    pairs = SyntheticPairs(**settings, image_size=20, interpolation="bicubic", progress=False)
    predict(FrameInterpolator(str(tmp_path / "frames"), 1, CrossFade()), EveryPair(pairs, ["val"], batch_size=2))
    folder = ProcedureFolder(tmp_path / "frames")
    for sample in pairs.dataset("val"):
        frames_of = folder.of(sample.id, sample.before, sample.after).frames
        assert torch.equal(frames_of, interpolate(torch.stack([sample.before, sample.after])[None], 1, CrossFade())[0])


class Weighted(Likeness):
    """A similarity with a weight; it can stop like a killed process."""

    def __init__(self, weight: float, stop_after: int | None = None) -> None:
        super().__init__()
        self.weight, self.left = torch.nn.Parameter(torch.tensor(weight)), stop_after

    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        return self.weight.detach() * likeness(pairs, frames, captions)


def test_rejects_similarities_of_another_model_under_the_same_name(tmp_path: Path) -> None:
    pairs, frames = data(tmp_path), str(tmp_path / "frames")
    predict(FrameInterpolator(frames, 1, CrossFade()), pairs)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        predict(FrameSimilarity(frames, Weighted(1.0, stop_after=2), "mine"), pairs)
    assert len(ProcedureFolder(frames).similarities("mine")) == 4
    for other in (Weighted(2.0), Likeness()):
        with pytest.raises(ConfigError, match=r"has similarities with the settings .*'Weighted'.*use another name"):
            predict(FrameSimilarity(frames, other, "mine"), pairs)
    assert len(ProcedureFolder(frames).similarities("mine")) == 4
    predict(FrameSimilarity(frames, Weighted(1.0), "mine"), pairs)
    predict(FrameSimilarity(frames, Weighted(2.0), "other"), pairs)
    mine, other = (ProcedureFolder(frames).similarities(name) for name in ("mine", "other"))
    assert len(mine) == len(other) == 7
    for name in mine:
        one, two = (torch.tensor(store.value(name, "scores")) for store in (mine, other))
        assert torch.allclose(2 * one, two) and one.any()


@pytest.mark.parametrize("name", ["own", "random", "", "..", "a/b"])
def test_rejects_invalid_similarity_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"name is '{name}'; expected .* such as 'visual'"):
        FrameSimilarity(str(tmp_path), Likeness(), name)


def test_similarities_without_settings_are_read_only(tmp_path: Path) -> None:
    pairs, frames = data(tmp_path), tmp_path / "frames"
    predict(FrameInterpolator(str(frames), 1, CrossFade()), pairs)
    kept = KeyedStore(frames / SIMILARITIES / "old", identity={"name": "old"})
    kept.add(["pair"], scores=np.zeros((1, 2, 1)))
    assert "pair" in ProcedureFolder(frames).similarities("old")
    with pytest.raises(ConfigError, match="use another name"):
        predict(FrameSimilarity(str(frames), Weighted(1.0), "old"), pairs)


def test_incomplete_shards_are_ignored(tmp_path: Path) -> None:
    pairs = data(tmp_path)
    predict(FrameInterpolator(str(tmp_path / "frames"), 1, CrossFade()), pairs)
    keys = sorted((tmp_path / "frames").glob("keys-*"))[0]
    lost = int(keys.name.split("-")[2])
    keys.unlink()
    assert len(ProcedureFolder(tmp_path / "frames")) == 7 - lost

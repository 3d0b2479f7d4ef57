"""FrameInterpolator: make the change between two images explicit, frame by frame (ProCap, section 3.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.source import PairSource
from lightning_idc.data.store.feature_store import weights_digest
from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.flow import DISMidpoint, Midpoint
from lightning_idc.methods.procap.keyframes import OWN, RANDOM
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class Similarity(Protocol):
    """How like each frame is to both ends: s in ProCap's eq. 2."""

    def __call__(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        """Similarities ``(B, 2, l)`` of uint8 frames ``(B, l, 3, H, W)`` to uint8 pairs ``(B, 2, 3, H, W)``."""


@torch.no_grad()
def interpolate(pairs: Tensor, frames: int, midpoint: Midpoint) -> Tensor:
    """Frames between two images by recursive midpoints; each level is one batch.

    ProCap Eq. 1

    Args:
        pairs: uint8 ``(B, 2, 3, H, W)``.
        frames: l, one less than a power of two: 1, 3, 7, 15.
        midpoint: makes the frame halfway between two.

    Returns:
        uint8 ``(B, l, 3, H, W)``, without the two ends.

    Raises:
        ConfigError: no recursion gives this number of frames.
    """
    levels = (frames + 1).bit_length() - 1
    if frames < 1 or frames + 1 != 2**levels:
        raise ConfigError(f"halving gives 1, 3, 7, 15, ... frames; {frames} were asked for")
    sequence = pairs.float()
    for _ in range(levels):
        before, after = sequence[:, :-1], sequence[:, 1:]
        middle = midpoint(before.flatten(0, 1), after.flatten(0, 1)).view_as(before)
        woven = torch.stack([before, middle], 2).flatten(1, 2)
        sequence = torch.cat([woven, sequence[:, -1:]], 1)
    return sequence[:, 1:-1].round().clamp(0, 255).to(torch.uint8)


class FrameInterpolator(LightningModule):
    """Writes the procedures of all pairs of a ``predict`` run into a folder.

    Several processes write shards of their own. A run that was stopped goes on with the pairs that are missing.

    Args:
        folder: where the procedures go.
        frames: l, frames between the two images: 1, 3, 7 or 15.
        midpoint: makes the frame halfway between two; OpenCV's DIS flow when None.
        similarity: measured for every frame and kept beside it, for the choice of keyframes; none when None.
    """

    def __init__(
        self,
        folder: str,
        frames: int = 7,
        midpoint: Midpoint | None = None,
        similarity: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.frames = frames
        self.midpoint = midpoint if midpoint is not None else DISMidpoint()
        self.similarity = similarity
        self.procedures = ProcedureFolder(folder)

    def on_predict_start(self) -> None:
        settings: dict[str, Any] = {"frames": self.frames}
        for name, part in (("midpoint", self.midpoint), ("similarity", self.similarity)):
            settings[name] = None if part is None else type(part).__qualname__
            settings[f"{name}_weights"] = None if part is None else weights_digest(part)
        self.procedures.check_settings(settings)
        self.trainer.strategy.barrier()

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[str]:
        """Write the procedures that are missing and return their ids."""
        missing = [row for row, name in enumerate(batch["ids"]) if name not in self.procedures]
        if not missing:
            return []
        pairs = batch["images"][missing]
        frames = interpolate(pairs, self.frames, self.midpoint)
        captions = [batch["captions"][row] for row in missing]
        found = None if self.similarity is None else self.similarity(pairs, frames, captions)
        ids = [batch["ids"][row] for row in missing]
        self.procedures.add(ids, pairs, frames, found)
        return ids


class FrameSimilarity(LightningModule):
    """Measures another similarity of the frames of a folder, and keeps it beside them (ProCap, Figure 4).

    Frames take gigabytes and hours; which of them are chosen depends on two numbers of each. ``similarity: NAME`` of
    ``ProcedureModel`` chooses by these numbers. A run that was stopped goes on with the pairs that are missing; another
    similarity, or other weights of it, needs another name.

    Args:
        folder: of the frames.
        similarity: measured for every frame.
        name: under which it is kept.

    Raises:
        ConfigError: the name is no name of a folder, or has a meaning of its own to `Keyframes`.
    """

    def __init__(self, folder: str, similarity: torch.nn.Module, name: str) -> None:
        super().__init__()
        if name in (OWN, RANDOM) or not name.strip(".") or "/" in name:
            raise ConfigError(
                f"name is {name!r}; expected the name of a folder other than {OWN!r} (measured by FrameInterpolator) "
                f"and {RANDOM!r} (none at all), such as 'visual'"
            )
        self.procedures, self.similarity, self.name = ProcedureFolder(folder), similarity, name

    def on_predict_start(self) -> None:
        settings = {
            "name": self.name,
            "similarity": type(self.similarity).__qualname__,
            "similarity_weights": weights_digest(self.similarity),
        }
        self._kept = self.procedures.check_similarities(self.name, settings)
        self.trainer.strategy.barrier()

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[str]:
        """Write the similarities that are missing and return the ids of their pairs."""
        import pyarrow as pa

        missing = [row for row, name in enumerate(batch["ids"]) if name not in self._kept]
        if not missing:
            return []
        pairs, ids = batch["images"][missing], [batch["ids"][row] for row in missing]
        made = [self.procedures.of(name, *pair.cpu()) for name, pair in zip(ids, pairs, strict=True)]
        frames = torch.stack([procedure.frames for procedure in made]).to(pairs.device)
        found = self.similarity(pairs, frames, [batch["captions"][row] for row in missing])
        scores = pa.array(found.double().cpu().tolist(), pa.list_(pa.list_(pa.float64())))
        self._kept.add(ids, scores=scores)
        return ids


class EveryPair(PairDataModule):
    """Predicts on several splits of another data module, one after the other.

    Args:
        data: gives the pairs; their size and how they are scaled to it, too.
        splits: names of its splits.
        batch_size: pairs per process and step.
    """

    def __init__(
        self, data: PairDataModule, splits: Sequence[Split] = ("train", "val", "test"), batch_size: PositiveInt = 32
    ) -> None:
        check_arguments(EveryPair.__init__, locals())
        super().__init__(
            batch_size=batch_size,
            num_workers=data.num_workers,
            image_size=data.image_size,
            interpolation=data.interpolation,
        )
        self.data, self.splits = data, list(splits)

    def prepare_data(self) -> None:
        self.data.prepare_data()

    def setup(self, stage: str) -> None:
        self.data.setup(stage)

    def source(self, split: Split) -> PairSource:
        return _Joined([self.data.pairs_of(name) for name in self.splits])


class _Joined(PairSource):
    """One source after another."""

    def __init__(self, sources: Sequence[PairSource]) -> None:
        self._rows = [(source, index) for source in sources for index in range(len(source))]
        self.ids = [source.ids[index] for source, index in self._rows]

    def load(self, index: int) -> PairSample:
        source, own = self._rows[index]
        return source.load(own)

    def captions(self, index: int) -> list[str]:
        source, own = self._rows[index]
        return source.captions(own)

    def change_type(self, index: int) -> str | None:
        source, own = self._rows[index]
        return source.change_type(own)

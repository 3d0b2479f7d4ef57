"""FrameInterpolator: interpolates frames between the two images of each pair (ProCap, section 3.1.1).

1. :func:`interpolate` computes l frames between two images by recursive midpoints (Eq. 1, ``flow.py``),
2. a :class:`Similarity` compares each frame with both images (Eq. 11 and 12, ``keyframes.py``), and
3. :class:`FrameInterpolator` stores frames and similarities in a folder (``procedures.py``).

Shapes: B pairs, l frames between two images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.data.store.feature_store import weights_digest
from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.flow import DISMidpoint, Midpoint
from lightning_idc.methods.procap.keyframes import INTERPOLATOR, RANDOM
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class Similarity(Protocol):
    """Similarity of each frame to both images: s in ProCap's Eq. 2."""

    def __call__(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        """Similarities ``(B, 2, l)`` of frames to the before and the after image.

        Args:
            pairs: uint8 ``(B, 2, 3, H, W)``.
            frames: uint8 ``(B, l, 3, H, W)``.
            captions: captions of each pair.
        """


@torch.no_grad()
def interpolate(pairs: Tensor, frames: int, midpoint: Midpoint) -> Tensor:
    """Frames between two images by recursive midpoints, uint8 ``(B, l, 3, H, W)``; each level is one batch.

    ProCap Eq. 1

    Args:
        pairs: uint8 ``(B, 2, 3, H, W)``.
        frames: l, one less than a power of two: 1, 3, 7, 15.
        midpoint: computes the midpoint frame of two images.

    Raises:
        ConfigError: ``frames`` + 1 is not a power of two.
    """
    levels = (frames + 1).bit_length() - 1
    if frames < 1 or frames + 1 != 2**levels:
        raise ConfigError(f"frames is {frames}; expected one less than a power of two: 1, 3, 7, 15, ...")
    sequence = pairs.float()
    for _ in range(levels):
        before, after = sequence[:, :-1], sequence[:, 1:]
        middle = midpoint(before.flatten(0, 1), after.flatten(0, 1)).view_as(before)
        interleaved = torch.stack([before, middle], 2).flatten(1, 2)
        sequence = torch.cat([interleaved, sequence[:, -1:]], 1)  # (B, 2^level + 1, 3, H, W)
    return sequence[:, 1:-1].round().clamp(0, 255).to(torch.uint8)


class FrameInterpolator(LightningModule):
    """Writes the procedures of all pairs of a ``predict`` run into a folder.

    Each process writes separate shards. If a run is stopped, the next run continues with the missing pairs.

    Args:
        folder: output folder of the procedures.
        frames: l, number of frames between the two images: 1, 3, 7 or 15.
        midpoint: computes the midpoint frame of two images; OpenCV's DIS flow when None.
        similarity: similarity of frames to both images, by which keyframes are sampled later; not computed when None.
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
        """Write the missing procedures and return their ids."""
        missing = [row for row, name in enumerate(batch["ids"]) if name not in self.procedures]
        if not missing:
            return []
        pairs = batch["images"][missing]
        frames = interpolate(pairs, self.frames, self.midpoint)
        captions = [batch["captions"][row] for row in missing]
        similarities = None if self.similarity is None else self.similarity(pairs, frames, captions)
        ids = [batch["ids"][row] for row in missing]
        self.procedures.add(ids, pairs, frames, similarities)
        return ids


class FrameSimilarity(LightningModule):
    """Adds another similarity to the frames of a folder (ProCap, Figure 4).

    ``ProcedureModel(similarity=NAME)`` then samples frames by it, without another interpolation. If a run is stopped,
    the next run continues with the missing pairs. Another similarity, or other weights of it, needs another name.

    Args:
        folder: folder of the frames.
        similarity: similarity of frames to both images.
        name: name of the similarity.

    Raises:
        ConfigError: the name is not a valid folder name, or is reserved by `Keyframes`.
    """

    def __init__(self, folder: str, similarity: torch.nn.Module, name: str) -> None:
        super().__init__()
        if name in (INTERPOLATOR, RANDOM) or not name.strip(".") or "/" in name:
            raise ConfigError(
                f"name is {name!r}; expected the name of a folder other than {INTERPOLATOR!r} (measured by "
                f"FrameInterpolator) and {RANDOM!r} (uniform), such as 'visual'"
            )
        self.procedures, self.similarity, self.name = ProcedureFolder(folder), similarity, name

    def on_predict_start(self) -> None:
        settings = {
            "name": self.name,
            "similarity": type(self.similarity).__qualname__,
            "similarity_weights": weights_digest(self.similarity),
        }
        self._store = self.procedures.check_similarities(self.name, settings)
        self.trainer.strategy.barrier()

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[str]:
        """Write the missing similarities and return the ids of their pairs."""
        import pyarrow as pa

        missing = [row for row, name in enumerate(batch["ids"]) if name not in self._store]
        if not missing:
            return []
        pairs, ids = batch["images"][missing], [batch["ids"][row] for row in missing]
        procedures = [self.procedures.of(name, *pair.cpu()) for name, pair in zip(ids, pairs, strict=True)]
        frames = torch.stack([procedure.frames for procedure in procedures]).to(pairs.device)
        similarities = self.similarity(pairs, frames, [batch["captions"][row] for row in missing])
        scores = pa.array(similarities.double().cpu().tolist(), pa.list_(pa.list_(pa.float64())))
        self._store.add(ids, scores=scores)
        return ids


class EveryPair(PairDataModule):
    """Predicts on several splits of another data module, one after the other.

    Args:
        data: data module of the pairs, with their image size and interpolation.
        splits: names of the splits.
        batch_size: number of pairs per process and step.
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
        return _ConcatenatedSource([self.data.pairs_of(name) for name in self.splits])


class _ConcatenatedSource(PairSource):
    """The pairs of several sources, one source after another."""

    def __init__(self, sources: Sequence[PairSource]) -> None:
        self._rows = [(source, index) for source in sources for index in range(len(source))]
        self.ids = [source.ids[index] for source, index in self._rows]

    def load(self, index: int) -> PairSample:
        source, local_index = self._rows[index]
        return source.load(local_index)

    def captions(self, index: int) -> list[str]:
        source, local_index = self._rows[index]
        return source.captions(local_index)

    def change_type(self, index: int) -> str | None:
        source, local_index = self._rows[index]
        return source.change_type(local_index)

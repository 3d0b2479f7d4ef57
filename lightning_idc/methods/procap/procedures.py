"""Procedures on disk: the frames between two images, written in shards by any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_idc.data.store.growing import KeyedStore
from lightning_idc.data.store.manifest import MANIFEST, Manifest, read_manifest
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import digest

SIMILARITIES = "similarities"

_REMEDY = "remove it and run FrameInterpolator again, which makes what is missing"


@dataclass(slots=True)
class Procedure:
    """The frames between two images.

    Args:
        frames: uint8 ``(l, 3, H, W)``.
        similarities: of every frame to before and after, ``(2, l)``; None where they were not measured.
    """

    frames: Tensor
    similarities: Tensor | None


class ProcedureFolder:
    """Procedures of many pairs, known by the pair's id.

    Args:
        path: folder of the store; need not exist.

    Raises:
        StoreError: the folder's manifest is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._store = KeyedStore(self.path, "procedures", _REMEDY)

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, name: str) -> bool:
        return name in self._store

    def of(self, name: str, before: Tensor, after: Tensor) -> Procedure:
        """Procedure of a pair.

        Args:
            name: id of the pair.
            before: uint8 ``(3, H, W)``.
            after: the same.

        Raises:
            DataError: the file is missing, was made between other images, or it is damaged.
        """
        if name not in self:
            raise DataError(
                f"there is no procedure of the pair {name!r} in {str(self.path)!r}, which holds {len(self)}; run "
                "FrameInterpolator over this split first"
            )
        frames, images, similarities = (self._store.value(name, cell) for cell in ("frames", "images", "scores"))
        if images != _digest(before, after):
            raise DataError(
                f"the procedure of {name!r} in {str(self.path)!r} was made between other images; use the same "
                "`image_size` and `interpolation` and no transform, or make the procedures anew"
            )
        return Procedure(torch.from_numpy(frames.copy()), None if similarities is None else torch.tensor(similarities))

    def check_settings(self, settings: dict[str, Any]) -> None:
        """Write down how the procedures are made, or check that it is as before; called by every process.

        Raises:
            ConfigError: the folder holds procedures that were made otherwise.
        """
        found = _settled(self.path, "procedures", settings)
        if found != settings:
            raise ConfigError(
                f"{str(self.path)!r} holds procedures made with {found}; these would be made with {settings}: use "
                "another folder"
            )
        self._store = KeyedStore(self.path, "procedures", _REMEDY)

    def add(self, ids: Sequence[str], pairs: Tensor, frames: Tensor, similarities: Tensor | None) -> None:
        """Write one shard, as a whole or not at all.

        Args:
            ids: N names of pairs.
            pairs: uint8 ``(N, 2, 3, H, W)``.
            frames: uint8 ``(N, l, 3, H, W)``.
            similarities: ``(N, 2, l)``.
        """
        import pyarrow as pa

        scores = [None] * len(ids) if similarities is None else similarities.double().cpu().tolist()
        self._store.add(
            ids,
            frames=frames.cpu().numpy(),
            images=[_digest(*pair.cpu()) for pair in pairs],
            scores=pa.array(scores, pa.list_(pa.list_(pa.float64()))),
        )

    def similarities(self, name: str) -> KeyedStore:
        """Similarities of the same frames to both ends, as ``FrameSimilarity`` measured them under a name.

        Args:
            name: of the measure; a folder beside the frames.
        """
        return KeyedStore(self.path / SIMILARITIES / name, "similarities", _REMEDY)

    def check_similarities(self, name: str, settings: dict[str, Any]) -> KeyedStore:
        """Similarities of a name to add to; how they are measured is written down, or checked to be as before.

        Raises:
            ConfigError: the similarities of that name were measured otherwise.
        """
        path = self.path / SIMILARITIES / name
        found = _settled(path, "similarities", settings)
        if found != settings:
            raise ConfigError(
                f"{str(path)!r} holds similarities made with {found}; these would be made with {settings}: use another "
                "name"
            )
        return self.similarities(name)


def _settled(folder: Path, what: str, settings: dict[str, Any]) -> dict[str, Any]:
    """How the rows of a store are made: as it says, or, where it is new, as is written down now."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).is_file():
        Manifest(settings).write(folder)
    return dict(read_manifest(folder, what, _REMEDY).identity)


def _digest(before: Tensor, after: Tensor) -> str:
    """Tells two pairs of images apart."""
    return digest(repr(tuple(before.shape)), before.contiguous().numpy().data, after.contiguous().numpy().data)

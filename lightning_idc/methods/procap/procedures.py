"""Procedures on disk: the frames between two images, in shards that several processes can write."""

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

_REMEDY = "remove it and run FrameInterpolator again, which adds the missing pairs"


@dataclass(slots=True)
class Procedure:
    """The frames between two images.

    Args:
        frames: uint8 ``(l, 3, H, W)``.
        similarities: similarities of the frames to before and after, ``(2, l)``; None if they were not computed.
    """

    frames: Tensor
    similarities: Tensor | None


class ProcedureFolder:
    """Store of procedures, by the id of the pair.

    Args:
        path: folder of the store; need not exist yet.

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
            after: uint8 ``(3, H, W)``.

        Raises:
            DataError: the procedure is missing, or was interpolated from other images.
        """
        if name not in self:
            raise DataError(
                f"there is no procedure of the pair {name!r} in {str(self.path)!r}, which has {len(self)} procedures; "
                "run FrameInterpolator over this split first"
            )
        frames, images, similarities = (self._store.value(name, cell) for cell in ("frames", "images", "scores"))
        if images != _digest(before, after):
            raise DataError(
                f"the procedure of {name!r} in {str(self.path)!r} was interpolated from other images; use the same "
                "`image_size` and `interpolation` and no transform, or run FrameInterpolator again"
            )
        return Procedure(torch.from_numpy(frames.copy()), None if similarities is None else torch.tensor(similarities))

    def check_settings(self, settings: dict[str, Any]) -> None:
        """Store the settings of the procedures, or compare them with the stored settings; called on all processes.

        Raises:
            ConfigError: the folder has procedures with other settings.
        """
        stored = _stored_settings(self.path, "procedures", settings)
        if stored != settings:
            raise ConfigError(
                f"{str(self.path)!r} has procedures with the settings {stored}; expected {settings}; use another folder"
            )
        self._store = KeyedStore(self.path, "procedures", _REMEDY)

    def add(self, ids: Sequence[str], pairs: Tensor, frames: Tensor, similarities: Tensor | None) -> None:
        """Write one shard atomically.

        Args:
            ids: ids of N pairs.
            pairs: uint8 ``(N, 2, 3, H, W)``.
            frames: uint8 ``(N, l, 3, H, W)``.
            similarities: ``(N, 2, l)``; None if they were not computed.
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
        """Similarities that ``FrameSimilarity`` has computed.

        Args:
            name: name of the similarity, a sub-folder of the procedures.
        """
        return KeyedStore(self.path / SIMILARITIES / name, "similarities", _REMEDY)

    def check_similarities(self, name: str, settings: dict[str, Any]) -> KeyedStore:
        """Store of a similarity; its settings are stored, or compared with the stored settings.

        Raises:
            ConfigError: there are similarities of that name with other settings.
        """
        path = self.path / SIMILARITIES / name
        stored = _stored_settings(path, "similarities", settings)
        if stored != settings:
            raise ConfigError(
                f"{str(path)!r} has similarities with the settings {stored}; expected {settings}; use another name"
            )
        return self.similarities(name)


def _stored_settings(folder: Path, content: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in the manifest of a store; a new store gets a manifest with ``settings``."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).is_file():
        Manifest(settings).write(folder)
    return dict(read_manifest(folder, content, _REMEDY).identity)


def _digest(before: Tensor, after: Tensor) -> str:
    """Digest of a pair of images."""
    return digest(repr(tuple(before.shape)), before.contiguous().numpy().data, after.contiguous().numpy().data)

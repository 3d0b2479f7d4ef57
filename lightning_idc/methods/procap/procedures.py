"""Procedures on disk: the frames between two images, written in shards by any number of processes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.core.types import PairError

SETTINGS = "settings.json"


@dataclass(slots=True)
class Procedure:
    """The frames between two images.

    Args:
        frames: uint8 ``(l, 3, H, W)``.
        similarities: of every frame to before and after, ``(2, l)``; None where they were not measured.
    """

    frames: Tensor
    similarities: Tensor | None


def fingerprint(before: Tensor, after: Tensor) -> int:
    """Number that tells two pairs of images apart."""
    first = zlib.crc32(before.contiguous().numpy().tobytes())
    return zlib.crc32(after.contiguous().numpy().tobytes(), first)


class ProcedureFolder:
    """Procedures of many pairs, known by the pair's id.

    A shard is ``<name>.npy``, uint8 ``(N, l, 3, H, W)``, and ``<name>.json``, written last, which makes it count.

    Args:
        path: folder of the shards; need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows: dict[str, tuple[str, int, int, Any]] = {}
        self._shards: dict[str, np.ndarray] = {}
        for record in sorted(self.path.glob("*.json")):
            if record.name == SETTINGS:
                continue
            entries = json.loads(record.read_text(encoding="utf-8"))
            for row, (name, print_, similarities) in enumerate(
                zip(entries["ids"], entries["fingerprints"], entries["similarities"], strict=True)
            ):
                self._rows.setdefault(name, (record.stem, row, print_, similarities))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getstate__(self) -> dict[str, Any]:
        # a pickled memory map is a copy of the whole file; workers open their own
        return {"path": self.path, "_rows": self._rows, "_shards": {}}

    def of(self, name: str, before: Tensor, after: Tensor) -> Procedure:
        """Procedure of a pair.

        Args:
            name: id of the pair.
            before: uint8 ``(3, H, W)``.
            after: the same.

        Raises:
            PairError: there is none, or it was made between other images.
        """
        if name not in self._rows:
            raise PairError(
                f"there is no procedure of the pair {name!r} in {str(self.path)!r}, which holds {len(self)}; run "
                "FrameInterpolator over this split first"
            )
        shard, row, print_, similarities = self._rows[name]
        if print_ != fingerprint(before, after):
            raise PairError(
                f"the procedure of {name!r} in {str(self.path)!r} was made between other images; use the same "
                "`image_size` and no transform, or make the procedures anew"
            )
        if shard not in self._shards:
            self._shards[shard] = np.load(self.path / f"{shard}.npy", mmap_mode="r")
        frames = torch.from_numpy(np.array(self._shards[shard][row]))
        return Procedure(frames, None if similarities is None else torch.tensor(similarities))

    def settle(self, settings: dict[str, Any]) -> None:
        """Write down how the procedures are made, or check that it is as before.

        Raises:
            PairError: the folder holds procedures that were made otherwise.
        """
        record = self.path / SETTINGS
        if record.is_file():
            found = json.loads(record.read_text(encoding="utf-8"))
            if found != settings:
                raise PairError(
                    f"{str(self.path)!r} holds procedures made with {found}; these would be made with {settings}: use "
                    "another folder"
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        _write(record, json.dumps(settings, indent=1).encode())

    def add(
        self,
        shard: str,
        ids: Sequence[str],
        pairs: Tensor,
        frames: Tensor,
        similarities: Tensor | None,
    ) -> None:
        """Write one shard, as a whole or not at all.

        Args:
            shard: name, unique to the process and batch.
            ids: N names of pairs.
            pairs: uint8 ``(N, 2, 3, H, W)``.
            frames: uint8 ``(N, l, 3, H, W)``.
            similarities: ``(N, 2, l)``.
        """
        partial = self.path / f"{shard}.npy.partial"
        with open(partial, "wb") as file:
            np.save(file, frames.cpu().numpy())
        os.replace(partial, self.path / f"{shard}.npy")
        prints = [fingerprint(*pair.cpu()) for pair in pairs]
        scores: list[Any] = [None] * len(ids) if similarities is None else similarities.double().cpu().tolist()
        entries = {"ids": list(ids), "fingerprints": prints, "similarities": scores}
        _write(self.path / f"{shard}.json", json.dumps(entries).encode())
        for row, name in enumerate(ids):
            self._rows.setdefault(name, (shard, row, prints[row], scores[row]))


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)

"""Decode once: the resized images of a split in one file that is mapped into memory, where that is faster.

A folder holds ``images.npy`` uint8 (N, 2, 3, H, W), perhaps ``boxes.pt``, and, written last, ``manifest.json``. It is
filled under another name and renamed when it is complete, by one process while others wait. Its name is a digest of all
that decides the bytes: ids, the images' files with their times and sizes, height, width and interpolation.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.core.images import Interpolation
from lightning_idc.core.types import PairError, PairSample
from lightning_idc.data.core.source import PairSource, View

VERSION = 1
"""Raise it when the same images would give other bytes."""
_CHUNK = 32
_TRIED = 16


class ShardedSource(View):
    """Another source with its images read from a shard.

    Args:
        source: of everything but images and boxes.
        folder: of the shard.
    """

    def __init__(self, source: PairSource, folder: Path) -> None:
        super().__init__(source)
        self._folder = folder
        self._open()

    def _open(self) -> None:
        # plain arrays over the mapped file: slices of the memmap class cost more
        self._images = np.asarray(np.load(self._folder / "images.npy", mmap_mode="r"))
        boxes = self._folder / "boxes.pt"
        self._boxes: list[Tensor | None] | None = torch.load(boxes, weights_only=True) if boxes.is_file() else None
        if len(self._images) != len(self.ids):
            raise PairError(f"{self._folder} holds {len(self._images)} pairs, expected {len(self.ids)}; delete it")

    def __getstate__(self) -> dict[str, Any]:
        # a pickled memory map is a copy of the whole file; workers open their own
        return {"source": self.source, "places": self.places, "ids": self.ids, "_folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def load(self, index: int) -> PairSample:
        before, after = torch.from_numpy(self._images[index].copy())
        boxes = self._boxes[index] if self._boxes is not None else None
        return PairSample(
            self.ids[index],
            before,
            after,
            list(self.captions(index)),
            self.change_type(index),
            boxes,
            meta=self.meta(index),
        )


def decoded_once(
    source: PairSource, folder: Path, size: tuple[int, int], interpolation: Interpolation, log: Callable[[str], None]
) -> PairSource:
    """The source itself, or a shard of it below ``folder`` where reading that is faster; both are timed.

    Args:
        source: whose images do not change.
        folder: of all shards.
        size: height and width.
        interpolation: how images are scaled.
        log: told which is used, and how fast both are.

    Raises:
        PairError: the source cannot tell whether its images changed, has masks, or the shard cannot be written.
    """
    sharded = ShardedSource(source, ensure(source, folder, size, interpolation))
    places = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:_TRIED].tolist()
    resized = _resized(source, size, interpolation)
    own, shard = seconds_per_pair(resized, places), seconds_per_pair(sharded.load, places)
    used: PairSource = sharded if shard < own else source
    name = "the shard" if used is sharded else "the files"
    log(f"decode_once: {1 / shard:,.0f} pairs/s from the shard, {1 / own:,.0f} from the files; reading {name}")
    return used


def seconds_per_pair(load: Callable[[int], PairSample], places: list[int]) -> float:
    """Median time to load a pair."""
    load(places[0])
    times = []
    for place in places:
        began = time.perf_counter()
        load(place)
        times.append(time.perf_counter() - began)
    return max(sorted(times)[len(times) // 2], 1e-9)


def ensure(source: PairSource, root: Path, size: tuple[int, int], interpolation: Interpolation) -> Path:
    """Folder of the shard of a source; written when it is not there yet.

    Raises:
        PairError: the source cannot tell whether its images changed, has masks, or the shard cannot be written.
    """
    from filelock import FileLock

    fingerprint = source.fingerprint()
    if fingerprint is None:
        raise PairError(
            f"decode_once needs a source that knows whether its images changed; {type(source).__name__} does not. "
            "Leave decode_once unset"
        )
    key = f"{VERSION}/{fingerprint}/{size[0]}x{size[1]}/{interpolation}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = root / f"pairs-{len(source)}x{size[0]}x{size[1]}-{digest}"
    if (folder / "manifest.json").is_file():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not (folder / "manifest.json").is_file():
                for left in root.glob(f".{folder.name}.*"):
                    shutil.rmtree(left)  # by a process that was killed: whoever writes holds the lock
                _write(source, folder, size, interpolation)
    except OSError as error:
        raise PairError(f"cannot write decoded pairs to {root}: {error}; give decode_once another folder") from error
    return folder


def _write(source: PairSource, folder: Path, size: tuple[int, int], interpolation: Interpolation) -> None:
    from tqdm.auto import tqdm

    needed, free = len(source) * 6 * size[0] * size[1], shutil.disk_usage(folder.parent).free
    if needed > free:
        raise PairError(
            f"decoded pairs need {needed / 1e6:,.0f} MB in {folder.parent}, where {free / 1e6:,.0f} MB are free; give "
            "decode_once another folder, or a smaller image_size"
        )
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        boxes: list[Tensor | None] = []
        with open(draft / "images.npy", "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(source), 2, 3, *size)}
            np.lib.format.write_array_header_1_0(file, header)
            loaded = _in_order(_resized(source, size, interpolation), len(source))
            for sample in tqdm(loaded, "decoding once", len(source), unit="pair", delay=2.0, leave=False, disable=None):
                if sample.masks is not None:
                    raise PairError(f"pair {sample.id!r} has masks, which no shard keeps; leave decode_once unset")
                file.write(torch.stack([sample.before, sample.after]).numpy().data)
                boxes.append(sample.boxes)
        if any(box is not None for box in boxes):
            torch.save(boxes, draft / "boxes.pt")
        (draft / "manifest.json").write_text(json.dumps({"version": VERSION, "pairs": len(source), "size": size}))
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:  # Ctrl-C too leaves nothing behind
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _resized(source: PairSource, size: tuple[int, int], interpolation: Interpolation) -> Callable[[int], PairSample]:
    from lightning_idc.data.transforms.pairs import Resize

    scale, nothing = Resize(size, interpolation), torch.Generator()
    return lambda index: scale(source.load(index), nothing)


def _in_order(load: Callable[[int], PairSample], count: int) -> Iterator[PairSample]:
    """All pairs in order, decoded a chunk at a time by threads."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, count, _CHUNK):
            yield from pool.map(load, range(start, min(start + _CHUNK, count)))

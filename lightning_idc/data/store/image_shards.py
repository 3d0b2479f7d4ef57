"""The resized images of a split, decoded once and mapped into memory, where reading them is faster than the files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_idc.data.source import PairSource, View
from lightning_idc.data.store.shards import StoreError, columns, write_shard
from lightning_idc.data.store.store import Store, build, fingerprint_of, rows_per_shard, shard_name, write_manifest
from lightning_idc.images.resize import Interpolation
from lightning_idc.images.types import PairError, PairSample

_CHUNK = 32
_TRIED = 16
_WHAT, _ELSEWHERE = "decoded images", "give cache_images another folder, or take a smaller image_size"


class ShardedSource(View):
    """Another source with its images read from a store of decoded ones.

    Args:
        source: of everything but images and boxes.
        folder: of the store.
    """

    def __init__(self, source: PairSource, folder: Path) -> None:
        super().__init__(source)
        self._store = Store(folder, _WHAT, f"delete {folder} and run again: the images will be decoded anew")
        if len(self._store) != len(self.ids):
            raise StoreError(f"{folder} holds {len(self._store)} pairs, expected {len(self.ids)}; delete it")
        self._images, self._boxes = self._store.column("images"), self._store.column("boxes")

    def load(self, index: int) -> PairSample:
        before, after = torch.from_numpy(self._images[index].copy())
        kept = self._boxes[index]
        boxes = None if kept is None else torch.tensor(kept["values"]).reshape(kept["shape"])
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
    """The source itself, or a store of its decoded images below ``folder`` where that is faster; both are timed.

    Args:
        source: whose images do not change.
        folder: of all decoded images.
        size: height and width.
        interpolation: how images are scaled.
        log: called with which is used, and how fast both are.

    Raises:
        PairError: the source cannot tell whether its images changed, has masks, or the store cannot be written.
    """
    sharded = ShardedSource(source, ensure(source, folder, size, interpolation))
    places = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:_TRIED].tolist()
    resized = _resized(source, size, interpolation)
    own, shard = seconds_per_pair(resized, places), seconds_per_pair(sharded.load, places)
    used: PairSource = sharded if shard < own else source
    name = "the shard" if used is sharded else "the files"
    log(f"cache_images: {1 / shard:,.0f} pairs/s from the cache, {1 / own:,.0f} from the files; reading {name}")
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
    """Folder of the decoded images of a source; written when it is not there yet, or damaged.

    Raises:
        PairError: the source cannot tell whether its images changed, has masks, or the store cannot be written.
    """
    images = source.fingerprint()
    if images is None:
        raise PairError(
            f"cache_images needs a source that knows whether its images changed; {type(source).__name__} does not. "
            "Leave cache_images unset"
        )
    identity = {"images": images, "pairs": len(source), "size": list(size), "interpolation": interpolation}
    folder = root / f"pairs-{len(source)}x{size[0]}x{size[1]}-{fingerprint_of(identity)[:16]}"

    def usable() -> bool:
        try:
            Store(folder, _WHAT, identity=identity).check()
        except StoreError:
            return False
        return True

    needed = len(source) * 6 * size[0] * size[1]
    build(folder, lambda draft: _write(source, draft, size, interpolation, identity), needed, _WHAT, _ELSEWHERE, usable)
    return folder


def _write(
    source: PairSource, folder: Path, size: tuple[int, int], interpolation: Interpolation, identity: dict[str, Any]
) -> None:
    from tqdm.auto import tqdm

    count = len(source)
    rows = rows_per_shard(count, 6 * size[0] * size[1])
    loaded = _in_order(_resized(source, size, interpolation), count)
    pairs = iter(tqdm(loaded, "decoding images", count, unit="pair", delay=2.0, leave=False, disable=None))
    starts = range(0, count, rows)
    store = write_manifest(folder, identity, len(starts))
    for number, start in enumerate(starts):
        write_shard(folder / f"{shard_name(number)}.arrow", store, _batches(pairs, min(rows, count - start)))


def _batches(pairs: Iterator[PairSample], count: int) -> Iterator[Any]:
    """Record batches of the next pairs."""
    import pyarrow as pa

    boxes = pa.struct({"values": pa.list_(pa.float32()), "shape": pa.list_(pa.int32())})
    for start in range(0, count, _CHUNK):
        chunk = [next(pairs) for _ in range(min(_CHUNK, count - start))]
        for sample in chunk:
            if sample.masks is not None:
                raise PairError(f"pair {sample.id!r} has masks, which are not cached; leave cache_images unset")
        images = torch.stack([torch.stack([sample.before, sample.after]) for sample in chunk])
        plain = [None if sample.boxes is None else _plain(sample.boxes) for sample in chunk]
        yield columns(images=images.numpy(), boxes=pa.array(plain, boxes))


def _plain(boxes: Tensor) -> dict[str, list[float] | list[int]]:
    return {"values": boxes.flatten().tolist(), "shape": list(boxes.shape)}


def _resized(source: PairSource, size: tuple[int, int], interpolation: Interpolation) -> Callable[[int], PairSample]:
    from lightning_idc.data.transforms.pairs import Resize

    scale, nothing = Resize(size, interpolation), torch.Generator()
    return lambda index: scale(source.load(index), nothing)


def _in_order(load: Callable[[int], PairSample], count: int) -> Iterator[PairSample]:
    """All pairs in order, decoded a chunk at a time by threads."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, count, _CHUNK):
            yield from pool.map(load, range(start, min(start + _CHUNK, count)))

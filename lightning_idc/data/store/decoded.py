"""Memory-mapped cache of the decoded and resized images of a split, used if it is faster than the image files.

Boxes and masks are resized and cached with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.data.source import PairSource, View
from lightning_idc.data.store.building import Plan, build, rows_per_shard
from lightning_idc.data.store.manifest import fingerprint_of, numbered
from lightning_idc.data.store.reader import Store
from lightning_idc.data.store.shards import Shard, tensor_batch, write_shard
from lightning_idc.images.resize import Interpolation
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, StoreError

_CHUNK = 32
_NUM_TIMED = 16
_TABLE = "pairs"
_COLUMNS = ("images", "boxes", "masks")


class DecodedSource(View):
    """View of a source that reads images, boxes and masks from a store of decoded images.

    Args:
        source: source of everything else.
        store: store of the decoded images.
    """

    def __init__(self, source: PairSource, store: Store) -> None:
        super().__init__(source)
        table = store.table(_TABLE)
        if len(table) != len(self.ids):
            raise StoreError(f"{store.folder} holds {len(table)} pairs, expected {len(self.ids)}; {store.remedy}")
        self._images, self._boxes, self._masks = (table.column(name) for name in _COLUMNS)

    def load(self, index: int) -> PairSample:
        before, after = torch.from_numpy(self._images[index].copy())
        stored, packed = self._boxes[index], self._masks[index]
        boxes = None if stored is None else torch.tensor(stored["values"]).reshape(stored["shape"])
        masks = None if packed is None else _unpack_masks(packed, before.shape[1:])
        return PairSample(
            self.ids[index],
            before,
            after,
            list(self.captions(index)),
            self.change_type(index),
            boxes,
            masks,
            meta=self.meta(index),
        )


def cache_decoded(
    source: PairSource, folder: Path, size: tuple[int, int], interpolation: Interpolation, log: Callable[[str], None]
) -> PairSource:
    """Build a cache of decoded images below ``folder``, time both, and return the faster of source and cache.

    Args:
        source: source with constant images.
        folder: root folder of the caches.
        size: height and width.
        interpolation: interpolation for resizing.
        log: callback for the choice and both speeds.

    Raises:
        ConfigError: the source has no fingerprint.
        StoreError: the store cannot be written.
    """
    decoded = DecodedSource(source, decode_to_store(source, folder, size, interpolation))
    timed_indices = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:_NUM_TIMED].tolist()
    from_files = seconds_per_pair(_resized(source, size, interpolation), timed_indices)
    from_store = seconds_per_pair(decoded.load, timed_indices)
    is_faster = from_store < from_files
    log(
        f"cache_images: {1 / from_store:,.0f} pairs/s from the cache, {1 / from_files:,.0f} from the files; reading "
        f"the {'cache' if is_faster else 'files'}"
    )
    return decoded if is_faster else source


def seconds_per_pair(load: Callable[[int], PairSample], indices: list[int]) -> float:
    """Measure the median time to load a pair, in seconds."""
    load(indices[0])
    times = []
    for index in indices:
        start = time.perf_counter()
        load(index)
        times.append(time.perf_counter() - start)
    return max(sorted(times)[len(times) // 2], 1e-9)


def decode_to_store(source: PairSource, root: Path, size: tuple[int, int], interpolation: Interpolation) -> Store:
    """Open the store of the decoded images of a source, after building it if it is missing or damaged.

    Args:
        source: source with constant images.
        root: root folder of the caches.
        size: height and width.
        interpolation: interpolation for resizing.

    Raises:
        ConfigError: the source has no fingerprint.
        StoreError: the store cannot be written.
    """
    images = source.fingerprint()
    if images is None:
        raise ConfigError(
            f"cache_images needs a source with a fingerprint; {type(source).__name__} has none; "
            "leave cache_images unset"
        )
    identity = {
        "images": images,
        "pairs": len(source),
        "size": list(size),
        "interpolation": interpolation,
        "columns": list(_COLUMNS),
    }
    plan = Plan(
        folder=root / f"pairs-{len(source)}x{size[0]}x{size[1]}-{fingerprint_of(identity)[:16]}",
        identity=identity,
        content="decoded images",
        size=len(source) * 6 * size[0] * size[1],
        folder_advice="set cache_images to another folder, or use a smaller image_size",
    )
    build(plan, lambda draft: _write(source, draft, plan, _resized(source, size, interpolation)))
    return plan.open()


def _write(source: PairSource, folder: Path, plan: Plan, load: Callable[[int], PairSample]) -> list[Shard]:
    from tqdm.auto import tqdm

    count, store = len(source), fingerprint_of(plan.identity)
    rows = rows_per_shard(count, plan.size // count)
    pairs = iter(
        tqdm(_in_order(load, count), "decoding images", count, unit="pair", delay=2.0, leave=False, disable=None)
    )
    return [
        write_shard(folder, store, _batches(pairs, min(rows, count - start)), table=_TABLE, part=numbered(number))
        for number, start in enumerate(range(0, count, rows))
    ]


def _batches(pairs: Iterator[PairSample], count: int) -> Iterator[Any]:
    """Yield record batches of the next pairs."""
    import pyarrow as pa

    boxes = pa.struct({"values": pa.list_(pa.float32()), "shape": pa.list_(pa.int32())})
    for start in range(0, count, _CHUNK):
        chunk = [next(pairs) for _ in range(min(_CHUNK, count - start))]
        images = torch.stack([torch.stack([sample.before, sample.after]) for sample in chunk])
        boxes_as_dicts = [None if sample.boxes is None else _boxes_to_dict(sample.boxes) for sample in chunk]
        masks = [None if sample.masks is None else np.packbits(sample.masks.numpy()).tobytes() for sample in chunk]
        yield tensor_batch(
            images=images.numpy(), boxes=pa.array(boxes_as_dicts, boxes), masks=pa.array(masks, pa.binary())
        )


def _boxes_to_dict(boxes: Tensor) -> dict[str, list[float] | list[int]]:
    return {"values": boxes.flatten().tolist(), "shape": list(boxes.shape)}


def _unpack_masks(packed: bytes, size: Sequence[int]) -> Tensor:
    """Masks ``(2, H, W)`` from their bits."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=2 * size[0] * size[1])
    return torch.from_numpy(bits.reshape(2, *size).astype(bool))


def _resized(source: PairSource, size: tuple[int, int], interpolation: Interpolation) -> Callable[[int], PairSample]:
    from lightning_idc.data.transforms.pairs import Resize

    scale, unused = Resize(size, interpolation), torch.Generator()
    return lambda index: scale(source.load(index), unused)


def _in_order(load: Callable[[int], PairSample], count: int) -> Iterator[PairSample]:
    """Yield all pairs in order, decoded by threads in chunks."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, count, _CHUNK):
            yield from pool.map(load, range(start, min(start + _CHUNK, count)))

"""On-disk cache of rendered pairs: one process renders them once and writes them atomically."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lightning_idc.data.store.building import Plan, build, rows_per_shard
from lightning_idc.data.store.manifest import fingerprint_of, numbered
from lightning_idc.data.store.shards import Shard, tensor_batch, write_shard
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.sampling import Rng, ScenePair, World
from lightning_idc.data.synthetic.truth import measure

VERSION = 3
"""Cache version; increment it when images, captions or ground truth of a key change."""
SPLIT_CODES = {"train": 0, "val": 1, "test": 2}
CHUNK = 64
"""Number of pairs rendered in one call."""


@dataclass(frozen=True, slots=True)
class Key:
    """Settings that determine every pixel and word of a split.

    Args:
        mode: one of `modes.MODES`.
        split: train, val or test.
        pairs: number of pairs.
        height: height of the images in pixels.
        width: width of the images in pixels.
        seed: seed of the data set.
        world: distribution of the scenes.
        version: cache version.
    """

    mode: str
    split: str
    pairs: int
    height: int
    width: int
    seed: int = 0
    world: World = field(default_factory=World)
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Convert the key to a JSON-compatible dictionary."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def folder(self) -> str:
        """Readable and unique folder name."""
        return f"{self.mode}-{self.split}-{self.pairs}x{self.height}x{self.width}-{fingerprint_of(self.to_dict())[:12]}"

    def plan(self, root: Path) -> Plan:
        """Plan the store of the pairs below ``root``."""
        return Plan(
            folder=root / self.folder,
            identity=self.to_dict(),
            content=f"{self.mode} {self.split}",
            size=self.pairs * (2 * self.height * self.width * 4 + 6000),
            folder_advice="render fewer or smaller pairs, or set cache_dir or $LIGHTNING_IDC_CACHE to another folder",
        )


def draw_pair(key: Key, index: int) -> ScenePair:
    """Draw the scenes and captions of one pair, determined by seed, split, index, mode and world."""
    seeds = np.random.SeedSequence([key.seed, SPLIT_CODES[key.split], index])
    return load_mode(key.mode).draw(Rng(np.random.default_rng(seeds)), key.world)


def ensure(key: Key, root: Path, progress: bool = True, workers: int | None = None) -> Path:
    """Render the pairs of a key unless they are cached, and return their folder.

    Concurrent calls are safe: one process renders, and the others wait.

    Args:
        key: pairs to render.
        root: root folder of the cache.
        progress: whether to show a progress bar.
        workers: number of rendering threads; None for one per core.

    Raises:
        StoreError: the pairs cannot be written.
    """
    plan = key.plan(root)
    build(plan, lambda draft: _render(key, draft, progress, workers or os.cpu_count() or 1))
    return plan.folder


def _chunk(key: Key, start: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]], list[list[str]]]:
    from lightning_idc.data.synthetic.render import render

    indices = range(start, min(start + CHUNK, key.pairs))
    pairs = [draw_pair(key, index) for index in indices]
    scenes = [scene for pair in pairs for scene in (pair.before, pair.after)]
    images, seen = render(scenes, key.height, key.width)
    images = images.reshape(len(pairs), 2, 3, key.height, key.width)
    seen = seen.reshape(len(pairs), 2, key.height, key.width).astype(np.int8)
    records = []
    for index, pair, object_maps in zip(indices, pairs, seen, strict=True):
        origin = {"mode": key.mode, "split": key.split, "index": index, "data_seed": key.seed}
        records.append({**origin, **measure(pair, object_maps)})
    return images, seen, records, [list(pair.captions) for pair in pairs]


def _chunks(key: Key, workers: int) -> Iterator[Any]:
    """Yield rendered chunks in order; at most two per thread are prefetched."""
    starts = deque(range(0, key.pairs, CHUNK))
    queue: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while starts or queue:
            while starts and len(queue) < 2 * workers:
                queue.append(pool.submit(_chunk, key, starts.popleft()))
            yield queue.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _render(key: Key, folder: Path, progress: bool, workers: int) -> list[Shard]:
    from tqdm.auto import tqdm

    chunks, store = _chunks(key, workers), fingerprint_of(key.to_dict())
    chunks_per_shard = -(-rows_per_shard(key.pairs, key.plan(folder).size // key.pairs) // CHUNK)
    texts: list[Any] = []
    shards = []
    with tqdm(
        total=key.pairs, desc=f"rendering {key.mode} {key.split}", unit="pair", disable=None if progress else True
    ) as bar:
        for number in range(-(-key.pairs // (CHUNK * chunks_per_shard))):
            batches = _batches(islice(chunks, chunks_per_shard), texts, bar)
            shards.append(write_shard(folder, store, batches, table="pairs", part=numbered(number)))
    return [*shards, write_shard(folder, store, texts, table="texts", part=numbered(0))]


def _batches(chunks: Iterator[Any], texts: list[Any], bar: Any) -> Iterator[Any]:
    """Yield record batches of images; batches of captions, which are stored separately, are appended to ``texts``."""
    for images, seen, records, captions in chunks:
        texts.append(tensor_batch(captions=captions, change_type=[record["change_type"] for record in records]))
        bar.update(len(records))
        yield tensor_batch(images=images, seen=seen, truth=[json.dumps(record) for record in records])

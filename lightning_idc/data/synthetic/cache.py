"""Rendered pairs on disk: made once, by one process, as a whole or not at all."""

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

from lightning_idc.data.store.shards import StoreError, columns, write_shard
from lightning_idc.data.store.store import (
    Store,
    build,
    fingerprint_of,
    read_manifest,
    rows_per_shard,
    shard_name,
    write_manifest,
)
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.sampling import Rng, ScenePair, World
from lightning_idc.data.synthetic.truth import measure

VERSION = 2
"""Raise it when the same key would give other pictures, captions or truth."""
SPLIT_CODES = {"train": 0, "val": 1, "test": 2}
CHUNK = 64
"""Pairs rendered in one call."""

_ELSEWHERE = "give another folder with `cache_dir` or $LIGHTNING_IDC_CACHE"

CacheError = StoreError
"""A folder of rendered pairs that cannot be made or used."""


@dataclass(frozen=True, slots=True)
class Key:
    """What decides every pixel and word of a split.

    Args:
        mode: a name of `modes.MODES`.
        split: train, val or test.
        pairs: number of pairs.
        height: of the pictures, pixels.
        width: of the pictures, pixels.
        seed: of the whole data set.
        world: what may be in a scene.
        version: of this code.
    """

    mode: str
    split: str
    pairs: int
    height: int
    width: int
    seed: int = 0
    world: World = field(default_factory=World)
    version: int = VERSION

    def plain(self) -> dict[str, Any]:
        """The key as JSON would give it back."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def folder(self) -> str:
        """Name of the folder, readable and unique to the key."""
        return f"{self.mode}-{self.split}-{self.pairs}x{self.height}x{self.width}-{fingerprint_of(self.plain())[:12]}"

    @property
    def bytes(self) -> int:
        """Room that the folder takes on disk, roughly."""
        return self.pairs * (2 * self.height * self.width * 4 + 6000)


def draw_pair(key: Key, index: int) -> ScenePair:
    """The scenes and captions of one pair, which depend on nothing but (seed, split, index) and the world."""
    seeds = np.random.SeedSequence([key.seed, SPLIT_CODES[key.split], index])
    return load_mode(key.mode).draw(Rng(np.random.default_rng(seeds)), key.world)


def ensure(key: Key, root: Path, progress: bool = True, workers: int | None = None) -> Path:
    """Folder with the rendered pairs of a key; renders them when they are not there yet.

    Several processes may ask at once: one renders, the others wait for it.

    Args:
        root: folder of all rendered data.
        progress: show a bar with the time left.
        workers: threads that render; None for one per core.

    Raises:
        CacheError: the folder is damaged or of another version, or cannot be written.
    """
    folder = root / key.folder
    build(
        folder,
        lambda draft: _render(key, draft, progress, workers or os.cpu_count() or 1),
        key.bytes,
        f"{key.mode} {key.split}",
        "take fewer or smaller pairs, or give another folder with `cache_dir` or $LIGHTNING_IDC_CACHE",
    )
    open_pairs(folder, key).check()
    return folder


def _chunk(key: Key, start: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]], list[list[str]]]:
    from lightning_idc.data.synthetic.render import render

    indices = range(start, min(start + CHUNK, key.pairs))
    pairs = [draw_pair(key, index) for index in indices]
    scenes = [scene for pair in pairs for scene in (pair.before, pair.after)]
    images, seen = render(scenes, key.height, key.width)
    images = images.reshape(len(pairs), 2, 3, key.height, key.width)
    seen = seen.reshape(len(pairs), 2, key.height, key.width).astype(np.int8)
    records = []
    for index, pair, shown in zip(indices, pairs, seen, strict=True):
        origin = {"mode": key.mode, "split": key.split, "index": index, "data_seed": key.seed}
        records.append({**origin, **measure(pair, shown)})
    return images, seen, records, [list(pair.captions) for pair in pairs]


def _chunks(key: Key, workers: int) -> Iterator[Any]:
    """Chunks in order, at most two per thread ahead of the one that is read."""
    starts = deque(range(0, key.pairs, CHUNK))
    waiting: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while starts or waiting:
            while starts and len(waiting) < 2 * workers:
                waiting.append(pool.submit(_chunk, key, starts.popleft()))
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _render(key: Key, folder: Path, progress: bool, workers: int) -> None:
    from tqdm.auto import tqdm

    chunks = _chunks(key, workers)
    each = -(-rows_per_shard(key.pairs, key.bytes // key.pairs) // CHUNK)  # chunks per shard
    shards = -(-key.pairs // (CHUNK * each))
    store = write_manifest(folder, key.plain(), shards)
    what = f"rendering {key.mode} {key.split}"
    with tqdm(total=key.pairs, desc=what, unit="pair", disable=None if progress else True) as bar:
        for number in range(shards):
            about: dict[str, list[Any]] = {"captions": [], "kinds": []}
            batches = _batches(islice(chunks, each), about, bar)
            write_shard(folder / f"{shard_name(number)}.arrow", store, batches, about=about)


def _batches(chunks: Iterator[Any], about: dict[str, list[Any]], bar: Any) -> Iterator[Any]:
    """Record batches of chunks; captions and types of change go into ``about``, where they are read without a shard."""
    for images, seen, records, texts in chunks:
        about["captions"] += texts
        about["kinds"] += [record["change_type"] for record in records]
        bar.update(len(records))
        yield columns(images=images, seen=seen, truth=[json.dumps(record) for record in records])


def open_pairs(folder: Path, key: Key) -> Store:
    """The rendered pairs of a key.

    Raises:
        CacheError: the folder is not exactly what the key asks for: another version wrote it, or shards are missing.
    """
    what, remedy = "rendered pairs", f"delete {folder} and run again: it will be rendered anew"
    version = read_manifest(folder, what, remedy)["identity"].get("version")
    if version != key.version:
        raise CacheError(
            f"{folder} was rendered by version {version} of the synthetic data, this is version {key.version}; {remedy}"
        )
    return Store(folder, what, remedy, key.plain())

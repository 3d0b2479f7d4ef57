"""Rendered pairs on disk: made once, by one process, whole or not at all.

A folder holds ``images.npy`` uint8 (N, 2, 3, H, W), ``seen.npy`` int8 (N, 2, H, W), ``records.jsonl`` with its
``offsets.npy``, ``captions.json`` and, written last, ``manifest.json``. It is filled under another name and renamed
when it is complete. Files are written in order, never through a memory map: a full disk is then an error, not a crash.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_idc.core.types import PairError
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.sampling import Dice, ScenePair, World
from lightning_idc.data.synthetic.truth import measure

VERSION = 1
"""Raise it when the same key would give other pictures, captions or truth."""
SPLIT_CODES = {"train": 0, "val": 1, "test": 2}
CHUNK = 64
"""Pairs rendered in one call."""

_ELSEWHERE = "give another folder with `cache_dir` or $LIGHTNING_IDC_CACHE"


class CacheError(PairError):
    """A folder of rendered pairs that cannot be made or used."""


def default_cache_dir() -> Path:
    """``$LIGHTNING_IDC_CACHE``, or ``~/.cache/lightning_idc``."""
    return Path(os.environ.get("LIGHTNING_IDC_CACHE") or Path.home() / ".cache" / "lightning_idc")


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
        digest = hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.mode}-{self.split}-{self.pairs}x{self.height}x{self.width}-{digest}"

    @property
    def bytes(self) -> int:
        """Room that the folder takes on disk, roughly."""
        return self.pairs * (2 * self.height * self.width * 4 + 6000)


def draw_pair(key: Key, index: int) -> ScenePair:
    """The scenes and captions of one pair, which depend on nothing but (seed, split, index) and the world."""
    seeds = np.random.SeedSequence([key.seed, SPLIT_CODES[key.split], index])
    return load_mode(key.mode).draw(Dice(np.random.default_rng(seeds)), key.world)


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
    from filelock import FileLock

    folder = root / key.folder
    if folder.exists():
        check(folder, key)
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{key.folder}.lock"):
            if not folder.exists():
                for left in root.glob(f".{key.folder}.*"):
                    shutil.rmtree(left)  # by a process that was killed: whoever renders holds the lock
                _render(key, folder, progress, workers or os.cpu_count() or 1)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(key, root) from error
        raise CacheError(f"cannot write rendered pairs to {root}: {error}; {_ELSEWHERE}") from error
    check(folder, key)
    return folder


def _full(key: Key, root: Path) -> CacheError:
    available = shutil.disk_usage(root).free
    return CacheError(
        f"{key.mode} {key.split} needs {key.bytes / 1e6:.0f} MB in {root}, where {available / 1e6:.0f} MB are free; "
        f"nothing was kept. Make room, take fewer or smaller pairs, or {_ELSEWHERE}"
    )


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

    root = folder.parent
    if shutil.disk_usage(root).free < key.bytes:
        raise _full(key, root)
    draft = Path(tempfile.mkdtemp(prefix=f".{key.folder}.", dir=root))
    try:
        shapes = {"images": ("|u1", (3, key.height, key.width)), "seen": ("|i1", (key.height, key.width))}
        files = {name: open(draft / f"{name}.npy", "wb") for name in shapes}  # noqa: SIM115 - closed below
        offsets, captions, kinds = [0], [], []
        bar = tqdm(
            total=key.pairs, desc=f"rendering {key.mode} {key.split}", unit="pair", disable=None if progress else True
        )
        with bar, files["images"], files["seen"], open(draft / "records.jsonl", "wb") as lines:
            for name, (kind, shape) in shapes.items():
                header = {"descr": kind, "fortran_order": False, "shape": (key.pairs, 2, *shape)}
                np.lib.format.write_array_header_1_0(files[name], header)
            for images, seen, records, texts in _chunks(key, workers):
                files["images"].write(np.ascontiguousarray(images).data)
                files["seen"].write(np.ascontiguousarray(seen).data)
                for record in records:
                    offsets.append(offsets[-1] + lines.write(json.dumps(record).encode() + b"\n"))
                    kinds.append(record["change_type"])
                captions.extend(texts)
                bar.update(len(records))
        np.save(draft / "offsets.npy", np.array(offsets))
        (draft / "captions.json").write_text(json.dumps({"captions": captions, "kinds": kinds}))
        sizes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
        (draft / "manifest.json").write_text(json.dumps({"key": key.plain(), "sizes": sizes}, indent=1))
        draft.chmod(0o755)
        draft.rename(folder)
    except BaseException:  # Ctrl-C too leaves nothing behind
        shutil.rmtree(draft, ignore_errors=True)
        raise


def check(folder: Path, key: Key) -> None:
    """Refuse a folder that is not exactly what the key asks for.

    Raises:
        CacheError: another version wrote it, or files are missing or cut short.
    """
    remedy = f"delete {folder} and run again: it will be rendered anew"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        found, sizes = manifest["key"], manifest["sizes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{folder} holds no readable manifest.json ({error}); {remedy}") from error
    if found.get("version") != key.version:
        raise CacheError(
            f"{folder} was rendered by version {found.get('version')} of the synthetic data, this is version "
            f"{key.version}; {remedy}"
        )
    if found != key.plain():
        raise CacheError(f"{folder} was rendered with other settings, {found}; expected {key.plain()}; {remedy}")
    for name, size in sizes.items():
        path = folder / name
        actual = path.stat().st_size if path.exists() else None
        if actual != size:
            is_now = "is missing" if actual is None else f"has {actual} bytes"
            raise CacheError(f"{path} {is_now}, {size} were written; {remedy}")

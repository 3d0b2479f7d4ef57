"""Store: one folder of checked Arrow shards for everything that is kept on disk.

``manifest.json`` says what made the rows and is sealed by a digest of itself; the rest are the shards of
:mod:`lightning_idc.data.store.shards`. A :class:`Store` is read by position and is made as a whole, by :func:`build` or
shard by shard; a :class:`~lightning_idc.data.store.growing_store.GrowingStore` is read by name while processes add to
it.
"""

from __future__ import annotations

import bisect
import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightning_idc.data.store.shards import (
    OPEN_SHARDS,
    Shard,
    StoreError,
    check_shard,
    is_suspect,
    open_shard,
    read_shard,
)
from lightning_idc.utils.files import atomic_write, fingerprint, seal, unseal

FORMAT = 2
"""Raise it when stores are written otherwise; those of another format are never read."""
MANIFEST = "manifest.json"


def shard_name(number: int) -> str:
    """Name of a shard that is known by its number."""
    return f"shard-{number:05}"


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Fingerprint of a store by what made it."""
    return fingerprint([FORMAT, identity])


def write_manifest(folder: Path, identity: Mapping[str, Any], shards: int | None = None, **extra: Any) -> str:
    """Write what made the rows of a store, and return its fingerprint.

    Args:
        folder: of the store.
        identity: all that decides the rows, plain values.
        shards: number of shards, named by :func:`shard_name`; None where any may be added.
        extra: other plain values.
    """
    found = fingerprint_of(identity)
    about = {"format": FORMAT, "identity": identity, "fingerprint": found, "shards": shards, **extra}
    atomic_write(folder / MANIFEST, seal(about, indent=1))
    return found


def read_manifest(
    folder: Path, what: str = "rows", remedy: str = "remove it", identity: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a store says of itself.

    Args:
        folder: of the store.
        what: it should hold, for messages.
        remedy: what to do, for messages.
        identity: that it must have; any when None.

    Raises:
        StoreError: the store is missing, damaged, of another format or of something else.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StoreError(f"{folder} holds no {what}: there is no readable {MANIFEST}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} holds no readable {MANIFEST} ({error}); {remedy}") from error
    found = unseal(text)
    if found is None or "fingerprint" not in found:
        raise StoreError(f"{folder} holds no readable {MANIFEST}: it is damaged; {remedy}")
    if found["format"] != FORMAT:
        raise StoreError(f"{path} is of format {found['format']}, this version reads format {FORMAT}; {remedy}")
    if identity is not None and found["fingerprint"] != fingerprint_of(identity):
        keys = sorted({*identity, *found["identity"]})
        other = [key for key in keys if identity.get(key) != found["identity"].get(key)]
        told = "; ".join(f"{key} is {found['identity'].get(key)!r}, expected {identity.get(key)!r}" for key in other)
        raise StoreError(f"{folder} was made with other settings ({told}); {remedy}")
    return found


def rows_per_shard(rows: int, row_bytes: int) -> int:
    """Rows of a shard: 256 MB of them, or more where the shards would be too many to stay mapped in random order."""
    return max(1, int(max(256e6, rows * row_bytes / (0.75 * OPEN_SHARDS)) / max(row_bytes, 1)))


class Store:
    """Rows of a finished store by position, read from memory maps as they are asked for.

    A shard is hashed when a process first opens it. The maps are closed when more than 64 shards were opened since, and
    a copy for another process maps the files itself.

    Args:
        folder: of the store.
        what: it holds, for messages.
        remedy: what to do when it is damaged, for messages.
        identity: what must have made it; anything when None.

    Raises:
        StoreError: the manifest or a shard's description is missing or damaged, or another identity made it.
    """

    def __init__(
        self,
        folder: str | Path,
        what: str = "rows",
        remedy: str = "remove it and run again",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.what, self.remedy = Path(folder), what, remedy
        self.manifest = read_manifest(self.folder, what, remedy, identity)
        self.shards: list[Shard] = []
        self._ends: list[int] = []
        self._set_shards(self._described())

    def _described(self) -> list[Shard]:
        if self.manifest["shards"] is None:  # any number may be added to it
            readable = (self._shard(path.stem) for path in sorted(self.folder.glob("*.arrow")))
            return [shard for shard in readable if shard is not None]
        found = [self._shard(shard_name(number)) for number in range(self.manifest["shards"])]
        absent = [shard_name(number) for number, shard in enumerate(found) if shard is None]
        if absent:
            path = self.folder / f"{absent[0]}.arrow"
            part = f"{path.name} is missing" if not path.is_file() else f"{absent[0]}.json is missing or damaged"
            raise StoreError(
                f"{self.folder} lacks {absent[0]} ({len(absent)} of {len(found)} shards): {part}; {self.remedy}"
            )
        return [shard for shard in found if shard is not None]

    def _shard(self, name: str) -> Shard | None:
        path = self.folder / f"{name}.arrow"
        return read_shard(path, self.manifest["fingerprint"], self.remedy) if path.is_file() else None

    def _set_shards(self, shards: Iterable[Shard]) -> None:
        self.shards = list(shards)
        self._ends = list(accumulate(shard.rows for shard in self.shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def fingerprint(self) -> str:
        """Changes with what made the rows and with every byte of them."""
        return fingerprint([self.manifest["fingerprint"], [s.digest for shard in self.shards for s in shard.segments]])

    def column(self, name: str) -> Column:
        """One column, by position."""
        return Column(self, name)

    def batches(self) -> Iterator[Any]:
        """All rows as Arrow's record batches."""
        for shard in self.shards:
            check_shard(shard)
            yield from open_shard(shard).batches

    def locate(self, index: int) -> tuple[Shard, int]:
        """Shard of a row and its position in it."""
        number = bisect.bisect_right(self._ends, index)
        if index < 0 or number == len(self._ends):
            raise IndexError(index)
        return self.shards[number], index - (self._ends[number - 1] if number else 0)

    def totals(self, name: str) -> Counter[str]:
        """Sum over all shards of counts that their writer kept under a name."""
        found: Counter[str] = Counter()
        for shard in self.shards:
            found.update(shard.about.get(name, {}))
        return found

    def check(self) -> None:
        """Hash the shards whose size or time is not as it was left; all others are hashed when they are opened.

        Raises:
            StoreError: one of them is damaged.
        """
        for shard in filter(is_suspect, self.shards):
            check_shard(shard)


class Column:
    """Cells of one column: ``column[index]``, a view of the memory map for tensors; ``column[index, ...]`` a part."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int | tuple[Any, ...]) -> Any:
        if isinstance(index, tuple):
            return self[index[0]][index[1:]]
        shard, row = self.store.locate(index)
        return open_shard(shard).value(self.name, row)


def build(
    folder: Path,
    fill: Callable[[Path], None],
    needed: int,
    what: str,
    elsewhere: str,
    usable: Callable[[], bool] | None = None,
) -> None:
    """Fill the folder of a store where it is not there yet: under another name, by one process while others wait.

    Args:
        folder: of the store.
        fill: writes everything into the empty folder it is given.
        needed: bytes that it takes, roughly.
        what: is kept, for messages.
        elsewhere: how to name another folder, for messages.
        usable: whether the folder that is there can be used, or is made anew; by default anything is left as it is.

    Raises:
        StoreError: there is no room, or the folder cannot be written.
    """
    from filelock import FileLock

    root, usable = folder.parent, usable or folder.exists
    if usable():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if usable():
                return
            for left in [*root.glob(f".{folder.name}.*"), folder]:
                shutil.rmtree(left, ignore_errors=True)  # of a killed process: whoever fills it holds the lock
            if shutil.disk_usage(root).free < needed:
                raise OSError(errno.ENOSPC, "too little room")
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
            try:
                fill(draft)
                draft.chmod(0o755)
                draft.rename(folder)
            except BaseException:  # Ctrl-C too leaves nothing behind
                shutil.rmtree(draft, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise StoreError(f"cannot write {what} to {root}: {error}; {elsewhere}") from error
        free = shutil.disk_usage(root).free
        raise StoreError(
            f"{what} needs {needed / 1e6:,.0f} MB in {root}, where {free / 1e6:,.0f} MB are free; nothing was kept. "
            f"Make room, or {elsewhere}"
        ) from error


def faults(folder: Path) -> list[str]:
    """All that is wrong with a store: every byte is hashed; [] where nothing is.

    Args:
        folder: of the store.
    """
    try:
        store = Store(folder)
    except StoreError as error:
        return [str(error)]
    found = []
    for shard in store.shards:
        try:
            check_shard(shard, again=True)
        except StoreError as error:
            found.append(str(error))
        side = shard.path.with_suffix(".json")
        if len(side.read_bytes().splitlines()) > len(shard.segments):
            found.append(f"{side} has lines that are damaged, so their rows are not read")
    described = {shard.path for shard in store.shards}
    lost = {*folder.glob("*.arrow")} - described
    found += [f"{path} has no readable description, so its rows are not read" for path in sorted(lost)]
    sides = {path for path in folder.glob("*.json") if path.name != MANIFEST}
    lost = {path.with_suffix(".arrow") for path in sides} - described - lost
    return found + [f"{path} is missing" for path in sorted(lost)]


def stores_below(folder: Path) -> list[Path]:
    """Folders of all stores at or below a folder."""
    return sorted(path.parent for path in folder.rglob(MANIFEST))

"""Random access to the rows of a store: memory-mapped shards, checked when they are first opened."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightning_idc.data.store.manifest import Manifest, ShardName, read_manifest
from lightning_idc.data.store.shards import Shard, check_shard, open_shard
from lightning_idc.utils.errors import StoreError
from lightning_idc.utils.files import fingerprint


def shards_in(folder: Path, manifest: Manifest, remedy: str = "") -> list[Shard]:
    """List the shards in the folder of a store, in the order of their parts.

    If two processes wrote different bytes for the same part, the first shard by name is used.

    Args:
        folder: folder of the store, which need not exist.
        manifest: manifest of the store.
        remedy: advice for a damaged shard, for messages.
    """
    files = sorted(os.listdir(folder)) if folder.is_dir() else []
    parts: dict[tuple[str, str], ShardName] = {}
    for name in map(ShardName.parse, files):
        if name is not None:
            parts.setdefault((name.table, name.part), name)
    names = sorted(parts.values(), key=lambda name: name.order)
    return [shard_of(folder, manifest, name, remedy) for name in names]


def shard_of(folder: Path, manifest: Manifest, name: ShardName, remedy: str = "") -> Shard:
    """Build the :class:`Shard` of a file of a store."""
    size = None if manifest.shards is None else manifest.shards.get(name)
    return Shard(folder / str(name), name, manifest.fingerprint, size, remedy)


class Table:
    """Rows of one table, indexed over all its shards.

    Args:
        shards: shards in order.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self._ends = list(accumulate(shard.rows for shard in shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a row, and the index of the row in it."""
        number = bisect.bisect_right(self._ends, index)
        if index < 0 or number == len(self._ends):
            raise IndexError(index)
        return self.shards[number], index - (self._ends[number - 1] if number else 0)

    def value(self, column: str, index: int) -> Any:
        """Return a cell of a row: a read-only view of the memory map for a tensor, a plain value for anything else."""
        shard, row = self.locate(index)
        return open_shard(shard).value(column, row)

    def column(self, name: str) -> Column:
        """Return a column, indexed by row."""
        return Column(self, name)

    def batches(self) -> Iterator[Any]:
        """Yield all rows as Arrow record batches."""
        for shard in self.shards:
            yield from open_shard(shard).batches


class Column:
    """Cells of one column: ``column[index]``.

    Args:
        table: table of the column.
        name: name of the column.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.table, self.name = table, name

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.table.value(self.name, index)


class Store:
    """Finished, read-only store.

    A pickled copy maps the files again in the other process.

    Args:
        folder: folder of the store.
        what: name of the content, for messages.
        remedy: advice for an unusable store, for messages.
        identity: expected identity; None accepts any.

    Raises:
        StoreError: the manifest is damaged or has another identity, or a shard is missing or has another size.
    """

    def __init__(
        self,
        folder: str | Path,
        what: str = "rows",
        remedy: str = "remove it and run again",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.remedy = Path(folder), remedy
        self.manifest = read_manifest(self.folder, what, remedy, identity)
        if self.manifest.shards is None:
            raise StoreError(f"{folder} was not finished; {remedy}")
        ordered = sorted(self.manifest.shards, key=lambda name: name.order)
        shards = [shard_of(self.folder, self.manifest, name, remedy) for name in ordered]
        check_sizes(shards)
        names = dict.fromkeys(shard.name.table for shard in shards)
        self._tables = {name: Table([shard for shard in shards if shard.name.table == name]) for name in names}

    def table(self, name: str) -> Table:
        """Return a table; an empty one if the store has no such table."""
        return self._tables.get(name) or Table([])

    @property
    def fingerprint(self) -> str:
        """Fingerprint that changes with the identity and with every byte of the rows."""
        return fingerprint([self.manifest.fingerprint, sorted(map(str, self.manifest.shards or ()))])


def check_sizes(shards: Sequence[Shard]) -> None:
    """Compare the sizes of shards with the manifest; checksums are verified when a shard is opened.

    Raises:
        StoreError: a file is missing or has another size.
    """
    for shard in shards:
        try:
            size = shard.path.stat().st_size
        except OSError as error:
            raise StoreError(f"{shard.path} is missing ({error.strerror}); {shard.remedy}") from error
        if size != shard.bytes:
            raise StoreError(f"{shard.path} has {size} bytes, expected {shard.bytes}; {shard.remedy}")


def faults(folder: Path) -> list[str]:
    """Check all bytes of a store and return a message for each problem.

    Args:
        folder: folder of the store.
    """
    try:
        manifest = read_manifest(folder)
    except StoreError as error:
        return [str(error)]
    if manifest.shards is None:
        listed = shards_in(folder, manifest)
    else:
        listed = [shard_of(folder, manifest, name) for name in manifest.shards]
    messages = []
    for shard in listed:
        try:
            check_shard(shard, again=True)
        except StoreError as error:
            messages.append(str(error).removesuffix("; "))
    names = {shard.path.name for shard in listed}
    unlisted = [path for path in sorted(folder.glob("*.arrow")) if path.name not in names]
    messages += [f"{path} does not belong to the store" for path in unlisted]
    if manifest.shards is None:  # a growing store; if it has keys, each part needs both keys and rows
        keys, rows = ({shard.name.part for shard in listed if shard.name.table == name} for name in ("keys", "rows"))
        messages += [f"{folder} lacks keys or rows of part {part}" for part in sorted(keys ^ rows)]
    return messages


def stores_below(folder: Path) -> list[Path]:
    """List the folders of all stores at or below a folder."""
    return sorted(path.parent for path in folder.rglob("manifest.json"))

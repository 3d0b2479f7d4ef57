"""Append-only stores with concurrent writers: each process writes separate shards, and reads those it opened with."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_idc.data.store.manifest import MANIFEST, Manifest, read_manifest
from lightning_idc.data.store.reader import Table, shards_in
from lightning_idc.data.store.shards import Shard, check_shard, open_shard, tensor_batch, write_shard
from lightning_idc.utils.errors import StoreError


class GrowingStore:
    """Store to which rows can be added at any time.

    Args:
        folder: folder of the store, which need not exist.
        content: name of the content, for messages.
        remedy: advice for an unusable store, for messages.
        identity: settings that determine the rows; None for those of the manifest, if there is one.

    Raises:
        StoreError: the manifest is damaged, has another identity, or is missing although there are shards.
    """

    def __init__(
        self,
        folder: str | Path,
        content: str = "rows",
        remedy: str = "remove it and run again",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.remedy = Path(folder), remedy
        self.manifest = Manifest(identity or {})
        shards = shards_in(self.folder, self.manifest, remedy)
        if (self.folder / MANIFEST).is_file() or (shards and identity is None):
            self.manifest = read_manifest(self.folder, content, remedy, identity)
            shards = shards_in(self.folder, self.manifest, remedy)
        self.shards = shards

    def table(self, name: str) -> Table:
        """Return the rows of a table that existed when the store was opened or that this process added."""
        return Table([shard for shard in self.shards if shard.name.table == name])

    def append(self, table: str, batch: Any, part: str | None = None) -> Shard:
        """Write the rows of a record batch as a shard.

        Args:
            table: table of the rows.
            batch: record batch.
            part: unique name of the shard; a new one when None.

        Raises:
            OSError: the rows cannot be written.
        """
        if not (self.folder / MANIFEST).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.manifest.write(self.folder)
        part = part or f"{time.time_ns():020}{uuid.uuid4().hex[:8]}"  # sorts by time of writing
        shard = write_shard(self.folder, self.manifest.fingerprint, [batch], table=table, part=part)
        shard = Shard(shard.path, shard.name, shard.fingerprint, remedy=self.remedy)
        self.shards.append(shard)
        return shard


class KeyedStore(GrowingStore):
    """Growing store with rows accessed by key; the last row of a key wins.

    The keys of each shard are stored in a separate shard, so that opening the store reads no rows.

    Args:
        folder: folder of the store, which need not exist.
        content: name of the content, for messages.
        remedy: advice for an unusable store, for messages.
        identity: settings that determine the rows; None for those of the manifest, if there is one.

    Raises:
        StoreError: same as for :class:`GrowingStore`.
    """

    def __init__(
        self,
        folder: str | Path,
        content: str = "rows",
        remedy: str = "remove it and run again",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(folder, content, remedy, identity)
        self._rows: dict[str, tuple[Shard, int]] = {}
        rows = {shard.name.part: shard for shard in self.shards if shard.name.table == "rows"}
        for shard in self.shards:
            if shard.name.table == "keys" and shard.name.part in rows:
                with suppress(StoreError):  # rows with damaged keys are ignored; `faults` reports them
                    keys = [key for batch in open_shard(shard).batches for key in batch.column("key").to_pylist()]
                    self._index_rows(keys, rows[shard.name.part])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def add(self, keys: Sequence[str], **columns: Any) -> None:
        """Add rows.

        Args:
            keys: keys of the rows.
            columns: values of each column.

        Raises:
            OSError: the rows cannot be written.
        """
        rows = self.append("rows", tensor_batch(**columns))
        self.append("keys", tensor_batch(key=list(keys)), rows.name.part)
        self._index_rows(keys, rows)

    def value(self, key: str, column: str) -> Any:
        """Return a cell of a row by its key.

        Raises:
            StoreError: the shard of the row is damaged.
        """
        shard, row = self._rows[key]
        return open_shard(shard).value(column, row)

    def first_value(self, column: str) -> Any:
        """Return a cell of the first row; None if there are no rows."""
        return self.value(next(iter(self._rows)), column) if self._rows else None

    def remove_damaged(self) -> list[Path]:
        """Delete damaged shards together with their rows, and return their paths."""
        removed = []
        for shard in dict.fromkeys(shard for shard, _ in self._rows.values()):
            try:
                check_shard(shard)
            except StoreError:
                removed.append(shard.path)
                with suppress(OSError):
                    shard.path.unlink()
        self._rows = {key: row for key, row in self._rows.items() if row[0].path not in removed}
        return removed

    def _index_rows(self, keys: Iterable[str], shard: Shard) -> None:
        self._rows.update((key, (shard, row)) for row, key in enumerate(keys))

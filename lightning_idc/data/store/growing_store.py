"""GrowingStore: rows by name that many processes add to, as caches of features and procedures are."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_idc.data.store.shards import (
    Shard,
    StoreError,
    append_segment,
    check_shard,
    columns,
    remove_shard,
    write_shard,
)
from lightning_idc.data.store.store import MANIFEST, Store, fingerprint_of, read_manifest, write_manifest


class GrowingStore(Store):
    """Rows by name, to which many processes may add at once; what others add is seen when the store is opened.

    The shards are in the order in which they were begun. Those whose description is missing or damaged are not read, so
    that their rows count as never written.

    Args:
        folder: of the store; need not exist.
        what: it holds, for messages.
        remedy: what to do when it is damaged, for messages.
        identity: what makes the rows; rows of another one are not read. That of the manifest when None.

    Raises:
        StoreError: no identity is given, and the manifest is damaged, or missing where there are shards.
    """

    def __init__(
        self,
        folder: str | Path,
        what: str = "rows",
        remedy: str = "remove it and run again",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows: dict[str, int] = {}
        """Position of a row by its name; where two rows have one name, of the later one."""
        self._own: Shard | None = None
        self._process = 0
        there = Path(folder).is_dir() and any(Path(folder).glob("*.arrow"))
        if identity is None and (there or (Path(folder) / MANIFEST).is_file()):
            super().__init__(folder, what, remedy)
        else:
            self.folder, self.what, self.remedy = Path(folder), what, remedy
            known = dict(identity or {})
            self.manifest = {"fingerprint": fingerprint_of(known), "identity": known, "shards": None}
            self._set_shards(self._described())

    def _shard(self, name: str) -> Shard | None:
        shard = super()._shard(name)
        if shard is None or not shard.growing:
            return shard
        # a tail that a killed process left half written was never there
        size = shard.path.stat().st_size
        whole = tuple(segment for segment in shard.segments if segment.end <= size)
        return replace(shard, segments=whole) if whole else None

    def _set_shards(self, shards: Iterable[Shard]) -> None:
        super()._set_shards(shards)
        self.rows = {}
        for shard, end in zip(self.shards, self._ends, strict=True):
            self.rows.update(zip(shard.keys, range(end - shard.rows, end), strict=False))

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def add(self, names: Sequence[str], **values: Any) -> None:
        """Append rows to the file of this process, which no other one writes.

        Raises:
            OSError: they cannot be written.
        """
        batch, store, grown = columns(**values), self.manifest["fingerprint"], None
        # never the file of the process that this one was forked from
        if self._own is not None and self._process == os.getpid() and self._own is self.shards[-1]:
            grown = append_segment(self._own, store, batch, names)
        if grown is None:
            self._begin()
            fresh = Shard(self.folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.arrow", (), True, self.remedy)
            grown = append_segment(fresh, store, batch, names)
            assert grown is not None, "a new file is empty"
            self._extend(grown, names)
        else:
            self.shards[-1] = grown
            self._ends[-1] += batch.num_rows
            self._name(names)
        self._own, self._process = grown, os.getpid()

    def write(self, shard: str, names: Sequence[str], **values: Any) -> None:
        """Write rows as a shard of its own, as a whole or not at all.

        Args:
            shard: its name, unique to the process and batch.
            names: of the rows.
            values: columns.
        """
        self._begin()
        path = self.folder / f"{shard}.arrow"
        made = write_shard(path, self.manifest["fingerprint"], [columns(**values)], keys=names)
        made.remedy = self.remedy
        self._extend(made, names)

    def discard_damaged(self) -> list[str]:
        """Remove the shards that are damaged, so that their rows count as never written, and return their paths."""
        removed = []
        for shard in self.shards:
            try:
                check_shard(shard)
            except StoreError:
                removed.append(str(shard.path))
                remove_shard(shard.path)
        self._own = None
        self._set_shards(self._described())
        return removed

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            read_manifest(self.folder, identity=self.manifest["identity"])
        except StoreError:
            write_manifest(self.folder, self.manifest["identity"])

    def _extend(self, shard: Shard, names: Sequence[str]) -> None:
        self.shards.append(shard)
        self._ends.append(len(self) + shard.rows)
        self._name(names)

    def _name(self, names: Sequence[str]) -> None:
        self.rows.update(zip(names, range(len(self) - len(names), len(self)), strict=True))

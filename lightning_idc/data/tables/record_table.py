"""RecordTable: pairs as Arrow columns, a few hundred bytes per pair, in buffers that worker processes share."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from lightning_idc.data.tables.files import PairRecord, Root, folders_of

_CHUNK = 8192  # number of texts converted to Python strings at once


class Texts(Sequence[str]):
    """Sequence of strings in Arrow memory, converted to Python strings on access.

    Args:
        values: Arrow array of strings.
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            texts: list[str] = self.values.take(_array(range(*index.indices(len(self))))).to_pylist()
            return texts
        offset = operator.index(index)
        if not -len(self) <= offset < len(self):
            raise IndexError(index)
        return str(self.values[offset % len(self)].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            yield from self.values[start : start + _CHUNK].to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def num_distinct(texts: Sequence[str]) -> int:
    """Count distinct strings."""
    return len(texts.values.unique()) if isinstance(texts, Texts) else len(set(texts))


class RecordTable(Sequence[PairRecord]):
    """Sequence of records, stored as columns.

    Args:
        root: folder that the paths are relative to.
        rows: Arrow record batch with the columns ``id``, ``before`` and ``after`` (paths), ``captions`` (lists),
            ``split`` and ``change_type`` (null if not specified), ``file`` that lists the pair, and ``line``
            (0 for none).
    """

    def __init__(self, root: Root, rows: Any) -> None:
        self.root, self.rows = root, rows
        self.ids = Texts(rows.column("id"))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @overload
    def __getitem__(self, index: int) -> PairRecord: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    def __getitem__(self, index: int | slice) -> PairRecord | RecordTable:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        where = self.where(index)
        before, after = (self.root.file(self._cell(side, index), where) for side in ("before", "after"))
        split, change_type = self._cell("split", index), self.change_type(index)
        return PairRecord(self.ids[index], where, before, after, self.captions(index), split, change_type)

    def _cell(self, column: str, index: int) -> Any:
        return self.rows.column(column)[index].as_py()

    def captions(self, index: int) -> list[str]:
        """Return the captions of a pair; "" for an empty one."""
        captions: list[str] = self._cell("captions", index)
        return captions

    def change_type(self, index: int) -> str | None:
        """Return the label of the change."""
        label: str | None = self._cell("change_type", index)
        return label

    def where(self, index: int) -> str:
        """Format file and line of a pair, for error messages."""
        line = self._cell("line", index)
        return f"{self._cell('file', index)}" + (f" {line}" if line else "")

    def absent(self) -> list[tuple[str, Path]]:
        """List missing images, each with the file and line that name it; every folder is listed once.

        Raises:
            DataError: an image is a link that leaves the root.
        """
        import pyarrow
        import pyarrow.compute as pc

        sides = [self.rows.column(side) for side in ("before", "after")]
        files: dict[str, list[bytes]] = {}
        for side in sides:
            for folder in folders_of(side).dictionary.to_pylist():
                if folder not in files:
                    # file names need not be valid UTF-8
                    files[folder] = [os.fsencode(folder + file) for file in self.root.files_in(folder)]
        paths = pyarrow.array(itertools.chain(*files.values()), pyarrow.large_binary())
        missing = []
        for side_index, side in enumerate(sides):
            exists = pc.is_in(side.cast(paths.type), value_set=paths).to_numpy(zero_copy_only=False)
            missing += [(index, side_index) for index in np.flatnonzero(~exists).tolist()]
        return [
            (self.where(index), self.root.file(sides[side_index][index].as_py(), self.where(index)))
            for index, side_index in sorted(missing)
        ]

    def take(self, indices: np.ndarray) -> RecordTable:
        """Select records by their indices, in that order."""
        if np.array_equal(indices, np.arange(len(self))):
            return self
        return RecordTable(self.root, self.rows.take(_array(indices)))

    def uncaptioned_indices(self) -> np.ndarray:
        """Return the indices of the pairs without a caption or with an empty one."""
        texts, owners = self._texts()
        import pyarrow.compute as pc

        empty = pc.equal(texts, "").to_numpy(zero_copy_only=False)
        counts = np.bincount(owners, minlength=len(self))
        return np.union1d(owners[empty], np.flatnonzero(counts == 0))

    def without_empty(self) -> RecordTable:
        """Remove empty captions, and pairs that have no other captions."""
        import pyarrow.compute as pc

        texts, owners = self._texts()
        full = pc.not_equal(texts, "")
        counts = np.bincount(owners[full.to_numpy(zero_copy_only=False)], minlength=len(self))
        index = self.rows.schema.get_field_index("captions")
        rows = self.rows.set_column(index, "captions", lists_of(texts.filter(full), counts))
        return RecordTable(self.root, rows).take(np.flatnonzero(counts))

    def _texts(self) -> tuple[Any, np.ndarray]:
        """Return all captions, and the index of the pair of each caption."""
        import pyarrow.compute as pc

        captions = self.rows.column("captions")
        return captions.flatten(), pc.list_parent_indices(captions).to_numpy()


def lists_of(texts: Any, counts: np.ndarray) -> Any:
    """Build an Arrow array of lists: the first ``counts[0]`` texts, the next ``counts[1]`` texts, and so on."""
    import pyarrow

    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return pyarrow.LargeListArray.from_arrays(_array(offsets), texts)


def concatenate(tables: Sequence[RecordTable]) -> RecordTable:
    """Concatenate tables."""
    import pyarrow

    if len(tables) == 1:
        return tables[0]
    rows = pyarrow.Table.from_batches([table.rows for table in tables]).unify_dictionaries().combine_chunks()
    batches = rows.to_batches()
    return RecordTable(tables[0].root, batches[0] if batches else tables[0].rows)


def _array(values: Any) -> Any:
    import pyarrow

    return pyarrow.array(values, pyarrow.int64())

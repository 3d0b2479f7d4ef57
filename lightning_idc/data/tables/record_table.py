"""Pairs as columns: a few hundred bytes each, in buffers that worker processes share instead of copying."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from lightning_idc.data.tables.files import Record, Root, folders_of

CHUNK = 8192
"""Strings that are Python's at once."""


class Texts(Sequence[str]):
    """Strings in Arrow's memory, made into Python strings one at a time.

    Args:
        values: an Arrow array of strings.
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
            return [self[place] for place in range(*index.indices(len(self)))]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(index)
        return str(self.values[place % len(self)].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self.values[start : start + CHUNK].to_pylist()

    def at(self, places: np.ndarray) -> Texts:
        """The strings at some places."""
        import pyarrow

        return Texts(self.values.take(pyarrow.array(places)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def distinct(texts: Sequence[str]) -> int:
    """How many different strings there are."""
    return len(texts.values.unique()) if isinstance(texts, Texts) else len(set(texts))


class RecordTable(Sequence[Record]):
    """Records of pairs as columns; :class:`~lightning_idc.data.tables.record_builder.RecordTableBuilder` makes them.

    Args:
        root: that the paths are relative to.
        ids: of the pairs.
        sides: paths of the images before and after, relative to the root.
        texts: captions of all pairs, one after the other.
        offsets: int64, where the captions of each pair begin, and the number of all.
        codes: int32 ``(4, N)``: split and type of change as indices of ``names`` (-1 for none), then the file that
            names the pair as an index of ``names``, and its line there (0 for none).
        names: of splits, types and files.
    """

    def __init__(
        self, root: Root, ids: Any, sides: tuple[Any, Any], texts: Any, offsets: np.ndarray, codes: Any, names: Any
    ) -> None:
        self.root, self.sides, self.texts, self.offsets, self.codes = root, sides, texts, offsets, codes
        self.names: list[str] = names
        self.ids = Texts(ids)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    def __getitem__(self, index: int | slice) -> Record | RecordTable:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        before, after = (self.root.file(side[index].as_py(), self.where(index)) for side in self.sides)
        split, kind = (None if code < 0 else self.names[code] for code in self.codes[:2, index])
        return Record(self.ids[index], self.where(index), before, after, self.captions(index), split, kind)

    def captions(self, index: int) -> list[str]:
        """Captions of a pair, "" for an empty one."""
        found: list[str] = self.texts[int(self.offsets[index]) : int(self.offsets[index + 1])].to_pylist()
        return found

    def change_type(self, index: int) -> str | None:
        """Label of the change."""
        code = int(self.codes[1, index])
        return None if code < 0 else self.names[code]

    def where(self, index: int) -> str:
        """File and line that name a pair."""
        file, line = self.codes[2:, index]
        return f"{self.names[file]}, line {line}" if line else self.names[file]

    def split_codes(self) -> np.ndarray:
        """Split of each pair as an index of ``names``; -1 where nothing names it."""
        return np.asarray(self.codes[0])

    def absent(self) -> list[tuple[str, Path]]:
        """Images that are not there, each with what names it; every folder is listed once.

        Raises:
            IDCError: one is a link that leaves the root.
        """
        import pyarrow
        import pyarrow.compute as pc

        # paths on Windows
        slashed = [pc.replace_substring(side, "\\", "/") for side in self.sides]
        there: dict[str, list[bytes]] = {}
        for side in slashed:
            for folder, place in folders_of(side).items():
                if folder not in there:
                    name, _ = self.root.parts(side[place].as_py(), "")
                    # names of files need not be text
                    there[folder] = [os.fsencode(folder + file) for file in self.root.files_in(name)]
        files = pyarrow.array(itertools.chain(*there.values()), pyarrow.large_binary())
        missing = []
        for number, side in enumerate(slashed):
            known = pc.is_in(side.cast(files.type), value_set=files).to_numpy(zero_copy_only=False)
            missing += [(place, number) for place in np.flatnonzero(~known).tolist()]
        found = []
        for place, number in sorted(missing):
            where = self.where(place)
            found.append((where, self.root.file(self.sides[number][place].as_py(), where)))
        return found

    def take(self, places: np.ndarray) -> RecordTable:
        """The records at some places, in their order."""
        import pyarrow

        if len(places) == len(self) and bool((places == np.arange(len(self))).all()):
            return self
        starts, counts = self.offsets[:-1][places], np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        own = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        chosen = pyarrow.array(places)
        sides = (self.sides[0].take(chosen), self.sides[1].take(chosen))
        texts = self.texts.take(pyarrow.array(own))
        return RecordTable(
            self.root, self.ids.values.take(chosen), sides, texts, offsets, self.codes[:, places], self.names
        )

    def lacking(self) -> np.ndarray:
        """Places of the pairs that have no caption or an empty one."""
        import pyarrow.compute as pc

        empty = np.flatnonzero(pc.equal(self.texts, "").to_numpy(zero_copy_only=False))
        owners = np.searchsorted(self.offsets, empty, "right") - 1
        return np.union1d(owners, np.flatnonzero(np.diff(self.offsets) == 0))

    def without_empty(self) -> RecordTable:
        """All pairs that have a caption, without their empty captions."""
        import pyarrow
        import pyarrow.compute as pc

        full = np.flatnonzero(pc.not_equal(self.texts, "").to_numpy(zero_copy_only=False))
        owners = np.searchsorted(self.offsets, full, "right") - 1
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(self)))])
        texts = self.texts.take(pyarrow.array(full))
        whole = RecordTable(self.root, self.ids.values, self.sides, texts, offsets, self.codes, self.names)
        return whole.take(np.flatnonzero(np.diff(offsets)))


def concatenate(tables: Sequence[RecordTable]) -> RecordTable:
    """Several tables that share their names as one, in order."""
    import pyarrow

    if len(tables) == 1:
        return tables[0]

    def joined(arrays: list[Any]) -> Any:
        return pyarrow.chunked_array(arrays, pyarrow.large_string()).combine_chunks()

    sides = (joined([table.sides[0] for table in tables]), joined([table.sides[1] for table in tables]))
    counts = np.concatenate([np.diff(table.offsets) for table in tables])
    return RecordTable(
        tables[0].root,
        joined([table.ids.values for table in tables]),
        sides,
        joined([table.texts for table in tables]),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([table.codes for table in tables], 1),
        max((table.names for table in tables), key=len),
    )

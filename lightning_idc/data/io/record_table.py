"""Pairs as columns: a few hundred bytes each, in buffers that worker processes share instead of copying."""

from __future__ import annotations

import itertools
import operator
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from lightning_idc.data.io.files import Record, Root, folders_of
from lightning_idc.errors import DataError

_CHUNK = 8192


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
        for start in range(0, len(self), _CHUNK):
            yield from self.values[start : start + _CHUNK].to_pylist()

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


class TextColumn:
    """Collects strings for an Arrow array, in chunks, so that few of them are Python strings at any time."""

    def __init__(self) -> None:
        self._chunks: list[Any] = []
        self._flushed = 0
        self.pending: list[str] = []
        """The last strings; whoever appends to it calls :meth:`flush` from time to time."""

    def flush(self) -> None:
        """Move the pending strings to Arrow."""
        self._move(self.pending)
        self.pending.clear()

    def _move(self, texts: list[str]) -> None:
        import pyarrow

        self._chunks.append(pyarrow.array(texts, pyarrow.large_string()))
        self._flushed += len(texts)

    def __getitem__(self, index: int) -> str:
        if index >= self._flushed:
            return self.pending[index - self._flushed]
        chunk, place = divmod(index, _CHUNK)
        return str(self._chunks[chunk][place].as_py())

    def finish(self) -> Any:
        """All strings as one array."""
        import pyarrow

        self.flush()
        return pyarrow.chunked_array(self._chunks, pyarrow.large_string()).combine_chunks()


class RecordTable(Sequence[Record]):
    """Records of pairs as columns; :class:`RecordTableBuilder` makes them.

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


class RecordTableBuilder:
    """Collects records row by row; rows of the same pair give their captions together.

    Args:
        root: that the paths are relative to.
        names: of splits, types and files, shared by tables that are put together later.
    """

    def __init__(self, root: Root, names: dict[str, int] | None = None) -> None:
        self.root = root
        self._names: dict[str, int] = {} if names is None else names
        self._places: dict[str, int] = {}
        self._ids, self._before, self._after, self._texts = (TextColumn() for _ in range(4))
        self._whole: RecordTable | None = None
        self._owners = array("q")
        self._codes = tuple(array("i") for _ in range(4))

    def __contains__(self, id: str) -> bool:
        return id in self._places

    def _code(self, name: str | None) -> int:
        return -1 if name is None else self._names.setdefault(name, len(self._names))

    def _name(self, code: int) -> str | None:
        return None if code < 0 else list(self._names)[code]

    def _where(self, place: int) -> str:
        line = self._codes[3][place]
        return f"{self._name(self._codes[2][place])}" + (f", line {line}" if line else "")

    def add(
        self,
        id: str,
        before: str,
        after: str,
        captions: Sequence[str] = (),
        split: str | None = None,
        change_type: str | None = None,
        file: str = "",
        line: int = 0,
    ) -> None:
        """Add a pair, or captions to one that was added before.

        Raises:
            DataError: the pair was added with other images, another split or another type.
        """
        count = len(self._places)
        place = self._places.setdefault(id, count)
        if place == count:
            columns = (self._ids, self._before, self._after)
            for column, text in zip(columns, (id, before, after), strict=True):
                column.pending.append(text)
                if len(column.pending) == _CHUNK:
                    column.flush()
            splits, kinds, files, lines = self._codes
            splits.append(self._code(split))
            kinds.append(self._code(change_type))
            files.append(self._code(file))
            lines.append(line)
        else:
            self._compare(place, id, before, after, (split, change_type), f"{file}, line {line}")
        self._caption(place, captions)

    def add_all(
        self,
        ids: Any,
        sides: tuple[Any, Any],
        captions: tuple[Any, np.ndarray],
        labels: tuple[Any, Any],
        file: str,
        lines: np.ndarray,
    ) -> bool:
        """Add the rows of a whole table at once to a builder that has none, as :meth:`add` does, unless pairs
        contradict themselves.

        Args:
            ids: Arrow array of the pairs.
            sides: paths of the images before and after.
            captions: those of all rows, one after the other, and how many each row has.
            labels: split and type of each, null for none.
            file: that names them all.
            lines: of it.

        Returns:
            Whether they were added.
        """
        import pyarrow

        numbered = ids.dictionary_encode()
        places, ids = numbered.indices.to_numpy(), numbered.dictionary
        texts, counts = captions
        codes = np.stack([*map(self._codes_of, labels), np.full(len(places), self._code(file), np.int32), lines])
        if len(ids) < len(places):
            # pairs are numbered in the order of their first rows
            firsts = np.searchsorted(np.maximum.accumulate(places), np.arange(len(ids)))
            same = firsts[places]
            as_first = (side.take(pyarrow.array(same)).equals(side) for side in sides)
            if not all(as_first) or (codes[:2, same] != codes[:2]).any():
                return False
            texts = texts.take(pyarrow.array(np.argsort(np.repeat(places, counts), kind="stable")))
            counts = np.bincount(places, weights=counts).astype(np.int64)
            chosen = pyarrow.array(firsts)
            sides, codes = (sides[0].take(chosen), sides[1].take(chosen)), codes[:, firsts]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        self._whole = RecordTable(self.root, ids, sides, texts, offsets, codes, [])
        return True

    def _codes_of(self, labels: Any) -> np.ndarray:
        numbered = labels.dictionary_encode()
        codes = np.array([*map(self._code, numbered.dictionary.to_pylist()), -1], np.int32)
        return np.asarray(codes[numbered.indices.fill_null(len(codes) - 1).to_numpy()])

    def _compare(
        self, place: int, id: str, before: str, after: str, labels: tuple[str | None, str | None], where: str
    ) -> None:
        if (self._before[place], self._after[place]) != (before, after):
            raise DataError(
                f"{where}: the id {id!r} is taken by other images ({self._where(place)}); ids must be unique. Give the "
                "pairs ids of their own in a column id"
            )
        for what, codes, name in zip(("split", "change_type"), self._codes, labels, strict=False):
            if codes[place] != self._code(name):
                raise DataError(
                    f"{where}: pair {id!r} has the {what} {name!r}, but {self._name(codes[place])!r} in "
                    f"{self._where(place)}"
                )

    def extend(self, id: str, captions: Sequence[str]) -> None:
        """Add captions to a pair that is there."""
        self._caption(self._places[id], captions)

    def _caption(self, place: int, captions: Sequence[str]) -> None:
        for caption in captions:
            self._owners.append(place)
            self._texts.pending.append(caption)
            if len(self._texts.pending) == _CHUNK:
                self._texts.flush()

    def label(self, id: str, split: str | None, change_type: str | None, file: str, line: int) -> None:
        """Set what a table says of a pair that folders name."""
        place = self._places[id]
        given = (self._code(split), self._code(change_type), self._code(file), line)
        for codes, code in zip(self._codes, given, strict=True):
            codes[place] = code if code >= 0 else codes[place]

    def finish(self) -> RecordTable:
        """All pairs, in the order in which they were added first."""
        import pyarrow

        if self._whole is not None:
            self._whole.names = list(self._names)
            return self._whole
        owners = np.frombuffer(self._owners, np.int64) if self._owners else np.zeros(0, np.int64)
        texts = self._texts.finish()
        if np.any(np.diff(owners) < 0):
            order = np.argsort(owners, kind="stable")
            texts = texts.take(pyarrow.array(order))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(self._places)))]).astype(np.int64)
        codes = np.array([np.frombuffer(column, np.int32) for column in self._codes]) if self._places else _NO_CODES
        self._places = {}
        sides = (self._before.finish(), self._after.finish())
        return RecordTable(self.root, self._ids.finish(), sides, texts, offsets, codes, list(self._names))


_NO_CODES = np.zeros((4, 0), np.int32)

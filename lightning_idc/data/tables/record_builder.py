"""Collecting records of pairs into columns, row by row or a whole table at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.record_table import CHUNK, RecordTable
from lightning_idc.utils.errors import DataError

_NO_CODES = np.zeros((4, 0), np.int32)


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
        chunk, place = divmod(index, CHUNK)
        return str(self._chunks[chunk][place].as_py())

    def finish(self) -> Any:
        """All strings as one array."""
        import pyarrow

        self.flush()
        return pyarrow.chunked_array(self._chunks, pyarrow.large_string()).combine_chunks()


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
                if len(column.pending) == CHUNK:
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
            if len(self._texts.pending) == CHUNK:
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

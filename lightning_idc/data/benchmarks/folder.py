"""FolderPairs: your own pairs, as two folders of images or as a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_idc.data.benchmarks.preference_pairs import holds_preferences, read_preferences, split_of
from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.tables.files import FileSource, Record, Root, check_shares, fault_of, progress, split_by_hash
from lightning_idc.data.tables.pair_columns import SAME, SPLITS, is_pair_column, pairs_of
from lightning_idc.data.tables.pair_folders import read_two_folders, tables_in
from lightning_idc.data.tables.record_table import RecordTable, Texts, concatenate
from lightning_idc.data.tables.tables import SHOWN, read_table, table_ending, table_stem
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError
from lightning_idc.utils.paths import inside
from lightning_idc.utils.text import printable

OnBad = Literal["raise", "skip"]


class TableSource(FileSource):
    """Pairs whose images are files, named by a table that worker processes share."""

    records: RecordTable

    def _ids(self) -> Texts:
        return self.records.ids

    def captions(self, index: int) -> list[str]:
        return self.records.captions(index)

    def change_type(self, index: int) -> str | None:
        return self.records.change_type(index)

    def meta(self, index: int) -> dict[str, Any]:
        return {}


class FolderPairs(PairDataModule):
    """Your own pairs: two folders ``before/`` and ``after/`` with equal file names, or a CSV, TSV or JSONL file.

    A table has the columns before, after and captions (or caption, or caption_1 to caption_n, or one row for each
    caption), and perhaps id, split, change_type; a list of both images in a column images, as TRL has it, takes the
    place of before and after. Tables may be packed by gzip. Beside two folders, ``captions.csv`` or ``captions.jsonl``
    has the columns id (the file name without its ending) and captions. A table with a column rejected holds
    preferences, in the layouts of `PreferencePairs`. Splits are those of the column split, of the files ``train.csv``,
    ``val.csv`` and ``test.csv``, or else drawn by a hash of the id, which does not change when pairs are added. What is
    predicted are the pairs of a split ``predict``, else all when there are no captions, else the test split.

    Args:
        root: folder that all paths are relative to, and never leave. The two folders are read with all below them, and
            files that are not images are named in a warning.
        annotations: the table, relative to the root, also a JSON list; None looks for a CSV, TSV or JSONL.
        shares: of train, val and test, where nothing names the split.
        on_empty: what happens to empty captions; ``skip`` leaves them out, and pairs without any other.
        on_bad: what happens to pairs whose images are missing or cannot be read; ``skip`` opens every image once at the
            start and leaves those pairs out. Either way they are counted and named.
        follow_links: read what links below the root lead to, wherever that is.
        options: of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: an argument is not one of its choices.

    Example:
        >>> pair = FolderPairs("pairs").dataset("predict")[0]
        >>> pair.before.shape[0]
        3
    """

    domain = "pairs of one's own"

    def __init__(
        self,
        root: str | Path = "data",
        annotations: str | None = None,
        shares: tuple[Share, Share, Share] = (0.8, 0.1, 0.1),
        on_empty: OnBad = "raise",
        on_bad: OnBad = "raise",
        follow_links: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(FolderPairs.__init__, locals())
        super().__init__(**options)
        check_shares(shares)
        self.files = Root(root, follow_links)
        self.root, self.annotations, self.shares = self.files.path, annotations, tuple(shares)
        self.on_empty, self.on_bad = on_empty, on_bad
        self._by_split: dict[str, RecordTable] = {}
        self._no_captions: str | None = None
        self._preferences: list[Record] = []

    def source(self, split: Split) -> FileSource:
        if not self._by_split and not self._preferences:
            self._read()
        return self._preferring(split) if self._preferences else self._captioned(split)

    def _preferring(self, split: Split) -> FileSource:
        if "skip" in (self.on_empty, self.on_bad):
            raise ConfigError("preferences are read as they are; leave on_empty and on_bad out, and repair the table")
        dealt: dict[str, list[Record]] = {}
        for record in self._preferences:
            dealt.setdefault(split_of(record, self.shares), []).append(record)
        records = dealt.get(split) or (dealt.get("test") if split == "predict" else None)
        if not records:
            raise DataError(f"{self.root}: the split {split!r} has no preferences; name it in a column split")
        return FileSource(records, self.image_size, self.interpolation, self.image_options)

    def _captioned(self, split: Split) -> TableSource:
        by_split = self._by_split
        if split == "predict":
            records = by_split["predict"]
            if not len(records):
                records = concatenate(list(by_split.values())) if self._no_captions else by_split["test"]
        else:
            records = by_split[split]
            if self._no_captions and len(records):
                raise DataError(self._no_captions)
            records = self._with_captions(records, split)
        records = self._with_images(records, split)
        if not len(records):
            there = ", ".join(f"{len(part)} {name}" for name, part in by_split.items() if len(part))
            raise DataError(
                f"{self.root}: the split {split!r} has no pairs left to use; read were {there or 'none at all'}. Name "
                f"it in a column split, add a table {split}.csv, or, where nothing names splits, give it more of shares"
            )
        return TableSource(records, self.image_size, self.interpolation, self.image_options)

    # ---- what may be wrong with records -----------------------------------------------------------------

    def _with_captions(self, records: RecordTable, split: str) -> RecordTable:
        empty = records.lacking()
        if not len(empty):
            return records
        named = _named([records[int(index)] for index in empty[:SHOWN]], len(empty))
        message = f"{len(empty)} of {len(records)} {split} pairs have an empty caption: {named}"
        if self.on_empty == "raise":
            raise DataError(f"{message}. Write them, or leave them out with on_empty: skip")
        captioned = records.without_empty()
        message = printable(message)
        warnings.warn(f"{message}. Left out: {len(records) - len(captioned)} pairs without any caption", stacklevel=2)
        return captioned

    def _with_images(self, records: RecordTable, split: str) -> RecordTable:
        absent = records.absent()
        if self.on_bad == "raise":
            if absent:
                shown = "; ".join(f"{where}: {str(path)!r}" for where, path in absent[:SHOWN])
                raise DatasetNotFoundError(
                    f"{len(absent)} images of the {split} split are not there: {shown}"
                    f"{'; ...' if len(absent) > SHOWN else ''}. Fetch them, or leave these pairs out with on_bad: skip"
                )
            return records
        sized, options = self.image_size is not None, self.image_options
        opened = progress(records, f"reading the {split} images")
        bad = {index: fault for index, record in enumerate(opened) if (fault := fault_of(record, sized, options))}
        if not bad:
            return records
        shown = "; ".join(f"{records[index].name}: {fault}" for index, fault in list(bad.items())[:SHOWN])
        more = f"; and {', '.join(records.ids[index] for index in list(bad)[SHOWN:])}" if len(bad) > SHOWN else ""
        named = printable(f"{shown}{more}")
        warnings.warn(f"left out {len(bad)} of {len(records)} {split} pairs: {named}", stacklevel=2)
        return records.take(np.setdiff1d(np.arange(len(records)), list(bad)))

    # ---- reading ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the folder and sort its pairs by split."""
        import pyarrow
        import pyarrow.compute as pc

        files = self._tables()
        if files is None:
            records, self._no_captions = read_two_folders(self.files)
        else:
            tables = [(read_table(path, is_pair_column), split) for path, split in files]
            if any(holds_preferences(table.names) for table, _ in tables):
                self._preferences = read_preferences(self.files, files)
                return
            parts = [pairs_of(self.files, table, split) for table, split in tables]
            del tables
            records = concatenate([part for part, _ in parts])
            # a table without captions beside one with them, as for predict, has empty captions
            messages = [message for _, message in parts]
            self._no_captions = None if None in messages else messages[0]
        homes = pc.index_in(records.rows.column("split"), value_set=pyarrow.array(SPLITS, pyarrow.large_string()))
        homes = homes.fill_null(-1).to_numpy().copy()
        unnamed = np.flatnonzero(homes < 0)
        for index, id in zip(unnamed.tolist(), records.take(unnamed).ids, strict=True):
            homes[index] = SPLITS.index(split_by_hash(id, self.shares))
        self._by_split = {split: records.take(np.flatnonzero(homes == home)) for home, split in enumerate(SPLITS)}
        pyarrow.default_memory_pool().release_unused()  # reading takes several times the memory of the pairs

    def _tables(self) -> list[tuple[Path, str | None]] | None:
        """Tables with the split that each holds; None for two folders."""
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"there is no folder {str(self.root)!r}.{_EXPECTED}")
        if self.annotations is not None:
            path = inside(self.root, self.annotations, "annotations", self.files.follow_links)
            if not path.is_file() or table_ending(path) is None:
                raise DataError(f"annotations is {str(path)!r}; expected an existing CSV, TSV, JSONL or JSON file")
            return [(path, None)]
        files = tables_in(self.root)
        parts = [(path, split) for path in files if (split := SAME.get(table_stem(path), table_stem(path))) in SPLITS]
        if parts:
            return list(parts)
        two_folders = all((self.root / side).is_dir() for side in ("before", "after"))
        others = [path for path in files if not (two_folders and table_stem(path) == "captions")]
        if len(others) == 1:
            return [(others[0], None)]
        if others:
            names = ", ".join(path.name for path in others)
            raise DataError(f"{self.root} holds several tables ({names}); say which with annotations: NAME")
        if not two_folders:
            raise DatasetNotFoundError(
                f"{self.root} holds neither a table nor the folders before/ and after/.{_EXPECTED}"
            )
        return None


_EXPECTED = """ Expected one of:

  before/NAME.png, after/NAME.png, captions.csv     columns id (NAME), captions; perhaps split, change_type
  pairs.csv or pairs.jsonl                          columns before, after, captions; perhaps id, split, change_type
  train.csv, val.csv, test.csv                      the same columns, one file per split

Paths in a table are relative to the folder itself."""


def _named(records: Sequence[Record], count: int) -> str:
    return ", ".join(record.name for record in records) + (", ..." if count > len(records) else "")

"""FolderPairs: data module of custom pairs, from two folders of images or from a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_idc.data.benchmarks.preference_pairs import holds_preferences, read_preferences, splits_of
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import SPLIT_ALIASES, SPLITS, Split
from lightning_idc.data.tables.files import (
    FileSource,
    PairRecord,
    Root,
    check_shares,
    image_error,
    progress,
    splits_by_hash,
)
from lightning_idc.data.tables.pair_columns import is_pair_column, pairs_of
from lightning_idc.data.tables.pair_folders import read_two_folders, side_folders, tables_in
from lightning_idc.data.tables.record_table import RecordTable, Texts, concatenate
from lightning_idc.data.tables.tables import MAX_LISTED, read_table, table_ending, table_stem
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError
from lightning_idc.utils.paths import inside
from lightning_idc.utils.text import printable

OnBad = Literal["raise", "skip"]


class TableSource(FileSource):
    """Source of the pairs of image files in a :class:`RecordTable`."""

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
    """Custom pairs: two folders ``before/`` and ``after/`` with equal file names, or a CSV, TSV or JSONL file.

    A table has the columns before, after and captions (or caption, or caption_1 to caption_n, or one row per caption),
    and optionally id, split and change_type; TRL's column images, a list of both images, can replace before and after.
    Tables may be gzipped. With two folders, ``captions.csv`` or ``captions.jsonl`` has the columns id (the file name
    without its extension) and captions. A table with a column rejected contains preferences, in the layouts of
    `PreferencePairs`. Splits come from the column split or from the files ``train.csv``, ``val.csv`` and ``test.csv``;
    otherwise a hash of the id orders the pairs and ``shares`` cut the order, so that adding pairs moves only the few
    others at the cuts to the next split. Prediction uses the
    split ``predict`` if there is one, else all pairs if there are no captions, else the test split.

    Args:
        root: root folder; all paths are relative to it and must stay below it. Subfolders of the two folders are
            included, and files that are not images are listed in a warning.
        annotations: path of the table relative to the root, which may also be a JSON list; None searches the root for
            a CSV, TSV or JSONL file.
        sides: names of the folders of first and second images; None recognises ``before`` and ``after``, ``A`` and
            ``B``, ``T1`` and ``T2``, ``im1`` and ``im2``, also below ``train/``, ``val/`` and ``test/``.
        shares: fractions of train, val and test for pairs without a split.
        on_empty: treatment of empty captions: ``raise`` an error, or ``skip`` them and pairs with no other captions.
        on_bad: treatment of pairs with missing or unreadable images: ``raise`` an error, or ``skip`` them after opening
            every image once at the start. Both report the number of pairs and their names.
        follow_links: whether symbolic links below the root are followed to files outside it.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: an argument has an invalid value.

    Example:
        >>> pair = FolderPairs("pairs").dataset("predict")[0]
        >>> pair.before.shape[0]
        3
    """

    domain = "custom pairs"

    def __init__(
        self,
        root: str | Path = "data",
        annotations: str | None = None,
        sides: tuple[str, str] | None = None,
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
        self.sides = None if sides is None else (sides[0], sides[1])
        self.on_empty, self.on_bad = on_empty, on_bad
        self._by_split: dict[str, RecordTable] = {}
        self._no_captions: str | None = None
        self._preferences: list[PairRecord] = []

    def source(self, split: Split) -> FileSource:
        if not self._by_split and not self._preferences:
            self._read()
        return self._preference_source(split) if self._preferences else self._captioned_source(split)

    def _preference_source(self, split: Split) -> FileSource:
        if "skip" in (self.on_empty, self.on_bad):
            raise ConfigError("on_empty and on_bad do not apply to preferences; remove them, and correct the table")
        by_split: dict[str, list[PairRecord]] = {}
        for record, name in zip(self._preferences, splits_of(self._preferences, self.shares), strict=True):
            by_split.setdefault(name, []).append(record)
        records = by_split.get(split) or (by_split.get("test") if split == "predict" else None)
        if not records:
            raise DataError(f"{self.root}: the split {split!r} has no preferences; assign rows to it in a column split")
        return FileSource(records, self.image_size, self.interpolation, self.image_options)

    def _captioned_source(self, split: Split) -> TableSource:
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
            counts = ", ".join(f"{len(part)} {name}" for name, part in by_split.items() if len(part))
            raise DataError(
                f"{self.root}: the split {split!r} has no usable pairs; found {counts or 'no pairs'}. Assign "
                f"rows to it in a column split, add a table {split}.csv, or, without either, increase its fraction in "
                "shares"
            )
        return TableSource(records, self.image_size, self.interpolation, self.image_options)

    # ---- missing captions and images --------------------------------------------------------------------

    def _with_captions(self, records: RecordTable, split: str) -> RecordTable:
        empty = records.uncaptioned_indices()
        if not len(empty):
            return records
        examples = _list_names([records[int(index)] for index in empty[:MAX_LISTED]], len(empty))
        message = f"{len(empty)} of {len(records)} {split} pairs have an empty caption: {examples}"
        if self.on_empty == "raise":
            raise DataError(f"{message}. Add captions, or set on_empty: skip")
        captioned = records.without_empty()
        message = printable(message)
        warnings.warn(f"{message}. Skipped {len(records) - len(captioned)} pairs without any caption", stacklevel=2)
        return captioned

    def _with_images(self, records: RecordTable, split: str) -> RecordTable:
        absent = records.absent()
        if self.on_bad == "raise":
            if absent:
                names = "; ".join(f"{where}: {str(path)!r}" for where, path in absent[:MAX_LISTED])
                raise DatasetNotFoundError(
                    f"{len(absent)} images of the {split} split are missing: {names}"
                    f"{'; ...' if len(absent) > MAX_LISTED else ''}. Add them, or set on_bad: skip"
                )
            return records
        is_resized, options = self.image_size is not None, self.image_options
        scanned = progress(records, f"reading the {split} images")
        unreadable = {
            index: fault for index, record in enumerate(scanned) if (fault := image_error(record, is_resized, options))
        }
        if not unreadable:
            return records
        names = "; ".join(f"{records[index].name}: {fault}" for index, fault in list(unreadable.items())[:MAX_LISTED])
        others = (
            f"; and {', '.join(records.ids[index] for index in list(unreadable)[MAX_LISTED:])}"
            if len(unreadable) > MAX_LISTED
            else ""
        )
        examples = printable(f"{names}{others}")
        warnings.warn(f"skipped {len(unreadable)} of {len(records)} {split} pairs: {examples}", stacklevel=2)
        return records.take(np.setdiff1d(np.arange(len(records)), list(unreadable)))

    # ---- reading ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the folder and group its pairs by split."""
        import pyarrow
        import pyarrow.compute as pc

        files = self._tables()
        if files is None:
            records, self._no_captions = read_two_folders(self.files, side_folders(self.root, self.sides))
        else:
            tables = [(read_table(path, is_pair_column), split) for path, split in files]
            if any(holds_preferences(table.names) for table, _ in tables):
                self._preferences = read_preferences(self.files, files)
                return
            parts = [pairs_of(self.files, table, split) for table, split in tables]
            del tables
            records = concatenate([part for part, _ in parts])
            # a table without captions, such as predict.csv, is valid if another table has captions
            messages = [message for _, message in parts]
            self._no_captions = None if None in messages else messages[0]
        split_names = pyarrow.array(SPLITS, pyarrow.large_string())
        split_indices = pc.index_in(records.rows.column("split"), value_set=split_names)
        split_indices = split_indices.fill_null(-1).to_numpy().copy()
        unassigned = np.flatnonzero(split_indices < 0)
        hashed = splits_by_hash(records.take(unassigned).ids, self.shares)
        split_indices[unassigned] = [SPLITS.index(split) for split in hashed]
        self._by_split = {
            split: records.take(np.flatnonzero(split_indices == index)) for index, split in enumerate(SPLITS)
        }
        pyarrow.default_memory_pool().release_unused()  # reading takes several times the memory of the pairs

    def _tables(self) -> list[tuple[Path, str | None]] | None:
        """Find the tables, each with its split; None for two folders."""
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"no such folder: {str(self.root)!r}; {_EXPECTED}")
        if self.annotations is not None:
            path = inside(self.root, self.annotations, "annotations", self.files.follow_links)
            if not path.is_file() or table_ending(path) is None:
                raise DataError(f"annotations is {str(path)!r}; expected an existing CSV, TSV, JSONL or JSON file")
            return [(path, None)]
        files = tables_in(self.root)
        parts = [
            (path, split)
            for path in files
            if (split := SPLIT_ALIASES.get(table_stem(path), table_stem(path))) in SPLITS
        ]
        if parts:
            return list(parts)
        two_folders = bool(side_folders(self.root, self.sides))
        others = [path for path in files if not (two_folders and table_stem(path) == "captions")]
        if len(others) == 1:
            return [(others[0], None)]
        if others:
            names = ", ".join(path.name for path in others)
            raise DataError(f"{self.root} has several tables ({names}); choose one with annotations: NAME")
        if not two_folders:
            sides = self.sides or ("before", "after")
            raise DatasetNotFoundError(
                f"{self.root} has neither a table nor the folders {sides[0]}/ and {sides[1]}/; {_EXPECTED}"
            )
        return None


_EXPECTED = (
    "expected before/ and after/ (or A/ and B/, T1/ and T2/, im1/ and im2/, or sides: [OLD, NEW]) with captions.csv, "
    "whose columns are id and captions; or pairs.csv, pairs.jsonl, or a table per split such as train.csv, whose "
    "columns are before, after (paths relative to the folder) and captions"
)


def _list_names(records: Sequence[PairRecord], count: int) -> str:
    return ", ".join(record.name for record in records) + (", ..." if count > len(records) else "")

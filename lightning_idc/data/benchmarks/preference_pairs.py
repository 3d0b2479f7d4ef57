"""PreferencePairs: custom preference data in the layouts of TRL, ms-swift or a plain table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import Row
from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.tables.files import FileSource, Record, Root, check_shares, split_by_hash
from lightning_idc.data.tables.pair_columns import SAME, SPLITS, two_images
from lightning_idc.data.tables.tables import Faults, read_rows
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import DataError, DatasetNotFoundError
from lightning_idc.utils.jsonfiles import short


class PreferencePairs(PairDataModule):
    """Pairs with chosen and rejected captions, from a CSV or JSONL file.

    Rows with the same images, chosen caption, margin and type of error are merged into one pair with several rejected
    captions. The chosen caption is the pair's reference; ``meta`` holds ``rejected`` (a list), ``margin`` and
    ``error_type``, from which ``FromData`` of the preference callbacks samples negatives.

    Args:
        root: root folder; image paths are relative to it and must stay below it.
        annotations: path of the file, relative to the root. Its rows have one of three layouts: columns ``before``,
            ``after``, ``chosen``, ``rejected``; TRL's ``images`` (two), ``chosen``, ``rejected`` (texts or messages);
            ms-swift's ``images``, ``messages`` (the last one is chosen), ``rejected_response``. ``margin``,
            ``error_type``, ``id`` and ``split`` are optional.
        shares: fractions of train, val and test for pairs without a split.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: ``shares`` does not have three numbers that sum to 1.

    Example:
        >>> pair = PreferencePairs("preferences", shares=(1.0, 0.0, 0.0)).dataset("train")[0]
        >>> pair.captions, pair.meta["rejected"]
        (['it moved'], ['it is gone'])
    """

    domain = "preferences of one's own"

    def __init__(
        self,
        root: str | Path = "data",
        annotations: str = "preferences.jsonl",
        shares: tuple[Share, Share, Share] = (0.8, 0.1, 0.1),
        **options: Any,
    ) -> None:
        check_arguments(PreferencePairs.__init__, locals())
        super().__init__(**options)
        check_shares(shares)
        self.files, self.annotations, self.shares = Root(root), annotations, tuple(shares)
        self._records: list[Record] | None = None

    def source(self, split: Split) -> FileSource:
        if self._records is None:
            path = self.files.path / self.annotations
            if not path.is_file():
                raise DatasetNotFoundError(f"there is no file {str(path)!r}; name it with annotations")
            self._records = read_preferences(self.files, [(path, None)])
        records = [r for r in self._records if split_of(r, self.shares) == split]
        if not records:
            raise DataError(f"{self.annotations}: the split {split!r} has no pairs; name it in a column split")
        return FileSource(records, self.image_size, self.interpolation, self.image_options)


def holds_preferences(columns: Sequence[str]) -> bool:
    """Whether a table with these columns has rejected captions."""
    return "rejected" in columns or "rejected_response" in columns


def split_of(record: Record, shares: Sequence[float]) -> str:
    """Split of a pair from its record, or from a hash of its id.

    Raises:
        DataError: the split of the record is unknown.
    """
    name = (record.split or "").lower()
    split = SAME.get(name, name) or split_by_hash(record.id, shares)
    if split not in SPLITS:
        raise DataError(f"{record.where}: the split {name!r} is unknown; expected one of {', '.join(SPLITS)}")
    return split


def read_preferences(files: Root, tables: Sequence[tuple[Path, str | None]]) -> list[Record]:
    """Read tables in one of the layouts of :class:`PreferencePairs`.

    Args:
        files: root folder of the images.
        tables: paths of the tables, each with its split; None to use the column ``split``, if there is one.

    Raises:
        DataError: a row is malformed.
    """
    records: dict[tuple[Any, ...], Record] = {}
    names: set[str] = set()
    for path, split in tables:
        faults = Faults(path)
        for row in read_rows(path)[1]:
            with faults.collect(row):
                _add(files, row, split, records, names)
        faults.check()
    return list(records.values())


def _add(files: Root, row: Row, split: str | None, records: dict[tuple[Any, ...], Record], names: set[str]) -> None:
    before, after = _images(row)
    chosen, rejected = _answers(row)
    if chosen == rejected:
        raise DataError(f"{row.where}: chosen and rejected are the same text {short(chosen)}")
    margin, kind = margin_of(row.values.get("margin"), row.where), row.text("error_type")
    split = split or row.text("split")
    key = (before, after, chosen, margin, kind, split)
    if key in records:
        records[key].meta["rejected"].append(rejected)
        return
    name = row.text("id") or f"{len(records):06d}"
    name = f"{name}#{len(records)}" if name in names else name
    names.add(name)
    first, second = files.file(before, row.where), files.file(after, row.where)
    records[key] = Record(name, row.where, first, second, [chosen], split, kind, preference([rejected], margin, kind))


def preference(rejected: list[str], margin: float | None, error_type: str | None) -> dict[str, Any]:
    """Entries of a pair's ``meta`` for a preference; missing values are left out."""
    values = {"rejected": rejected or None, "margin": margin, "error_type": error_type}
    return {name: value for name, value in values.items() if value is not None}


def _images(row: Row) -> tuple[str, str]:
    if "images" in row.values:
        return two_images(row.values["images"], f"{row.where}: images")
    before, after = row.text("before"), row.text("after")
    if before is None or after is None:
        raise DataError(f"{row.where}: no images; expected `images` with two paths, or `before` and `after`")
    return before, after


def _answers(row: Row) -> tuple[str, str]:
    if "rejected_response" in row.values:
        texts = _last_message(row, "messages"), _last_message(row, "rejected_response")
    else:
        texts = _last_message(row, "chosen"), _last_message(row, "rejected")
    return texts


def _last_message(row: Row, column: str) -> str:
    """Text of a column, which is a string or a list of messages; of messages, the content of the last one."""
    value = row.values.get(column)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
        if isinstance(value, list):  # multimodal content: a list of parts
            value = " ".join(str(part.get("text")) for part in value if isinstance(part, Mapping) and part.get("text"))
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{row.where}: {column} is {short(row.values.get(column))}; expected a caption")
    return " ".join(value.split())


def margin_of(value: Any, where: str) -> float | None:
    """Parse a margin; None if it is absent.

    Raises:
        DataError: the value is not a finite number.
    """
    if value is None or value == "":
        return None
    try:
        margin = float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if not math.isfinite(margin):
        raise DataError(f"{where}: margin is {short(value)}; expected a number")
    return margin

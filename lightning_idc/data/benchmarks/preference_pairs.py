"""PreferencePairs: preferences of one's own between captions, in the layouts of TRL, ms-swift or a plain table."""

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
    """Pairs with a chosen and a rejected caption each, from a CSV or JSONL file.

    Rows of one pair of images with one chosen caption, margin and type of error are one pair, whose rejected captions
    are all of theirs. The chosen caption is the pair's reference; ``meta`` holds ``rejected`` (a list), ``margin`` and
    ``error_type``, which ``FromData`` of the preference callbacks draws from.

    Args:
        root: folder that paths of images are relative to, and never leave.
        annotations: the file, relative to the root. Its rows have one of three layouts: columns ``before``, ``after``,
            ``chosen``, ``rejected``; TRL's ``images`` (two), ``chosen``, ``rejected`` (texts or messages); ms-swift's
            ``images``, ``messages`` (the last one the chosen answer), ``rejected_response``. Perhaps also ``margin``,
            ``error_type``, ``id``, ``split``.
        shares: of train, val and test, where nothing names the split.
        options: of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: shares are not three numbers that sum to 1.

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
    """Whether a table with these columns says which captions are rejected."""
    return "rejected" in columns or "rejected_response" in columns


def split_of(record: Record, shares: Sequence[float]) -> str:
    """Split of a pair: the named one, or else by a hash of its id.

    Raises:
        DataError: the named split is unknown.
    """
    named = (record.split or "").lower()
    split = SAME.get(named, named) or split_by_hash(record.id, shares)
    if split not in SPLITS:
        raise DataError(f"{record.where}: the split {named!r} is unknown; expected one of {', '.join(SPLITS)}")
    return split


def read_preferences(files: Root, tables: Sequence[tuple[Path, str | None]]) -> list[Record]:
    """Pairs of tables in one of the layouts of :class:`PreferencePairs`.

    Args:
        files: root that images are relative to.
        tables: with the split that each holds; None where a column or nothing names it.

    Raises:
        DataError: a row is not as it should be.
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
    """What ``meta`` of a pair says of a preference; keys that the data lacks are left out."""
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
        texts = _said(row, "messages"), _said(row, "rejected_response")
    else:
        texts = _said(row, "chosen"), _said(row, "rejected")
    return texts


def _said(row: Row, column: str) -> str:
    """A text, or what the last message says."""
    value = row.values.get(column)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
        if isinstance(value, list):  # parts of a message, of which one is text
            value = " ".join(str(part.get("text")) for part in value if isinstance(part, Mapping) and part.get("text"))
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{row.where}: {column} is {short(row.values.get(column))}; expected a caption")
    return " ".join(value.split())


def margin_of(given: Any, where: str) -> float | None:
    """A margin of the data; None where there is none.

    Raises:
        DataError: it is not a number.
    """
    if given is None or given == "":
        return None
    try:
        margin = float(given)
    except (TypeError, ValueError):
        margin = math.nan
    if not math.isfinite(margin):
        raise DataError(f"{where}: margin is {short(given)}; expected a number")
    return margin

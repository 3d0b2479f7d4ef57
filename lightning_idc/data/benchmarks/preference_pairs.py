"""PreferencePairs: data module of preferences in the layouts of TRL, ms-swift, LLaMA-Factory, MMPR or a plain table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import AnnotationRow
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import SPLIT_ALIASES, SPLITS, Split
from lightning_idc.data.tables.files import FileSource, PairRecord, Root, check_shares, splits_by_hash
from lightning_idc.data.tables.messages import last_text, message_text
from lightning_idc.data.tables.pair_columns import two_images
from lightning_idc.data.tables.tables import Faults, read_rows
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import DataError, DatasetNotFoundError
from lightning_idc.utils.jsonfiles import short


class PreferencePairs(PairDataModule):
    """Pairs with chosen and rejected captions, from a CSV or JSONL file.

    Rows with the same images, chosen caption, margin, type of error and question are merged into one pair with several
    rejected captions. The chosen caption is the pair's reference; ``meta`` holds ``rejected`` (a list), from which
    ``PreferenceOptimization`` samples, ``question`` (for a prompt such as ``{question}``), ``margin`` and
    ``error_type``.

    Args:
        root: root folder; image paths are relative to it and must stay below it.
        annotations: file, relative to the root. Images are ``before`` and ``after``, or two in ``images`` or
            ``image``. Captions are ``chosen`` and ``rejected``, as texts, messages or a message (TRL, LLaMA-Factory,
            MMPR); or ms-swift's ``messages``, the last one the chosen answer, with ``rejected_response`` or
            ``rejected_messages``. The question is ``question``, ``prompt``, or the last message of the user. Optional
            columns: ``margin``, ``error_type``, ``id``, ``split``.
        shares: fractions of train, val and test for pairs without a split.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: ``shares`` does not have three numbers that sum to 1.

    Example:
        >>> pair = PreferencePairs("preferences", shares=(1.0, 0.0, 0.0)).dataset("train")[0]
        >>> pair.captions, pair.meta["rejected"]
        (['it moved'], ['it is gone'])
    """

    domain = "custom preferences"

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
        self._records: list[PairRecord] | None = None

    def source(self, split: Split) -> FileSource:
        if self._records is None:
            path = self.files.path / self.annotations
            if not path.is_file():
                raise DatasetNotFoundError(f"no such file: {str(path)!r}; set annotations to the table")
            self._records = read_preferences(self.files, [(path, None)])
        splits = splits_of(self._records, self.shares)
        records = [record for record, name in zip(self._records, splits, strict=True) if name == split]
        if not records:
            raise DataError(
                f"{self.annotations}: the split {split!r} has no pairs; assign rows to it in a column split"
            )
        return FileSource(records, self.image_size, self.interpolation, self.image_options)


def holds_preferences(columns: Sequence[str]) -> bool:
    """Whether a table with these columns has rejected captions."""
    return any(column in columns for column in _REJECTED)


_REJECTED = ("rejected", "rejected_response", "rejected_messages")
_CONVERSATION = ("prompt", "conversations", "messages", "chosen")
_MARKERS = re.compile(r"(?:Image-\d+:\s*)?<(?:image|video)>")


def splits_of(records: Sequence[PairRecord], shares: Sequence[float]) -> list[str]:
    """Return the split of each pair from its record, or from a hash of its id if the record has none.

    Raises:
        DataError: the split of a record is unknown.
    """
    names = [SPLIT_ALIASES.get(name, name) for name in ((record.split or "").lower() for record in records)]
    hashed = iter(splits_by_hash((record.id for record, name in zip(records, names, strict=True) if not name), shares))
    splits = [name or next(hashed) for name in names]
    for record, split in zip(records, splits, strict=True):
        if split not in SPLITS:
            raise DataError(f"{record.where}: the split {split!r} is unknown; expected one of {', '.join(SPLITS)}")
    return splits


def read_preferences(files: Root, tables: Sequence[tuple[Path, str | None]]) -> list[PairRecord]:
    """Read tables in one of the layouts of :class:`PreferencePairs`.

    Args:
        files: root folder of the images.
        tables: paths of the tables, each with its split; None to use the column ``split``, if there is one.

    Raises:
        DataError: a row is malformed.
    """
    records: dict[tuple[Any, ...], PairRecord] = {}
    names: set[str] = set()
    for path, split in tables:
        faults = Faults(path)
        for row in read_rows(path)[1]:
            with faults.collect(row):
                _add(files, row, split, records, names)
        faults.check()
    return list(records.values())


def _add(
    files: Root, row: AnnotationRow, split: str | None, records: dict[tuple[Any, ...], PairRecord], names: set[str]
) -> None:
    before, after = _images(row)
    chosen, rejected = _answers(row)
    if chosen == rejected:
        raise DataError(f"{row.where}: chosen and rejected are equal: {short(chosen)}")
    margin, kind = margin_of(row.values.get("margin"), row.where), row.text("error_type")
    split, question = split or row.text("split"), _question(row)
    key = (before, after, chosen, margin, kind, split, question)
    if key in records:
        records[key].meta["rejected"].append(rejected)
        return
    name = row.text("id") or f"{len(records):06d}"
    name = f"{name}#{len(records)}" if name in names else name
    names.add(name)
    meta = preference([rejected], margin, kind) | ({"question": question} if question else {})
    records[key] = PairRecord(
        id=name,
        where=row.where,
        before=files.file(before, row.where),
        after=files.file(after, row.where),
        captions=[chosen],
        split=split,
        change_type=kind,
        meta=meta,
    )


def preference(rejected: list[str], margin: float | None, error_type: str | None) -> dict[str, Any]:
    """Build the entries of ``meta`` for a preference; missing values are left out."""
    values = {"rejected": rejected or None, "margin": margin, "error_type": error_type}
    return {name: value for name, value in values.items() if value is not None}


def _images(row: AnnotationRow) -> tuple[str, str]:
    for column in ("images", "image"):
        if column in row.values:
            return two_images(row.values[column], f"{row.where}: {column}")
    before, after = row.text("before"), row.text("after")
    if before is None or after is None:
        raise DataError(f"{row.where}: no images; expected `images` with two paths, or `before` and `after`")
    return before, after


def _answers(row: AnnotationRow) -> tuple[str, str]:
    """Return the chosen and the rejected caption of a row."""
    rejected = next((column for column in _REJECTED if column in row.values), "rejected")
    chosen = "chosen" if rejected == "rejected" else "messages"
    return _caption(row, chosen), _caption(row, rejected)


def _caption(row: AnnotationRow, column: str) -> str:
    value = row.values.get(column)
    text = last_text(value)
    if not text:
        raise DataError(f"{row.where}: {column} is {short(value)}; expected a caption")
    return text


def _question(row: AnnotationRow) -> str | None:
    """Return the question about the pair, without image markers; None if the row has no question."""
    if question := row.values.get("question"):
        return _without_markers(message_text(question))
    for column in _CONVERSATION:
        value = row.values.get(column)
        if isinstance(value, list):
            turns = [turn for turn in value if isinstance(turn, Mapping)]
            user_turns = [turn for turn in turns if (turn.get("role") or turn.get("from")) in ("user", "human")]
            if user_turns:
                return _without_markers(message_text(user_turns[-1]))
        elif column == "prompt" and value:
            return _without_markers(message_text(value))
    return None


def _without_markers(text: str) -> str | None:
    return " ".join(_MARKERS.sub(" ", text).split()) or None


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

"""AnnotationRow: one record of an annotation file, with checked access to its texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import check_text, short


@dataclass(slots=True)
class AnnotationRow:
    """One JSON object of an annotation file, or one row of a table.

    Args:
        where: file and line, for error messages.
        values: cells by column.
        number: line or record number in a table; 0 for an object of another kind of file.
    """

    where: str
    values: dict[str, Any]
    number: int = 0

    def text(self, column: str) -> str | None:
        """Stripped text of a column; None if the value is absent or empty.

        Raises:
            DataError: the value is neither text nor an integer.
        """
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise DataError(f"{self.where}: {column} is {short(value)}; expected text")
        return check_text(str(value), f"{self.where}: {column}").strip() or None


def find_file(root: Path, *names: str) -> Path | None:
    """Find the first file that exists, under its name or with ``.gz`` appended; None if none of them exists."""
    paths = (root / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def required_text(row: AnnotationRow, column: str) -> str:
    """Text of a required column.

    Raises:
        DataError: the value is absent, empty or not text.
    """
    text = row.text(column)
    if text is None:
        columns = ", ".join(map(repr, row.values)) or "nothing"
        raise DataError(f"{row.where}: {column} is absent or empty; found {columns}")
    return text


def sentences(value: Any, where: str) -> list[str]:
    """Normalise a text, a list of texts or a list of word lists to a list of sentences; "" for an empty one.

    Raises:
        DataError: the value has another type.
    """
    parts = value if isinstance(value, list) else [value]
    parts = [" ".join(part) if _is_words(part) else part for part in parts]
    for part in parts:
        if not isinstance(part, str):
            raise DataError(f"{where}: a sentence is {short(part)}; expected text")
    return [check_text(" ".join(part.split()), f"{where}: a sentence") for part in parts]


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)

"""Rows of annotation files, and the texts in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import check_text, short


@dataclass(slots=True)
class Row:
    """One object of a file, or one row of a table.

    Args:
        where: file and line for messages.
        values: cells by column.
        number: line or record of a table; 0 for an object of another file.
    """

    where: str
    values: dict[str, Any]
    number: int = 0

    def text(self, column: str) -> str | None:
        """Value of a column as text without blanks around it; None if it is absent or empty.

        Raises:
            DataError: it is neither text nor a whole number.
        """
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise DataError(f"{self.where}: {column} is {short(value)}; expected text")
        return check_text(str(value), f"{self.where}: {column}").strip() or None


def find(root: Path, *names: str) -> Path | None:
    """The first of some files that exists, under its name or with ``.gz``."""
    paths = (root / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def needed(row: Row, column: str) -> str:
    """Text of a column that must not be empty.

    Raises:
        DataError: it is absent, empty or not text.
    """
    text = row.text(column)
    if text is None:
        columns = ", ".join(map(repr, row.values)) or "nothing"
        raise DataError(f"{row.where}: {column} is absent or empty; found {columns}")
    return text


def sentences(value: Any, where: str) -> list[str]:
    """Sentences of a text, of a list of texts, or of lists of words; "" for each empty one.

    Raises:
        DataError: it is something else.
    """
    parts = value if isinstance(value, list) else [value]
    parts = [" ".join(part) if _is_words(part) else part for part in parts]
    for part in parts:
        if not isinstance(part, str):
            raise DataError(f"{where}: a sentence is {short(part)}; expected text")
    return [check_text(" ".join(part.split()), f"{where}: a sentence") for part in parts]


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)

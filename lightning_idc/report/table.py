"""Table: cells and column names, rendered as Markdown, as LaTeX, for a terminal, and by the HTML pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", **{sign: f"&#{ord(sign)};" for sign in "\\`*]"}}
_LATEX = {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # characters that pandas does not escape


@dataclass(frozen=True)
class Table:
    """Cells with column names; cells are plain text, and markup in them is escaped.

    Args:
        columns: column names.
        rows: cells, one per column.
        title: text above the table.
        notes: lines below the table.
        text: number of text columns from the left; further columns are numbers, aligned to the right.
        strong: indices of highlighted rows.

    Example:
        >>> print(Table(["model", "CIDEr-D"], [["tiny", "12.0"]]).markdown())
        | model | CIDEr-D |
        |-------|--------:|
        | tiny  |    12.0 |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    text: int = 1
    strong: Collection[int] = field(default_factory=frozenset)

    def markdown(self) -> str:
        """The table as Markdown that is also readable as plain text, without title and notes."""
        cells = [[_markdown(plain(cell)) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = [
            " | ".join(
                cell.ljust(width) if column < self.text else cell.rjust(width)
                for column, (cell, width) in enumerate(row)
            )
            for row in (list(zip(line, widths, strict=True)) for line in cells)
        ]
        rule = [
            "-" * (width + 2) if column < self.text else "-" * (width + 1) + ":" for column, width in enumerate(widths)
        ]
        return "\n".join([f"| {lines[0]} |", f"|{'|'.join(rule)}|", *(f"| {line} |" for line in lines[1:])])

    def latex(self) -> str:
        """The table as a ``tabular`` with rules of the package booktabs."""
        from pandas import DataFrame

        columns, *rows = [[plain(cell) for cell in row] for row in (self.columns, *self.rows)]
        kinds = "l" * self.text + "r" * (len(columns) - self.text)
        text = DataFrame(rows, columns=columns).to_latex(index=False, escape=True, column_format=kinds)
        return re.sub("[<>|]", lambda match: _LATEX[match[0]], text.rstrip("\n"))

    def rich(self, width: int = 80) -> RenderableType:
        """The table for a terminal; columns beyond the width follow in further tables.

        Args:
            width: characters per line.
        """
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        # rich would wrap the title of a narrow table
        parts: list[RenderableType] = [Text(plain(self.title), style="bold")] if self.title else []
        for columns in self._blocks(width):
            part = RichTable(box=SIMPLE_HEAD)
            for column in columns:
                options: dict[str, Any] = (
                    {"overflow": "ellipsis", "max_width": 24} if column < self.text else {"justify": "right"}
                )
                part.add_column(Text(plain(self.columns[column])), no_wrap=True, **options)
            for number, row in enumerate(self.rows):
                cells = [Text(plain(row[column])) for column in columns]
                part.add_row(*cells, style="bold" if number in self.strong else None)
            parts.append(part)
        return Group(*parts, *(Text(f"  {plain(note)}") for note in self.notes))

    def _blocks(self, width: int) -> list[list[int]]:
        """Columns of each part: all text columns, and as many further columns as fit."""
        widths = [
            max(len(plain(row[column])) for row in (self.columns, *self.rows)) + 3
            for column in range(len(self.columns))
        ]
        text_columns = list(range(self.text))
        remaining = available = width - 2 - sum(min(widths[column], 27) for column in text_columns)
        blocks = [list(text_columns)]
        for column in range(self.text, len(self.columns)):
            if widths[column] > remaining and len(blocks[-1]) > self.text:
                blocks.append(list(text_columns))
                remaining = available
            blocks[-1].append(column)
            remaining -= widths[column]
        return blocks


def _markdown(text: str) -> str:
    signs = re.sub(r"[&<>|\\`*]|\](?=[(\[:])", lambda match: _MARKDOWN[match[0]], text)  # only brackets of links
    return re.sub(r"(?<!\w)_|_(?!\w)", "&#95;", signs)  # within a word an underscore is not markup

"""Tables: cells and a heading, as Markdown, HTML, LaTeX or for a terminal. All tables of the library are made here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", **{sign: f"&#{ord(sign)};" for sign in "\\`*]"}}
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Cells with a heading; they are text, and never become markup.

    Args:
        columns: heading.
        rows: cells, as many as columns.
        title: stands above.
        notes: stand below.
        text: columns, from the left, that hold text; the others hold numbers and are aligned to the right.
        strong: rows, by index, that stand out.

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
        """The table as Markdown that also reads well as plain text, without title and notes."""
        cells = [[_markdown(plain(cell)) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = [
            " | ".join(
                cell.ljust(width) if place < self.text else cell.rjust(width) for place, (cell, width) in enumerate(row)
            )
            for row in (list(zip(line, widths, strict=True)) for line in cells)
        ]
        rule = [
            "-" * (width + 2) if place < self.text else "-" * (width + 1) + ":" for place, width in enumerate(widths)
        ]
        return "\n".join([f"| {lines[0]} |", f"|{'|'.join(rule)}|", *(f"| {line} |" for line in lines[1:])])

    def latex(self) -> str:
        """The table as a ``tabular`` with rules of the package booktabs."""
        head, *rows = [" & ".join(_latex(plain(cell)) for cell in row) for row in (self.columns, *self.rows)]
        kinds = "l" * self.text + "r" * (len(self.columns) - self.text)
        body = [
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *(rf"{row} \\" for row in rows),
        ]
        return "\n".join([*body, r"\bottomrule", r"\end{tabular}"])

    def rich(self, width: int = 80) -> RenderableType:
        """The table for a terminal; columns for which a line has no room follow in further tables.

        Args:
            width: characters per line.
        """
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        parts: list[RenderableType] = []
        for places in self._blocks(width):
            part = RichTable(box=SIMPLE_HEAD, title=Text(plain(self.title)) if self.title and not parts else None)
            part.title_justify, part.title_style = "left", "bold"
            for place in places:
                how: dict[str, Any] = (
                    {"overflow": "ellipsis", "max_width": 24} if place < self.text else {"justify": "right"}
                )
                part.add_column(Text(plain(self.columns[place])), no_wrap=True, **how)
            for number, row in enumerate(self.rows):
                cells = [Text(plain(row[place])) for place in places]
                part.add_row(*cells, style="bold" if number in self.strong else None)
            parts.append(part)
        return Group(*parts, *(Text(f"  {plain(note)}") for note in self.notes))

    def _blocks(self, width: int) -> list[list[int]]:
        """Columns of each part: those of text, which stand in all of them, and numbers as far as there is room."""
        needed = [
            max(len(plain(row[place])) for row in (self.columns, *self.rows)) + 3 for place in range(len(self.columns))
        ]
        always = list(range(self.text))
        room = whole = width - 2 - sum(min(needed[place], 27) for place in always)
        blocks = [list(always)]
        for place in range(self.text, len(self.columns)):
            if needed[place] > room and len(blocks[-1]) > self.text:
                blocks.append(list(always))
                room = whole
            blocks[-1].append(place)
            room -= needed[place]
        return blocks


def _markdown(text: str) -> str:
    signs = re.sub(r"[&<>|\\`*]|\](?=[(\[:])", lambda match: _MARKDOWN[match[0]], text)  # of brackets those of links
    return re.sub(r"(?<!\w)_|_(?!\w)", "&#95;", signs)  # within a word it emphasises nothing


def _latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>|±]", lambda match: _LATEX[match[0]], text)

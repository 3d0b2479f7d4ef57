"""The table of scores: the whole corpus first, then one row per type of change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_idc.core.text import plain
from lightning_idc.metrics.grouping import NO_CHANGE, quarters

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lightning_idc.metrics.captions import Scores

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "CIDEr", "SPICE")
HEADLINE = METRICS[3:]
"""What is shown where room is short."""
MOST_ROWS = 30


@dataclass
class Summary:
    """Scores and facts of a test, by group of pairs.

    Args:
        rows: per group ("all" first) its values by column, times 100.
        counts: pairs per group.
        references: of the whole corpus.
        notes: metrics that could not be computed, with the reason.
        judged: per group the pairs to which a fact applies, by fact.
    """

    rows: dict[str, dict[str, float]]
    counts: dict[str, int]
    references: int
    notes: dict[str, str]
    judged: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Columns that any row has, metrics first."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    @property
    def shown(self) -> list[str]:
        """Columns for where room is short: of the BLEUs only the last."""
        return [column for column in self.columns if column not in METRICS or column in HEADLINE]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": self.rows,
            "pairs": self.counts,
            "references": self.references,
            "notes": self.notes,
            "judged": self.judged,
        }


def summarise(
    predictions: Sequence[Mapping[str, Any]],
    scores: Scores,
    facts: Mapping[str, Mapping[str, bool | None]],
    ious: Mapping[str, float] | None = None,
) -> Summary:
    """Group scores and facts by type of change and by overlap of views.

    A group's scores are means over its pairs, with CIDEr-D's word weights from the whole corpus; corpus BLEU is
    given for the whole only, since a mean of sentence scores is another thing.

    Args:
        predictions: records with ``id`` and ``change_type``.
        scores: of the same pairs.
        facts: per pair what its caption gets right; None where a fact does not apply.
        ious: overlap of the two views of a pair, where it is known.
    """
    place = {id: index for index, id in enumerate(scores.ids)}
    groups: dict[str, list[str]] = {"all": list(scores.ids)}
    for record in sorted(predictions, key=lambda r: str(r["change_type"])):
        if record["change_type"] is not None and record["id"] in place:
            # a type may be called "all", too
            kind = str(record["change_type"])
            groups.setdefault("all (type)" if kind == "all" else kind, []).append(record["id"])
    changed = [r["id"] for r in predictions if r["change_type"] != NO_CHANGE and r["id"] in place]
    known_ious = {id: ious[id] for id in changed if ious and id in ious}
    groups |= {name: ids for name, ids in quarters(known_ious).items() if name not in groups}
    names = list(dict.fromkeys(name for known in facts.values() for name in known))
    rows: dict[str, dict[str, float]] = {}
    judged: dict[str, dict[str, int]] = {}
    for group, ids in groups.items():
        where = [place[id] for id in ids]
        row, counts = {}, {}
        for column in METRICS:
            if group == "all" and column in scores.values:
                row[column] = scores.values[column]
            elif column in scores.per_pair and not column.startswith("BLEU"):
                row[column] = float(np.mean(scores.per_pair[column][where]))
        for name in names:
            known = [facts[id][name] for id in ids if facts.get(id, {}).get(name) is not None]
            if known:
                row[name] = 100 * float(np.mean([bool(value) for value in known]))
                counts[name] = len(known)
        rows[group], judged[group] = row, counts
    counted = {group: len(ids) for group, ids in groups.items()}
    return Summary(rows, counted, scores.references, dict(scores.missing), judged)


def as_rich(summary: Summary, title: str, width: int = 80) -> RenderableType:
    """The summary for the terminal; where its columns need more room, they go into several tables.

    Args:
        title: stands above.
        width: characters per line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    groups = _largest(summary)
    label = max(len("change"), *(min(len(plain(group)), 24) for group in groups))
    tables: list[RenderableType] = []
    for columns in _blocks(summary.shown, width - label - 13):
        table = Table(box=SIMPLE_HEAD, title=None if tables else Text(plain(title)))
        table.title_justify, table.title_style = "left", "bold"
        table.add_column("change", no_wrap=True, overflow="ellipsis", max_width=24)
        table.add_column("pairs", justify="right", no_wrap=True)
        for column in columns:
            table.add_column(Text(plain(column)), justify="right", no_wrap=True)
        for group in groups:
            row = summary.rows[group]
            cells = [f"{row[column]:.1f}" if column in row else "-" for column in columns]
            style = "bold" if group == "all" else None
            table.add_row(Text(plain(group)), str(summary.counts[group]), *cells, style=style)
        tables.append(table)
    left_out = len(summary.rows) - len(groups)
    if left_out:
        tables.append(Text(f"  and {left_out} rarer types, which scores.json holds"))
    tables += [Text(f"  {line}") for line in remarks(summary)]
    return Group(*tables)


def as_markdown(summary: Summary) -> str:
    """The summary as a Markdown table with everything in it."""
    columns = summary.columns
    lines = [
        _row(["change", "pairs", *map(plain, columns)]),
        _row(["---", *["---:"] * (1 + len(columns))]),
    ]
    for group, row in summary.rows.items():
        cells = [f"{row[column]:.1f}" if column in row else "-" for column in columns]
        lines.append(_row([plain(group), str(summary.counts[group]), *cells]))
    total = f"{summary.counts['all']} pairs, {summary.references} references, scores x100."
    return "\n".join([*lines, "", " ".join([total, *(f"{remark}." for remark in remarks(summary))]), ""])


def remarks(summary: Summary) -> list[str]:
    """What a reader of the table has to know: metrics that are missing, facts that apply to some pairs only."""
    found = [f"{metric}: {reason}" for metric, reason in summary.notes.items()]
    judged = summary.judged.get("all", {})
    partial = [f"{name} {count}" for name, count in judged.items() if count < summary.counts["all"]]
    if partial:
        found.append(f"pairs to which a fact applies: {plain(', '.join(partial))}")
    return found


def _largest(summary: Summary) -> list[str]:
    by_size = sorted(summary.rows, key=lambda group: -summary.counts[group])
    kept = {"all", *by_size[: MOST_ROWS + 1]}
    return [group for group in summary.rows if group in kept]


def _blocks(columns: Sequence[str], width: int) -> list[list[str]]:
    """Columns in order, in one block where they fit, else metrics and facts apart, in as few blocks as fit."""
    needed = {column: max(len(plain(column)), len("100.0")) + 3 for column in columns}
    if sum(needed.values()) <= width:
        return [list(columns)]
    blocks: list[list[str]] = []
    for kind in (True, False):
        room = 0
        for column in columns:
            if (column in METRICS) is kind:
                if needed[column] > room:
                    blocks.append([])
                    room = width
                blocks[-1].append(column)
                room -= needed[column]
    return blocks


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

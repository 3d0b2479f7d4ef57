"""summarise: a table of scores with the full corpus first, then one row per type of change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_idc.metrics.grouping import quarters
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.report.table import Table
from lightning_idc.utils.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lightning_idc.metrics.captions import Scores

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "CIDEr", "SPICE")
HEADLINE = METRICS[3:]
"""Metrics in narrow tables."""
MAX_ROWS = 30


@dataclass
class Summary:
    """Scores and facts of a test, by group of pairs.

    Args:
        rows: values by group ("all" first) and column, times 100.
        counts: number of pairs per group.
        references: number of references of the full corpus.
        notes: metrics that could not be computed, with the reason.
        judged: number of pairs to which a fact applies, by group and fact.
    """

    rows: dict[str, dict[str, float]]
    counts: dict[str, int]
    references: int
    notes: dict[str, str]
    judged: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """All columns of the rows, metrics first."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    @property
    def headline_columns(self) -> list[str]:
        """Columns of narrow tables, with BLEU-4 as the only BLEU."""
        return [column for column in self.columns if column not in METRICS or column in HEADLINE]

    @property
    def total(self) -> str:
        """Numbers of pairs and references, in words."""
        return f"{self.counts['all']} pairs, {self.references} references"

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

    The scores of a group are means over its pairs, with the document frequencies of CIDEr-D from the full corpus.
    Corpus BLEU is only computed for all pairs, since it differs from a mean of sentence scores. If all pairs have the
    unspecific type ``change``, there is no group for it.

    Args:
        predictions: records with ``id`` and ``change_type``.
        scores: scores of the same pairs.
        facts: whether each fact of the caption is right, by pair id; None if a fact does not apply.
        ious: overlap of the two views by pair id, if available.
    """
    index_of = {id: index for index, id in enumerate(scores.ids)}
    groups: dict[str, list[str]] = {"all": list(scores.ids)}
    for record in sorted(predictions, key=lambda r: str(r["change_type"])):
        if record["change_type"] is not None and record["id"] in index_of:
            # a type may be called "all", too
            kind = str(record["change_type"])
            groups.setdefault("all (type)" if kind == "all" else kind, []).append(record["id"])
    if len(groups.get(CHANGE, ())) == len(scores.ids):
        del groups[CHANGE]  # it would repeat the row of all pairs
    changed = [r["id"] for r in predictions if r["change_type"] != NO_CHANGE and r["id"] in index_of]
    changed_ious = {id: ious[id] for id in changed if ious and id in ious}
    groups |= {name: ids for name, ids in quarters(changed_ious).items() if name not in groups}
    names = list(dict.fromkeys(name for judgements in facts.values() for name in judgements))
    rows: dict[str, dict[str, float]] = {}
    judged: dict[str, dict[str, int]] = {}
    for group, ids in groups.items():
        indices = [index_of[id] for id in ids]
        row, counts = {}, {}
        for column in METRICS:
            if group == "all" and column in scores.values:
                row[column] = scores.values[column]
            elif column in scores.per_pair and not column.startswith("BLEU"):
                row[column] = float(np.mean(scores.per_pair[column][indices]))
        for name in names:
            judgements = [facts[id][name] for id in ids if facts.get(id, {}).get(name) is not None]
            if judgements:
                row[name] = 100 * float(np.mean([bool(value) for value in judgements]))
                counts[name] = len(judgements)
        rows[group], judged[group] = row, counts
    return Summary(
        rows=rows,
        counts={group: len(ids) for group, ids in groups.items()},
        references=scores.references,
        notes=dict(scores.missing),
        judged=judged,
    )


def as_table(summary: Summary, columns: Sequence[str] | None = None, title: str | None = None) -> Table:
    """The summary as a table, one row per group.

    Args:
        summary: the summary.
        columns: selected columns; all when None.
        title: heading; numbers of pairs and references when None.
    """
    columns = summary.columns if columns is None else columns
    rows = [
        [group, str(summary.counts[group]), *(f"{row[column]:.1f}" if column in row else "-" for column in columns)]
        for group, row in summary.rows.items()
    ]
    title = f"{summary.total}, scores x100" if title is None else title
    strong = {number for number, group in enumerate(summary.rows) if group == "all"}
    return Table(["change", "pairs", *columns], rows, title, remarks(summary), strong=strong)


def as_rich(summary: Summary, title: str, width: int = 80) -> RenderableType:
    """The summary for the terminal, limited to the most frequent types.

    Args:
        summary: the summary.
        title: heading.
        width: characters per line.
    """
    by_size = sorted(summary.rows, key=lambda group: -summary.counts[group])
    row_names = {"all", *by_size[: MAX_ROWS + 1]}
    table = as_table(summary, summary.headline_columns, title)
    rows = [row for row in table.rows if row[0] in row_names]
    notes = list(table.notes)
    if len(rows) < len(table.rows):
        notes.insert(0, f"{len(table.rows) - len(rows)} rarer types are only in the scores as JSON")
    return replace(table, rows=rows, notes=notes, strong={n for n, row in enumerate(rows) if row[0] == "all"}).rich(
        width
    )


def remarks(summary: Summary) -> list[str]:
    """Notes of the table: missing metrics, and facts that apply to some pairs only."""
    sentences = [f"{metric}: {reason}" for metric, reason in summary.notes.items()]
    judged = summary.judged.get("all", {})
    partial = [f"{name} {count}" for name, count in judged.items() if count < summary.counts["all"]]
    if partial:
        sentences.append(f"pairs to which a fact applies: {plain(', '.join(partial))}")
    return sentences

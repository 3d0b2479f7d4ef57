"""The summary of scores: the whole corpus first, then one row per type of change."""

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
    given for the whole only, since a mean of sentence scores is another thing. Pairs all of which are of the
    type ``change``, which names none, are no group.

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
    if len(groups.get(CHANGE, ())) == len(scores.ids):
        del groups[CHANGE]  # it would say again what the row of all pairs says
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


def as_table(summary: Summary, columns: Sequence[str] | None = None, title: str | None = None) -> Table:
    """The summary as a table, a row per group.

    Args:
        columns: of its columns; all when None.
        title: stands above; what the scores are of when None.
    """
    columns = summary.columns if columns is None else columns
    rows = [
        [group, str(summary.counts[group]), *(f"{row[column]:.1f}" if column in row else "-" for column in columns)]
        for group, row in summary.rows.items()
    ]
    title = f"{_total(summary)}, scores x100" if title is None else title
    strong = {number for number, group in enumerate(summary.rows) if group == "all"}
    return Table(["change", "pairs", *columns], rows, title, remarks(summary), strong=strong)


def as_rich(summary: Summary, title: str, width: int = 80) -> RenderableType:
    """The summary for the terminal: of many types the most frequent ones.

    Args:
        title: stands above.
        width: characters per line.
    """
    by_size = sorted(summary.rows, key=lambda group: -summary.counts[group])
    kept = {"all", *by_size[: MOST_ROWS + 1]}
    table = as_table(summary, summary.shown, title)
    rows = [row for row in table.rows if row[0] in kept]
    notes = list(table.notes)
    if len(rows) < len(table.rows):
        notes.insert(0, f"and {len(table.rows) - len(rows)} rarer types, which the scores as JSON hold")
    return replace(table, rows=rows, notes=notes, strong={n for n, row in enumerate(rows) if row[0] == "all"}).rich(
        width
    )


def as_markdown(summary: Summary) -> str:
    """The summary as a Markdown table with everything in it."""
    lines = [
        as_table(summary).markdown(),
        "",
        " ".join([f"{_total(summary)}, scores x100.", *(f"{r}." for r in remarks(summary))]),
    ]
    return "\n".join([*lines, ""])


def remarks(summary: Summary) -> list[str]:
    """What a reader of the table has to know: metrics that are missing, facts that apply to some pairs only."""
    found = [f"{metric}: {reason}" for metric, reason in summary.notes.items()]
    judged = summary.judged.get("all", {})
    partial = [f"{name} {count}" for name, count in judged.items() if count < summary.counts["all"]]
    if partial:
        found.append(f"pairs to which a fact applies: {plain(', '.join(partial))}")
    return found


def _total(summary: Summary) -> str:
    return f"{summary.counts['all']} pairs, {summary.references} references"

"""The table of scores: the whole corpus first, then one row per type of change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table

    from lightning_idc.metrics.captions import Scores

COLUMNS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")


@dataclass
class Summary:
    """Scores and facts of a test, by group of pairs.

    Args:
        rows: per group ("all" first) its values by column, times 100.
        counts: pairs per group.
        references: of the whole corpus.
        notes: metrics that could not be computed, with the reason.
    """

    rows: dict[str, dict[str, float]]
    counts: dict[str, int]
    references: int
    notes: dict[str, str]

    @property
    def columns(self) -> list[str]:
        """Columns that any row has, metrics first."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"rows": self.rows, "pairs": self.counts, "references": self.references, "notes": self.notes}


def summarise(
    predictions: Sequence[Mapping[str, Any]], scores: Scores, facts: Mapping[str, Mapping[str, bool | None]]
) -> Summary:
    """Group scores and facts by type of change.

    A type's scores are means over its pairs, with CIDEr-D's word weights from the whole corpus; corpus BLEU-4 is
    given for the whole only, since a mean of sentence scores is another thing.

    Args:
        predictions: records with ``id`` and ``change_type``.
        scores: of the same pairs.
        facts: per pair what its caption gets right; None where a fact does not apply.
    """
    place = {id: index for index, id in enumerate(scores.ids)}
    groups: dict[str, list[str]] = {"all": list(scores.ids)}
    for record in sorted(predictions, key=lambda r: str(r["change_type"])):
        if record["change_type"] is not None and record["id"] in place:
            groups.setdefault(str(record["change_type"]), []).append(record["id"])
    names = list(dict.fromkeys(name for known in facts.values() for name in known))
    rows: dict[str, dict[str, float]] = {}
    for group, ids in groups.items():
        where = [place[id] for id in ids]
        row = {}
        for column in COLUMNS:
            if group == "all" and column in scores.values:
                row[column] = scores.values[column]
            elif column in scores.per_pair and column != "BLEU-4":
                row[column] = float(np.mean(scores.per_pair[column][where]))
        for name in names:
            known = [facts[id][name] for id in ids if facts.get(id, {}).get(name) is not None]
            if known:
                row[name] = 100 * float(np.mean([bool(value) for value in known]))
        rows[group] = row
    return Summary(rows, {group: len(ids) for group, ids in groups.items()}, scores.references, dict(scores.missing))


def as_rich(summary: Summary, title: str) -> Table:
    """The summary as a table for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("change")
    table.add_column("pairs", justify="right")
    for column in summary.columns:
        table.add_column(column, justify="right")
    for group, row in summary.rows.items():
        cells = [f"{row[column]:.1f}" if column in row else "-" for column in summary.columns]
        table.add_row(group, str(summary.counts[group]), *cells, style="bold" if group == "all" else None)
    return table

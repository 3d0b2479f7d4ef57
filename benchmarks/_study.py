"""What studies of captioners share: floors beside every score, paired intervals, several seeds, and where they ran.

A study trains some captioners for each of several seeds and tests all of them on the same pairs; ``Study.add`` takes
what they said for one seed. Two intervals stand beside the difference of two rows: ``pairs``, the paired bootstrap over
test pairs of the mean over seeds, and ``interval``, Student's t over the differences of the seeds. A difference counts
as decided where both leave 0 out. A row that is not above its floors with its intervals in every seed is below them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _harness import report

from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import Scores
from lightning_idc.metrics.floors import BELOW, UNDECIDED
from lightning_idc.report.comparison import METRIC, Captioned, Row, interval, rows_of

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""0.975 quantiles of Student's t with 1 to 9 degrees of freedom."""


@dataclass
class Study:
    """Seeds of one setting.

    Args:
        references: of the test pairs.
        constant: a caption chosen on training references.
    """

    references: Mapping[str, Sequence[str]]
    constant: str
    seeds: list[int] = field(default_factory=list)
    rows: list[list[Row]] = field(default_factory=list)
    figures: list[dict[str, dict[str, float]]] = field(default_factory=list)

    def add(self, seed: int, captioned: Mapping[str, Captioned], figures: dict[str, dict[str, float]]) -> None:
        """Add what the captioners of one seed said, and print it.

        Args:
            seed: of their training.
            captioned: by row.
            figures: other scores by row.
        """
        self.seeds.append(seed)
        self.rows.append(rows_of(captioned, self.references, self.constant))
        self.figures.append(figures)
        for row in self.rows[-1]:
            gain = row.over_before.get(METRIC)
            facts = {**figures.get(row.name, {}), **row.facts}
            print(
                f"{seed}  {row.name:<22} {METRIC} {row.score:6.1f}",
                "" if gain is None else f"{interval(gain)} {row.reading}",
                "  ".join(f"{name} {value:.1f}" for name, value in {**row.floors, **facts}.items()),
                f"words {row.words:.1f}  distinct {row.distinct}",
                flush=True,
            )

    def summary(self) -> dict[str, Any]:
        """All seeds together, plain values."""
        found = {}
        for place, row in enumerate(self.rows[0]):
            own = [rows[place] for rows in self.rows]
            others = [figures.get(row.name, {}) for figures in self.figures]
            first = [figures.get(self.rows[0][0].name, {}) for figures in self.figures]
            found[row.name] = {
                METRIC: spread([one.score for one in own]),
                "floors": {name: spread([one.floors[name] for one in own]) for name in row.floors},
                "words": spread([one.words for one in own]),
                "distinct": spread([float(one.distinct) for one in own]),
                "facts": {name: spread([one.facts[name] for one in own]) for name in row.facts},
                "figures": {name: spread([one[name] for one in others]) for name in others[0]},
                "figures_over_first_row": {
                    name: over_seeds([b[name] - a[name] for a, b in zip(first, others, strict=True)])
                    for name in others[0]
                },
                **({"over_before": self.over(place - 1, place)} if place else {}),
            }
        return found

    def over(self, first: int, second: int) -> dict[str, Any]:
        """What one row has over another by CIDEr-D, all seeds together, and what may be said of it."""
        one, other = ([rows[place] for rows in self.rows] for place in (first, second))
        gains = [b.score - a.score for a, b in zip(one, other, strict=True)]
        pairs, seeds = compare(_mean(one), _mean(other))[METRIC], over_seeds(gains)
        below = any(floor.low <= 0 for row in other for floor in row.over_floors.values())
        ends = [[pairs.low, pairs.high], *([seeds["interval"]] if seeds["interval"] else [])]
        decided = len(ends) > 1 and (min(low for low, _ in ends) > 0 or max(high for _, high in ends) < 0)
        return {
            "row": one[0].name,
            **seeds,
            "pairs": [pairs.low, pairs.high],
            "reading": BELOW if below else UNDECIDED if not decided else "higher" if pairs.low > 0 else "lower",
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, plain values."""
        each = [{row.name: row.as_dict() for row in rows} for rows in self.rows]
        return {
            "seeds": self.seeds,
            "test_pairs": len(self.references),
            "constant": self.constant,
            "summary": self.summary(),
            "each_seed": [
                {name: {**row, **figures.get(name, {})} for name, row in rows.items()}
                for rows, figures in zip(each, self.figures, strict=True)
            ],
        }


def spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation."""
    return [statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0]


def over_seeds(differences: Sequence[float]) -> dict[str, Any]:
    """Mean of the seeds' differences with Student's 95 % interval, which a single seed does not have."""
    mean, deviation = spread(differences)
    count = len(differences)
    half = STUDENT[count - 2] * deviation / count**0.5 if 1 < count <= len(STUDENT) + 1 else None
    return {
        "mean": mean,
        "interval": None if half is None else [mean - half, mean + half],
        "each_seed": list(differences),
    }


def write(out: Path, settings: Mapping[str, Any], results: Mapping[str, Any], *packages: str) -> None:
    """Keep what there is so far; see ``_harness.report``.

    Args:
        out: JSON file.
        settings: of the study, its ``seeds`` among them.
        results: of its parts.
        packages: distributions whose versions matter.
    """
    report({"settings": settings, **results}, out, *packages, seeds=settings["seeds"], quiet=True)


def _mean(rows: Sequence[Row]) -> Scores:
    """Scores of each pair, the mean over seeds."""
    values = np.mean([row.scores.per_pair[METRIC] for row in rows], 0)
    return Scores({METRIC: float(values.mean())}, {METRIC: values}, rows[0].scores.ids, rows[0].scores.references)

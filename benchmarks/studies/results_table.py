"""Evidence for each method: comparisons of trainings, generated from ``results/``, and a table for the README.

    python -m benchmarks.studies.results_table  # prints the tables
    python -m benchmarks.studies.results_table --write  # writes them to docs/results.md, README.md and docs/images

A comparison is decided if the interval over at least three trainings excludes 0, the row is above all baselines in
every training, and one of the two captioners compares the images (``readings.uses_images``). Decided comparisons are
rows of the table; the others are one line per method. A method whose study does not show what the paper is about has no
rows; ``comparisons.METHODS`` says why.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness import filled
from benchmarks.studies.comparisons import METHODS, Comparison, Method, measure_text
from benchmarks.studies.forest import forest_plot
from benchmarks.studies.readings import identical_of, is_below, reading_of, score_of, uses_images
from lightning_idc.metrics.baselines import IDENTICAL, UNDECIDED
from lightning_idc.report.comparison import METRIC
from lightning_idc.report.table import Table

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "studies" / "results"
NAME = "results"
"""Name of the marks between which each page has its tables."""
NONE = "-"
README_ROWS = 3
COLUMNS = (
    "comparison",
    "trainings; test pairs",
    "score",
    "difference",
    "95 % interval: trainings; pairs",
    IDENTICAL,
    "type of change, %",
    "reading",
    "commit",
)


@dataclass(frozen=True)
class Outcome:
    """A measured comparison.

    Args:
        comparison: the comparison.
        gain: difference over trainings, with ``mean``, ``interval``, ``each_seed`` and ``pairs``.
        reading: reading of the difference.
        cells: cells of its row.
    """

    comparison: Comparison
    gain: Mapping[str, Any]
    reading: str
    cells: Sequence[str]

    @property
    def is_decided(self) -> bool:
        """Whether the difference is higher or lower."""
        return self.reading in ("higher", "lower")


def outcomes(method: Method, results: Path = RESULTS) -> list[Outcome]:
    """Measured comparisons of a method, in order.

    Args:
        method: the method.
        results: folder of the files.
    """
    return [_outcome(comparison, results) for comparison in method.comparisons]


def _outcome(comparison: Comparison, results: Path) -> Outcome:
    content = json.loads((results / f"{comparison.file}.json").read_text(encoding="utf-8"))
    world, measure = content["worlds"][comparison.world], comparison.measure
    gain = gain_of(world, comparison.row, comparison.over, measure)
    rows = {name: [training[name] for training in world["each_seed"]] for name in (comparison.over, comparison.row)}
    compares = any(uses_images(trainings, world["unchanged"], measure) for trainings in rows.values())
    reading = reading_of(gain, is_below(rows[comparison.row], measure), compares)
    first, second = (mean(score_of(training, measure) for training in trainings) for trainings in rows.values())
    identical = [identical_of(training, measure) for training in rows[comparison.row]]
    types = (mean(training["facts"]["type"] for training in trainings) for trainings in rows.values())
    cells = [
        comparison.label,
        f"{len(world['seeds'])}; {world['test_pairs']:,}",
        f"{short(first)} to {short(second)}",
        short(gain["mean"], "+"),
        "; ".join(f"({short(of[0])}, {short(of[1])})" if of else NONE for of in (gain["interval"], gain["pairs"])),
        short(mean(value for value in identical if value is not None)),
        " to ".join(map(short, types)),
        reading,
        content["commit"][:8],
    ]
    return Outcome(comparison, gain, reading, cells)


def gain_of(world: Mapping[str, Any], row: str, over: str, measure: str = METRIC) -> Mapping[str, Any]:
    """Difference between two rows in CIDEr-D or in a fact.

    Raises:
        KeyError: the study lacks one of the rows.
    """
    for name, other, sign in ((row, over, 1), (over, row, -1)):
        summary = world["summary"][name]
        gains = {gain["row"]: gain for gain in summary["over"]}
        if measure != METRIC:
            gains = {earlier: of_facts.get(measure) for earlier, of_facts in summary["facts_over"].items()}
        if gains.get(other) is not None:
            return signed(gains[other], sign)
    raise KeyError(f"the study has no rows {row} and {over} with {measure}")


def signed(gain: Mapping[str, Any], sign: int) -> Mapping[str, Any]:
    """A difference, or with a sign of -1 that of the same rows in the other order."""
    ends = {name: sorted(sign * end for end in gain[name]) for name in ("interval", "pairs") if gain[name]}
    return {**gain, **ends, "mean": sign * gain["mean"], "each_seed": [sign * value for value in gain["each_seed"]]}


def short(value: float, sign: str = "-") -> str:
    """Number with up to three digits; without a decimal from 100."""
    return format(value, f"{sign}.{0 if abs(value) >= 99.95 else 1}f")


def sections(results: Path = RESULTS) -> str:
    """Markdown of all methods: the decided rows, the command, a forest plot, and a line of what is not decided."""
    return "\n\n".join(_section(method, outcomes(method, results)) for method in METHODS)


def _section(method: Method, measured: Sequence[Outcome]) -> str:
    parts = [f"### {method.name}"]
    if decided := [outcome.cells for outcome in measured if outcome.is_decided]:
        parts.append(Table(COLUMNS, decided, text=len(COLUMNS)).markdown())
    if measured:
        parts.append(f"`{method.command}`")
        for measure in measures(method):
            title = f"Differences in {measure_text(measure)} with intervals, {method.name}"
            parts.append(f"![{title}](images/{plot_name(method, measure)})")
    if other := [_open_line(one) for one in measured if not one.is_decided]:
        parts.append(f"Not decided: {'; '.join(other)}.")
    return "\n\n".join([*parts, *([method.remark] if method.remark else [])])


def _open_line(outcome: Outcome) -> str:
    remark = f", {outcome.reading}" if outcome.reading != UNDECIDED else ""
    return f"{outcome.cells[0]} ({outcome.cells[3]}{remark})"


def measures(method: Method) -> list[str]:
    """Measures of the comparisons of a method; each has a plot, since they have different units."""
    return list(dict.fromkeys(comparison.measure for comparison in method.comparisons))


def plot_name(method: Method, measure: str) -> str:
    """File name of the forest plot of a method by a measure."""
    suffix = "" if measure == METRIC else f"_{measure}"
    return f"results_{method.name.split()[0].lower()}{suffix}.svg"


def plots(results: Path = RESULTS) -> dict[Path, str]:
    """Forest plots of the methods with comparisons, by file."""
    return {
        IMAGES / plot_name(method, measure): forest_plot(
            [
                (one.cells[0], one.gain["mean"], one.gain["interval"], one.is_decided)
                for one in outcomes(method, results)
                if one.comparison.measure == measure
            ]
        )
        for method in METHODS
        for measure in measures(method)
    }


def summary(results: Path = RESULTS) -> str:
    """The first decided comparisons of each method, as Markdown for the README."""
    columns = ("method", *COLUMNS[:5], "reading")
    rows = []
    for method in METHODS:
        decided = [one for one in outcomes(method, results) if one.is_decided]
        rows += [[method.name, *one.cells[:5], one.reading] for one in decided[:README_ROWS]]
    return Table(columns, rows, text=len(columns)).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into the pages, and the plots")
    pages = {PAGE: sections(), README: summary()}
    if parser.parse_args().write:
        for path, text in pages.items():
            path.write_text(filled(path.read_text(encoding="utf-8"), {NAME: text}), encoding="utf-8")
        for path, text in plots().items():
            path.write_text(text, encoding="utf-8")
    print("\n\n".join(pages.values()))


if __name__ == "__main__":
    main()

"""Evidence for each method: comparisons of trainings, generated from ``results/``, and a table for the README.

    python -m benchmarks.studies.results_table  # prints the tables
    python -m benchmarks.studies.results_table --write  # writes them to docs/results.md, README.md and docs/images

A comparison is decided if the interval over at least three trainings excludes 0, the row is above all baselines in
every training, and one of the two captioners compares the images (``readings.uses_images``). Decided comparisons are
rows of the table; the others are one line per method. A method whose study does not show what the paper is about has no
rows; ``METHODS`` says why.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import filled
from benchmarks.studies.forest import forest_plot
from benchmarks.studies.readings import over_seeds, reading_of, uses_images
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
    "CIDEr-D",
    "difference",
    "95 % interval: trainings; pairs",
    IDENTICAL,
    "type of change, %",
    "reading",
    "commit",
)


@dataclass(frozen=True)
class Comparison:
    """Two rows of a study.

    Args:
        title: first column.
        file: file of ``results/``, without suffix.
        world: world in the file.
        row: row of the study.
        over: row to compare with.
    """

    title: str
    file: str
    world: str
    row: str
    over: str


@dataclass(frozen=True)
class Method:
    """Comparisons of one method.

    Args:
        name: heading.
        command: command that computes the rows.
        comparisons: comparisons; empty if no study is fair to the method.
        remark: what was not measured, and where other figures are.
    """

    name: str
    command: str = ""
    comparisons: tuple[Comparison, ...] = ()
    remark: str = ""


def _namc() -> tuple[Comparison, ...]:
    """Figures 3 and 4, Table 6, and Table 10 with its corruptions in the test alone or in all splits."""
    noise = partial(Comparison, file="noise", world="namc")
    both = partial(Comparison, row="noise+reconstruction", over="neither")
    shifts = {"clean": "", **{f"{n} % of words replaced": f", words{n}" for n in (20, 40, 60, 80)}}
    shifts |= {"noise": ", noise", "fog": ", fog"}
    return (
        noise("noisy pre-training over no pre-training", row="neither", over="scratch"),
        noise("noise masking over noisy pre-training", row="noise", over="neither"),
        noise("noise masking over random masking", row="noise", over="random"),
        noise("random masking over noisy pre-training", row="random", over="neither"),
        Comparison("noise masking, systematic noise", "noise_hallucinated", "namc", "noise", "neither"),
        *(
            both(f"masking and reconstruction: {name}", "noise_shifts", f"namc{world}")
            for name, world in shifts.items()
        ),
        *(
            both(
                f"masking and reconstruction: {name} in all splits",
                "noise_shifts_everywhere",
                f"namc, {name}_everywhere",
            )
            for name in ("noise", "fog")
        ),
    )


def _m3diff() -> tuple[Comparison, ...]:
    """Table 6, and what the paper does not have: one depth, another adapter, and layers of equal size."""
    mdp = partial(Comparison, file="mdp", world="rendered")
    return (
        mdp("MDP at four depths over none", row="depths", over="none"),
        mdp("MDP at the deepest stage over none", row="deepest", over="none"),
        mdp("MDP at four depths over the deepest stage", row="depths", over="deepest"),
        mdp("MDP at four depths over plain layers of equal size", row="depths", over="plain"),
        Comparison(
            "MDP at four depths over none of equal time",
            "mdp_longer",
            "rendered",
            "depths, epochs 24",
            "none, epochs 66",
        ),
        mdp("plain layers of equal size over none", row="plain", over="none"),
        mdp("stateful encoder over none", row="stateful", over="none"),
    )


def _adpo() -> tuple[Comparison, ...]:
    """The paper's reference (SFT), the control of equal compute (SFT+) and DPO, on three kinds of captions."""
    captions = {"vague": "vague", "vague_sixth": "vague, some unchanged", "careful": "careful"}
    pairs = (("ADPO", "SFT"), ("ADPO", "SFT+"), ("ADPO", "DPO"), ("DPO", "SFT"), ("DPO", "SFT+"))
    study = partial(Comparison, file="preference_learning")
    beta = "anchor 3, beta 0.5"
    return (
        *(
            study(f"{row} over {over}: {name}", world=world, row=row, over=over)
            for row, over in pairs
            for world, name in captions.items()
        ),
        *(
            study(f"ADPO over DPO, beta 0.5: {name}", world=world, row=f"ADPO, {beta}", over=f"DPO, {beta}")
            for world, name in captions.items()
        ),
        study("DPO with anchor over without: careful", world="careful", row="DPO", over="DPO, anchor 0, beta 0.1"),
    )


METHODS = (
    Method(
        "NAMC",
        "python -m benchmarks.studies.noise",
        _namc(),
        "Reconstruction on its own was not measured. All studies of NAMC: [notes](notes/namc.md).",
    ),
    Method(
        "ADPO",
        "python -m benchmarks.studies.preference_learning --rows main losses",
        _adpo(),
        "SFT+ is SFT with about the compute of the others. All of it: [notes](notes/adpo.md#effect-on-captions).",
    ),
    Method(
        "GRPO, SCST",
        remark="Not measured on the present captioner. The study is `python -m benchmarks.studies.reward_learning`.",
    ),
    Method(
        "M3Diff (MDP)",
        "python -m benchmarks.studies.mdp",
        _m3diff(),
        "Frozen EfficientNet-lite0, rendered pairs, still camera: [notes](notes/m3diff.md#effect-of-mdp).",
    ),
    Method(
        "ProCap",
        remark="Not measured: a fair study needs a first stage that learns the paper's codes (200,000 steps there) for "
        "each training, which two cores cannot do. Earlier studies learned named attributes and were dropped.",
    ),
    Method(
        "Img-Diff",
        remark="Not measured as in the paper, which trains on produced pairs first and on the benchmark after that. "
        "The study, `python -m benchmarks.studies.synthesis_training`, has no results yet.",
    ),
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
    world = content["worlds"][comparison.world]
    gain = gain_of(world, comparison.row, comparison.over)
    rows = {name: [training[name] for training in world["each_seed"]] for name in (comparison.over, comparison.row)}
    compares = any(uses_images(trainings) for trainings in rows.values())
    reading = reading_of(gain, below(comparison.row, world), compares)
    summaries = [world["summary"][name] for name in (comparison.over, comparison.row)]
    first, second = (summary[METRIC][0] for summary in summaries)
    cells = [
        comparison.title,
        f"{len(world['seeds'])}; {world['test_pairs']:,}",
        f"{short(first)} to {short(second)}",
        short(gain["mean"], "+"),
        "; ".join(f"({short(of[0])}, {short(of[1])})" if of else NONE for of in (gain["interval"], gain["pairs"])),
        short(summaries[1]["baselines"][IDENTICAL][0]),
        " to ".join(short(summary["facts"]["type"][0]) for summary in summaries),
        reading,
        content["commit"][:8],
    ]
    return Outcome(comparison, gain, reading, cells)


def gain_of(world: Mapping[str, Any], row: str, over: str) -> Mapping[str, Any]:
    """Difference in CIDEr-D between two rows: as stored in the study, else over trainings only."""
    for name, other, sign in ((row, over, 1), (over, row, -1)):
        of_row = world["summary"][name]
        for gain in of_row.get("over", [of_row.get("over_previous", {})]):  # older files have the previous row only
            if gain.get("row") == other:
                return signed(gain, sign)
    controlled = world["over_control"].get(row, {}) if world.get("control") == over else {}
    if METRIC in controlled:
        return dict(controlled[METRIC])
    gains = [of_seed[row]["score"] - of_seed[over]["score"] for of_seed in world["each_seed"]]
    return {**over_seeds(gains), "pairs": None}


def signed(gain: Mapping[str, Any], sign: int) -> Mapping[str, Any]:
    """A difference, or with a sign of -1 that of the same rows in the other order."""
    ends = {name: sorted(sign * end for end in gain[name]) for name in ("interval", "pairs") if gain[name]}
    return {**gain, **ends, "mean": sign * gain["mean"], "each_seed": [sign * value for value in gain["each_seed"]]}


def below(row: str, world: Mapping[str, Any]) -> bool:
    """Whether a row is not above each of its baselines with the interval over pairs in every training."""
    differences = [over for of_seed in world["each_seed"] for over in of_seed[row]["over_baselines"].values()]
    return any(difference["low"] <= 0 for difference in differences)


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
        parts += [f"`{method.command}`", f"![Differences with intervals, {method.name}](images/{plot_name(method)})"]
    if other := [_open_line(one) for one in measured if not one.is_decided]:
        parts.append(f"Not decided: {'; '.join(other)}.")
    return "\n\n".join([*parts, *([method.remark] if method.remark else [])])


def _open_line(outcome: Outcome) -> str:
    remark = f", {outcome.reading}" if outcome.reading != UNDECIDED else ""
    return f"{outcome.cells[0]} ({outcome.cells[3]}{remark})"


def plot_name(method: Method) -> str:
    """File name of the forest plot of a method."""
    return f"results_{method.name.split()[0].lower()}.svg"


def plots(results: Path = RESULTS) -> dict[Path, str]:
    """Forest plots of the methods with comparisons, by file."""
    return {
        IMAGES / plot_name(method): forest_plot(
            [
                (one.cells[0], one.gain["mean"], one.gain["interval"], one.is_decided)
                for one in outcomes(method, results)
            ]
        )
        for method in METHODS
        if method.comparisons
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

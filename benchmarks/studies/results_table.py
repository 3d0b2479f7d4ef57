"""Evidence for each method: one row per comparison, generated from ``results/``, and a short table for the README.

    python -m benchmarks.studies.results_table  # prints the tables
    python -m benchmarks.studies.results_table --write  # writes them to docs/results.md and README.md

A row names the file, the world and the two rows of a study (``harness.py``), and the numbers of the paper. If the file
lacks a comparison, its row reads "not measured" and "not decided"; no row is omitted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import filled
from benchmarks.studies.readings import over_seeds, reading_of
from lightning_idc.metrics.baselines import UNDECIDED
from lightning_idc.report.comparison import METRIC
from lightning_idc.report.table import Table

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "studies" / "results"
NAME = "results"
"""Name of the marks between which each page has its table."""
COLUMNS = (
    "comparison",
    "paper",
    "measured",
    "seeds; pairs",
    "95 % interval: pairs; seeds",
    "baseline, CIDEr-D",
    "reading",
)
NONE = "-"
NOT_MEASURED = "not measured"
NO_PAPER = "not in the five"


@dataclass(frozen=True)
class Comparison:
    """One row of the table.

    Args:
        what: first column, with the measure unless it is CIDEr-D.
        paper: numbers of the paper in CIDEr, with the table.
        file: file of ``results/``, without suffix.
        world: world in the file.
        row: row of the study.
        over: row to compare with.
        measure: CIDEr-D, or a fact in percent.
    """

    what: str
    paper: str
    file: str
    world: str
    row: str
    over: str
    measure: str = METRIC


def _adpo() -> Iterator[Comparison]:
    worlds = (
        ("vague captions", "preference_learning", "vague"),
        ("vague, 1/6 unchanged", "preference_worlds", "vague_sixth"),
        ("careful, 1/6 unchanged", "preference_worlds", "careful"),
        ("careful, 1/2 unchanged", "preference_half", "half"),
    )
    for name, file, world in worlds:
        yield Comparison(f"DPO over SFT+: {name}", "ADPO T2: 149.2 to 152.5", file, world, "DPO", "SFT+")
        yield Comparison(f"ADPO over DPO: {name}", "ADPO T2: 152.5 to 153.6", file, world, "ADPO", "DPO")
    harder = ("preference_harder", "vague")
    yield Comparison("DPO, planted over random: vague", NO_PAPER, *harder, "DPO, planted", "DPO")
    yield Comparison("DPO, own samples over random: vague", NO_PAPER, *harder, "DPO, self-sampled", "DPO")


def _grpo() -> Iterator[Comparison]:
    for name, file, world in (
        ("vague captions", "reward_learning_vague", "vague"),
        ("careful, 1/6 unchanged", "reward_learning", "careful"),
    ):
        yield Comparison(f"GRPO over SFT+: {name}", NO_PAPER, file, world, "GRPO", "SFT+")
        yield Comparison(f"GRPO over SFT+, relation %: {world}", NO_PAPER, file, world, "GRPO", "SFT+", "relation")
    careful = ("reward_learning", "careful")
    yield Comparison("SCST over SFT+: careful, 1/6 unchanged", NO_PAPER, *careful, "SCST", "SFT+")


def _img_diff() -> Iterator[Comparison]:
    for size, name in (("300", "300 pairs"), ("3000", "3,000 pairs")):
        study = ("synthesis_training", size, "real+produced")
        yield Comparison(f"produced and real over real: {name}", "Img-Diff T6: 38.3 to 43.2", *study, "real")
        yield Comparison(f"produced over shuffled: {name}", NO_PAPER, *study, "real+dealt")


def _shifted() -> Iterator[Comparison]:
    """NAMC's Table 10, whose images are corrupted in the test alone, or in all splits."""
    what, rows = "NIM and MIR over none", ("noise+reconstruction", "neither")
    noise, fog = "34.9 to 43.1", "34.5 to 42.2"
    words = {20: "35.8 to 43.4", 40: "33.5 to 39.0", 60: "21.0 to 23.7", 80: "2.1 to 2.3"}
    yield Comparison(f"{what}: clean", "NAMC T10: 44.6 to 51.0", "noise_shifts", "namc", *rows)
    for share, paper in words.items():
        world = f"namc, words{share}"
        yield Comparison(f"{what}: {share} % of words", f"NAMC T10: {paper}", "noise_shifts", world, *rows)
    for world, paper in (("noise", noise), ("fog", fog)):
        yield Comparison(f"{what}: {world}", f"NAMC T10: {paper}", "noise_shifts", f"namc, {world}", *rows)
        everywhere = ("noise_shifts_everywhere", f"namc, {world}_everywhere")
        yield Comparison(f"{what}: {world} in training, too", f"NAMC T10: {paper}", *everywhere, *rows)


def _procap() -> Iterator[Comparison]:
    """ProCap's Table 2 with 6,000 pairs, with four times as many, and with CLIP's blocks besides; Tables 3, 4, 14."""
    papers = {"EPM": "108.4 to 112.7", "IPC": "108.4 to 106.2", "EPM+IPC": "108.4 to 128.5"}
    more = ": 24,000 pairs"
    studies = {"procap_learning": "", "procap_more_pairs": more, "procap_trunk": ": from CLIP's blocks"}
    for file, where in studies.items():
        for row, paper in papers.items():
            yield Comparison(f"{row} over none{where}", f"ProCap T2: {paper}", file, "rendered", row, "none")
    of_longer = ("procap_longer", "rendered", "EPM+IPC, epochs 6 4 2", "none, epochs 6 4 14")
    yield Comparison("EPM+IPC over none of as many epochs", NO_PAPER, *of_longer)
    of_both = ("procap_both_longer", "rendered", "EPM+IPC", "none")
    yield Comparison("EPM+IPC over none, 14 epochs each", NO_PAPER, *of_both)
    of_blocks = ("procap_blocks", "rendered", "none, trunk 24", "none, trunk 0")
    yield Comparison(f"CLIP's blocks over none{more}", NO_PAPER, *of_blocks)
    for file, without, paper in (
        ("procap_losses", "MSM+IPC", "127.5 to 135.6"),
        ("procap_losses_without_align", "MSM+CSY+IPC", "127.1 to 135.6"),
        ("procap_losses_without_consistency", "MSM+align+IPC", "128.6 to 135.6"),
    ):
        what = f"all losses over {without.removesuffix('+IPC')}, both with IPC"
        yield Comparison(what, f"ProCap T4: {paper}", file, "rendered", "EPM+IPC", without)
    for k, control, file, paper in (
        (2, 1, "procap_queries", "128.5 to 135.6"),
        (4, 2, "procap_more_queries", "135.6 to 128.7"),
        (7, 2, "procap_more_queries", "135.6 to 130.5"),
    ):
        what, rows = f"{k} queries over {control}, both with EPM", [f"EPM+IPC, queries {n}" for n in (k, control)]
        yield Comparison(what, f"ProCap T3: {paper}", file, "rendered", *rows)
    of_frames = ("procap_frames", "rendered", "EPM+IPC", "EPM+frames")
    yield Comparison("queries over frames, both with EPM", "ProCap T14: 128.5 to 135.6", *of_frames)


NAMC_6 = "NAMC T6: 138.4 to 149.3"
M3DIFF_6 = "M3Diff T6: 35.3 to 31.3; 135.2 to 136.6"
PLAIN, MASKED = ("noise", "namc"), "noise masking"
COMPARISONS = (
    *_adpo(),
    Comparison("noisy pre-training over none", "NAMC F4: rises with pairs", *PLAIN, "neither", "scratch"),
    Comparison(f"{MASKED} over none", NAMC_6, *PLAIN, "noise", "neither"),
    Comparison(f"{MASKED} over random", "NAMC F3: falls less", *PLAIN, "noise", "random"),
    Comparison("random masking over none", "NAMC F3: falls with share", *PLAIN, "random", "neither"),
    Comparison(f"{MASKED} over none: systematic noise", NAMC_6, "noise_hallucinated", "namc", "noise", "neither"),
    *_shifted(),
    *_grpo(),
    Comparison("MDP over LoRA: large changes", M3DIFF_6, "mdp_gain", "large", "LoRA + MDP", "LoRA"),
    Comparison("MDP over LoRA: small changes", M3DIFF_6, "mdp_gain", "small", "LoRA + MDP", "LoRA"),
    Comparison("MDP from the start: large changes", NO_PAPER, "mdp_start", "large", "full + MDP", "full"),
    *_procap(),
    *_img_diff(),
)
MIXED = "combinations"
"""File of combinations of methods: each of its rows is compared, with the control where there is one."""


def lines(results: Path) -> list[list[str]]:
    """Cells of all rows.

    Args:
        results: folder of the files.
    """
    worlds = {path.stem: worlds_of(path) for path in sorted(results.glob("*.json"))}
    mixed = [
        Comparison(f"{row} over {over}: {name}", NO_PAPER, MIXED, name, row, over)
        for name, world in worlds.get(MIXED, {}).items()
        for row, over in compared(world)
    ]
    return [cells(one, worlds.get(one.file, {}).get(one.world)) for one in (*COMPARISONS, *mixed)]


def worlds_of(path: Path) -> Mapping[str, Any]:
    """Studies of a file by world; empty for files of another format."""
    measurements = json.loads(path.read_text(encoding="utf-8")).get("worlds", {})
    if not isinstance(measurements, dict):
        return {}
    return {name: world for name, world in measurements.items() if isinstance(world, dict) and "each_seed" in world}


def compared(world: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a study with the row that each is compared with: the control, or else the one before it."""
    rows = list(world["summary"])
    control = world.get("control")
    return [
        (row, control or before) for before, row in zip(["", *rows], rows, strict=False) if row != (control or rows[0])
    ]


def cells(one: Comparison, world: Mapping[str, Any] | None) -> list[str]:
    """Cells of a row.

    Args:
        one: the comparison.
        world: its study, if there is one.
    """
    if world is None or not {one.row, one.over} <= world["summary"].keys():
        return [one.what, one.paper, NOT_MEASURED, NONE, NONE, NONE, UNDECIDED]
    gain = gain_of(world, one.row, one.over, one.measure)
    row = world["summary"][one.row]
    baseline = max(row["baselines"], key=lambda name: row["baselines"][name][0])
    first, second = (measured(world["summary"][name], one.measure) for name in (one.over, one.row))
    intervals = [f"({short(of[0])}, {short(of[1])})" if of else NONE for of in (gain["pairs"], gain["interval"])]
    return [
        one.what,
        one.paper,
        f"{short(first)} to {short(second)} ({short(gain['mean'], '+')})",
        f"{len(world['seeds'])}; {world['test_pairs']:,}",
        "; ".join(intervals),
        f"{row['baselines'][baseline][0]:.0f} {baseline}",
        reading_of(gain, below(one.row, world), world["test_pairs"]),
    ]


def gain_of(world: Mapping[str, Any], row: str, over: str, measure: str = METRIC) -> Mapping[str, Any]:
    """Difference between two rows: as stored in the study, else over seeds only."""
    before = world["summary"][row].get("over_previous", {})
    if measure == METRIC and before.get("row") == over:
        return dict(before)
    controlled = world["over_control"].get(row, {}) if world.get("control") == over else {}
    if measure in controlled:
        return dict(controlled[measure])
    gains = [
        (of_seed[row]["score"] - of_seed[over]["score"])
        if measure == METRIC
        else (of_seed[row]["facts"][measure] - of_seed[over]["facts"][measure])
        for of_seed in world["each_seed"]
    ]
    return {**over_seeds(gains), "pairs": None}


def below(row: str, world: Mapping[str, Any]) -> bool:
    """Whether a row is not above each of its baselines with the interval over pairs in every seed."""
    differences = [over for of_seed in world["each_seed"] for over in of_seed[row]["over_baselines"].values()]
    return any(difference["low"] <= 0 for difference in differences)


def measured(row: Mapping[str, Any], measure: str) -> float:
    """Mean over the seeds of CIDEr-D or of a fact."""
    return float((row[METRIC] if measure == METRIC else row["facts"][measure])[0])


def short(value: float, sign: str = "-") -> str:
    """Number with up to three digits; without a decimal from 100."""
    return format(value, f"{sign}.{0 if abs(value) >= 99.95 else 1}f")


def table(results: Path = RESULTS) -> str:
    """All rows as Markdown."""
    return Table(COLUMNS, lines(results), text=len(COLUMNS)).markdown()


SUMMARY = (
    "DPO over SFT+",
    "ADPO over DPO",
    "GRPO over SFT+",
    "NIM and MIR over none",
    "EPM+IPC over none",
    "produced and real over real",
)
"""Comparisons in the README: each method with its control; those without a decided row are left out."""


def summary(results: Path = RESULTS) -> str:
    """Differences by CIDEr-D of the methods in several settings, by their readings, as Markdown."""
    columns = ("method over control", "higher", "lower", "not decided", "below the baseline")
    cells_by_name = {row[0]: row for row in lines(results)}
    labels = [one.what for one in COMPARISONS]
    rows = []
    for name in SUMMARY:
        compared_rows = [cells_by_name[label] for label in labels if label == name or label.startswith(f"{name}:")]
        by_reading = {
            reading: [_difference(row) for row in compared_rows if row[-1] == reading and row[2] != NOT_MEASURED]
            for reading in columns[1:]
        }
        if by_reading["higher"] or by_reading["lower"]:
            rows.append([name, *(", ".join(by_reading[reading]) or NONE for reading in columns[1:])])
    return Table(columns, rows, text=len(columns)).markdown()


def _difference(row: Sequence[str]) -> str:
    """The signed difference in the column "measured"."""
    return row[2].rpartition("(")[2].rstrip(")")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results.md and README.md")
    pages = {PAGE: table(), README: summary()}
    if parser.parse_args().write:
        for path, text in pages.items():
            path.write_text(filled(path.read_text(encoding="utf-8"), {NAME: text}), encoding="utf-8")
    print("\n\n".join(pages.values()))


if __name__ == "__main__":
    main()

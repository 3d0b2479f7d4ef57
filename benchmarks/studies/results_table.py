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
from statistics import mean
from typing import Any

from benchmarks.harness import filled
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
class Comparison:
    """Two rows of a study.

    Args:
        title: first column.
        file: file of ``results/``, without suffix.
        world: world in the file.
        row: row of the study.
        over: row to compare with.
        measure: CIDEr-D, or a fact whose percentage is the score.
    """

    title: str
    file: str
    world: str
    row: str
    over: str
    measure: str = METRIC

    @property
    def label(self) -> str:
        """The title, with the measure if it is a fact."""
        return self.title if self.measure == METRIC else f"{self.title} ({measure_text(self.measure)})"


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
    """Noisy pre-training, noise masking (L_NIM) and reconstruction, as in Table 6; what L_NIM aligns, as in Table 8."""
    study = partial(Comparison, file="noise", world="namc")
    aligned = partial(Comparison, file="noise_alignment", world="namc")
    clean = partial(Comparison, file="noise_clean", world="namc")
    return (
        study("noisy pre-training over no pre-training", row="neither", over="scratch"),
        study("noise masking over noisy pre-training", row="noise", over="neither"),
        study("reconstruction and noise masking over noise masking", row="noise+reconstruction", over="noise"),
        study("reconstruction and noise masking over noisy pre-training", row="noise+reconstruction", over="neither"),
        clean("pre-training over no pre-training, clean descriptions", row="neither", over="scratch"),
        clean("noise masking over pre-training, clean descriptions", row="noise", over="neither"),
        clean(
            "reconstruction and noise masking over noise masking, clean descriptions",
            row="noise+reconstruction",
            over="noise",
        ),
        aligned("L_NIM on original inputs over masked inputs", row="align_originals", over="noise"),
        aligned("L_NIM on masked images over original inputs", row="align_image", over="align_originals"),
        aligned("L_NIM on masked descriptions over original inputs", row="align_description", over="align_originals"),
    )


def _m3diff() -> tuple[Comparison, ...]:
    """Table 6, and what the paper does not have: one depth, another adapter, and layers of equal size."""
    mdp = partial(Comparison, file="mdp", world="rendered")
    language = partial(Comparison, file="mdp_smollm2", world="rendered")
    return (
        mdp("MDP at four depths over none", row="depths", over="none"),
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
        language("MDP at four depths over none, behind SmolLM2", row="depths", over="none"),
        language("MDP at four depths over plain layers, behind SmolLM2", row="depths", over="plain"),
        language("plain layers over none, behind SmolLM2", row="plain", over="none"),
    )


def _adpo() -> tuple[Comparison, ...]:
    """The paper's reference (SFT), the control of equal compute (SFT+) and DPO, on three kinds of captions."""
    captions = {"vague": "vague", "vague_sixth": "vague, some unchanged", "careful": "careful"}
    study = partial(Comparison, file="preference_learning")
    encoder = {
        world: partial(Comparison, file=f"preference_encoder_{world}", world=world, row="ADPO")
        for world in ("vague", "careful")
    }
    language = partial(Comparison, file="preference_smollm2_looking", world="vague", row="ADPO", measure="type")
    people = partial(Comparison, file="preference_people", world="people", measure="type")
    aligned = partial(Comparison, file="preference_smollm2_paraphrased", world="paraphrased", measure="type")
    beta = "anchor 3, beta 0.5"
    return (
        *(
            study(f"ADPO over {over}: {name}", world=world, row="ADPO", over=over)
            for over in ("SFT", "SFT+", "DPO")
            for world, name in captions.items()
        ),
        *(
            study(f"ADPO over DPO, beta 0.5: {name}", world=world, row=f"ADPO, {beta}", over=f"DPO, {beta}")
            for world, name in captions.items()
        ),
        study("DPO, beta 0.5, over ADPO, beta 0.1: vague", world="vague", row=f"DPO, {beta}", over="ADPO"),
        *(people(f"ADPO over {over}: 20 wordings", row="ADPO", over=over) for over in ("SFT", "SFT+", "DPO")),
        people("ADPO with semantic filter over without: 20 wordings", row="ADPO, too_similar", over="ADPO"),
        *(
            encoder[world](f"ADPO over {over}, ImageNet encoder: {world}", over=over)
            for over in ("SFT", "SFT+", "DPO")
            for world in encoder
        ),
        *(
            encoder["vague"](f"ADPO over {over}, ImageNet encoder: vague", over=over, measure="type")
            for over in ("SFT", "SFT+")
        ),
        *(language(f"ADPO over {over}, behind SmolLM2: vague", over=over) for over in ("SFT", "SFT+", "DPO")),
        *(
            aligned(f"ADPO over {over}, behind SmolLM2: paraphrased", row="ADPO", over=over)
            for over in ("SFT", "SFT+", "DPO")
        ),
        aligned("ADPO with semantic filter over without, behind SmolLM2", row="ADPO, too_similar", over="ADPO"),
    )


def _img_diff() -> tuple[Comparison, ...]:
    """Produced pairs before the real ones, at equal steps, and two controls of the first training."""
    study = partial(Comparison, file="synthesis_training", world="300")
    more = partial(Comparison, file="synthesis_training_3000", world="3000")
    return (
        study("produced, then real over real, then real", row="produced", over="real"),
        study("produced over produced with shuffled captions", row="produced", over="shuffled"),
        study("produced over produced in the benchmark's words", row="produced", over="worded"),
        study("shuffled captions, then real over real, then real", row="shuffled", over="real"),
        more("produced, then real over real, then real: 3,000 real", row="produced", over="real"),
        more("produced over produced with shuffled captions: 3,000 real", row="produced", over="shuffled"),
        more("produced over produced in the benchmark's words: 3,000 real", row="produced", over="worded"),
    )


METHODS = (
    Method(
        "NAMC",
        "python -m benchmarks.studies.noise --only scratch neither noise noise+reconstruction "
        "align_originals align_image align_description",
        _namc(),
        "Rows with clean descriptions: the same command with `--word_noise 0 --description_noise 0` and without the "
        "rows of `align`. Reconstruction without noise masking was not measured. [Notes](notes/namc.md) have all rows.",
    ),
    Method(
        "ADPO",
        "python -m benchmarks.studies.preference_learning --rows main losses",
        _adpo(),
        "SFT+ is SFT with about the compute of the others. All of it, and the commands of the rows with 20 wordings, "
        "with an ImageNet encoder and behind SmolLM2: [notes](notes/adpo.md#effect-on-captions).",
    ),
    Method(
        "GRPO, SCST",
        remark="Not measured on the present captioner. The study is `python -m benchmarks.studies.reward_learning`.",
    ),
    Method(
        "M3Diff (MDP)",
        "python -m benchmarks.studies.mdp",
        _m3diff(),
        "Frozen EfficientNet-lite0, rendered pairs, still camera: [notes](notes/m3diff.md#effect-of-mdp). The rows "
        "behind SmolLM2 have [a command of their own](notes/m3diff.md#behind-a-pretrained-language-model).",
    ),
    Method(
        "ProCap",
        remark="Not measured: a fair study needs a first stage that learns the paper's codes (200,000 steps there) for "
        "each training, which two cores cannot do. Earlier studies learned named attributes and were dropped.",
    ),
    Method(
        "Img-Diff",
        "python -m benchmarks.studies.synthesis_training --world 300",
        _img_diff(),
        "800 produced pairs; 300 real ones or, in the rows that say so, 3,000 (`--world 3000`): "
        "[notes](notes/img_diff.md).",
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


def measure_text(measure: str) -> str:
    """Measure with its unit, such as ``type, %``."""
    return measure if measure == METRIC else f"{measure}, %"


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

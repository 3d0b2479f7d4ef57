"""Shared code of studies: baselines of every score, paired intervals, several seeds, settings and versions.

A study trains several captioners with each of several seeds and tests all of them on the same pairs; ``Study.add`` adds
the captions of one seed. The difference between two rows has two intervals: ``pairs``, the paired bootstrap over test
pairs of the mean over seeds, and ``interval``, Student's t over the differences of the seeds; a single seed has only
``pairs``. ``readings.py`` says when a difference is decided. A row is below its baselines unless its intervals are
above them in every seed.

``--out`` writes the summary. ``--part`` writes all captions, so that ``merge.py`` can combine seeds, worlds and rows
that ran separately, on several cores or machines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import commit, report, without_folder
from benchmarks.studies.readings import UNCHANGED, is_below, over_seeds, reading_of, spread, uses_images
from lightning_idc.callbacks.compare_results import captions_of, facts_of
from lightning_idc.callbacks.unchanged_control import UnchangedControl
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.store.manifest import fingerprint_of
from lightning_idc.metrics.baselines import constant_caption
from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import Scores
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.report.comparison import METRIC, Captioned, ComparedCaptioner, compare_captioners, interval
from lightning_idc.utils.outputs import save_json

Tested = tuple[Captioned, dict[str, float]]
"""Captions of the test pairs, and other scores by name."""
NOT_SETTINGS = ("cache", "work", "part", "out", "weights")
"""Arguments for files and partial runs, which are not settings of a study."""
VARIED = ("seeds", "only", "world", "shift")
"""Settings that may differ between parts of one study."""


@dataclass
class Study:
    """Seeds of one setting.

    Args:
        references: references of the test pairs.
        constant: a caption chosen on training references.
        order: names of the rows; each is compared with the one before it.
        control: row with which all others are compared in addition; may be None.
        unchanged: share of unchanged pairs.
    """

    references: Mapping[str, Sequence[str]]
    constant: str
    order: Sequence[str]
    control: str | None = None
    unchanged: float = UNCHANGED
    seeds: list[int] = field(default_factory=list)
    rows: list[list[ComparedCaptioner]] = field(default_factory=list)
    said: list[dict[str, Captioned]] = field(default_factory=list)
    figures: list[dict[str, dict[str, float]]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls, data: PairDataModule, order: Sequence[str], control: str | None = None, unchanged: float = UNCHANGED
    ) -> Study:
        """Study of the test pairs of a data module, with the constant caption of its training pairs."""
        test = data.pairs_of("test")
        references = dict(zip(test.ids, captions_of(test), strict=True))
        return cls(references, constant_caption(captions_of(data.pairs_of("train"))), list(order), control, unchanged)

    @property
    def setting(self) -> tuple[Any, ...]:
        """What is equal in all parts of a study."""
        return self.references, self.constant, self.order, self.unchanged

    def add(self, seed: int, results: Mapping[str, Tested], **notes: Any) -> None:
        """Add the captions of one seed, and print their scores.

        Args:
            seed: seed of the training.
            results: captions and other scores by row.
            notes: further plain values of the seed.
        """
        known = [name for name in self.order if name in results]
        self.seeds.append(seed)
        self.said.append({name: results[name][0] for name in known})
        self.rows.append(compare_captioners(self.said[-1], self.references, self.constant))
        self.figures.append({name: results[name][1] for name in known})
        self.notes.append(notes)
        for row in self.rows[-1]:
            gain = row.over_previous.get(METRIC)
            facts = {**results[row.name][1], **row.facts}
            print(
                f"{seed}  {row.name:<22} {METRIC} {row.score:6.1f}",
                "" if gain is None else f"{interval(gain)} {row.verdict}",
                "  ".join(f"{name} {value:.1f}" for name, value in {**row.baselines, **facts}.items()),
                f"words {row.words:.1f}  distinct {row.distinct}",
                flush=True,
            )

    def summary(self) -> dict[str, Any]:
        """Plain values over all seeds."""
        results = {}
        for index, row in enumerate(self.rows[0]):
            compared = [rows[index] for rows in self.rows]
            others = [figures[row.name] for figures in self.figures]
            first = [figures[self.rows[0][0].name] for figures in self.figures]
            readings = {earlier.name: self.readings(earlier.name, row.name) for earlier in self.rows[0][:index]}
            results[row.name] = {
                METRIC: spread([row.score for row in compared]),
                "baselines": {name: spread([row.baselines[name] for row in compared]) for name in row.baselines},
                "words": spread([row.words for row in compared]),
                "distinct": spread([float(row.distinct) for row in compared]),
                "facts": {name: spread([row.facts[name] for row in compared]) for name in row.facts},
                "identical_facts": {
                    name: spread([row.identical_facts[name] for row in compared]) for name in row.identical_facts
                },
                "figures": {name: spread([one[name] for one in others]) for name in others[0]},
                "figures_over_first_row": {
                    name: over_seeds([b[name] - a[name] for a, b in zip(first, others, strict=True)])
                    for name in others[0]
                    if all(name in figures for figures in first)
                },
                "over": [of_row.pop(METRIC) for of_row in readings.values()],
                "facts_over": readings,
            }
        return results

    def readings(self, earlier: str, row: str) -> dict[str, dict[str, Any]]:
        """The :meth:`differences` of two rows, by metric, each with its reading."""
        trainings = {name: [one.as_dict() for one in self._results(name)] for name in (earlier, row)}
        readings = {}
        for metric, gain in self.differences(earlier, row).items():
            compares = any(uses_images(of_row, self.unchanged, metric) for of_row in trainings.values())
            reading = reading_of(gain, is_below(trainings[row], metric), compares)
            readings[metric] = {"row": earlier, **gain, "reading": reading}
        return readings

    def _results(self, name: str) -> list[ComparedCaptioner]:
        """Results of a row by seed."""
        return [row for rows in self.rows for row in rows if row.name == name]

    @property
    def controlled(self) -> bool:
        """Whether the control was trained."""
        return any(row.name == self.control for row in self.rows[0])

    def over_control(self) -> dict[str, Any]:
        """Difference of every row from the control."""
        assert self.control is not None
        return {row.name: self.differences(self.control, row.name) for row in self.rows[0] if row.name != self.control}

    def differences(self, earlier: str, row: str) -> dict[str, dict[str, Any]]:
        """Differences between two rows in CIDEr-D and in each fact that applies to the same pairs in both."""
        metrics = (METRIC, *self._results(row)[0].facts)
        gains = {metric: self.difference(earlier, row, metric) for metric in metrics}
        return {metric: gain for metric, gain in gains.items() if gain is not None}

    def difference(self, earlier: str, row: str, metric: str) -> dict[str, Any] | None:
        """Difference between two rows over seeds and over pairs; None if a fact applies to other pairs in one of them.

        Args:
            earlier: row to compare with.
            row: a row.
            metric: CIDEr-D or a fact.
        """
        trainings = [self._pairwise(seed, name, metric) for name in (earlier, row) for seed in range(len(self.seeds))]
        if len(trainings[0]) < 2 or any(list(scores) != list(trainings[0]) for scores in trainings):
            return None
        values = np.array([list(scores.values()) for scores in trainings]).reshape(2, len(self.seeds), -1)
        first, second = (_scores(mean, metric) for mean in values.mean(1))
        gap = compare(first, second)[metric]
        gains = (values[1] - values[0]).mean(1).tolist()
        return {**over_seeds(gains), "pairs": [gap.low, gap.high]}

    def _pairwise(self, index: int, name: str, metric: str) -> dict[str, float]:
        """Score by pair id; for a fact, 100 if it is right and 0 if it is wrong, for the pairs to which it applies."""
        if metric == METRIC:
            scores = next(row.scores for row in self.rows[index] if row.name == name)
            return dict(zip(scores.ids, scores.per_pair[metric].tolist(), strict=True))
        facts = self.said[index][name].facts
        return {id: 100.0 * bool(known[metric]) for id, known in sorted(facts.items()) if known.get(metric) is not None}

    def part(self) -> dict[str, Any]:
        """All captions as plain values, from which ``benchmarks/studies/merge.py`` reconstructs the study."""
        said = [{name: asdict(captioned) for name, captioned in rows.items()} for rows in self.said]
        return {
            "references": dict(self.references),
            "constant": self.constant,
            "order": list(self.order),
            "control": self.control,
            "unchanged": self.unchanged,
            "runs": [
                {"seed": seed, "said": rows, "figures": figures, "notes": notes}
                for seed, rows, figures, notes in zip(self.seeds, said, self.figures, self.notes, strict=True)
            ],
        }

    def as_dict(self) -> dict[str, Any]:
        """All results as plain values."""
        each = [{row.name: row.as_dict() for row in rows} for rows in self.rows]
        return {
            "seeds": self.seeds,
            "test_pairs": len(self.references),
            "constant": self.constant,
            "unchanged": self.unchanged,
            "summary": self.summary(),
            **({"control": self.control, "over_control": self.over_control()} if self.controlled else {}),
            "notes": dict(zip(self.seeds, self.notes, strict=True)),
            "each_seed": [
                {name: {**row, **figures[name]} for name, row in rows.items()}
                for rows, figures in zip(each, self.figures, strict=True)
            ],
        }


def arguments(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """Arguments that all studies share."""
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to train; all of them by default")
    parser.add_argument("--cache", type=Path, help="folder of rendered pairs, which several runs may share")
    parser.add_argument("--work", type=Path, help="folder of this run; a stopped run resumes after its last row")
    parser.add_argument("--part", type=Path, help="JSON file of all captions, for merge.py")
    parser.add_argument("--out", type=Path, help="JSON file of the summary")


@contextmanager
def work_folder(args: argparse.Namespace) -> Iterator[Path]:
    """Folder of intermediate results; temporary without ``--work``.

    Each commit and each combination of settings has its own subfolder of ``--work``, so that results of other settings
    are not reused.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = args.work / settings_key(args) if args.work else Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def each_run(args: argparse.Namespace) -> Iterator[tuple[str, int, Path]]:
    """World, seed and folder of each run of a study; the folders are temporary without ``--work``."""
    with work_folder(args) as folder:
        for world in args.world:
            for seed in args.seeds:
                yield world, seed, folder / str(seed)


def selected_rows(args: argparse.Namespace, rows: Sequence[str]) -> list[str]:
    """Rows to train, in their order.

    Raises:
        SystemExit: one of ``--only`` is unknown.
    """
    only = args.only or rows
    unknown = sorted(set(only) - set(rows))
    if unknown:
        raise SystemExit(f"--only names {', '.join(unknown)}; the rows are {', '.join(rows)}")
    return [row for row in rows if row in only]


def test_captions(trainer: Any, captioner: PairCaptioner, data: PairDataModule) -> Tested:
    """Captions of the test pairs, with facts and captions of identical images, and all test scores by name."""
    control = UnchangedControl()
    trainer.callbacks.append(control)
    results = trainer.test(captioner, data, verbose=False)[0]
    said = {record["id"]: record["caption"] for record in captioner.predictions}
    facts = (facts_of(data, captions) for captions in (said, control.captions))
    scores = {name.removeprefix("test/"): float(value) for name, value in results.items()}
    return Captioned(said, control.captions, *facts), scores


def settings_key(args: argparse.Namespace) -> str:
    """Digest of the commit and of all settings that must be equal between parts."""
    settings = {name: str(value) for name, value in settings_of(args).items() if name not in VARIED}
    return fingerprint_of({"commit": commit(), "settings": settings})[:12]


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments that are settings of a study; files are named without their folders."""
    return {name: without_folder(value) for name, value in vars(args).items() if name not in NOT_SETTINGS}


def load_or_test(path: Path, make: Callable[[], Tested]) -> Tested:
    """Captions from the file of an earlier run, or computed and written to it.

    With ``--work``, a stopped run resumes after its last row.

    Args:
        path: JSON file in the folder of :func:`work_folder`.
        make: trains and tests the captioner.
    """
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        return Captioned(**known["said"]), known["figures"]
    said, figures = make()
    save_json(path, {"said": asdict(said), "figures": figures}, overwrite=True)
    return said, figures


def figures_of(trained: Path, make: Callable[[Path], Mapping[str, float]]) -> dict[str, float]:
    """Figures of a training from the file next to its checkpoint, or of a new training.

    Args:
        trained: its checkpoint in the folder of :func:`work_folder`; the figures stand beside it, as JSON.
        make: trains, writes the checkpoint and returns the figures.
    """
    record = trained.with_suffix(".json")
    if not record.is_file():
        save_json(record, dict(make(trained)), overwrite=True)
    results: dict[str, float] = json.loads(record.read_text(encoding="utf-8"))
    return results


def save_results(args: argparse.Namespace, worlds: Mapping[str, Study], *packages: str) -> None:
    """Write the results so far; called after every seed, so that a stopped study loses at most one seed.

    Args:
        args: command line.
        worlds: studies by name.
        packages: distributions whose versions matter.
    """
    for out, made in ((args.out, Study.as_dict), (args.part, Study.part)):
        if out:
            results = {"settings": settings_of(args), "worlds": {name: made(study) for name, study in worlds.items()}}
            report(results, out, *packages, seeds=args.seeds, quiet=True)


def print_summaries(worlds: Mapping[str, Study]) -> None:
    """Print the summaries."""
    for world, study in worlds.items():
        for row, results in study.summary().items():
            print(f"{world:<12} {row:<22} {results[METRIC]} {results['over'][-1:]}", flush=True)
        if study.controlled:
            for row, gains in study.over_control().items():
                for metric, gain in gains.items():
                    print(f"{world:<12} {row:<12} minus {study.control} {metric:<10} {gain}", flush=True)


def _scores(values: Any, metric: str) -> Scores:
    """Scores from one value per pair."""
    return Scores({metric: float(values.mean())}, {metric: values}, [str(index) for index in range(len(values))], 0)

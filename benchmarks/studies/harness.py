"""What studies of captioners share: floors beside every score, paired intervals, several seeds, and where they ran.

A study trains some captioners for each of several seeds and tests all of them on the same pairs; ``Study.add`` takes
what they said for one seed. Two intervals stand beside the difference of two rows: ``pairs``, the paired bootstrap over
test pairs of the mean over seeds, and ``interval``, Student's t over the differences of the seeds. A difference counts
as decided where both leave 0 out and there are at least five seeds or 2,000 test pairs; one seed has ``pairs`` alone. A
row that is not above its floors with its intervals in every seed is below them.

``--out`` keeps the summary. ``--part`` keeps what was said, word by word, so that seeds, worlds and rows that ran one
by one, on several cores or machines, become one study: ``merge.py``.
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

from benchmarks.harness import commit, report
from benchmarks.studies.readings import over_seeds, reading_of, spread
from lightning_idc.callbacks.compare_results import captions_of
from lightning_idc.callbacks.unchanged_control import UnchangedControl
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.store.manifest import fingerprint_of
from lightning_idc.metrics.baselines import constant_caption
from lightning_idc.metrics.bootstrap import compare
from lightning_idc.metrics.captions import Scores
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.report.comparison import METRIC, Captioned, ComparedCaptioner, compare_captioners, interval
from lightning_idc.utils.outputs import save_json

Said = tuple[Captioned, dict[str, float]]
"""What a captioner says of the test pairs, and other scores of it by name."""
PLACES = ("cache", "work", "part", "out", "prepare", "only_base")
"""Arguments that say where something is kept or how far to go, which are no settings of a study."""
VARIED = ("seeds", "only", "world", "shift")
"""Settings in which parts of one study may differ."""


@dataclass
class Study:
    """Seeds of one setting.

    Args:
        references: of the test pairs.
        constant: a caption chosen on training references.
        order: names of the rows; each is compared with the one before it.
        control: row with which all others are compared as well; None where there is none.
    """

    references: Mapping[str, Sequence[str]]
    constant: str
    order: Sequence[str]
    control: str | None = None
    seeds: list[int] = field(default_factory=list)
    rows: list[list[ComparedCaptioner]] = field(default_factory=list)
    said: list[dict[str, Captioned]] = field(default_factory=list)
    figures: list[dict[str, dict[str, float]]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, data: PairDataModule, order: Sequence[str], control: str | None = None) -> Study:
        """Study of the test pairs of a data module, with the constant caption of its training pairs."""
        test = data.pairs_of("test")
        references = dict(zip(test.ids, captions_of(test), strict=True))
        return cls(references, constant_caption(captions_of(data.pairs_of("train"))), list(order), control)

    def add(self, seed: int, found: Mapping[str, Said], **notes: Any) -> None:
        """Add what the captioners of one seed said, and print it.

        Args:
            seed: of their training.
            found: captions and other scores by row.
            notes: plain values of the seed that are no row's.
        """
        known = [name for name in self.order if name in found]
        self.seeds.append(seed)
        self.said.append({name: found[name][0] for name in known})
        self.rows.append(compare_captioners(self.said[-1], self.references, self.constant))
        self.figures.append({name: found[name][1] for name in known})
        self.notes.append(notes)
        for row in self.rows[-1]:
            gain = row.over_previous.get(METRIC)
            facts = {**found[row.name][1], **row.facts}
            print(
                f"{seed}  {row.name:<22} {METRIC} {row.score:6.1f}",
                "" if gain is None else f"{interval(gain)} {row.verdict}",
                "  ".join(f"{name} {value:.1f}" for name, value in {**row.baselines, **facts}.items()),
                f"words {row.words:.1f}  distinct {row.distinct}",
                flush=True,
            )

    def summary(self) -> dict[str, Any]:
        """All seeds together, plain values."""
        found = {}
        for place, row in enumerate(self.rows[0]):
            own = [rows[place] for rows in self.rows]
            others = [figures[row.name] for figures in self.figures]
            first = [figures[self.rows[0][0].name] for figures in self.figures]
            found[row.name] = {
                METRIC: spread([one.score for one in own]),
                "baselines": {name: spread([one.baselines[name] for one in own]) for name in row.baselines},
                "words": spread([one.words for one in own]),
                "distinct": spread([float(one.distinct) for one in own]),
                "facts": {name: spread([one.facts[name] for one in own]) for name in row.facts},
                "figures": {name: spread([one[name] for one in others]) for name in others[0]},
                "figures_over_first_row": {
                    name: over_seeds([b[name] - a[name] for a, b in zip(first, others, strict=True)])
                    for name in others[0]
                    if all(name in figures for figures in first)
                },
                **({"over_previous": self.over(place - 1, place)} if place else {}),
            }
        return found

    def over(self, first: int, second: int) -> dict[str, Any]:
        """What one row has over another by CIDEr-D, all seeds together, and what may be said of it."""
        one, other = ([rows[place] for rows in self.rows] for place in (first, second))
        gains = [b.score - a.score for a, b in zip(one, other, strict=True)]
        pairs, seeds = compare(_mean(one), _mean(other))[METRIC], over_seeds(gains)
        below = any(floor.low <= 0 for row in other for floor in row.over_baselines.values())
        gain = {"row": one[0].name, **seeds, "pairs": [pairs.low, pairs.high]}
        return {**gain, "reading": reading_of(gain, below, len(self.references))}

    @property
    def controlled(self) -> bool:
        """Whether the control was trained."""
        return any(row.name == self.control for row in self.rows[0])

    def over_control(self) -> dict[str, Any]:
        """What every row has over the control by CIDEr-D and by each fact, over seeds and over pairs.

        A fact that does not apply to the same pairs in both rows and in all seeds is left out.
        """
        assert self.control is not None
        found: dict[str, Any] = {}
        for name in (row.name for row in self.rows[0] if row.name != self.control):
            found[name] = {}
            for metric in (METRIC, *next(row.facts for row in self.rows[0] if row.name == name)):
                known = [self._pairwise(seed, row, metric) for row in (self.control, name) for seed in self._places()]
                if len(known[0]) < 2 or any(list(one) != list(known[0]) for one in known):
                    continue
                values = np.array([list(one.values()) for one in known]).reshape(2, len(self.seeds), -1)
                first, second = (_scores(mean, metric) for mean in values.mean(1))
                gap = compare(first, second)[metric]
                gains = (values[1] - values[0]).mean(1).tolist()
                found[name][metric] = {**over_seeds(gains), "pairs": [gap.low, gap.high]}
        return found

    def _places(self) -> range:
        return range(len(self.seeds))

    def _pairwise(self, place: int, name: str, metric: str) -> dict[str, float]:
        """By pair its score, or 100 where a fact is right and 0 where it is wrong, where it applies."""
        if metric == METRIC:
            scores = next(row.scores for row in self.rows[place] if row.name == name)
            return dict(zip(scores.ids, scores.per_pair[metric].tolist(), strict=True))
        facts = self.said[place][name].facts
        return {id: 100.0 * bool(known[metric]) for id, known in sorted(facts.items()) if known.get(metric) is not None}

    def part(self) -> dict[str, Any]:
        """What was said, plain values: what ``benchmarks/studies/merge.py`` makes the study from again."""
        said = [{name: asdict(captioned) for name, captioned in rows.items()} for rows in self.said]
        return {
            "references": dict(self.references),
            "constant": self.constant,
            "order": list(self.order),
            "control": self.control,
            "runs": [
                {"seed": seed, "said": rows, "figures": figures, "notes": notes}
                for seed, rows, figures, notes in zip(self.seeds, said, self.figures, self.notes, strict=True)
            ],
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, plain values."""
        each = [{row.name: row.as_dict() for row in rows} for rows in self.rows]
        return {
            "seeds": self.seeds,
            "test_pairs": len(self.references),
            "constant": self.constant,
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
    parser.add_argument("--work", type=Path, help="folder of this run alone: stopped, it goes on after its last row")
    parser.add_argument("--part", type=Path, help="JSON file of all that was said, for merge.py")
    parser.add_argument("--out", type=Path, help="JSON file of the summary")


@contextmanager
def kept_in(given: argparse.Namespace) -> Iterator[Path]:
    """Folder for all that a study makes on its way; without ``--work`` it goes at the end.

    Within ``--work`` each commit and each choice of settings has its own, so that nothing that was made otherwise is
    taken for what a study needs.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = given.work / stamp(given) if given.work else Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def each_run(given: argparse.Namespace) -> Iterator[tuple[str, int, Path]]:
    """World, seed and folder of each run of a study; without ``--work`` the folders go at the end."""
    with kept_in(given) as folder:
        for world in given.world:
            for seed in given.seeds:
                yield world, seed, folder / str(seed)


def wanted(given: argparse.Namespace, rows: Sequence[str]) -> list[str]:
    """Rows to train, in their order.

    Raises:
        SystemExit: one of ``--only`` is unknown.
    """
    only = given.only or rows
    unknown = sorted(set(only) - set(rows))
    if unknown:
        raise SystemExit(f"--only names {', '.join(unknown)}; the rows are {', '.join(rows)}")
    return [row for row in rows if row in only]


def asked(trainer: Any, captioner: PairCaptioner, data: PairDataModule) -> Said:
    """What a captioner says of the test pairs, with facts and control, and all scores of the test by name."""
    control = UnchangedControl()
    trainer.callbacks.append(control)
    found = trainer.test(captioner, data, verbose=False)[0]
    said = {record["id"]: record["caption"] for record in captioner.predictions}
    facts = {id: data.facts("test", id, text) for id, text in said.items()}
    scores = {name.removeprefix("test/"): float(value) for name, value in found.items()}
    return Captioned(said, control.captions, facts), scores


def stamp(given: argparse.Namespace) -> str:
    """Short name of a commit and of all settings in which parts may not differ."""
    settings = {name: str(value) for name, value in vars(given).items() if name not in PLACES + VARIED}
    return fingerprint_of({"commit": commit(), "settings": settings})[:12]


def once(path: Path, make: Callable[[], Said]) -> Said:
    """What a captioner said, read from a file that an earlier run left; else made, and left there.

    A run that was stopped goes on after its last row where ``--work`` keeps its files.

    Args:
        path: JSON file in the folder of :func:`kept_in`.
        make: trains and asks the captioner.
    """
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        return Captioned(**known["said"]), known["figures"]
    said, figures = make()
    save_json(path, {"said": asdict(said), "figures": figures}, overwrite=True)
    return said, figures


def figures_of(trained: Path, make: Callable[[Path], Mapping[str, float]]) -> dict[str, float]:
    """Figures of a training, read from the file beside its checkpoint; where there is none it is trained.

    Args:
        trained: its checkpoint in the folder of :func:`kept_in`; the figures stand beside it, as JSON.
        make: trains, writes the checkpoint and returns the figures.
    """
    record = trained.with_suffix(".json")
    if not record.is_file():
        save_json(record, dict(make(trained)), overwrite=True)
    found: dict[str, float] = json.loads(record.read_text(encoding="utf-8"))
    return found


def keep(given: argparse.Namespace, worlds: Mapping[str, Study], *packages: str) -> None:
    """Write what there is so far; called after every seed, so that a study that is stopped leaves what it has.

    Args:
        given: command line.
        worlds: studies by name.
        packages: distributions whose versions matter.
    """
    settings = {name: value for name, value in vars(given).items() if name not in PLACES}
    for out, made in ((given.out, Study.as_dict), (given.part, Study.part)):
        if out:
            found = {"settings": settings, "worlds": {name: made(study) for name, study in worlds.items()}}
            report(found, out, *packages, seeds=given.seeds, quiet=True)


def show(worlds: Mapping[str, Study]) -> None:
    """Print the summaries."""
    for world, study in worlds.items():
        for row, found in study.summary().items():
            print(f"{world:<12} {row:<22} {found[METRIC]} {found.get('over_previous', '')}", flush=True)
        if study.controlled:
            for row, gains in study.over_control().items():
                for metric, gain in gains.items():
                    print(f"{world:<12} {row:<12} minus {study.control} {metric:<10} {gain}", flush=True)


def _mean(rows: Sequence[ComparedCaptioner]) -> Scores:
    """Scores of each pair, the mean over seeds."""
    values = np.mean([row.scores.per_pair[METRIC] for row in rows], 0)
    return Scores({METRIC: float(values.mean())}, {METRIC: values}, rows[0].scores.ids, rows[0].scores.references)


def _scores(values: Any, metric: str) -> Scores:
    """Scores of values of pairs."""
    return Scores({metric: float(values.mean())}, {metric: values}, [str(place) for place in range(len(values))], 0)

"""Does METEOR without Java equal the jar, set by set, and how fast is it?

    python -m benchmarks.meteor FOLDER [--sets 100000] [--out FILE]

FOLDER contains annotation files that `score --references` reads (`.json` and `.json.gz`, at any depth). A set is a
candidate with its references. Candidates are made from references: one held out from the others of its pair, one of
another pair ("shuffled"), half of one ("truncated"), one with other words ("replaced"), several joined and compared
with several ("long"), one with inserted symbols, digits and repetitions ("odd"), and phrases of METEOR's own paraphrase
table against their paraphrases ("paraphrased"). The jar runs once and answers all sets; both programs see the same
tokens. The first call, the index and the table of scores (5,000 captions with five references each, as in
`benchmarks/metrics.py`) are timed in separate processes.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from benchmarks.harness import report
from benchmarks.metrics import corpus
from lightning_idc.metrics.grouping import grouped
from lightning_idc.metrics.meteor import BACKENDS, Backend, MeteorScores, java, meteor_scores
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder
from lightning_idc.metrics.reading import read_references
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import IDCError

Sets = list[tuple[str, list[str], list[list[str]]]]
ODD = [
    *"'\"-.,;:!?/()&%$#_*+=~^|<>[]{}@",
    "\u2019",
    "\u201c",
    "\u2013",
    "...",
    "--",
    "'s",
    "n't",
    "No.",
    "3.5",
    "1,000",
    "é",
    "ß",
    "я",
    "\U0001f600",
]
TIMED = """
import time
from benchmarks.metrics import corpus
from lightning_idc.metrics.captions import STANDARD_METRICS, score_captions
said, expected = corpus(5000, 5)
began, used = time.perf_counter(), time.process_time()
score_captions(said, expected, STANDARD_METRICS)
print(time.perf_counter() - began, time.process_time() - used)
"""
FIRST = """
import time
began = time.perf_counter()
from lightning_idc.metrics.meteor import meteor_scores
meteor_scores([["a", "red", "cube"]], [[["the", "red", "cubes"]]])
print(time.perf_counter() - began, time.process_time())
"""


def pairs_of(folder: Path) -> Iterator[list[list[str]]]:
    """Tokens of the references of every pair of every file."""
    for path in sorted(folder.rglob("*.json*")):
        try:
            truths = grouped(read_references(path))["all"]
        except IDCError:
            continue
        texts = [[ptb_tokenize(text) for text in truth.references] for truth in truths]
        words = [len(tokens) for of_pair in texts for tokens in of_pair]
        if sum(words) >= 2 * len(words):  # not a map of names, such as types of change
            yield from ([tokens for tokens in of_pair if tokens] for of_pair in texts if any(of_pair))


def paraphrases(generator: random.Random, count: int) -> list[tuple[list[str], list[str]]]:
    """Lines of METEOR's table: a phrase and a paraphrase of it."""
    folder = pycocoevalcap_folder()
    assert folder is not None
    with gzip.open(folder / "meteor" / "data" / "paraphrase-en.gz", "rt", encoding="utf-8") as file:
        lines = itertools.islice(file, 6_000_000)
        results = [
            (one.split(), two.split())
            for _, one, two in zip(lines, lines, lines, strict=True)
            if generator.random() < 0.05
        ]
    return generator.choices(results, k=count)


def make_sets(folder: Path, wanted: int) -> Sets:
    """Candidates with their references, by kind."""
    generator = random.Random(0)
    pairs = list(pairs_of(folder))
    words = sorted({word for of_pair in pairs for tokens in of_pair for word in tokens})
    kinds = ("held out", "shuffled", "truncated", "replaced", "long", "odd", "paraphrased")
    results: Sets = []
    table = paraphrases(generator, 2 * wanted)
    while len(results) < wanted:
        kind, expected = kinds[len(results) % len(kinds)], generator.choice(pairs)
        candidates = list(generator.choice(expected))
        if kind == "held out":
            expected = [tokens for tokens in expected if tokens != candidates] or [
                generator.choice(generator.choice(pairs))
            ]
        elif kind == "shuffled":
            candidates = generator.choice(generator.choice(pairs))
        elif kind == "truncated":
            candidates = candidates[: (len(candidates) + 1) // 2]
        elif kind == "replaced":
            candidates = [generator.choice(words) if generator.random() < 0.2 else word for word in candidates]
        elif kind == "long":
            near = [*expected, *generator.choice(pairs)]
            candidates = [word for tokens in generator.choices(near, k=3) for word in tokens]
            expected = [[word for tokens in generator.choices(near, k=3) for word in tokens] for _ in range(2)]
        elif kind == "odd":
            candidates, expected = odd(candidates, generator), [odd(tokens, generator) for tokens in expected]
        else:
            chosen = generator.choices(table, k=3)
            fill = [generator.choice(candidates) for _ in chosen]
            expected = [[word for (one, _), more in zip(chosen, fill, strict=True) for word in (*one, more)]]
            generator.shuffle(chosen)
            candidates = [word for (_, two), more in zip(chosen, fill, strict=True) for word in (*two, more)]
        results.append((kind, candidates, expected))
    return results


def odd(tokens: list[str], generator: random.Random) -> list[str]:
    """Tokens with signs within and between them, capitals, repetitions, and sometimes none at all."""
    results: list[str] = []
    for word in tokens if generator.random() > 0.02 else []:
        chance = generator.random()
        if chance < 0.15:
            place = generator.randint(0, len(word))
            word = word[:place] + generator.choice(ODD) + word[place:]
        elif chance < 0.25:
            results.append(generator.choice(ODD))
        elif chance < 0.3:
            word = word.upper()
        elif chance < 0.35:
            results.append(word)
        results.append(word)
    return results


def child(script: str, runs: int, **environment: str) -> dict[str, float]:
    """Medians of the seconds that a script prints, each run in a new process."""
    seconds = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            env={**os.environ, **environment},
        )
        seconds.append([float(number) for number in done.stdout.split()])
    wall, cpu = (round(statistics.median(column), 2) for column in zip(*seconds, strict=True))
    return {"wall": wall, "cpu": cpu}


def timed(sets: Sets, backend: Backend) -> tuple[MeteorScores, dict[str, float]]:
    """Scores, and the seconds that they took."""
    began, used = time.perf_counter(), cpu_seconds(backend)
    outcome = meteor_scores([candidates for _, candidates, _ in sets], [expected for _, _, expected in sets], backend)
    if not isinstance(outcome, MeteorScores):
        sys.exit(f"{backend}: {outcome}")
    wall, cpu = time.perf_counter() - began, cpu_seconds(backend) - used
    return outcome, {"wall": round(wall, 2), "cpu": round(cpu, 2)}


def cpu_seconds(backend: Backend) -> float:
    """CPU seconds of this process, or of the Java program with all its threads."""
    program = java.running() if backend == "java" else None
    if not isinstance(program, java.Meteor):
        return time.process_time()
    user, system = Path(f"/proc/{program._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def speed(sets: Sets) -> dict[str, Any]:
    """Seconds of both programs, and the ratio of the Java program's to ours."""
    results = {backend: timed(sets, backend)[1] for backend in BACKENDS}
    return {**results, "times_faster": faster(results)}


def faster(seconds: dict[str, dict[str, float]]) -> dict[str, float]:
    return {kind: round(seconds["java"][kind] / seconds["python"][kind], 1) for kind in ("wall", "cpu")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--differing", type=Path, help="also write the sets whose scores differ")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sets = make_sets(options.folder, options.sets)
    for backend in BACKENDS:  # both read their tables before the clock starts
        timed(sets[:1], backend)
    candidates, expected = corpus(5000, 5)
    ours, our_seconds = timed(sets, "python")
    theirs, their_seconds = timed(sets, "java")
    difference = np.abs(ours.per_pair - theirs.per_pair)
    unequal = np.flatnonzero(difference > 1e-6).tolist()
    if options.differing:
        lines = [
            f"{sets[n][0]}\t{ours.per_pair[n]}\t{theirs.per_pair[n]}\t{sets[n][1]}\t{sets[n][2]}\n" for n in unequal
        ]
        options.differing.write_text("".join(lines), encoding="utf-8")
    kinds = Counter(kind for kind, _, _ in sets)
    wrong = Counter(sets[number][0] for number in unequal)
    with tempfile.TemporaryDirectory() as empty:
        build = child(FIRST, 1, LIGHTNING_IDC_CACHE=empty)
        index = sum(path.stat().st_size for path in Path(empty).rglob("*.bin"))
    report(
        {
            "sets": dict(kinds),
            "references": sum(len(expected) for _, _, expected in sets),
            "sets_equal_to_1e-6": {kind: 1 - wrong[kind] / count for kind, count in kinds.items()},
            "share_equal_to_1e-6": 1 - len(unequal) / len(sets),
            "largest_difference": float(difference.max()),
            "corpus": {"python": ours.corpus, "java": theirs.corpus},
            "seconds": {"python": our_seconds, "java": their_seconds},
            "times_faster": faster({"python": our_seconds, "java": their_seconds}),
            "captions_5000x5_seconds": speed(
                [("coco", candidates[id].split(), [t.split() for t in expected[id]]) for id in candidates]
            ),
            "first_call_seconds": {"without_index": build, "with_index": child(FIRST, options.runs)},
            "index_bytes": index,
            "score_table_5000x5_cold_seconds": child(TIMED, options.runs),
        },
        options.out,
        "pycocoevalcap",
        "snowballstemmer",
        seeds=[0],
        java=True,
    )


if __name__ == "__main__":
    main()

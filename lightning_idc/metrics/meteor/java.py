"""METEOR (Denkowski and Lavie 2014) through pycocoevalcap's Java program, started once and used again.

There is no equal without Java, and look-alikes differ by many points, so without Java the answer is
:class:`NotComputed` and never a number.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lightning_idc.metrics.corpus import Floats, Tokens

MEMORY = "-Xmx2G"
# the program's parameters for English, and its weights of exact, stem, synonym and paraphrase matches
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])


@dataclass(frozen=True)
class NotComputed:
    """Why a metric has no value."""

    reason: str

    def __str__(self) -> str:
        return f"not computed: {self.reason}"


class MeteorScores(NamedTuple):
    """What METEOR says of a corpus.

    Args:
        corpus: score of the whole, 0 to 1; no mean over pairs.
        per_pair: score of each pair, 0 to 1.
        statistics: counts of each pair, 23 numbers, of which sums give the score of any set of pairs.
    """

    corpus: float
    per_pair: list[float]
    statistics: list[list[float]]


class Meteor:
    """A running METEOR process; safe to use from several threads.

    Args:
        java: path of the program.
        jar: path of METEOR 1.5.
    """

    def __init__(self, java: str, jar: Path) -> None:
        # a comma as decimal separator would break the protocol, so the locale is fixed
        command = [java, MEMORY, "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8", "-jar", str(jar)]
        self._process = subprocess.Popen(
            [*command, "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._lock = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; in a fork of the process that started it, leave it alone."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # what was not sent when Java died cannot be sent any more
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        # a program that has ended says so by its code, which the missing answer tells
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"it ended with code {self._process.wait()}; {MEMORY} of memory may be too much here")
        return line.strip()

    def score(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores:
        """Score a corpus of at least one pair."""
        with self._lock:
            statistics = []
            for candidate, of_pair in zip(candidates, references, strict=True):
                fields = ["SCORE", *(" ".join(tokens) for tokens in of_pair), " ".join(candidate)]
                statistics.append(self._ask(" ||| ".join(field.replace("|||", "") for field in fields)))
            first = self._ask(" ||| ".join(["EVAL", *statistics]))
            each = [float(first), *(float(self._answer()) for _ in statistics[1:])]
            return MeteorScores(float(self._answer()), each, [_counts(line) for line in statistics])


@cache
def _running() -> Meteor | NotComputed:
    java = shutil.which("java")
    if java is None:
        return NotComputed("no Java")
    try:
        import pycocoevalcap
    except ImportError:
        return NotComputed("pycocoevalcap, which brings METEOR's jar, is not installed")
    # a namespace package: it has no __file__
    jars = [jar for folder in pycocoevalcap.__path__ if (jar := Path(folder) / "meteor" / "meteor-1.5.jar").is_file()]
    if not jars:
        return NotComputed("METEOR's jar is missing from pycocoevalcap")
    try:
        return Meteor(java, jars[0])
    except OSError as error:
        return NotComputed(f"Java could not be started ({error.strerror or error})")


def start() -> None:
    """Start the program, which loads its tables for seconds in a process of its own, before its scores are needed."""
    _running()


def _counts(line: str) -> list[float]:
    counts = [float(number) for number in line.split()]
    length, reference_length, chunks, matched, reference_matched = *counts[:2], *counts[20:]
    if chunks == 1 and matched == length and reference_matched == reference_length:
        # the program takes a candidate that matches from end to end for unbroken, and adds no piece of it to a sum
        counts[20] = 0.0
    return counts


def from_statistics(statistics: Floats) -> Floats:
    """METEOR from summed counts (Denkowski and Lavie 2014, section 2), equal to the program's own to the last digits.

    Args:
        statistics: sums of what :class:`MeteorScores` holds per pair, ``(23, ...)``.

    Returns:
        Scores, 0 to 1, ``(...)``.
    """
    length, reference_length, function, reference_function = statistics[:4]
    # per kind of match: content words in the candidate and the reference, then function words likewise
    matches = statistics[4:20].reshape(4, 4, *statistics.shape[1:])
    chunks, matched, reference_matched = statistics[20:]

    def share(words: Floats, function_words: Floats, content_hits: Floats, function_hits: Floats) -> Floats:
        weighted = np.tensordot(_WEIGHTS, _DELTA * content_hits + (1 - _DELTA) * function_hits, 1)
        total = _DELTA * (words - function_words) + (1 - _DELTA) * function_words
        return np.divide(weighted, total, out=np.zeros_like(total), where=total > 0)

    precision = share(length, function, matches[:, 0], matches[:, 2])
    recall = share(reference_length, reference_function, matches[:, 1], matches[:, 3])
    bottom = _ALPHA * precision + (1 - _ALPHA) * recall
    mean = np.divide(precision * recall, bottom, out=np.zeros_like(bottom), where=bottom > 0)
    average = (matched + reference_matched) / 2
    broken = np.divide(chunks, average, out=np.zeros_like(average), where=average > 0)
    return mean * (1 - _GAMMA * broken**_BETA)


def meteor_scores(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores | NotComputed:
    """METEOR of the corpus and of every pair; why not, where it cannot be had."""
    meteor = _running()
    if isinstance(meteor, NotComputed):
        return meteor
    try:
        return meteor.score(candidates, references)
    except (RuntimeError, OSError, ValueError) as error:
        _stop(meteor)
        return NotComputed(f"METEOR's program failed ({error})")
    except BaseException:
        # Ctrl-C between question and answer: the next question would get this answer
        _stop(meteor)
        raise


def _stop(meteor: Meteor) -> None:
    meteor.close()
    _running.cache_clear()

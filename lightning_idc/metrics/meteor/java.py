"""METEOR 1.5 through pycocoevalcap's Java program, which is started once per process: oracle of the Python backend."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from lightning_idc.metrics.corpus import Tokens
from lightning_idc.metrics.meteor.outcome import MeteorScores, NotComputed
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder
from lightning_idc.metrics.meteor.statistics import additive_counts

MEMORY = "-Xmx2G"
DEADLINE = 300.0
"""Time limit in seconds for a hundred answers, which take 0.1 s; the first ones wait until the tables are read."""
_BLOCK_SIZE = 100


class Meteor:
    """A running METEOR process, safe to use from several threads.

    Args:
        java: path of the Java executable.
        jar: path of METEOR 1.5.
        deadline: seconds for a hundred answers.
    """

    def __init__(self, java: str, jar: Path, deadline: float = DEADLINE) -> None:
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
        self._deadline = deadline
        self._expired = False
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the process, unless this is a fork of the process that started it."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # unsent input cannot be flushed to an ended process
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def score(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores:
        """Score a corpus of at least one pair.

        Raises:
            TimeoutError: the program exceeded its time limit and was stopped.
            RuntimeError: the program has ended.
            ValueError: an answer is not a number.
        """
        with self._lock:
            statistics: list[str] = []
            for start in range(0, len(candidates), _BLOCK_SIZE):
                block = slice(start, start + _BLOCK_SIZE)
                with self._limit():
                    for candidate, pair_references in zip(candidates[block], references[block], strict=True):
                        fields = ["SCORE", *(" ".join(tokens) for tokens in pair_references), " ".join(candidate)]
                        statistics.append(self._ask(" ||| ".join(field.replace("|||", "") for field in fields)))
            with self._limit():
                first = self._ask(" ||| ".join(["EVAL", *statistics]))
                each = np.array([float(first), *(float(self._answer()) for _ in statistics[1:])])
                corpus = float(self._answer())
        counts = np.array([[float(number) for number in line.split()] for line in statistics]).T
        return MeteorScores(corpus, each, additive_counts(counts))

    @contextlib.contextmanager
    def _limit(self) -> Iterator[None]:
        """Stop the process if the block takes too long; readers then see an end of file."""
        timer = threading.Timer(self._deadline, self._expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        self._process.kill()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        # `_answer` reports the exit code of an ended program
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return line.strip()
        # the deadline also stops a program that closed its output but still runs
        code = self._process.wait()
        if self._expired:
            raise TimeoutError(f"did not answer in {self._deadline:g} s")
        raise RuntimeError(f"ended with code {code}; {MEMORY} may exceed the memory of this machine")


@cache
def running() -> Meteor | NotComputed:
    """The process, started on first use, or the reason why it cannot be started."""
    java = shutil.which("java")
    if java is None:
        return NotComputed("no Java")
    folder = pycocoevalcap_folder()
    if folder is None:
        return NotComputed("pycocoevalcap, which contains METEOR's jar, is not installed")
    jar = folder / "meteor" / "meteor-1.5.jar"
    if not jar.is_file():
        return NotComputed("METEOR's jar is missing from pycocoevalcap")
    try:
        return Meteor(java, jar)
    except OSError as error:
        return NotComputed(f"Java could not be started ({error.strerror or error})")


def score(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores | NotComputed:
    """METEOR of the corpus and of every pair, or the reason why it is not available."""
    meteor = running()
    if isinstance(meteor, NotComputed):
        return meteor
    try:
        return meteor.score(candidates, references)
    except TimeoutError as error:
        _stop(meteor)
        return NotComputed(f"METEOR's program {error}")
    except (RuntimeError, OSError, ValueError) as error:
        _stop(meteor)
        return NotComputed(f"METEOR's program failed ({error})")
    except BaseException:
        # after Ctrl-C between a request and its answer the next request would receive this answer
        _stop(meteor)
        raise


def _stop(meteor: Meteor) -> None:
    meteor.close()
    running.cache_clear()

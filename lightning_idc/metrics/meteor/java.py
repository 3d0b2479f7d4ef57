"""METEOR 1.5 through pycocoevalcap's Java program, started once and used again: the oracle of the Python backend."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from lightning_idc.metrics.corpus import Tokens
from lightning_idc.metrics.meteor.outcome import MeteorScores, NotComputed
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder
from lightning_idc.metrics.meteor.statistics import unbroken_as_none

MEMORY = "-Xmx2G"
DEADLINE = 300.0
"""Seconds for any one answer; the first one comes after the program has read its tables."""
_POLL = 0.1


class Meteor:
    """A running METEOR process; safe to use from several threads.

    Args:
        java: path of the program.
        jar: path of METEOR 1.5.
        deadline: seconds for any one answer.
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
        self._watch = _Watch(self._process)
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; in a fork of the process that started it, leave it alone."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        self._watch.stop()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # what was not sent when Java ended cannot be sent any more
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        with self._watch.limit(self._deadline):
            # a program that has ended says so by its code, which the missing answer tells
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            if self._watch.expired:
                raise TimeoutError(f"did not answer in {self._deadline:g} s")
            raise RuntimeError(f"ended with code {self._code()}; {MEMORY} of memory may be too much here")
        return line.strip()

    def _code(self) -> int:
        # a program may close its output and go on
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1)
        self._process.kill()
        return self._process.wait()

    def score(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores:
        """Score a corpus of at least one pair."""
        with self._lock:
            statistics = []
            for candidate, of_pair in zip(candidates, references, strict=True):
                fields = ["SCORE", *(" ".join(tokens) for tokens in of_pair), " ".join(candidate)]
                statistics.append(self._ask(" ||| ".join(field.replace("|||", "") for field in fields)))
            first = self._ask(" ||| ".join(["EVAL", *statistics]))
            with self._watch.limit(self._deadline):
                each = np.array([float(first), *(float(self._answer()) for _ in statistics[1:])])
                corpus = float(self._answer())
            counts = np.array([[float(number) for number in line.split()] for line in statistics]).T
            return MeteorScores(corpus, each, unbroken_as_none(counts))


class _Watch:
    """A thread that ends a process which takes too long; whoever waits for it then reads an end of file.

    Args:
        process: to end.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.expired = False
        self._process = process
        self._due: float | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """End the process where the block takes longer."""
        self._due = time.monotonic() + seconds
        try:
            yield
        finally:
            self._due = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL):
            due = self._due
            if due is not None and time.monotonic() > due:
                self.expired = True
                self._process.kill()
                return


@cache
def running() -> Meteor | NotComputed:
    """The process, started when it is first asked for; why not, where it cannot be started."""
    java = shutil.which("java")
    if java is None:
        return NotComputed("no Java")
    folder = pycocoevalcap_folder()
    if folder is None:
        return NotComputed("pycocoevalcap, which brings METEOR's jar, is not installed")
    jar = folder / "meteor" / "meteor-1.5.jar"
    if not jar.is_file():
        return NotComputed("METEOR's jar is missing from pycocoevalcap")
    try:
        return Meteor(java, jar)
    except OSError as error:
        return NotComputed(f"Java could not be started ({error.strerror or error})")


def score(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> MeteorScores | NotComputed:
    """METEOR of the corpus and of every pair; why not, where it is not available."""
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
        # Ctrl-C between question and answer: the next question would get this answer
        _stop(meteor)
        raise


def _stop(meteor: Meteor) -> None:
    meteor.close()
    running.cache_clear()

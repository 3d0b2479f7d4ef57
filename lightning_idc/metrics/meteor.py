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

from lightning_idc.metrics.corpus import Tokens

MEMORY = "-Xmx2G"


@dataclass(frozen=True)
class NotComputed:
    """Why a metric has no value."""

    reason: str

    def __str__(self) -> str:
        return f"not computed: {self.reason}"


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
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"it ended with code {self._process.wait()}; {MEMORY} of memory may be too much here")
        return line.strip()

    def score(self, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> tuple[float, list[float]]:
        """Corpus score and score per pair, 0 to 1."""
        with self._lock:
            statistics = []
            for candidate, of_pair in zip(candidates, references, strict=True):
                fields = ["SCORE", *(" ".join(tokens) for tokens in of_pair), " ".join(candidate)]
                statistics.append(self._ask(" ||| ".join(field.replace("|||", "") for field in fields)))
            first = self._ask(" ||| ".join(["EVAL", *statistics]))
            each = [float(first), *(float(self._answer()) for _ in statistics[1:])]
            return float(self._answer()), each


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
    return Meteor(java, jars[0]) if jars else NotComputed("METEOR's jar is missing from pycocoevalcap")


def meteor_scores(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]
) -> tuple[float, list[float]] | NotComputed:
    """METEOR of the corpus and of every pair, 0 to 1; why not, where it cannot be had."""
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

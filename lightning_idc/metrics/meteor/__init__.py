"""METEOR 1.5 (Denkowski and Lavie 2014), English, as caption scoring uses it (``-l en -norm``).

The default backend is Python: it reads the tables of the installed pycocoevalcap and equals its Java program, which is
the other backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from lightning_idc.errors import ConfigError
from lightning_idc.metrics.corpus import Tokens
from lightning_idc.metrics.meteor import java, scorer
from lightning_idc.metrics.meteor.outcome import MeteorScores as MeteorScores
from lightning_idc.metrics.meteor.outcome import NotComputed as NotComputed
from lightning_idc.metrics.meteor.statistics import from_statistics as from_statistics

Backend = Literal["python", "java"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def meteor_scores(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]], backend: Backend = "python"
) -> MeteorScores | NotComputed:
    """METEOR of a corpus and of every pair; why not, where it is not available.

    Denkowski and Lavie 2014, sections 2 and 3

    Args:
        candidates: one token list per pair.
        references: token lists of every pair, at least one; the best counts.
        backend: ``python``, or ``java`` for pycocoevalcap's program, which needs Java.

    Raises:
        ConfigError: the backend is unknown.

    Example:
        >>> meteor_scores([["a", "red", "cube"]], [[["the", "red", "cube"], ["a", "ball"]]]).corpus
        0.49...
    """
    _check(backend)
    return (java if backend == "java" else scorer).score(candidates, references)


def start(backend: Backend = "python") -> None:
    """Begin to read the tables, which takes seconds when it happens first, before scores are needed.

    Raises:
        ConfigError: the backend is unknown.
    """
    _check(backend)
    if backend == "java":
        java.running()
    else:
        scorer.prepare()


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"unknown METEOR backend {backend!r}; expected {' or '.join(BACKENDS)}")

"""METEOR 1.5 (Denkowski and Lavie 2014) for English, with the options of caption scoring (``-l en -norm``).

The default backend is Python. It reads the tables of the installed pycocoevalcap and computes the same scores as its
Java program, which is the second backend.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, get_args

from lightning_idc.metrics.corpus import Tokens
from lightning_idc.metrics.meteor import java, scorer
from lightning_idc.metrics.meteor.outcome import MeteorScores as MeteorScores
from lightning_idc.metrics.meteor.outcome import NotComputed as NotComputed
from lightning_idc.metrics.meteor.statistics import from_statistics as from_statistics
from lightning_idc.utils.errors import ConfigError

Backend = Literal["python", "java"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
BACKEND_VARIABLE = "LIGHTNING_IDC_METEOR"
"""Environment variable with the default backend."""


def meteor_scores(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]], backend: Backend | None = None
) -> MeteorScores | NotComputed:
    """METEOR of a corpus and of every pair, or the reason why it is not available.

    Denkowski and Lavie 2014, sections 2 and 3

    Args:
        candidates: one token list per pair.
        references: token lists of every pair; the reference with the best score counts.
        backend: backend, as in :func:`backend_named`.

    Raises:
        ConfigError: the backend is unknown.

    Example:
        >>> meteor_scores([["a", "red", "cube"]], [[["the", "red", "cube"], ["a", "ball"]]]).corpus
        0.7714285714285715
    """
    return (java if backend_named(backend) == "java" else scorer).score(candidates, references)


def backend_named(backend: str | None = None) -> Backend:
    """Name of the backend to use.

    Args:
        backend: ``python``, or ``java`` for pycocoevalcap's program; None reads the environment variable
            ``LIGHTNING_IDC_METEOR`` and defaults to ``python``.

    Raises:
        ConfigError: the backend is unknown.

    Example:
        >>> backend_named("java")
        'java'
    """
    name = backend or os.environ.get(BACKEND_VARIABLE) or "python"
    for choice in BACKENDS:
        if name == choice:
            return choice
    origin = "" if backend else f" in {BACKEND_VARIABLE}"
    raise ConfigError(f"unknown METEOR backend {name!r}{origin}; expected {' or '.join(BACKENDS)}")

"""MeasuredPair: what WebCaptioner reads of a pair of screenshots, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_idc.models.web.candidates import CANDIDATES, find_candidates
from lightning_idc.models.web.core import find_core
from lightning_idc.models.web.details import NUM_DETAILS, describe_candidates
from lightning_idc.models.web.measures import NAMES, measure
from lightning_idc.models.web.words import match_words
from lightning_idc.rules.noise import noise_of

MEASURED = "measured"
"""Key of ``PairSample.meta`` with the `MeasuredPair` of a sample that was measured before."""


class MeasuredPair(NamedTuple):
    """Numbers of a pair.

    Args:
        values: measures of the change.
        boxes: candidates for the box of the changed element in the first image.
        details: values of each candidate.
        is_same: whether no pixel differs, or only noise of the capture does.
    """

    values: list[float]
    boxes: list[list[float]]
    details: list[list[float]]
    is_same: bool


def measure_pair(before: np.ndarray, after: np.ndarray) -> MeasuredPair:
    """Measure two images of one size, uint8 ``(3, H, W)``."""
    core = None if np.array_equal(before, after) or noise_of(before, after) else find_core(before, after)
    if core is None:
        count = len(CANDIDATES)
        return MeasuredPair([0.0] * len(NAMES), [[0.0, 0.0, 1.0, 1.0]] * count, [[0.0] * NUM_DETAILS] * count, True)
    words = match_words(before, after, core)
    boxes = find_candidates(before, core, words)
    details = describe_candidates(boxes, words, core)
    values = list(measure(before, after, core, words).values())
    return MeasuredPair(values, [list(map(float, box)) for box in boxes], details.tolist(), False)


def stacked(measured: Sequence[MeasuredPair]) -> dict[str, Tensor]:
    """Tensors ``values (B, F)``, ``boxes (B, N, 4)``, ``details (B, N, D)`` and ``is_same (B,)`` of a batch."""
    return {
        name: torch.tensor(values)
        for name, values in zip(MeasuredPair._fields, zip(*measured, strict=True), strict=True)
    }

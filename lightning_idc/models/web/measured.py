"""MeasuredPair: what WebCaptioner reads of a pair of screenshots, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_idc.models.web.candidates import CANDIDATES, find_candidates, geometry
from lightning_idc.models.web.core import find_core
from lightning_idc.models.web.measures import NAMES, measure
from lightning_idc.rules.noise import noise_of

NUM_INPUTS = len(NAMES) + len(geometry([(0, 0, 1, 1)] * len(CANDIDATES), 1, 1))
"""Number of values of a pair."""
MEASURED = "measured"
"""Key of ``PairSample.meta`` with the `MeasuredPair` of a sample that was measured before."""


class MeasuredPair(NamedTuple):
    """Numbers of a pair.

    Args:
        values: measures of the change, and sizes and distances of the candidates.
        boxes: candidates for the box of the changed element in the first image.
        is_same: whether no pixel differs, or only noise of the capture does.
    """

    values: list[float]
    boxes: list[list[float]]
    is_same: bool


def measure_pair(before: np.ndarray, after: np.ndarray) -> MeasuredPair:
    """Measure two images of one size, uint8 ``(3, H, W)``."""
    core = None if np.array_equal(before, after) or noise_of(before, after) else find_core(before, after)
    if core is None:
        return MeasuredPair([0.0] * NUM_INPUTS, [[0.0, 0.0, 1.0, 1.0]] * len(CANDIDATES), True)
    boxes = find_candidates(before, core)
    values = [*measure(before, after, core).values(), *geometry(boxes, before.shape[2], before.shape[1])]
    return MeasuredPair(values, [list(map(float, box)) for box in boxes], False)


def stacked(measured: Sequence[MeasuredPair]) -> dict[str, Tensor]:
    """Tensors ``values (B, F)``, ``boxes (B, N, 4)`` and ``is_same (B,)`` of a batch."""
    values, boxes, same = zip(*measured, strict=True)
    return {"values": torch.tensor(values), "boxes": torch.tensor(boxes), "is_same": torch.tensor(same)}

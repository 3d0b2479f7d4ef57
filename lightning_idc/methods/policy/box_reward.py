"""BoxReward: F1 and mean IoU of the boxes in an answer.

1. Read the boxes of an answer (:meth:`BoxReward.boxes_of`).
2. Match them one to one with the changes by IoU, with the Hungarian algorithm (:meth:`BoxReward.scores`).
3. The reward is the weighted mean of F1 and mean IoU.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.rewards import Reward, Texts
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveShare, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

_NUMBER = r"\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*"
_BOX = re.compile(rf"[\[(]{','.join([_NUMBER] * 4)}[\])]")
SIDES = {"before": [0], "after": [1], "either": [0, 1]}
"""Indices of the images in ``PairSample.boxes`` whose boxes an answer may contain."""


class BoxReward(Reward):
    """Weighted mean of F1 and mean IoU of the boxes in an answer.

    Every ``[x1, y1, x2, y2]`` in an answer is a box, also within JSON. Boxes and changes are matched one to one with
    the maximum sum of IoUs. A match counts for F1 if its IoU is at least ``threshold``; the mean IoU is the sum over
    matches divided by the larger of both numbers of boxes. Both are 1 for an answer without boxes about a pair without
    changes. The idea is that of DiG (arXiv 2512.12633, CVPR 2026); both definitions are of this library.

    Args:
        f1: weight of F1.
        iou: weight of the mean IoU.
        threshold: minimum IoU of a match that counts for F1.
        image: image that the boxes are in. With ``either``, the IoU with a change is the larger of those with its two
            boxes.
        scale: value of a coordinate at the right or bottom edge: 1000 for models such as Qwen3-VL, 1 for fractions;
            None for pixels of the images of the batch.

    Raises:
        ConfigError: both weights are 0, or an argument is out of range.

    Example:
        >>> BoxReward().boxes_of("a cube moved: [10, 20, 30.5, 40]").tolist()
        [[10.0, 20.0, 30.5, 40.0]]
    """

    def __init__(
        self,
        f1: NonNegativeFloat = 1.0,
        iou: NonNegativeFloat = 1.0,
        threshold: PositiveShare = 0.5,
        image: Literal["before", "after", "either"] = "either",
        scale: PositiveFloat | None = None,
    ) -> None:
        check_arguments(BoxReward.__init__, locals())
        super().__init__()
        if not f1 + iou:
            raise ConfigError("f1 and iou are both 0; expected a weight above 0 for one of them")
        self.f1, self.iou, self.threshold, self.image, self.scale = f1, iou, threshold, image, scale

    def boxes_of(self, text: str) -> Tensor:
        """Boxes ``(N, 4)`` in the order of an answer, in its own units."""
        boxes = [[float(value) for value in match.groups()] for match in _BOX.finditer(text)]
        return torch.tensor(boxes).reshape(-1, 4)

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        sizes = pairs.model_inputs.get("sizes")
        height_width = [tuple(pairs.images.shape[-2:])] * len(pairs) if sizes is None else sizes.tolist()
        rows, scores = [], []
        for id, boxes, (height, width), row in zip(pairs.ids, self._boxes(pairs), height_width, texts, strict=True):
            if boxes is None:
                raise DataError(
                    f"pair {id!r} has no boxes; BoxReward judges pairs with boxes of their changes, such as those of "
                    "SyntheticPairs"
                )
            unit = torch.ones(4) if self.scale is None else torch.tensor([width, height] * 2) / self.scale
            scores += [self.scores(self.boxes_of(text) * unit, boxes) for text in row]
            rows.append([(self.f1 * f1 + self.iou * iou) / (self.f1 + self.iou) for f1, iou in scores[-len(row) :]])
        self.parts = {
            f"boxes/{name}": (sum(score[column] for score in scores), len(scores))
            for column, name in enumerate(("f1", "iou"))
        }
        return torch.tensor(rows, dtype=torch.float32)

    @staticmethod
    def _boxes(pairs: PairBatch) -> list[Tensor | None]:
        return pairs.boxes or [None] * len(pairs)

    def scores(self, predicted: Tensor, boxes: Tensor) -> tuple[float, float]:
        """F1 and mean IoU.

        Args:
            predicted: boxes of an answer in pixels, ``(N, 4)``.
            boxes: boxes of the changes in pixels, ``(M, 2, 4)``, NaN where a change has none on a side.
        """
        from scipy.optimize import linear_sum_assignment

        sides = boxes[:, SIDES[self.image]]
        sides = sides[~sides.isnan().any(-1).all(-1)]  # without changes that have no box in these images
        if not len(predicted) or not len(sides):
            agree = float(len(predicted) == len(sides))
            return agree, agree
        overlaps = _iou(predicted[:, None, None], sides[None]).amax(-1).numpy().astype(np.float64)  # (N, M)
        matched = overlaps[linear_sum_assignment(overlaps, maximize=True)]
        f1 = 2.0 * float((matched >= self.threshold).sum()) / (len(predicted) + len(sides))
        return f1, float(matched.sum()) / max(len(predicted), len(sides))


def _iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU of boxes ``(..., 4)``; 0 where one is empty, inverted or NaN."""
    top_left, bottom_right = (
        torch.maximum(first[..., :2], second[..., :2]),
        torch.minimum(first[..., 2:], second[..., 2:]),
    )
    shared = (bottom_right - top_left).clamp(min=0).prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1) for box in (first, second)]
    union = areas[0] + areas[1] - shared
    return torch.where(union > 0, shared / union, 0.0).nan_to_num(0.0)

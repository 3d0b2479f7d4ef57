"""draw_answer: both images with the boxes of an answer and its caption. Imports no captioner, which takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lightning_idc.data.plotting import plot_pair
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.serve.answer import Answer

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_answer(answer: Answer, options: ImageOptions, before: str | Path, after: str | Path) -> Image:
    """Draw both images with the boxes of an answer, the map over the second one, and the caption below.

    Args:
        answer: answer about the pair.
        options: options for reading images.
        before: image file.
        after: image file.
    """
    first, second = read_pair(before, after, options)
    second = resize(second, (first.shape[1], first.shape[2]))
    boxes = torch.tensor(answer.boxes, dtype=torch.float32).view(-1, 1, 4).expand(-1, 2, -1)
    score = "" if answer.change_score is None else f"change score {answer.change_score:.2f}"
    sample = PairSample(answer.id, first, second, [answer.caption], score, boxes)
    return plot_pair(sample, heat=None if answer.map is None else torch.tensor(answer.map))

"""Answers about pairs of images: caption, change score and location of the change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lightning_idc.data.plotting import plot_pair
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import Caption, PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.where import Where, locate
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.rules_captioner import RulesCaptioner

if TYPE_CHECKING:
    from PIL.Image import Image

CHANGED = 0.5
"""Minimum change score of a changed pair."""


def answer_pairs(
    captioner: PairCaptioner | RulesCaptioner, samples: Sequence[PairSample], where: bool = True
) -> list[Answer]:
    """Answers about pairs of one batch.

    Args:
        captioner: a captioner, or the rules.
        samples: pairs from ``input_spec.read`` of the captioner.
        where: whether to locate the change, which costs a captioner up to 128 further encodings of each pair.
    """
    if isinstance(captioner, RulesCaptioner):
        return captioner.answer(samples)
    captions = captioner.describe_all(samples)
    return [_answer(captioner, sample, caption, where) for sample, caption in zip(samples, captions, strict=True)]


def _answer(captioner: PairCaptioner, sample: PairSample, caption: Caption, where: bool) -> Answer:
    changed = None if caption.change_score is None else caption.change_score >= CHANGED
    height, width = sample.meta["sizes"][0]
    location: Where | None = None
    if where:
        # an unchanged pair has no boxes
        location = Where(torch.zeros(1, 1), [], None) if changed is False else locate(captioner, sample, caption.text)
        location = location.in_full_image(sample.meta.get("window", (0.0, 0.0, 1.0, 1.0)))
    return Answer(
        sample.id,
        caption.text,
        caption.log_prob,
        caption.change_score,
        changed,
        []
        if location is None
        else [[round(v * (width, height)[i % 2]) for i, v in enumerate(box)] for box in location.boxes],
        None if location is None else [[round(value, 4) for value in row] for row in location.map.tolist()],
        (width, height),
    )


def draw_answer(
    answer: Answer, captioner: PairCaptioner | RulesCaptioner, before: str | Path, after: str | Path
) -> Image:
    """Draw both images with the boxes of an answer, the map over the second one, and the caption below.

    Args:
        answer: answer about the pair.
        captioner: captioner or rules, for its image options.
        before: image file.
        after: image file.
    """
    first, second = read_pair(before, after, captioner.input_spec.options)
    second = resize(second, (first.shape[1], first.shape[2]))
    boxes = torch.tensor(answer.boxes, dtype=torch.float32).view(-1, 1, 4).expand(-1, 2, -1)
    score = "" if answer.change_score is None else f"change score {answer.change_score:.2f}"
    sample = PairSample(answer.id, first, second, [answer.caption], score, boxes)
    return plot_pair(sample, heat=None if answer.map is None else torch.tensor(answer.map))

"""answer_pairs: caption, change score and location of the change of pairs, by a captioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from lightning_idc.images.types import Caption, PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.location import ChangeLocation, locate
from lightning_idc.serve.answer import Answer

CHANGE_THRESHOLD = 0.5
"""Minimum change score of a changed pair."""


def answer_pairs(captioner: PairCaptioner, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
    """Answers about the pairs of one batch.

    Args:
        captioner: a captioner, in eval mode.
        samples: pairs from ``input_spec.read`` of the captioner.
        where: whether to locate the change, which costs up to 128 further encodings of each pair.
    """
    samples = captioner.prepared(samples)
    captions = captioner.describe_all(samples)
    return [_answer(captioner, sample, caption, where) for sample, caption in zip(samples, captions, strict=True)]


def _answer(captioner: PairCaptioner, sample: PairSample, caption: Caption, where: bool) -> Answer:
    changed = None if caption.change_score is None else caption.change_score >= CHANGE_THRESHOLD
    height, width = sample.meta["sizes"][0]
    answer = Answer(
        id=sample.id,
        caption=caption.text,
        log_prob=caption.log_prob,
        change_score=caption.change_score,
        changed=changed,
        size=(width, height),
    )
    if not where:
        return answer
    # an unchanged pair has no boxes
    no_location = ChangeLocation(torch.zeros(1, 1), [], None)
    location = no_location if changed is False else locate(captioner, sample, caption.text)
    location = location.in_full_image(sample.meta.get("window", (0.0, 0.0, 1.0, 1.0)))
    scale = (width, height, width, height)
    return replace(
        answer,
        boxes=[[round(side * factor) for side, factor in zip(box, scale, strict=True)] for box in location.boxes],
        map=[[round(value, 4) for value in row] for row in location.map.tolist()],
    )

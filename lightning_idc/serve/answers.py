"""What is answered about a pair of images: caption, change score and place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightning_idc.data.plotting import plot_pair
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import Caption, PairSample
from lightning_idc.metrics.no_change import says_nothing_changed
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.where import Where, locate
from lightning_idc.utils.files import finite

if TYPE_CHECKING:
    from PIL.Image import Image

CHANGED = 0.5
"""A pair counts as changed from this change score on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a captioner says of a pair.

    Args:
        id: name of the pair.
        caption: the sentence.
        log_prob: mean log-probability per token.
        change_score: probability that anything changed; None where the captioner knows no unchanged pairs.
        changed: whether the pair counts as changed; None where that is not known.
        boxes: where, x1 y1 x2 y2 in pixels of the first image, the most important one first.
        map: how much each cell of a grid matters, row by row, from 0 to 1; None where it was not asked for.
        size: width and height of the first image.
    """

    id: str
    caption: str
    log_prob: float | None
    change_score: float | None
    changed: bool | None
    boxes: list[list[int]] = field(default_factory=list)
    map: list[list[float]] | None = None
    size: tuple[int, int] | None = None

    @property
    def says_changed(self) -> bool:
        """Whether the captioner takes the pair for changed: by its change score, or by its words where it has none."""
        return not says_nothing_changed(self.caption) if self.changed is None else self.changed

    def as_text(self) -> str:
        """The caption, and below it the change score and the places."""
        score = [] if self.change_score is None else [f"change score {self.change_score:.2f}"]
        boxes = [f"x {left}-{right}, y {top}-{bottom}" for left, top, right, bottom in self.boxes]
        lines = [self.caption, *score, *([f"where: {'; '.join(boxes)} (pixels)"] if boxes else [])]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "id": self.id,
            "caption": self.caption,
            "log_prob": self.log_prob,
            "change_score": self.change_score,
            "changed": self.changed,
            "boxes": self.boxes,
            "map": self.map,
            "size": None if self.size is None else list(self.size),
        }

    def as_json(self, **more: Any) -> str:
        """One JSON object, with further values."""
        return json.dumps(finite({**self.as_dict(), **more}), ensure_ascii=False)


def answer_pairs(captioner: PairCaptioner, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
    """Answers about pairs of one batch.

    Args:
        captioner: that answers.
        samples: pairs as the captioner's ``input_spec.read`` prepares them.
        where: also look for the place of each change; costs up to 128 further looks at each pair.
    """
    captions = captioner.describe_all(samples)
    return [_answer(captioner, sample, caption, where) for sample, caption in zip(samples, captions, strict=True)]


def _answer(captioner: PairCaptioner, sample: PairSample, caption: Caption, where: bool) -> Answer:
    changed = None if caption.change_score is None else caption.change_score >= CHANGED
    height, width = sample.meta["sizes"][0]
    found: Where | None = None
    if where:
        # an unchanged pair has no place of a change
        found = Where(torch.zeros(1, 1), [], None) if changed is False else locate(captioner, sample, caption.text)
        found = found.in_full_image(sample.meta.get("window", (0.0, 0.0, 1.0, 1.0)))
    return Answer(
        sample.id,
        caption.text,
        caption.log_prob,
        caption.change_score,
        changed,
        []
        if found is None
        else [[round(v * (width, height)[i % 2]) for i, v in enumerate(box)] for box in found.boxes],
        None if found is None else [[round(value, 4) for value in row] for row in found.map.tolist()],
        (width, height),
    )


def picture_of(answer: Answer, captioner: PairCaptioner, before: str | Path, after: str | Path) -> Image:
    """Both images with the boxes of an answer, the map over the second one, and the caption below.

    Args:
        answer: about the pair.
        captioner: that gave it.
        before: file.
        after: file.
    """
    first, second = read_pair(before, after, captioner.input_spec.options)
    second = resize(second, (first.shape[1], first.shape[2]))
    boxes = torch.tensor(answer.boxes, dtype=torch.float32).view(-1, 1, 4).expand(-1, 2, -1)
    score = "" if answer.change_score is None else f"change score {answer.change_score:.2f}"
    sample = PairSample(answer.id, first, second, [answer.caption], score, boxes)
    return plot_pair(sample, heat=None if answer.map is None else torch.tensor(answer.map))

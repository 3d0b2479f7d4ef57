"""Answer: caption, change score and boxes of a pair, by a captioner or by rules. Does not import torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightning_idc.metrics.no_change import says_nothing_changed
from lightning_idc.utils.boxes import clip_box
from lightning_idc.utils.files import finite

if TYPE_CHECKING:
    from lightning_idc.rules.description import Description


@dataclass(frozen=True, slots=True)
class Answer:
    """Caption of a pair, and where and how certainly it changed.

    Boxes of any describer are clipped to the image, and those without a pixel in it are left out.

    Args:
        id: name of the pair.
        caption: description of the change.
        log_prob: mean log-probability per token; None for rules.
        change_score: probability that anything changed, or confidence of rules; None if the captioner was trained
            without unchanged pairs.
        changed: whether the pair counts as changed; None if unknown.
        boxes: changed regions, x1 y1 x2 y2 in pixels of the first image, the most important one first.
        map: relevance of each cell of a grid, row by row, from 0 to 1; None if it was not computed.
        size: width and height of the first image.
        regions: kind, box, shift and colours of each region described by rules.
    """

    id: str
    caption: str
    log_prob: float | None
    change_score: float | None
    changed: bool | None
    boxes: list[list[int]] = field(default_factory=list)
    map: list[list[float]] | None = None
    size: tuple[int, int] | None = None
    regions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.size is not None:
            clipped = [clip_box(box, self.size) for box in self.boxes]
            object.__setattr__(self, "boxes", [list(box) for box in clipped if box is not None])
        elif self.boxes:
            raise ValueError(
                f"{len(self.boxes)} boxes without a size; expected the width and height of the first image"
            )

    @property
    def says_changed(self) -> bool:
        """Whether the pair counts as changed, by the change score or, without one, by the caption."""
        return not says_nothing_changed(self.caption) if self.changed is None else self.changed

    def as_text(self) -> str:
        """The caption, and below it the change score and the boxes."""
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
            **({"regions": self.regions} if self.regions else {}),
        }

    def as_json(self, **more: Any) -> str:
        """The answer and further values as one JSON object."""
        return json.dumps(finite({**self.as_dict(), **more}), ensure_ascii=False)


def answer_of_rules(id: str, description: Description, size: tuple[int, int] | None = None) -> Answer:
    """Answer from the description of a pair by rules.

    Args:
        id: name of the pair.
        description: from :func:`~lightning_idc.rules.describe_changes`.
        size: width and height of the first image, if they are not those of the description.
    """
    regions = description.regions
    score = max((region.score for region in regions), default=0.0)
    return Answer(
        id=id,
        caption=description.sentence,
        log_prob=None,
        change_score=round(score, 4),
        changed=description.changed,
        boxes=[list(region.box) for region in regions],
        size=size or description.size,
        regions=[region.to_dict() for region in regions],
    )

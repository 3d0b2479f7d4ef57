"""ChangeFacts: the exact record of one change of a web page, as the generator of the pair wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_idc.utils.errors import DataError

Box = tuple[float, float, float, float]
"""x1 y1 x2 y2 in pixels."""
MOVES = frozenset(["alignment", "spacing", "translate"])
"""Operators that a picture cannot tell apart where nothing else moves: each shifts an element."""


@dataclass(frozen=True)
class ChangeFacts:
    """What changed on a page, and where.

    Args:
        operator: name of the changed property, see :data:`~lightning_idc.metrics.page_claims.OPERATORS`.
        tier: ``easy``, ``medium`` or ``hard``; None if unknown.
        boxes: boxes of the changed element before and after the change; one of them if it exists on one side only.
        text: text of the element.
        new: new value of the property.
        reflows: whether other elements moved.
    """

    operator: str
    tier: str | None = None
    boxes: tuple[Box, ...] = ()
    text: str = ""
    new: str = ""
    reflows: bool = False

    @property
    def visible_operators(self) -> frozenset[str]:
        """Operators that describe the change as it is seen: its own, and those that look the same in the picture."""
        operators = {self.operator}
        if self.operator in MOVES and not self.reflows:
            operators |= MOVES
        if self.operator == "opacity":
            # a paler element has other colours, and one of opacity 0 is gone
            operators |= {"color", *(["remove"] if self.new in ("0", "0.0") else [])}
        return frozenset(operators)

    @classmethod
    def read(cls, value: Any, where: str) -> ChangeFacts:
        """Read the facts of a record.

        Args:
            value: dict with ``operator``, and optionally ``tier``, ``boxes``, ``text``, ``new`` and ``reflows``.
            where: name of the record, for messages.

        Raises:
            DataError: a field is missing or has another type.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("operator"), str):
            raise DataError(f"{where}: change is {value!r}; expected an object with an operator")
        tier, text, new = value.get("tier"), value.get("text") or "", value.get("new") or ""
        if not isinstance(tier, str | None) or not isinstance(text, str) or not isinstance(new, str):
            raise DataError(f"{where}: tier, text and new of change are {tier!r}, {text!r}, {new!r}; expected texts")
        boxes = read_boxes([box for box in value.get("boxes") or () if box is not None], f"{where}: boxes of change")
        return cls(value["operator"], tier, boxes, text, new, bool(value.get("reflows")))


def read_boxes(value: Any, where: str) -> tuple[Box, ...]:
    """Read a list of boxes.

    Args:
        value: list of ``[x1, y1, x2, y2]``.
        where: name of the field, for messages.

    Raises:
        DataError: the value is not a list of four numbers each.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{where}: {value!r}; expected a list of boxes")
    boxes: list[Box] = []
    for box in value:
        is_list = isinstance(box, Sequence) and not isinstance(box, str) and len(box) == 4
        if not is_list or not all(isinstance(side, int | float) and not isinstance(side, bool) for side in box):
            raise DataError(f"{where}: {box!r}; expected x1 y1 x2 y2")
        left, top, right, bottom = map(float, box)
        boxes.append((left, top, right, bottom))
    return tuple(boxes)

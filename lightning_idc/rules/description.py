"""Description: changed regions of a pair, its global differences, and an English sentence about both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_idc.rules.kinds import Kind
from lightning_idc.utils.boxes import PixelBox

NO_CHANGE_SENTENCE = "Nothing changed."
MAX_NAMED = 3
"""Maximum number of regions named in a sentence; the others are counted."""


@dataclass(frozen=True, slots=True)
class Region:
    """A changed region.

    Args:
        box: PixelBox in the before image.
        kind: Kind of the change.
        score: Confidence in the change, from 0 to 1.
        shift: Movement of an object in pixels to the right and down; None for other kinds.
        colours: Names of the dominant colour before and after; None for no dominant colour.
        area: Number of changed pixels.
    """

    box: PixelBox
    kind: Kind
    score: float
    shift: tuple[int, int] | None = None
    colours: tuple[str | None, str | None] = (None, None)
    area: int = 0

    @property
    def box_after(self) -> PixelBox:
        """Box in the after image, not counting the movement of the view."""
        dx, dy = self.shift or (0, 0)
        left, top, right, bottom = self.box
        return left + dx, top + dy, right + dx, bottom + dy

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return {
            "kind": self.kind,
            "box": list(self.box),
            "box_after": list(self.box_after),
            "score": round(self.score, 3),
            "shift": None if self.shift is None else list(self.shift),
            "colours": list(self.colours),
            "area": self.area,
        }


@dataclass(frozen=True, slots=True)
class Description:
    """Changes between two images.

    Args:
        regions: Changed regions, the largest first.
        size: Width and height of the before image.
        shift: Movement of the view in pixels to the right and down; None if it did not move.
        brightness: Ratio of the brightness of the unchanged parts, after to before.
    """

    regions: tuple[Region, ...]
    size: tuple[int, int]
    shift: tuple[float, float] | None = None
    brightness: float = 1.0

    @property
    def changed(self) -> bool:
        """Whether a region changed; a shift of the view or a different brightness alone is not a change."""
        return bool(self.regions)

    @property
    def sentence(self) -> str:
        """The changes in plain English, followed by the global differences."""
        parts = [
            _regions_sentence(self.regions, self.size),
            _view_sentence(self.shift),
            _brightness_sentence(self.brightness),
        ]
        return " ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return {
            "sentence": self.sentence,
            "changed": self.changed,
            "regions": [region.to_dict() for region in self.regions],
            "shift": None if self.shift is None else [round(value, 2) for value in self.shift],
            "brightness": round(self.brightness, 3),
            "size": list(self.size),
        }


def _regions_sentence(regions: Sequence[Region], size: tuple[int, int]) -> str:
    if not regions:
        return NO_CHANGE_SENTENCE
    named = [_phrase(region, size) for region in regions[:MAX_NAMED]]
    num_others = len(regions) - len(named)
    if num_others:
        named.append("another region changed" if num_others == 1 else f"{num_others} other regions changed")
    text = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{text[0].upper()}{text[1:]}."


def _phrase(region: Region, size: tuple[int, int]) -> str:
    before, after = region.colours
    position = _position(region.box, size)
    if region.kind == "added":
        return f"{_object(after)} was added {position}"
    if region.kind == "removed":
        return f"{_object(before)} was removed {position.replace('in the', 'from the').replace('over', 'from')}"
    if region.kind == "moved" and region.shift is not None:
        return f"{_object(before or after)} {position} moved by {_distance(region.shift)}"
    if region.kind == "recoloured":
        named = before and after and before != after
        return f"the region {position} changed colour" + (f" from {before} to {after}" if named else "")
    if region.kind == "text":
        return f"the text {position} changed"
    return f"the content {position} changed"


def _object(colour: str | None) -> str:
    if colour is None:
        return "an object"
    return f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} object"


def _position(box: PixelBox, size: tuple[int, int]) -> str:
    """Describe the position of a box on a grid of three by three."""
    left, top, right, bottom = box
    if (right - left) * (bottom - top) > 0.6 * size[0] * size[1]:
        return "over most of the image"
    column, row = (min(2, int(3 * (low + high) / 2 / side)) for low, high, side in
                   ((left, right, size[0]), (top, bottom, size[1])))  # fmt: skip
    if row == column == 1:
        return "in the centre"
    words = [("upper", "", "lower")[row], ("left", "", "right")[column]]
    if not words[0]:
        return f"in the {words[1]} part"
    return f"in the {words[0]} {words[1] or 'part'}"


def _distance(shift: tuple[float, float]) -> str:
    parts = []
    for value, names in zip(shift, (("to the right", "to the left"), ("down", "up")), strict=True):
        if amount := abs(round(value)):
            parts.append(f"{amount} pixel{'s' * (amount > 1)} {names[value < 0]}")
    return " and ".join(parts) or "less than a pixel"


def _view_sentence(shift: tuple[float, float] | None) -> str:
    return "" if shift is None else f"The view shifted by {_distance(shift)}."


def _brightness_sentence(brightness: float) -> str:
    percent = round(100 * (brightness - 1))
    if abs(percent) < 2:
        return ""
    return f"The light is about {abs(percent)} % {'stronger' if percent > 0 else 'weaker'}."

"""Defects of circuit boards: generate captions from them, and parse them from captions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_idc.metrics.no_change import NO_CHANGE

TYPES = ("open", "short", "mousebite", "spur", "copper", "pinhole")
"""Names of the official types 1 to 6."""
MIXED = "mixed"
BOARD = 640
"""Height and width of the official images in pixels, the coordinate system of the boxes."""

# one noun per type, and every sentence frame for every pair, so that no type is easier to score than another
_NOUNS = ("open", "short", "mousebite", "spur", "copper spot", "pinhole")
_NUMBERS = ("no", *["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"])
_FRAMES = (
    "the board has {}",
    "inspection finds {}",
    "the tested board shows {}",
    "the second image adds {}",
    "{} can be seen",
)
_UNCHANGED = (
    "the board has no defect",
    "inspection finds nothing",
    "the tested board shows no flaw",
    "the second image adds nothing",
    "no defect can be seen",
)
_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")
_COUNTED = re.compile(rf"\b({'|'.join(_NUMBERS)}|\d{{1,9}}|an?)\s+({'|'.join(_NOUNS)})s?\b")
_POSITION = r"the (?:(?:top|bottom)(?: (?:left|right))?|left|right|centre)"
_POSITIONED = re.compile(rf"\b({'|'.join(_NOUNS)})s? at ({_POSITION}(?:,? (?:and )?{_POSITION})*)")


@dataclass(frozen=True, slots=True)
class Defect:
    """One annotated defect.

    Args:
        kind: index into :data:`TYPES`.
        box: x1, y1, x2, y2 in pixels of the 640 x 640 image.
    """

    kind: int
    box: tuple[int, int, int, int]

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of the box's centre in a 3 x 3 grid."""
        x1, y1, x2, y2 = self.box
        return min(2, 3 * (y1 + y2) // (2 * BOARD)), min(2, 3 * (x1 + x2) // (2 * BOARD))


def captions_of(defects: Sequence[Defect], long: bool = False) -> list[str]:
    """Generate five paraphrases of one caption, with the count of each type in the order of :data:`TYPES`.

    Args:
        defects: defects of one pair.
        long: whether the positions of all defects are given, or only those of the most frequent type (first of a tie).
    """
    if not defects:
        return list(_UNCHANGED)
    counts = Counter(defect.kind for defect in defects)
    most_frequent = min(counts, key=lambda kind: (-counts[kind], kind))
    parts = []
    for kind in sorted(counts):
        positions = sorted(Counter(defect.position for defect in defects if defect.kind == kind).items())
        if long:
            parts += [f"{_counted(kind, count)} at {_position_name(position)}" for position, count in positions]
        elif kind == most_frequent:
            parts.append(
                f"{_counted(kind, counts[kind])} at {_join([_position_name(position) for position, _ in positions])}"
            )
        else:
            parts.append(_counted(kind, counts[kind]))
    return [frame.format(_join(parts)) for frame in _FRAMES]


def parse_defects(caption: str) -> dict[str, int]:
    """Parse the number of defects of each type from a caption; the inverse of :func:`captions_of`."""
    counts: Counter[str] = Counter()
    for number, noun in _COUNTED.findall(caption.lower()):
        count = int(number) if number.isdecimal() else 1 if number in ("a", "an") else _NUMBERS.index(number)
        counts[TYPES[_NOUNS.index(noun)]] += count
    return {kind: count for kind, count in counts.items() if count}


def parse_positions(caption: str) -> dict[str, set[str]]:
    """Parse the positions of each type from a caption, such as ``{"open": {"top left", "centre"}}``."""
    positions_by_type: dict[str, set[str]] = {}
    for noun, positions in _POSITIONED.findall(caption.lower()):
        names = {position.removeprefix("the ") for position in re.findall(_POSITION, positions)}
        positions_by_type.setdefault(TYPES[_NOUNS.index(noun)], set()).update(names)
    return positions_by_type


def change_type_of(defects: Sequence[Defect]) -> str:
    """Return the most frequent type of defect, ``mixed`` for a tie, ``no_change`` without defects."""
    ranked = Counter(TYPES[defect.kind] for defect in defects).most_common(2)
    if not ranked:
        return NO_CHANGE
    return MIXED if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]


def _counted(kind: int, count: int) -> str:
    number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
    return f"{number} {_NOUNS[kind]}{'s' if count > 1 else ''}"


def _position_name(position: tuple[int, int]) -> str:
    return f"the {' '.join(filter(None, (_ROWS[position[0]], _COLUMNS[position[1]]))) or 'centre'}"


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))

"""Operators: each changes one CSS property, or the text, of one element, or takes it out or adds it.

Built from the facts that DiffSpot's paper and data card publish: its names of operators and its three tiers. The
amounts of each tier are ours, and so is the operator ``add``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lightning_idc.synthesis.web.text_edits import edit_text
from lightning_idc.utils.quotes import differing_words, excerpt

Element = dict[str, Any]
"""Element of a page: ``index``, ``tag``, ``box``, ``text``, ``lines``, ``has_text`` and computed styles."""
Tier = Literal["easy", "medium", "hard"]
TIERS: tuple[Tier, ...] = ("easy", "medium", "hard")
TEXT = "text"
"""Name in place of a property for operators that change the text."""
HIDDEN = "none"
"""Value of the property ``display`` of an element that is not on the page."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Change of one property of an element.

    Args:
        property: CSS property, or ``text``.
        old: Value before the change.
        new: Value after the change.
        styles: Further styles that the new value needs, such as ``position``.
    """

    property: str
    old: str
    new: str
    styles: tuple[tuple[str, str], ...] = ()

    def adds(self) -> bool:
        """Whether the element is on the page after the change only."""
        return self.property == "display" and self.old == HIDDEN


@dataclass(frozen=True, slots=True)
class Operator:
    """Kind of change.

    Args:
        suits: Whether the operator can have an effect on an element.
        mutate: Draws a mutation of an element for a tier.
        verb: Words of the captions between the element and the values.
    """

    suits: Callable[[Element], bool]
    mutate: Callable[[Element, Tier, np.random.Generator], Mutation]
    verb: str


def _number(text: str, default: float = 0.0) -> float:
    match = re.match(r"-?[\d.]+", text)
    return float(match[0]) if match else default


def _channels(color: str) -> list[float] | None:
    """Red, green and blue of a computed colour; None if it is transparent."""
    values = [float(value) for value in re.findall(r"[\d.]+", color)]
    return None if len(values) < 3 or values[3:] == [0.0] else values[:3]


def _recolored(color: str, tier: Tier, random: np.random.Generator) -> str:
    """Draw another colour whose distance depends on the tier."""
    low, high = {"easy": (220, 440), "medium": (120, 180), "hard": (60, 90)}[tier]
    old = np.array(_channels(color) or (0, 0, 0))
    for _ in range(1000):
        new = random.integers(0, 256, 3)
        if low <= math.dist(old, new) <= high:
            return f"rgb({new[0]}, {new[1]}, {new[2]})"
    return "rgb(255, 0, 0)"  # no colour is that far from a grey of medium brightness


def _color(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation("color", element["color"], _recolored(element["color"], tier, random))


def _border(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation("border-color", element["borderColor"], _recolored(element["borderColor"], tier, random))


Amounts = tuple[float, float, float]
"""Amount of each tier, the easiest first."""


def _pixels(prop: str, key: str, more: Amounts, less: Amounts, lowest: float) -> Callable[..., Mutation]:
    """Add an amount in pixels to a length, or subtract one from it where at least ``lowest`` remains."""

    def mutate(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
        old, index = _number(element[key]), TIERS.index(tier)
        smaller = old - less[index]
        new = smaller if smaller >= lowest and random.integers(2) else old + more[index]
        return Mutation(prop, f"{old:g}px", f"{new:g}px")

    return mutate


def _scaled(prop: str, factors: Amounts, key: str) -> Callable[..., Mutation]:
    """Multiply or divide a length by a factor, by the tier."""

    def mutate(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
        old, factor = _number(element[key], 1.2 * _number(element["fontSize"])), factors[TIERS.index(tier)]
        return Mutation(prop, f"{old:g}px", f"{old * factor ** int(random.choice([1, -1])):.1f}px")

    return mutate


def _rounded(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    old = _number(element["borderRadius"])
    new = {"easy": 20, "medium": 12, "hard": 6}[tier]
    return Mutation("border-radius", f"{old:g}px", "0px" if old > 2 else f"{new}px")


def _weight(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    old = _number(element["fontWeight"], 400)
    return Mutation("font-weight", f"{old:g}", "400" if old >= 600 else "700")


def _opacity(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation("opacity", element["opacity"], {"easy": "0.3", "medium": "0.5", "hard": "0.75"}[tier])


def _align(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    old = element["textAlign"]
    choices = [name for name in ("left", "center", "right") if name not in (old.replace("start", "left"),)]
    return Mutation("text-align", old, str(random.choice(choices)))


def _translate(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    distance = {"easy": 24, "medium": 12, "hard": 5}[tier] * int(random.choice([-1, 1]))
    return Mutation(str(random.choice(["left", "top"])), "0px", f"{distance}px", (("position", "relative"),))


def _remove(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation("display", element["display"], HIDDEN)


def _add(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation("display", HIDDEN, element["display"])


def _text(element: Element, tier: Tier, random: np.random.Generator) -> Mutation:
    return Mutation(TEXT, element["text"], edit_text(element["text"], tier, random))


def _has_text(element: Element) -> bool:
    return bool(element["has_text"])


def _has_edge(element: Element) -> bool:
    return _has_border(element) or _channels(element["backgroundColor"]) not in (None, _channels(element["ground"]))


def _has_border(element: Element) -> bool:
    return _number(element["borderWidth"]) >= 1 and element["borderStyle"] not in ("none", "hidden")


def _has_room(element: Element) -> bool:
    is_block = element["display"] in ("block", "list-item", "table-cell")
    return (
        bool(element["has_text"]) and is_block and element["text_width"] < 0.8 * (element["box"][2] - element["box"][0])
    )


def _is_positionable(element: Element) -> bool:
    return element["position"] == "static" and element["display"] not in ("table-row", "table-row-group", "contents")


OPERATORS: dict[str, Operator] = {
    "add": Operator(lambda element: True, _add, "was added"),
    "alignment": Operator(_has_room, _align, "is aligned"),
    "border": Operator(_has_border, _border, "has another border color:"),
    "color": Operator(_has_text, _color, "has another color:"),
    "font_size": Operator(_has_text, _scaled("font-size", (1.5, 1.25, 1.12), "fontSize"), "has another font size:"),
    "letter_spacing": Operator(
        _has_text,
        _pixels("letter-spacing", "letterSpacing", (4, 2, 1), (1.5, 1, 0.5), -2),
        "has another letter spacing:",
    ),
    "line_height": Operator(
        lambda element: element["has_text"] and element["lines"] > 1,
        _scaled("line-height", (1.6, 1.3, 1.15), "lineHeight"),
        "has another line height:",
    ),
    "opacity": Operator(lambda element: element["opacity"] == "1", _opacity, "has another opacity:"),
    "remove": Operator(lambda element: True, _remove, "was removed"),
    "rounded": Operator(_has_edge, _rounded, "has other corners:"),
    "spacing": Operator(
        lambda element: element["display"] != "inline",
        _pixels("padding-left", "paddingLeft", (32, 16, 8), (32, 16, 8), 0),
        "has another inner spacing:",
    ),
    "text": Operator(_has_text, _text, "has another text:"),
    "translate": Operator(_is_positionable, _translate, "moved"),
    "weight": Operator(_has_text, _weight, "has another font weight:"),
}
"""Operators by name: DiffSpot's thirteen, and ``add``."""
_KINDS = {
    "a": "link",
    "p": "paragraph",
    "li": "list item",
    "td": "table cell",
    "th": "table cell",
    "img": "image",
    "code": "code",
    "pre": "code",
    "input": "field",
    "textarea": "field",
    "table": "table",
    "button": "button",
    **{f"h{level}": "heading" for level in range(1, 7)},
}


def kind_of(element: Element) -> str:
    """Name of an element in captions, by its tag."""
    return _KINDS.get(element["tag"], "part")


def caption_of(operator: str, element: Element, mutation: Mutation) -> str:
    """Describe a change in one sentence, with the element, its text, and the old and the new value."""
    quoted = f' "{words}"' if (words := excerpt(element["text"])) else ""
    subject, verb = f"the {kind_of(element)}{quoted}", OPERATORS[operator].verb
    if operator in ("add", "remove"):
        return f"{subject} {verb}"
    if operator == "text":
        old, new = differing_words(mutation.old, mutation.new)
        return f'{subject} {verb} "{excerpt(new)}" instead of "{excerpt(old)}"'
    if operator == "translate":
        distance = _number(mutation.new)
        names = ("left", "right") if mutation.property == "left" else ("up", "down")
        return f"{subject} {verb} {names[distance > 0]} by {abs(distance):g}px"
    if operator == "alignment":
        return f"{subject} {verb} {mutation.new} instead of {mutation.old.replace('start', 'left')}"
    return f"{subject} {verb} {mutation.new} instead of {mutation.old}"

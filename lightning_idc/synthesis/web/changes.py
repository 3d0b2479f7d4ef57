"""One change of a page: a text, a CSS property, an element that comes, goes or moves; with a sentence that says it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_idc.synthesis.web.pages import COLORS, TEXTS, Element, Page, elements_of

NOTHING = ("nothing changed", "the two pages are the same", "there is no difference")
"""References of pairs without a change."""


@dataclass(frozen=True)
class Change:
    """What was done to a page.

    Args:
        kind: see ``KINDS``; ``no_change`` where nothing was.
        before: page as it was.
        after: page as it is.
        elements: ids of what changed, to find their boxes.
        captions: sentences that say it.
        values: the property with its old and new value, where there is one.
    """

    kind: str
    before: Page
    after: Page
    elements: tuple[str, ...] = ()
    captions: tuple[str, ...] = NOTHING
    values: dict[str, Any] = field(default_factory=dict)


def named(element: Element) -> str:
    """How captions call an element."""
    return f'the {element["kind"]} "{element["text"]}"'


def _set(page: Page, id: str, prop: str, value: str) -> Page:
    after = copy.deepcopy(page)
    next(element for element in elements_of(after) if element["id"] == id)["style"][prop] = value
    return after


def _pick(page: Page, random: np.random.Generator, fits: Callable[[Element], bool]) -> Element | None:
    found = [element for element in elements_of(page) if fits(element)]
    return found[int(random.integers(len(found)))] if found else None


def _text(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda found: True)
    assert element is not None
    taken = {other["text"] for other in elements_of(page)}
    new = str(random.choice([text for text in TEXTS[element["kind"]] if text not in taken] or ["More"]))
    after = copy.deepcopy(page)
    next(other for other in elements_of(after) if other["id"] == element["id"])["text"] = new
    said = f'{named(element)} now says "{new}"', f'the text of {named(element)} changed to "{new}"'
    return Change("text", page, after, (element["id"],), said, {"text": [element["text"], new]})


def _color(page: Page, random: np.random.Generator) -> Change | None:
    def colored(element: Element) -> list[str]:
        return [prop for prop in ("background", "color", "border-color") if element["style"].get(prop) in COLORS]

    element = _pick(page, random, lambda found: bool(colored(found)))
    if element is None:
        return None
    prop = colored(element)[0]
    old = element["style"][prop]
    new = str(random.choice([name for name in COLORS if name not in (old, "yellow")]))
    what = {"background": "", "color": "text of ", "border-color": "border of "}[prop]
    subject = f"the {what}{named(element)}" if what else named(element)
    said = f"{subject} changed from {old} to {new}", f"{subject} is now {new}"
    return Change("color", page, _set(page, element["id"], prop, new), (element["id"],), said, {prop: [old, new]})


def _size(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda found: True)
    assert element is not None
    old = int(element["style"]["font-size"].removesuffix("px"))
    larger = bool(random.integers(2)) or old < 14
    new = old + 6 if larger else old - 4
    word = "larger" if larger else "smaller"
    said = f"the text of {named(element)} is {word}", f"{named(element)} became {word}"
    after = _set(page, element["id"], "font-size", f"{new}px")
    return Change("size", page, after, (element["id"],), said, {"font-size": [old, new]})


def _weight(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda found: True)
    assert element is not None
    old = element["style"]["font-weight"]
    new = "normal" if old == "bold" else "bold"
    said = f"the text of {named(element)} is {new} now", f"{named(element)} changed from {old} to {new}"
    after = _set(page, element["id"], "font-weight", new)
    return Change("weight", page, after, (element["id"],), said, {"font-weight": [old, new]})


def _corners(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda found: "border-radius" in found["style"])
    if element is None:
        return None
    old = element["style"]["border-radius"]
    new, word = ("12px", "round") if old == "0px" else ("0px", "square")
    said = f"the corners of {named(element)} are {word} now", f"{named(element)} has {word} corners"
    after = _set(page, element["id"], "border-radius", new)
    return Change("corners", page, after, (element["id"],), said, {"border-radius": [old, new]})


def _remove(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda found: True)
    assert element is not None
    after = copy.deepcopy(page)
    for section in after["sections"]:
        section["elements"] = [other for other in section["elements"] if other["id"] != element["id"]]
    said = f"{named(element)} was removed", f"{named(element)} is gone"
    return Change("remove", page, after, (element["id"],), said)


def _add(page: Page, random: np.random.Generator) -> Change | None:
    gone = _remove(page, random)
    assert gone is not None
    element = next(found for found in elements_of(page) if found["id"] == gone.elements[0])
    said = f"{named(element)} was added", f"{named(element)} is new"
    return Change("add", gone.after, page, gone.elements, said)


def _swap(page: Page, random: np.random.Generator) -> Change | None:
    found = [number for number, section in enumerate(page["sections"]) if len(section["elements"]) > 1]
    if not found:
        return None
    number = found[int(random.integers(len(found)))]
    after = copy.deepcopy(page)
    elements = after["sections"][number]["elements"]
    place = int(random.integers(len(elements) - 1))
    elements[place], elements[place + 1] = elements[place + 1], elements[place]
    one, other = elements[place + 1], elements[place]
    said = f"{named(one)} and {named(other)} changed places", f"{named(one)} moved behind {named(other)}"
    return Change("move", page, after, (one["id"], other["id"]), said)


KINDS: dict[str, Callable[[Page, np.random.Generator], Change | None]] = {
    "text": _text,
    "color": _color,
    "size": _size,
    "weight": _weight,
    "corners": _corners,
    "remove": _remove,
    "add": _add,
    "move": _swap,
}
"""Changes by name; each gives None where a page has nothing to change so."""


def change_page(page: Page, kind: str, random: np.random.Generator) -> Change | None:
    """Change one thing of a page.

    Args:
        page: stays as it is.
        kind: of ``KINDS``, or ``no_change``.
        random: decides what is changed, and to what.
    """
    return Change("no_change", page, copy.deepcopy(page)) if kind == "no_change" else KINDS[kind](page, random)

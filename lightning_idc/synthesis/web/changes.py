"""Changes of a page with captions: text, CSS properties, and elements that are added, removed or moved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_idc.synthesis.web.pages import COLORS, TEXTS, Element, Page, elements_of

NO_CHANGE_CAPTIONS = ("nothing changed", "the two pages are the same", "there is no difference")
"""Reference captions of pairs without a change."""


@dataclass(frozen=True)
class Change:
    """Change of a page.

    Args:
        kind: key of ``KINDS``, or ``no_change``.
        before: page before the change.
        after: page after the change.
        elements: ids of the changed elements.
        captions: reference captions.
        values: old and new value by changed property.
    """

    kind: str
    before: Page
    after: Page
    elements: tuple[str, ...] = ()
    captions: tuple[str, ...] = NO_CHANGE_CAPTIONS
    values: dict[str, Any] = field(default_factory=dict)


def named(element: Element) -> str:
    """Return the name of an element in captions."""
    return f'the {element["kind"]} "{element["text"]}"'


def _set(page: Page, id: str, prop: str, value: str) -> Page:
    after = copy.deepcopy(page)
    next(element for element in elements_of(after) if element["id"] == id)["style"][prop] = value
    return after


def _pick(page: Page, random: np.random.Generator, predicate: Callable[[Element], bool]) -> Element | None:
    matching = [element for element in elements_of(page) if predicate(element)]
    return matching[int(random.integers(len(matching)))] if matching else None


def _text(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda candidate: True)
    assert element is not None
    taken = {other["text"] for other in elements_of(page)}
    new = str(random.choice([text for text in TEXTS[element["kind"]] if text not in taken] or ["More"]))
    after = copy.deepcopy(page)
    next(other for other in elements_of(after) if other["id"] == element["id"])["text"] = new
    captions = f'{named(element)} now says "{new}"', f'the text of {named(element)} changed to "{new}"'
    return Change("text", page, after, (element["id"],), captions, {"text": [element["text"], new]})


def _color(page: Page, random: np.random.Generator) -> Change | None:
    def colored(element: Element) -> list[str]:
        return [prop for prop in ("background", "color", "border-color") if element["style"].get(prop) in COLORS]

    element = _pick(page, random, lambda candidate: bool(colored(candidate)))
    if element is None:
        return None
    prop = colored(element)[0]
    old = element["style"][prop]
    new = str(random.choice([name for name in COLORS if name not in (old, "yellow")]))
    part = {"background": "", "color": "text of ", "border-color": "border of "}[prop]
    subject = f"the {part}{named(element)}" if part else named(element)
    captions = f"{subject} changed from {old} to {new}", f"{subject} is now {new}"
    return Change("color", page, _set(page, element["id"], prop, new), (element["id"],), captions, {prop: [old, new]})


def _size(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda candidate: True)
    assert element is not None
    old = int(element["style"]["font-size"].removesuffix("px"))
    larger = bool(random.integers(2)) or old < 14
    new = old + 6 if larger else old - 4
    word = "larger" if larger else "smaller"
    captions = f"the text of {named(element)} is {word}", f"{named(element)} became {word}"
    after = _set(page, element["id"], "font-size", f"{new}px")
    return Change("size", page, after, (element["id"],), captions, {"font-size": [old, new]})


def _weight(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda candidate: True)
    assert element is not None
    old = element["style"]["font-weight"]
    new = "normal" if old == "bold" else "bold"
    captions = f"the text of {named(element)} is {new} now", f"{named(element)} changed from {old} to {new}"
    after = _set(page, element["id"], "font-weight", new)
    return Change("weight", page, after, (element["id"],), captions, {"font-weight": [old, new]})


def _corners(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda candidate: "border-radius" in candidate["style"])
    if element is None:
        return None
    old = element["style"]["border-radius"]
    new, word = ("12px", "round") if old == "0px" else ("0px", "square")
    captions = f"the corners of {named(element)} are {word} now", f"{named(element)} has {word} corners"
    after = _set(page, element["id"], "border-radius", new)
    return Change("corners", page, after, (element["id"],), captions, {"border-radius": [old, new]})


def _remove(page: Page, random: np.random.Generator) -> Change | None:
    element = _pick(page, random, lambda candidate: True)
    assert element is not None
    after = copy.deepcopy(page)
    for section in after["sections"]:
        section["elements"] = [other for other in section["elements"] if other["id"] != element["id"]]
    captions = f"{named(element)} was removed", f"{named(element)} is gone"
    return Change("remove", page, after, (element["id"],), captions)


def _add(page: Page, random: np.random.Generator) -> Change | None:
    removal = _remove(page, random)
    assert removal is not None
    element = next(candidate for candidate in elements_of(page) if candidate["id"] == removal.elements[0])
    captions = f"{named(element)} was added", f"{named(element)} is new"
    return Change("add", removal.after, page, removal.elements, captions)


def _swap(page: Page, random: np.random.Generator) -> Change | None:
    sortable = [number for number, section in enumerate(page["sections"]) if len(section["elements"]) > 1]
    if not sortable:
        return None
    number = sortable[int(random.integers(len(sortable)))]
    after = copy.deepcopy(page)
    elements = after["sections"][number]["elements"]
    index = int(random.integers(len(elements) - 1))
    elements[index], elements[index + 1] = elements[index + 1], elements[index]
    moved, other = elements[index + 1], elements[index]
    captions = f"{named(moved)} and {named(other)} changed places", f"{named(moved)} moved behind {named(other)}"
    return Change("move", page, after, (moved["id"], other["id"]), captions)


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
"""Functions that change a page, by name; None if the page has no suitable element."""


def change_page(page: Page, kind: str, random: np.random.Generator) -> Change | None:
    """Apply a random change to a copy of a page.

    Args:
        page: page to change; not modified.
        kind: key of ``KINDS``, or ``no_change``.
        random: generator of the choices.
    """
    return Change("no_change", page, copy.deepcopy(page)) if kind == "no_change" else KINDS[kind](page, random)

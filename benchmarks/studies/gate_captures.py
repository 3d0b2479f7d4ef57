"""Pairs of screenshots for the study of the gate: captures of unchanged pages, and pages with one changed property.

Captures of an unchanged page differ in one way each (:data:`NOISES`), all by one installed Chromium. Debian's default
is `slight` hinting of glyphs at fractional positions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_idc.images.display import to_pil
from lightning_idc.synthesis import ChangeHtml, Chromium, HtmlFolder
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.web.browser import FontSettings
from lightning_idc.synthesis.web.open_page import OpenPage
from lightning_idc.synthesis.web.operators import OPERATORS, Element, Mutation

JPEG_QUALITY = 90
WIDTHS = (1280, 1280, 1440, 1024, 390)
_SIDE = """() => { const e = document.createElement('div'); e.style.cssText =
  `position:absolute;top:0;left:${innerWidth + 40}px;width:1px;height:1px`; document.body.append(e); }"""
_EDIT = """(index) => { const style = document.createElement('style');
  style.textContent = '*:focus{outline:none!important}'; document.head.append(style);
  const e = document.querySelectorAll('body *')[index];
  if (!e.matches('input, textarea')) e.contentEditable = 'true';
  e.focus(); }"""
_CARET = (
    "(on) => { document.activeElement.style.setProperty('caret-color', on ? 'black' : 'transparent', 'important'); }"
)
_BODY = "([name, value]) => document.body.style.setProperty(name, value, 'important')"

SLIGHT, WHOLE = FontSettings("slight"), FontSettings("slight", whole_pixels=True)
NOISES: dict[str, dict[str, tuple[FontSettings, FontSettings]]] = {
    "again": {"": (SLIGHT, SLIGHT)},
    "jpeg": {"": (SLIGHT, SLIGHT)},
    "scroll_down": {"": (SLIGHT, SLIGHT)},
    "scroll_side": {"": (SLIGHT, SLIGHT)},
    "caret": {"": (SLIGHT, SLIGHT)},
    "hinting": {
        "slight to none": (SLIGHT, FontSettings("none")),
        "slight to full, whole pixels": (WHOLE, FontSettings("full", whole_pixels=True)),
    },
    "hinted_widths": {
        "slight to medium": (SLIGHT, FontSettings("medium")),
        "slight to auto": (SLIGHT, FontSettings("auto")),
    },
    "positions": {
        "slight to whole pixels": (SLIGHT, WHOLE),
        "none to full, whole pixels": (FontSettings("none"), FontSettings("full", whole_pixels=True)),
    },
}
"""Kinds of noise, and for each of their variants the fonts of both captures.

`hinting` draws glyphs in another way at the same positions; `hinted_widths` and `positions` also set them elsewhere, so
that lines wrap differently.
"""


def pages(root: str | None, count: int, seed: int) -> HtmlFolder:
    """Pages of documentation and templates, one for each pair, all operators equally likely.

    Args:
        root: folder of sites; None for templates only.
        count: number of pages.
        seed: seed of pages, windows and operators.
    """
    options: dict[str, Any] = {"widths": WIDTHS, "dark": 0.2, "no_change": 0.0, "max_bytes": 150_000}
    return HtmlFolder(root, count=count, templates="all", seed=seed, **options)


def opened(browser: Chromium, record: Record, fonts: FontSettings, scroll_by: int = 0) -> tuple[OpenPage, Any]:
    """A page of a record, and its page in Playwright."""
    page = ChangeHtml(browser, missing_sheets=0.5).open_page(record, scroll_by, fonts)
    window = browser.window(record.facts["width"], record.facts["height"], record.facts["dark"], fonts)
    return page, window.pages[0]


def capture_noise(
    noise: str, record: Record, browser: Chromium, fonts: tuple[FontSettings, FontSettings]
) -> tuple[Tensor, Tensor] | None:
    """Two captures of one page; None for a page in which the noise cannot occur.

    Args:
        noise: kind of noise.
        record: the page and its window.
        browser: browser that takes both.
        fonts: of the first and of the second capture.
    """
    images: list[Tensor] = []
    element: Element | None = None
    for side in range(2):
        page, view = opened(browser, record, fonts[side], int(noise == "scroll_down" and side))
        if noise == "scroll_side":
            view.evaluate(_SIDE)
            view.evaluate("(by) => window.scrollBy(by, 0)", side)
        if noise == "caret":
            element = element or _editable(page, record)
            if element is None:
                page.close()
                return None
            view.evaluate(_EDIT, element["index"])
            view.evaluate(_CARET, bool(side))
        images.append(page.screenshot())
        if noise == "caret" and side:
            view.evaluate("() => document.activeElement.blur()")
        page.close()
    must_differ = noise in ("caret", "scroll_down", "scroll_side")
    return None if must_differ and (images[0] == images[1]).all() else (images[0], images[1])


def _editable(page: OpenPage, record: Record) -> Element | None:
    """A text field, or else a text that is edited in its place."""
    elements = page.elements()
    fields = [element for element in elements if element["tag"] in ("input", "textarea")]
    texts = [element for element in elements if element["has_text"] and element["tag"] in ("p", "li", "td", "div")]
    candidates = fields or texts
    return candidates[int(record_generator(3, record.id).integers(len(candidates)))] if candidates else None


def capture_redrawn(
    record: Record, browser: Chromium, fonts: tuple[FontSettings, FontSettings]
) -> tuple[Tensor, Tensor] | None:
    """A page, and the page with other fonts and one change of the record's operator; None where nothing changes.

    Args:
        record: the page and its window.
        browser: browser that takes both.
        fonts: of the first and of the second capture.
    """
    page, _ = opened(browser, record, fonts[0])
    before = page.screenshot()
    change = _visible_change(page, record, before)
    page.close()
    if change is None:
        return None
    page, _ = opened(browser, record, fonts[1])
    with page.changed(*change):
        after = page.screenshot()
    page.close()
    return before, after


def _visible_change(page: OpenPage, record: Record, before: Tensor) -> tuple[Element, Mutation] | None:
    """An element and a change of it by the record's operator; None if no element suits, or nothing can be seen."""
    operator, random = OPERATORS[record.facts["edit"]], record_generator(5, record.id)
    elements = [element for element in page.elements() if operator.suits(element)]
    if not elements:
        return None
    element = elements[int(random.integers(len(elements)))]
    mutation = operator.mutate(element, "medium", random)
    with page.changed(element, mutation):
        return (element, mutation) if _differ(before, page.screenshot()) else None


Change = Callable[[Element], Mutation | None]


def _lighter(property: str, key: str, levels: int) -> Change:
    def change(element: Element) -> Mutation | None:
        channels = [int(part) for part in element[key].strip("rgba()").split(",")[:3] if part.strip().isdecimal()]
        if len(channels) != 3 or element[key].endswith(", 0)"):
            return None
        new = [value + levels if value + levels <= 255 else value - levels for value in channels]
        return Mutation(property, element[key], f"rgb({new[0]}, {new[1]}, {new[2]})")

    return change


def _longer(property: str, key: str, pixels: float, *styles: tuple[str, str]) -> Change:
    def change(element: Element) -> Mutation | None:
        text = str(element.get(key, "0px")).removesuffix("px")
        old = float(text) if text.replace(".", "").replace("-", "").isdecimal() else 0.0
        return Mutation(property, f"{old:g}px", f"{old + pixels:g}px", styles)

    return change


SUBTLE: dict[str, Change] = {
    "color by 8 levels": _lighter("color", "color", 8),
    "background by 4 levels": _lighter("background-color", "backgroundColor", 4),
    "letter spacing by 0.5 px": _longer("letter-spacing", "letterSpacing", 0.5),
    "letter spacing by 0.1 px": _longer("letter-spacing", "letterSpacing", 0.1),
    "font size by 1 px": _longer("font-size", "fontSize", 1),
    "weight 500": lambda element: Mutation("font-weight", element["fontWeight"], "500"),
    "padding-left by 1 px": _longer("padding-left", "paddingLeft", 1),
    "padding-top by 1 px": _longer("padding-top", "", 1),
    "margin-top by 1 px": _longer("margin-top", "", 1),
    "moved by 1 px": _longer("left", "", 1, ("position", "relative")),
    "opacity 0.97": lambda element: Mutation("opacity", element["opacity"], "0.97"),
    "underline": lambda element: Mutation("text-decoration", "", "underline") if element["has_text"] else None,
    "serif": lambda element: Mutation("font-family", "", "serif") if element["has_text"] else None,
}
"""Changes of one element, smaller than those of `HtmlFolder`."""
WHOLE_PAGE = {
    "letter spacing by 0.1 px": ("letter-spacing", "0.1px"),
    "font size 15 px": ("font-size", "15px"),
    "zoom 1.01": ("zoom", "1.01"),
    "serif": ("font-family", "serif"),
    "Liberation Sans": ("font-family", "Liberation Sans"),
    "weight": ("font-weight", "700"),
    "opacity 0.95": ("opacity", "0.95"),
    "color": ("color", "#3a3a3a"),
    "background": ("background", "#fafafa"),
    "padding by 4 px": ("padding", "4px"),
}
"""Changes of one property of the body."""


def capture_subtle(change: str, record: Record, browser: Chromium) -> tuple[Tensor, Tensor] | None:
    """A page before and after a change of :data:`SUBTLE`, or of the whole page; None where nothing visible changes."""
    page, view = opened(browser, record, SLIGHT)
    before = page.screenshot()
    name = change.removeprefix("page: ")
    if change.startswith("page: "):
        view.evaluate(_BODY, list(WHOLE_PAGE[name]))
        after = page.screenshot()
        page.close()
        return (before, after) if _differ(before, after) else None
    random = record_generator(4, record.id)
    elements = [element for element in page.elements() if element["has_text"]]
    pair = None
    for index in random.permutation(len(elements))[:4]:
        mutation = SUBTLE[name](elements[index])
        if mutation is None:
            continue
        with page.changed(elements[index], mutation):
            after = page.screenshot()
        if _differ(before, after):
            pair = before, after
            break
    page.close()
    return pair


def _differ(before: Tensor, after: Tensor) -> bool:
    """Whether a pixel differs by more than 2 grey levels, which repeated drawing can do."""
    return bool(np.abs(before.numpy().astype(np.int16) - after.numpy()).max() > 2)


def save_pair(folder: Path, id: str, images: tuple[Tensor, Tensor], jpeg: bool = False) -> None:
    """Save both images of a pair, the second one as JPEG where it is said."""
    for side, image in zip(("before", "after"), images, strict=True):
        (folder / side).mkdir(parents=True, exist_ok=True)
        if jpeg and side == "after":
            to_pil(image).save(folder / side / f"{id}.jpg", quality=JPEG_QUALITY)
        else:
            to_pil(image).save(folder / side / f"{id}.png", compress_level=1)

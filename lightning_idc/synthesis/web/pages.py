"""Random web pages as plain data (sections of elements with texts and styles), and their HTML."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

Element = dict[str, Any]
"""``id``, ``kind``, ``text`` and ``style`` (CSS properties by name)."""
Page = dict[str, Any]
"""``style`` of the page and ``sections``: lists of elements with a layout."""

COLORS = {
    "blue": "#2563eb",
    "red": "#dc2626",
    "green": "#16a34a",
    "orange": "#ea580c",
    "purple": "#9333ea",
    "teal": "#0d9488",
    "pink": "#db2777",
    "gray": "#6b7280",
    "black": "#111827",
    "yellow": "#facc15",
}
"""Colour names in captions, and their CSS values."""

TEXTS = {
    "button": ("Save", "Cancel", "Sign in", "Buy now", "Download", "Learn more", "Subscribe", "Delete", "Send", "Next"),
    "link": ("Home", "Pricing", "Docs", "Blog", "About", "Contact", "Help", "Careers", "Status", "Support"),
    "heading": ("Welcome back", "Our plans", "Latest news", "Your orders", "Team", "Settings", "Reports", "Gallery"),
    "paragraph": (
        "Ships within two days.",
        "No credit card needed.",
        "Trusted by many teams.",
        "Cancel at any time.",
        "Updated every morning.",
        "Free for small projects.",
    ),
    "badge": ("New", "Beta", "Sale", "Sold out", "Popular", "Draft"),
    "field": ("Email", "Name", "Password", "City", "Phone", "Search"),
    "alert": ("Payment failed.", "Your trial ends soon.", "Changes were saved.", "Connection lost."),
}
"""Texts of elements by kind; each text occurs at most once per page, so that it identifies its element."""

_LAYOUTS = (
    ("nav", ("link", "link", "link")),
    ("hero", ("heading", "paragraph", "button")),
    ("row", ("button", "button", "badge")),
    ("form", ("field", "field", "button")),
    ("cards", ("heading", "heading", "badge")),
    ("notice", ("alert",)),
)


def draw_page(random: np.random.Generator, width: int = 320) -> Page:
    """Draw a random page with three or four sections.

    Args:
        random: random generator.
        width: width of the viewport in CSS pixels.
    """
    unused = {kind: list(random.permutation(texts)) for kind, texts in TEXTS.items()}
    accent, other = random.permutation([name for name in COLORS if name not in ("gray", "black", "yellow")])[:2]
    chosen = sorted(random.permutation(len(_LAYOUTS))[: random.integers(3, 5)])
    number, sections = 0, []
    for index in chosen:
        layout, kinds = _LAYOUTS[index]
        elements = []
        for kind in kinds:
            style = _style(kind, random, str(accent), str(other))
            elements.append({"id": f"e{number}", "kind": kind, "text": str(unused[kind].pop()), "style": style})
            number += 1
        sections.append({"layout": layout, "elements": elements})
    family = str(random.choice(["sans-serif", "serif"]))
    return {"width": width, "style": {"font-family": family, "background": "#ffffff"}, "sections": sections}


def _style(kind: str, random: np.random.Generator, accent: str, other: str) -> dict[str, str]:
    color = str(random.choice([accent, accent, other]))
    size = {"heading": 20, "link": 14, "badge": 12}.get(kind, 14) + 2 * int(random.integers(0, 3))
    style = {"font-size": f"{size}px", "font-weight": "bold" if kind == "heading" else "normal"}
    if kind in ("button", "badge", "alert"):
        radius = int(random.choice([0, 12]))
        style |= {"background": color, "color": "#ffffff", "border-radius": f"{radius}px", "padding": "8px 12px"}
    elif kind == "field":
        style |= {"border-color": color, "border-radius": "0px", "padding": "6px 8px"}
    else:
        style |= {"color": color if kind == "link" else "black"}
    return style


def elements_of(page: Page) -> list[Element]:
    """List all elements from top to bottom."""
    return [element for section in page["sections"] for element in section["elements"]]


def to_html(page: Page) -> str:
    """Format a page as a self-contained HTML document without scripts and external resources."""
    body = "".join(_section(section) for section in page["sections"])
    return (
        "<!doctype html><meta charset='utf-8'><style>"
        f"body{{margin:0;width:{page['width']}px;{_css(page['style'])}}}"
        "section{display:flex;gap:12px;padding:12px;align-items:center;flex-wrap:wrap;box-sizing:border-box}"
        ".nav{border-bottom:1px solid #d1d5db}.hero,.form{flex-direction:column;align-items:flex-start}"
        ".cards>*{border:1px solid #d1d5db;padding:12px}.field{border:2px solid;min-width:180px;color:#6b7280}"
        f"</style>{body}"
    )


def _section(section: dict[str, Any]) -> str:
    inner = "".join(
        f'<div id="{element["id"]}" class="{element["kind"]}" style="{escape(_css(element["style"]))}">'
        f"{escape(element['text'])}</div>"
        for element in section["elements"]
    )
    return f'<section class="{section["layout"]}">{inner}</section>'


def _css(style: dict[str, str]) -> str:
    return ";".join(f"{name}:{COLORS.get(value, value)}" for name, value in style.items())

"""OpenPage: a page of a file in the browser, with its visible elements, changes of one of them, and screenshots."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.images.read import read_image
from lightning_idc.synthesis.web.operators import TEXT, Element, Mutation
from lightning_idc.utils.errors import DataError

TIMEOUT = 20_000
"""Limit of every step in the browser, in milliseconds."""
# lists of thousands of elements are returned as JSON texts, since Playwright checks every value of other results
_REDIRECT = re.compile(rb"http-equiv\s*=\s*[\"']?refresh", re.IGNORECASE)
_FREEZE = """() => { const style = document.createElement('style');
  style.textContent = '*,*::before,*::after{transition:none!important;animation:none!important;' +
    'caret-color:transparent!important;scroll-behavior:auto!important;' +
    'content-visibility:visible!important}'; document.head.append(style); }"""
_SCROLL = """([fraction, more]) => { const page = document.scrollingElement;
  window.scrollTo(0, Math.round(fraction * Math.max(0, page.scrollHeight - innerHeight)) + more); return scrollY; }"""
_ELEMENTS = """() => { const all = [...document.querySelectorAll('body *')], out = [];
  const ground = (e) => { for (let p = e.parentElement; p; p = p.parentElement) {
    const c = getComputedStyle(p).backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  all.forEach((e, index) => {
    const b = e.getBoundingClientRect(), s = getComputedStyle(e);
    const inside = b.width >= 8 && b.height >= 8 && b.left >= 0 && b.top >= 0 && b.right <= innerWidth
      && b.bottom <= innerHeight;
    if (!inside || s.visibility !== 'visible' || s.opacity === '0' || e.closest('svg, head, script, style')) return;
    if (b.width * b.height > 0.5 * innerWidth * innerHeight) return;
    const at = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2);
    if (!at || !(e === at || e.contains(at) || at.contains(e))) return;
    const texts = [...e.childNodes].filter((n) => n.nodeType === 3 && n.textContent.trim());
    const range = document.createRange(); let left = Infinity, right = -Infinity, rows = new Set();
    for (const node of texts) { range.selectNodeContents(node);
      for (const r of range.getClientRects()) { left = Math.min(left, r.left); right = Math.max(right, r.right);
        rows.add(Math.round(r.top)); } }
    out.push({ index, tag: e.tagName.toLowerCase(), box: [b.left, b.top, b.right, b.bottom],
      has_text: texts.length > 0, text: texts.length ? texts[0].textContent.trim() : '',
      lines: rows.size, text_width: right > left ? right - left : 0, ground: ground(e), color: s.color,
      backgroundColor: s.backgroundColor, borderColor: s.borderTopColor, borderWidth: s.borderTopWidth,
      borderStyle: s.borderTopStyle, borderRadius: s.borderTopLeftRadius, fontSize: s.fontSize,
      fontWeight: s.fontWeight, letterSpacing: s.letterSpacing, lineHeight: s.lineHeight, opacity: s.opacity,
      textAlign: s.textAlign, display: s.display, position: s.position, paddingLeft: s.paddingLeft });
  }); return JSON.stringify(out); }"""
_BOXES = """() => JSON.stringify([...document.querySelectorAll('body *')].map(e => {
  const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }))"""
_STYLE = """([index, styles]) => { const e = document.querySelectorAll('body *')[index];
  for (const [name, value] of styles) e.style.setProperty(name, value, 'important'); }"""
_STYLED = "(index) => document.querySelectorAll('body *')[index].getAttribute('style')"
_UNSTYLE = """([index, style]) => { const e = document.querySelectorAll('body *')[index];
  if (style === null) e.removeAttribute('style'); else e.setAttribute('style', style); }"""
_LINKED = "() => document.querySelectorAll('link[rel~=stylesheet i]').length"
_TEXT = """([index, text]) => { const e = document.querySelectorAll('body *')[index];
  const node = [...e.childNodes].find((n) => n.nodeType === 3 && n.textContent.trim());
  const old = node.textContent, [, start, , end] = old.match(/^(\\s*)([^]*?)(\\s*)$/) || [];
  node.textContent = (start || '') + text + (end || ''); return old; }"""
_SET_TEXT = """([index, text]) => { const e = document.querySelectorAll('body *')[index];
  [...e.childNodes].find((n) => n.nodeType === 3 && n.textContent.trim()).textContent = text; }"""
_RELATIVES = """(index) => { const all = [...document.querySelectorAll('body *')], e = all[index];
  return JSON.stringify(all.map((other) => other.contains(e) || e.contains(other))); }"""
_CURSOR = """([x, y, height]) => { const bar = document.createElement('div');
  bar.style.cssText = `position:fixed;left:${x}px;top:${y}px;width:1px;height:${height}px;background:#000;z-index:9999`;
  document.body.append(bar); }"""


class OpenPage:
    """A page in a window of the browser.

    A window shows one page after the other: opening a window takes the browser longer than loading a page.

    Args:
        context: context of Playwright with the size of the window; it has at most one page open at a time.
        document: file of the page, or its HTML.
        scroll: fraction of the page above the window.
        scroll_by: pixels by which the page is scrolled further.
        missing_sheets: largest fraction of the style sheets of the page that may be missing.

    Raises:
        DataError: the page redirects to another one, or too many of its style sheets cannot be loaded.
    """

    def __init__(
        self,
        context: Any,
        document: Path | str,
        scroll: float = 0.0,
        scroll_by: int = 0,
        missing_sheets: float = 0.0,
    ) -> None:
        if isinstance(document, Path) and _REDIRECT.search(document.read_bytes()):
            raise DataError(f"{str(document)!r} redirects to another page")
        self._missing: list[str] = []
        self._page = context.pages[0] if context.pages else context.new_page()
        self._page.set_default_timeout(TIMEOUT)
        self._page.on("requestfailed", self._note)
        self._session: Any = None
        try:
            self._load(context, document, scroll, scroll_by, missing_sheets)
        except BaseException:
            self._page.close()  # the next page gets a window that has seen no failure
            raise

    def _load(self, context: Any, document: Path | str, scroll: float, scroll_by: int, missing_sheets: float) -> None:
        if isinstance(document, str):
            self._page.set_content(document, wait_until="load")
        else:
            self._page.goto(document.absolute().as_uri(), wait_until="load")
        if self._missing and len(self._missing) > missing_sheets * self._page.evaluate(_LINKED):
            raise DataError(f"{str(document)!r}: style sheets cannot be loaded: {', '.join(self._missing[:3])}")
        self._session = context.new_cdp_session(self._page)
        self._page.evaluate(_FREEZE)
        self._page.evaluate(_SCROLL, [scroll, scroll_by])

    def _note(self, request: Any) -> None:
        if request.resource_type == "stylesheet" and request.url.startswith("file:"):
            self._missing.append(request.url.rpartition("/")[2])

    def close(self) -> None:
        """Leave the page; its window stays open for the next one."""
        self._page.remove_listener("requestfailed", self._note)
        self._session.detach()

    def screenshot(self) -> Tensor:
        """Take a screenshot of the window, uint8 ``(3, H, W)``."""
        # half of the time of Playwright's own screenshots, with equal pixels
        options = {"format": "png", "optimizeForSpeed": True}
        image = self._session.send("Page.captureScreenshot", options)["data"]
        return read_image(base64.b64decode(image), name="a screenshot")

    def elements(self) -> list[Element]:
        """Elements that are entirely in the window, not covered and smaller than half of it, in document order."""
        elements: list[Element] = json.loads(self._page.evaluate(_ELEMENTS))
        return elements

    def boxes(self) -> list[list[float]]:
        """Boxes x1 y1 x2 y2 of all elements of the body, by index."""
        boxes: list[list[float]] = json.loads(self._page.evaluate(_BOXES))
        return boxes

    def relatives(self, element: Element) -> list[bool]:
        """Whether each element of the body contains an element or is part of it."""
        relatives: list[bool] = json.loads(self._page.evaluate(_RELATIVES, element["index"]))
        return relatives

    @contextmanager
    def changed(self, element: Element, mutation: Mutation) -> Iterator[None]:
        """Change one property, or the text, of an element, and restore it afterwards."""
        index = element["index"]
        if mutation.property == TEXT:
            old = self._page.evaluate(_TEXT, [index, mutation.new])
        else:
            old = self._page.evaluate(_STYLED, index)
            self._page.evaluate(_STYLE, [index, [*map(list, mutation.styles), [mutation.property, mutation.new]]])
        try:
            yield
        finally:
            if mutation.property == TEXT:
                self._page.evaluate(_SET_TEXT, [index, old])
            else:
                self._page.evaluate(_UNSTYLE, [index, old])

    def draw_cursor(self, x: float, y: float, height: int) -> None:
        """Draw a text cursor, 1 pixel wide."""
        self._page.evaluate(_CURSOR, [round(x), round(y), height])

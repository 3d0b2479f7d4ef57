"""ChangeHtml: stage that changes one element of a page, takes both screenshots and checks what changed."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.images.display import to_pil
from lightning_idc.images.read import read_image
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.metrics.page_sentences import NOTHING, sentence_of
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.web.browser import Chromium, FontSettings
from lightning_idc.synthesis.web.changes import NO_CHANGE_CAPTIONS
from lightning_idc.synthesis.web.open_page import OpenPage
from lightning_idc.synthesis.web.operators import HIDDEN, OPERATORS, Element, Mutation, caption_of, kind_of
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.paths import inside

MIN_LEVELS = 12
"""Smallest difference of a visible change in grey levels."""
MARGIN = 6
"""Pixels around an element in which a change of it may show, such as its outline."""
MIN_MOVED = 0.6
"""Smallest distance in CSS pixels by which an element counts as moved."""
MAX_TEXT = 200
"""Largest number of characters of the text of an element in its facts."""
JPEG_QUALITY = 90


class ChangeHtml(PipelineStage):
    """Changes one element of the page of an `HtmlFolder` record, and drops pairs whose change cannot be seen.

    Writes the images ``before`` and ``after``, and the facts ``property``, ``old``, ``new``, ``element`` (its kind),
    ``tag``, ``text``, ``lines``, ``true_boxes``, ``moved`` (number of other elements whose box moved), ``reflows``,
    ``changed_pixels``, ``captions`` and ``summary``.

    Args:
        browser: browser that renders the pages; the size of its window is that of each record.
        min_pixels: smallest number of visibly different pixels of a changed pair.
        tries: number of elements that are tried.
        reflow: whether pairs in which other elements move are used; DiffSpot drops them.
        missing_sheets: largest fraction of the style sheets of a page that may be missing, such as one of icons.
        seed: see `PipelineStage`.
    """

    def __init__(
        self,
        browser: Chromium | None = None,
        min_pixels: PositiveInt = 12,
        tries: PositiveInt = 4,
        reflow: bool = True,
        missing_sheets: Share = 0.0,
        seed: NonNegativeInt = 0,
    ) -> None:
        check_arguments(ChangeHtml.__init__, locals())
        super().__init__(seed)
        self.browser = browser or Chromium()
        self.min_pixels, self.tries, self.reflow, self.missing_sheets = min_pixels, tries, reflow, missing_sheets
        self._shown: tuple[Any, OpenPage] | None = None

    def settings(self) -> dict[str, Any]:
        settings = {"min_pixels": self.min_pixels, "tries": self.tries, "reflow": self.reflow}
        return {**self.model_settings(), **settings, "missing_sheets": self.missing_sheets}

    def pixels_per_record(self) -> int:
        return 2 * 1280 * 800

    def finish(self, store: Any) -> None:
        self._shown = None
        self.browser.close()

    def process(self, records: list[Record]) -> list[Record]:
        from playwright.sync_api import Error

        for record in records:
            try:
                if record.facts["edit"] == NO_CHANGE:
                    self._unchanged(record)
                else:
                    self._changed(record)
            except DataError as error:
                record.drop("an incomplete page", str(error))
            except Error as error:
                self._shown = None
                record.drop("a page that the browser cannot render", error.message)
        return records

    def open_page(self, record: Record, scroll_by: int = 0, fonts: FontSettings | None = None) -> OpenPage:
        """Open the page of a record in a window of its size.

        Args:
            record: record of :class:`~lightning_idc.synthesis.web.html_folder.HtmlFolder`.
            scroll_by: pixels by which it is scrolled further than the record says.
            fonts: settings of the font rasteriser; None for those of this machine.
        """
        facts = record.facts
        context = self.browser.window(facts["width"], facts["height"], facts["dark"], fonts)
        document = facts["html"] if "html" in facts else inside(facts["root"], facts["file"], facts["file"])
        return OpenPage(context, document, facts["scroll"], scroll_by, self.missing_sheets)

    def _view(self, record: Record) -> OpenPage:
        """Page of a record, which stays open for further records of it."""
        key = [record.facts.get(name) for name in ("html", "root", "file", "width", "height", "dark", "scroll")]
        if self._shown is None or self._shown[0] != key:
            self._leave()
            self._shown = key, self.open_page(record)
        return self._shown[1]

    def _leave(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown[1].close()

    def _unchanged(self, record: Record) -> None:
        """Take two screenshots of one page, the second with the noise of the record."""
        noise = record.facts["noise"]
        self._leave()
        page = self.open_page(record)
        before, elements = page.screenshot(), page.elements()
        page.close()
        page = self.open_page(
            record, scroll_by=int(noise == "scroll"), fonts=FontSettings("none") if noise == "hinting" else None
        )
        texts = [element for element in elements if element["has_text"]]
        if noise == "cursor" and texts:
            element = texts[int(record_generator(self.seed, record.id).integers(len(texts)))]
            page.draw_cursor(element["box"][0], element["box"][1], 18)
        after = page.screenshot()
        page.close()
        if noise == "jpeg":
            buffer = io.BytesIO()
            to_pil(after).save(buffer, "JPEG", quality=JPEG_QUALITY)
            after = read_image(buffer.getvalue())
        captions = list(NO_CHANGE_CAPTIONS)
        record.facts |= {"captions": captions, "summary": captions[0], "sentence": NOTHING, "true_boxes": []}
        record.facts["changed_pixels"] = int((before != after).any(0).sum())
        record.put("before", before)
        record.put("after", after)

    def _changed(self, record: Record) -> None:
        """Change the first suitable element that has a visible effect."""
        random, operator = record_generator(self.seed, record.id), record.facts["edit"]
        reason, value = f"no element for {operator}", ""
        page = self._view(record)
        suitable = [element for element in page.elements() if OPERATORS[operator].suits(element)]
        for _ in range(min(self.tries, len(suitable))):
            element = suitable.pop(int(random.integers(len(suitable))))
            mutation = OPERATORS[operator].mutate(element, record.facts["tier"], random)
            facts, images, reason = self._rendered(page, element, mutation)
            value = mutation.property
            if not reason:
                caption = caption_of(operator, element, mutation)
                record.facts |= facts | {"captions": [caption], "summary": caption}
                record.facts["sentence"] = sentence_of(record.facts)
                record.put("before", images[0])
                record.put("after", images[1])
                return
        record.drop(reason, value)

    def _rendered(
        self, page: OpenPage, element: Element, mutation: Mutation
    ) -> tuple[dict[str, Any], tuple[Tensor, Tensor], str]:
        """Take both screenshots, measure what a mutation moves, and give the reason to drop the pair, if any."""
        whole = page.boxes(), page.screenshot()
        relatives = page.relatives(element)
        with page.changed(element, replace(mutation, new=HIDDEN) if mutation.adds() else mutation):
            changed = page.boxes(), page.screenshot()
        (boxes, before), (after_boxes, after) = (changed, whole) if mutation.adds() else (whole, changed)
        mask = visible(before, after)
        moves = np.abs(np.array(after_boxes) - np.array(boxes)).max(1)
        moved = int(((moves > MIN_MOVED) & ~np.array(relatives)).sum())
        index = element["index"]
        box = None if mutation.adds() else boxes[index]
        after_box = None if mutation.new == HIDDEN else after_boxes[index]
        facts = {
            "property": mutation.property,
            "old": mutation.old,
            "new": mutation.new,
            "element": kind_of(element),
            "tag": element["tag"],
            "text": element["text"][:MAX_TEXT],
            "lines": element["lines"],
            "true_boxes": [[box, after_box]],
            "moved": moved,
            "reflows": moved > 0,
            "changed_pixels": int(mask.count_nonzero()),
        }
        return facts, (before, after), self._fault(facts, mask)

    def _fault(self, facts: dict[str, Any], mask: Tensor) -> str:
        """Reason to drop a pair; empty if its change is visible and starts at the element."""
        if facts["changed_pixels"] < self.min_pixels:
            return "nothing visible changed"
        if facts["reflows"] and not self.reflow:
            return "other elements moved"
        inside_boxes = torch.zeros_like(mask)
        for box in filter(None, facts["true_boxes"][0]):
            left, top, right, bottom = (round(side) for side in box)
            inside_boxes[max(0, top - MARGIN) : bottom + MARGIN, max(0, left - MARGIN) : right + MARGIN] = True
        if not facts["reflows"] and (mask & ~inside_boxes).count_nonzero() > 0.01 * facts["changed_pixels"]:
            return "changed outside of the element"
        return "" if (mask & inside_boxes).any() else "nothing changed at the element"


def visible(before: Tensor, after: Tensor) -> Tensor:
    """Pixels that differ visibly, bool ``(H, W)``."""
    return (torch.maximum(before, after) - torch.minimum(before, after)).amax(0) > MIN_LEVELS

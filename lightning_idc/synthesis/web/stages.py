"""Pipeline of web page pairs: a source of random pages with one change, and a stage that renders and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.web.browser import Chromium
from lightning_idc.synthesis.web.changes import KINDS, change_page
from lightning_idc.synthesis.web.pages import draw_page, to_html
from lightning_idc.utils.bounds import PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import fingerprint


class WebPages:
    """Source of random pages with one change each, as HTML for `RenderPages`.

    Facts: ``html`` of both sides, ``captions``, ``summary`` (the first of them), ``edit`` (the kind of change),
    ``changed`` (ids of elements) and ``values`` (the property with its old and new value).

    Args:
        count: number of pairs.
        kinds: kinds of changes, all equally likely.
        no_change: fraction of pairs without a change.
        width: width of the viewport in CSS pixels.
        seed: seed of the pages and their changes.

    Raises:
        ConfigError: a kind is unknown, or a number out of range.
    """

    def __init__(
        self,
        count: PositiveInt = 1000,
        kinds: Sequence[str] = tuple(KINDS),
        no_change: Share = 0.1,
        width: PositiveInt = 320,
        seed: int = 0,
    ) -> None:
        check_arguments(WebPages.__init__, locals())
        if not kinds or not set(kinds) <= set(KINDS):
            raise ConfigError(f"kinds is {list(kinds)}; expected some of {', '.join(KINDS)}")
        self.count, self.kinds, self.no_change = count, tuple(kinds), no_change
        self.width, self.seed = width, seed

    @property
    def fingerprint(self) -> str:
        return fingerprint(["web pages 1", self.count, list(self.kinds), self.no_change, self.width, self.seed])

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        id = f"page-{index:06}"
        random = record_generator(self.seed, id)
        kind = "no_change" if random.random() < self.no_change else str(random.choice(self.kinds))
        change = None
        while change is None:  # draw another page if this one has no suitable element
            change = change_page(draw_page(random, self.width), kind, random)
        captions = list(change.captions)
        facts = {
            "html": [to_html(change.before), to_html(change.after)],
            "captions": captions,
            "summary": captions[0],
            "edit": change.kind,
            "changed": list(change.elements),
            "values": change.values,
        }
        return Record(id, facts)


class RenderPages(PipelineStage):
    """Renders both versions of a page, and drops pairs whose images contradict the captions.

    Writes the images ``before`` and ``after``, and the facts ``true_boxes`` (a box in pixels or None for each version)
    and ``changed_pixels``. Drops pairs of changed pages with equal images, of equal pages with different images, and
    with all changed elements outside of the viewport.

    Args:
        browser: browser that renders the pages.
        seed: see `PipelineStage`.
    """

    def __init__(self, browser: Chromium | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.browser = browser or Chromium()

    def settings(self) -> dict[str, Any]:
        return self.model_settings()

    def pixels_per_record(self) -> int:
        return 2 * self.browser.width * self.browser.height

    def finish(self, store: Any) -> None:
        self.browser.close()

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            (before, before_boxes), (after, after_boxes) = self.browser.render(record.facts["html"])
            different = int((before != after).any(0).sum())
            record.facts["changed_pixels"] = different
            record.facts["size"] = list(before.shape[1:])
            record.facts["true_boxes"] = [
                [self._visible(boxes.get(id)) for boxes in (before_boxes, after_boxes)]
                for id in record.facts["changed"]
            ]
            record.put("before", before)
            record.put("after", after)
            if bool(different) != (record.facts["edit"] != "no_change"):
                record.drop("nothing visible changed" if not different else "equal pages differ", different)
            elif different and not any(box for both in record.facts["true_boxes"] for box in both):
                record.drop("outside of the view")
        return records

    def _visible(self, box: Sequence[float] | None) -> list[float] | None:
        if box is None:
            return None
        limits = torch.tensor([self.browser.width, self.browser.height] * 2, dtype=torch.float64)
        x1, y1, x2, y2 = torch.tensor(box, dtype=torch.float64).clamp(min=0).minimum(limits).tolist()
        return [x1, y1, x2, y2] if x2 > x1 and y2 > y1 else None

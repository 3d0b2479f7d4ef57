"""WebPairs: released pairs of web pages with the exact facts of their changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from lightning_idc.data.benchmarks.folder import FolderPairs, TableSource
from lightning_idc.data.tables.record_table import RecordTable
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.change_facts import ChangeFacts
from lightning_idc.metrics.content import AnnotationFile
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError

PAIRS = "pairs.jsonl"
"""Table of a release, see `ReleasePairs`."""


class WebPairs(FolderPairs):
    """Pairs of screenshots that `ChangeHtml` made and `ReleasePairs` wrote, with operator, tier and box of each change.

    ``meta["change"]`` holds the facts for the protocol ``diffspot``, ``boxes`` the box of the changed element before
    and after. Images keep their size; batches hold pairs of similar size.

    Features: screenshots; exact facts of one change; one sentence per pair.
    Format: images and pairs.jsonl of `ReleasePairs`.
    Splits: those of the release.
    Licence: that of the pages.

    Args:
        root: folder of the release.
        measure_once: whether pairs for training and validation are measured at their first use and come without their
            images afterwards, which makes an epoch of `WebCaptioner` 500 times as fast; for no other captioner, and
            with ``num_workers=0``.
        options: arguments of :class:`~lightning_idc.data.benchmarks.folder.FolderPairs`, except ``image_size``.

    Example:
        >>> pair = WebPairs("release").dataset("test")[0]
        >>> pair.meta["change"]["operator"], tuple(pair.boxes.shape)
        ('color', (1, 2, 4))
    """

    domain = "screenshots of web pages"
    protocol = "diffspot"

    def __init__(self, root: str = "release", measure_once: bool = False, **options: Any) -> None:
        check_arguments(WebPairs.__init__, locals())
        for name in ("transform", "corruption", "num_workers"):
            if measure_once and options.get(name):
                raise ConfigError(f"{name} is {options[name]!r}; measure_once needs the images as they are, once")
        if options.get("image_size") is not None:
            raise ConfigError(f"image_size is {options['image_size']}; WebPairs keeps the size of screenshots")
        super().__init__(root, **options)
        self.measure_once = measure_once
        self._changes: dict[str, dict[str, Any]] | None = None

    def source(self, split: Any) -> TableSource:
        source = super().source(split)
        assert isinstance(source, TableSource)
        pages = _MeasuredPages if self.measure_once and split in ("train", "val") else _ChangedPages
        return pages(source, self._facts())

    def _facts(self) -> dict[str, dict[str, Any]]:
        """Facts of all changed pairs by id."""
        if self._changes is None:
            changes = {}
            for where, record in AnnotationFile(self.root / PAIRS).records():
                if record.get("change") is not None:
                    ChangeFacts.read(record["change"], where)
                    changes[str(record["id"])] = dict(record["change"])
            self._changes = changes
        return self._changes


class _ChangedPages(TableSource):
    """A table of pairs with the facts of their changes."""

    records: RecordTable

    def __init__(self, source: TableSource, changes: dict[str, dict[str, Any]]) -> None:
        super().__init__(source.records, source.size, source.interpolation, source.options)
        self.changes = changes

    def meta(self, index: int) -> dict[str, Any]:
        change = self.changes.get(self.ids[index])
        return {} if change is None else {"change": change}

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.meta = {**sample.meta, **self.meta(index)}
        boxes = sample.meta.get("change", {}).get("boxes") or []
        if boxes:
            missing = [float("nan")] * 4
            sample.boxes = torch.tensor([[boxes[0], boxes[1] if len(boxes) > 1 else missing]], dtype=torch.float32)
        return sample


class _MeasuredPages(_ChangedPages):
    """Pairs that are measured once, and come without their images: an image of one pixel in their place."""

    def __init__(self, source: TableSource, changes: dict[str, dict[str, Any]]) -> None:
        super().__init__(source, changes)
        self._measured: dict[int, PairSample] = {}

    def load(self, index: int) -> PairSample:
        from lightning_idc.models.web.measured import MEASURED, measure_pair

        if index not in self._measured:
            sample = super().load(index)
            meta = {**sample.meta, MEASURED: measure_pair(sample.before.numpy(), sample.after.numpy())}
            pixel = torch.zeros(len(sample.before), 1, 1, dtype=torch.uint8)
            self._measured[index] = replace(sample, before=pixel, after=pixel, meta=meta)
        sample = self._measured[index]
        return replace(sample, meta=dict(sample.meta))

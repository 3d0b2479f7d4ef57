"""WebPairs: released pairs of web pages with the exact facts of their changes."""

from __future__ import annotations

from typing import Any

import torch

from lightning_idc.data.benchmarks.folder import FolderPairs, TableSource
from lightning_idc.data.tables.record_table import RecordTable
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.change_facts import ChangeFacts
from lightning_idc.metrics.content import AnnotationFile
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
        options: arguments of :class:`~lightning_idc.data.benchmarks.folder.FolderPairs`, except ``image_size``.

    Example:
        >>> pair = WebPairs("release").dataset("test")[0]
        >>> pair.meta["change"]["operator"], tuple(pair.boxes.shape)
        ('color', (1, 2, 4))
    """

    domain = "screenshots of web pages"
    protocol = "diffspot"

    def __init__(self, root: str = "release", **options: Any) -> None:
        if options.get("image_size") is not None:
            raise ConfigError(f"image_size is {options['image_size']}; WebPairs keeps the size of screenshots")
        super().__init__(root, **options)
        self._changes: dict[str, dict[str, Any]] | None = None

    def source(self, split: Any) -> TableSource:
        source = super().source(split)
        assert isinstance(source, TableSource)
        return _ChangedPages(source, self._facts())

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

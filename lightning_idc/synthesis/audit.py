"""Audit: the last stage of a pipeline, which writes a page of kept and dropped records with reasons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.report.audit import AuditArea, AuditEntry, write_audit
from lightning_idc.synthesis.progress import format_rate
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import DataError, StoreError
from lightning_idc.utils.outputs import save
from lightning_idc.utils.text import plain

_AREA_SCORES = ("confidence", "similarity", "caption_similarity")
_AREA_BOTH = ("match", "caption_match")


class Audit(PipelineStage):
    """Writes an audit page of its records and returns them unchanged.

    Args:
        page: HTML file.
        title: heading of the page.
        images: names of the images on the page; a record without them is represented by its ``image``.
        texts: names of the facts on the page.
        max_pairs: number of pairs on the page, balanced over the reasons; the counts always include all pairs.
        seed: see `PipelineStage`.
    """

    def __init__(
        self,
        page: str,
        title: str = "Audit",
        images: Sequence[str] = ("before", "after"),
        texts: Sequence[str] = ("captions", "caption", "description"),
        max_pairs: PositiveInt = 600,
        seed: int = 0,
    ) -> None:
        check_arguments(Audit.__init__, locals())
        super().__init__(seed)
        self.page, self.title, self.max_pairs = Path(page), title, max_pairs
        self.images, self.texts = tuple(images), tuple(texts)

    def process(self, records: list[Record]) -> list[Record]:
        return records

    def finish(self, store: RecordStore) -> None:
        remaining, reasons = store.counts()
        counts = {"kept": remaining, **reasons}
        displayed = min(self.max_pairs, len(store))
        subtitle = f"{len(store):,} pairs" + (f", {displayed:,} of them shown" if displayed < len(store) else "")
        details = {"records": str(store.folder), "fingerprint": store.fingerprint[:16], **_times(store)}

        areas = Counter(
            "kept" if area["dropped"] is None else area["dropped"]["reason"]
            for record in store
            for area in record.facts.get("areas") or []
        )

        def write(path: Path) -> None:
            write_audit(path, self.title, self._entries(store, counts), counts, areas, subtitle, details)

        if save(self.page, write):
            print(f"audit of kept and dropped records: {self.page}", flush=True)

    def _entries(self, store: RecordStore, counts: dict[str, int]) -> Iterator[AuditEntry]:
        quota = _balanced_counts(counts, self.max_pairs)
        for record in store:
            reason = "kept" if record.dropped is None else record.dropped["reason"]
            if quota[reason] > 0:
                quota[reason] -= 1
                yield self._entry(record)

    def _displayed(self, record: Record) -> list[str]:
        displayed = [name for name in self.images if _has(record, name)]
        return displayed or ["image"] * _has(record, "image")

    def _images(self, record: Record) -> list[Tensor]:
        try:
            return [record.image(name) for name in self._displayed(record)]
        except StoreError:
            raise  # the store is damaged, not an image
        except DataError:
            return []

    def _entry(self, record: Record) -> AuditEntry:
        images = self._images(record)
        height, width = record.facts.get("size") or (images[0].shape[1:] if images else (1, 1))
        entry = AuditEntry(record.id, images, kind=record.facts.get("edit"))
        entry.texts = [line for name in self.texts for line in _lines(record.facts.get(name))]
        entry.scores = {name: value for step in record.history for name, value in step.get("scores", {}).items()}
        entry.history = [_history_line(step) for step in record.history]
        if record.dropped is not None:
            entry.reason, entry.details = record.dropped["reason"], _details(record.dropped)
        for area in record.facts.get("areas") or []:
            x1, y1, x2, y2 = area["box"]
            scores = {name: area[name] for name in _AREA_SCORES if area.get(name) is not None}
            for name in _AREA_BOTH:
                sides = zip(("before", "after"), area.get(name) or (), strict=False)
                scores.update({f"{name} {side}": value for side, value in sides if value is not None})
            dropped = area["dropped"]
            entry.areas.append(
                AuditArea(
                    (x1 / width, y1 / height, x2 / width, y2 / height),
                    [*area.get("captions", []), *([area["difference"]] if "difference" in area else [])],
                    scores,
                    None if dropped is None else dropped["reason"],
                    "" if dropped is None else _details(dropped),
                )
            )
        return entry


def _times(store: RecordStore) -> dict[str, str]:
    """Format the processing time and rate of each stage, last stage first."""
    times: dict[str, str] = {}
    step: RecordStore | None = store
    while step is not None:
        times[f"{step.stage} ({step.folder.parent.name})"] = format_rate(step.folder)
        step = step.parent
    return times


def _balanced_counts(counts: dict[str, int], max_pairs: int) -> dict[str, int]:
    """Distribute the pairs on the page over the reasons as equally as possible."""
    quota, remaining = dict.fromkeys(counts, 0), max_pairs
    for position, name in enumerate(sorted(counts, key=lambda name: counts[name])):
        quota[name] = min(counts[name], remaining // (len(counts) - position))
        remaining -= quota[name]
    return quota


def _has(record: Record, name: str) -> bool:
    return name in record.images or (record.inherit is not None and record.inherit(name) is not None)


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    return [plain(str(item)) for item in value] if isinstance(value, list) else [plain(str(value))]


def _details(dropped: dict[str, Any]) -> str:
    value = dropped["value"]
    parts = [] if value in (None, "") else [f"found {value}"]
    parts += [f"expected {dropped['limit']}"] if dropped["limit"] else []
    return plain(", ".join(parts))


def _history_line(step: dict[str, Any]) -> str:
    settings = {name: value for name, value in step.items() if name not in ("stage", "scores")}
    return plain(f"{step['stage']}: {json.dumps(settings, ensure_ascii=False)}")

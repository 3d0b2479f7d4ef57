"""Audit: the last stage of a pipeline, which shows a person what was kept and what was dropped, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.report.audit import AuditArea, AuditEntry, write_audit
from lightning_idc.synthesis.progress import rate
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
    """Writes the audit page of the records that it reads, and passes them on.

    Args:
        page: the HTML file.
        title: heading.
        images: names of the pictures to show; where a record has none of them, its ``image`` is shown.
        texts: facts to show as text.
        max_pairs: pairs on the page: equally many of each reason, as far as there are; the counts are of all.
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
        shown = min(self.max_pairs, len(store))
        subtitle = f"{len(store):,} pairs" + (f", {shown:,} of them shown" if shown < len(store) else "")
        about = {"records": str(store.folder), "fingerprint": store.fingerprint[:16], **_times(store)}

        areas = Counter(
            "kept" if area["dropped"] is None else area["dropped"]["reason"]
            for record in store
            for area in record.facts.get("areas") or []
        )

        def write(path: Path) -> None:
            write_audit(path, self.title, self._entries(store, counts), counts, areas, subtitle, about)

        if save(self.page, write):
            print(f"what was kept and dropped, and why: {self.page}", flush=True)

    def _entries(self, store: RecordStore, counts: dict[str, int]) -> Iterator[AuditEntry]:
        room = _fair_shares(counts, self.max_pairs)
        for record in store:
            reason = "kept" if record.dropped is None else record.dropped["reason"]
            if room[reason] > 0:
                room[reason] -= 1
                yield self._entry(record)

    def _shown(self, record: Record) -> list[str]:
        shown = [name for name in self.images if _has(record, name)]
        return shown or ["image"] * _has(record, "image")

    def _pictures(self, record: Record) -> list[Tensor]:
        try:
            return [record.image(name) for name in self._shown(record)]
        except StoreError:
            raise  # no picture is the cause
        except DataError:
            return []

    def _entry(self, record: Record) -> AuditEntry:
        images = self._pictures(record)
        height, width = record.facts.get("size") or (images[0].shape[1:] if images else (1, 1))
        entry = AuditEntry(record.id, images, kind=record.facts.get("edit"))
        entry.texts = [line for name in self.texts for line in _lines(record.facts.get(name))]
        entry.scores = {name: value for step in record.history for name, value in step.get("scores", {}).items()}
        entry.history = [_told(step) for step in record.history]
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
    """Work and rate of each stage, the last one first."""
    times: dict[str, str] = {}
    step: RecordStore | None = store
    while step is not None:
        times[f"{step.stage} ({step.folder.parent.name})"] = rate(step.folder)
        step = step.parent
    return times


def _fair_shares(counts: dict[str, int], max_pairs: int) -> dict[str, int]:
    """How many of each reason are shown: as equal as can be."""
    room, left = dict.fromkeys(counts, 0), max_pairs
    for position, name in enumerate(sorted(counts, key=lambda name: counts[name])):
        room[name] = min(counts[name], left // (len(counts) - position))
        left -= room[name]
    return room


def _has(record: Record, name: str) -> bool:
    return name in record.images or (record.inherit is not None and record.inherit(name) is not None)


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    return [plain(str(item)) for item in value] if isinstance(value, list) else [plain(str(value))]


def _details(dropped: dict[str, Any]) -> str:
    value = dropped["value"]
    parts = [] if value in (None, "") else [f"found {value}"]
    parts += [f"asked {dropped['limit']}"] if dropped["limit"] else []
    return plain(", ".join(parts))


def _told(step: dict[str, Any]) -> str:
    settings = {name: value for name, value in step.items() if name not in ("stage", "scores")}
    return plain(f"{step['stage']}: {json.dumps(settings, ensure_ascii=False)}")

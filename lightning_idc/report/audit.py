"""write_audit: a page with the kept and dropped pairs of a pipeline, their boxes, captions, scores and reasons.

The page is for tuning thresholds: it plots the distribution of a score over kept and dropped pairs, and a slider shows
how many would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.report.pages import data_uri, write_page
from lightning_idc.report.table import Table
from lightning_idc.utils.text import plain


@dataclass
class AuditArea:
    """One region of an audited pair.

    Args:
        box: x1 y1 x2 y2 as fractions of width and height.
        texts: captions of the region, in order.
        scores: scores by name.
        reason: reason why it was dropped; None if it is kept.
        details: measured and required values.
    """

    box: Sequence[float]
    texts: list[str] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None
    details: str = ""


@dataclass
class AuditEntry:
    """One pair of an audit.

    Args:
        id: id of the pair.
        images: images shown in a row, uint8 ``(3, H, W)``; may be empty.
        texts: texts about the pair.
        scores: scores by name.
        reason: reason why it was dropped; None if it is kept.
        details: measured and required values.
        areas: regions of the pair.
        kind: label, such as the kind of the edit.
        history: pipeline stages that processed the pair, one line each.
    """

    id: str
    images: Sequence[Tensor] = ()
    texts: list[str] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None
    details: str = ""
    areas: list[AuditArea] = field(default_factory=list)
    kind: str | None = None
    history: list[str] = field(default_factory=list)


def write_audit(
    target: Path,
    title: str,
    entries: Iterable[AuditEntry],
    counts: Mapping[str, int],
    areas: Mapping[str, int],
    subtitle: str = "",
    about: Mapping[str, str] | None = None,
    thumbnail: int = 224,
) -> None:
    """Write an audit page, one entry after another.

    Args:
        target: output file, overwritten.
        title: heading.
        entries: pairs in their order on the page.
        counts: number of pairs by reason, including "kept" and pairs that are not on the page.
        areas: number of regions by reason.
        subtitle: text below the heading.
        about: settings of the pipeline.
        thumbnail: maximum height and width of the images in pixels.
    """
    tables = [_table("pairs", counts), *([_table("areas", areas)] if areas else [])]
    write_page(
        target,
        "audit.html",
        title,
        subtitle,
        styles=("audit.css",),
        scripts=("common.js", "audit.js"),
        pairs=(_payload(entry, thumbnail) for entry in entries),
        rest=lambda: {"areas": dict(areas)},
        tables=tables,
        about=about or {},
    )


def _payload(entry: AuditEntry, thumbnail: int) -> dict[str, Any]:
    return {
        "id": entry.id,
        "images": [data_uri(image, thumbnail) for image in entry.images],
        "size": [entry.images[0].shape[2], entry.images[0].shape[1]] if entry.images else None,
        "texts": [plain(text) for text in entry.texts],
        "scores": {name: round(float(value), 4) for name, value in entry.scores.items()},
        "reason": entry.reason,
        "details": entry.details,
        "kind": entry.kind,
        "history": entry.history,
        "areas": [
            {
                "box": [round(float(value), 4) for value in area.box],
                "texts": [plain(text) for text in area.texts],
                "scores": {name: round(float(value), 4) for name, value in area.scores.items()},
                "reason": area.reason,
                "details": area.details,
            }
            for area in entry.areas
        ],
    }


def _table(unit: str, counts: Mapping[str, int]) -> Table:
    total = max(sum(counts.values()), 1)
    ranked = sorted(counts.items(), key=lambda item: (item[0] != "kept", -item[1]))
    rows = [[plain(name), str(count), f"{100 * count / total:.1f} %"] for name, count in ranked]
    return Table(["reason", unit, "share"], rows, strong={n for n, (name, _) in enumerate(ranked) if name == "kept"})

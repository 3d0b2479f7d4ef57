"""The audit page: the pairs that a pipeline kept or dropped, with boxes, captions, scores and reasons, in one file.

A person tunes thresholds with it: a score is chosen, its distribution over kept and dropped is drawn, and a slider
tells how many would pass.
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
        box: x1 y1 x2 y2 in shares of width and height.
        texts: what was said of it, in order.
        scores: by name.
        reason: why it was left out; None while it is kept.
        details: what was found and what was asked for.
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
        id: of the pair.
        images: pictures side by side, uint8 ``(3, H, W)``; may be empty.
        texts: what belongs to the pair as a whole.
        scores: by name.
        reason: why it was dropped; None while it is kept.
        details: what was found and what was asked for.
        areas: its regions.
        kind: label, such as the edit that made it.
        history: what made it, one line per stage.
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
        target: the file, overwritten.
        title: heading.
        entries: drawn in this order.
        counts: of all pairs by reason, "kept" among them, also of those that are not drawn.
        areas: the same of all regions.
        subtitle: below the heading.
        about: how it was made.
        thumbnail: greatest height and width of the pictures, pixels.
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


def _table(what: str, counts: Mapping[str, int]) -> Table:
    total = max(sum(counts.values()), 1)
    ranked = sorted(counts.items(), key=lambda item: (item[0] != "kept", -item[1]))
    rows = [[plain(name), str(count), f"{100 * count / total:.1f} %"] for name, count in ranked]
    return Table(["reason", what, "share"], rows, strong={n for n, (name, _) in enumerate(ranked) if name == "kept"})

"""The report: one HTML file with every pair, what was said of it, and the scores. Needs no network and no server."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from torch import Tensor

from lightning_idc.core.text import plain
from lightning_idc.metrics.confusion import Confusion
from lightning_idc.report.table import Summary, remarks

METRICS = ("CIDEr-D", "METEOR", "ROUGE-L")
"""What is shown for each pair, the first in bold: sentence BLEU says little."""
FEWEST_PIXELS = 96
"""Smaller images are kept as they are, without loss."""


@dataclass
class Entry:
    """One pair of a report.

    Args:
        id: of the pair.
        caption: what was said.
        references: what might have been said.
        change_type: label, None where unknown.
        log_prob: mean log-probability of a token.
        scores: by metric, times 100.
        facts: what the caption gets right; None where a fact does not apply.
        images: before and after, uint8 ``(3, H, W)``; None for text alone.
        boxes: changed regions in pixels, ``(N, 2, 4)`` as in `PairSample`.
    """

    id: str
    caption: str
    references: list[str]
    change_type: str | None = None
    log_prob: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, bool | None] = field(default_factory=dict)
    images: tuple[Tensor, Tensor] | None = None
    boxes: Tensor | None = None


def write_report(
    target: Path,
    title: str,
    entries: Iterable[Entry],
    summary: Summary | None = None,
    about: Mapping[str, str] | None = None,
    confusion: Confusion | None = None,
    subtitle: str = "",
    thumbnail: int = 192,
) -> None:
    """Write a report, one entry after another, so that no more than one pair of images is in memory.

    Args:
        target: the file, overwritten.
        title: heading.
        entries: drawn in this order.
        summary: table of scores.
        about: how it was made: captioner, data, decoding, versions.
        confusion: change against no change.
        subtitle: below the heading.
        thumbnail: greatest height and width of the pictures, pixels.
    """
    metrics: dict[str, None] = {}
    facts: dict[str, None] = {}

    def payloads() -> Iterator[dict[str, Any]]:
        for entry in entries:
            metrics.update(dict.fromkeys(name for name in METRICS if name in entry.scores))
            facts.update(dict.fromkeys(entry.facts))
            yield _payload(entry, thumbnail)

    def rest() -> dict[str, Any]:
        return {"metrics": [name for name in METRICS if name in metrics], "facts": list(facts)}

    page = Page("page.html", ("page.css",), ("page.common.js", "page.js"), title, subtitle, about or {})
    page.write(target, {"tables": _tables(summary, confusion)}, payloads(), rest)


@dataclass(frozen=True)
class Page:
    """An HTML file of pairs that needs no other file.

    Args:
        template: of the page, beside this module, as are the others.
        styles: one after another.
        scripts: one after another.
        title: heading.
        subtitle: below the heading.
        about: how it was made.
    """

    template: str
    styles: Sequence[str]
    scripts: Sequence[str]
    title: str
    subtitle: str
    about: Mapping[str, str]

    def write(
        self,
        target: Path,
        parts: Mapping[str, str],
        pairs: Iterable[dict[str, Any]],
        rest: Callable[[], dict[str, Any]],
    ) -> None:
        """Write the page, one pair after another.

        Args:
            target: the file, overwritten.
            parts: HTML by its place in the template.
            pairs: plain values of each.
            rest: gives further plain values, asked for when all pairs are written.
        """
        style, script = "".join(map(_part, self.styles)), "".join(map(_part, self.scripts))
        about = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in self.about.items())
        page = Template(_part(self.template)).substitute(
            title=escape(plain(self.title)),
            subtitle=escape(plain(self.subtitle)),
            style=style,
            script=script,
            # only these two may run or style, so that nothing in a caption can
            style_hash=_digest(style),
            script_hash=_digest(script),
            about="".join(about),
            **parts,
        )
        head, tail = page.split("<!--pairs-->")
        with target.open("w", encoding="utf-8", errors="replace") as file:
            file.write(head + '{"pairs":[')
            for number, pair in enumerate(pairs):
                file.write(",\n" * (number > 0) + _json(pair))
            file.write("]" + "".join(f',\n"{name}":{_json(value)}' for name, value in rest().items()) + "}" + tail)


def _payload(entry: Entry, thumbnail: int) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "id": entry.id,
        "type": entry.change_type,
        "caption": entry.caption,
        "references": list(entry.references),
        "log_prob": _number(entry.log_prob),
        "scores": {name: _number(entry.scores[name]) for name in METRICS if name in entry.scores},
        "facts": dict(entry.facts),
        "boxes": [[], []],
    }
    if entry.images is not None:
        height, width = entry.images[0].shape[1:]
        payload["size"] = [width, height]
        payload["images"] = [data_uri(image, thumbnail) for image in entry.images]
        if entry.boxes is not None:
            scale = (width, height, width, height)
            payload["boxes"] = [
                [
                    [round(value / full, 4) for value, full in zip(box, scale, strict=True)]
                    for box in entry.boxes[:, side].tolist()
                    if all(map(math.isfinite, box))
                ]
                for side in (0, 1)
            ]
    return payload


def data_uri(image: Tensor, most: int) -> str:
    """A picture of at most ``most`` pixels each way, inside its own address.

    Args:
        image: uint8 ``(3, H, W)``.
        most: pixels.
    """
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    stream = io.BytesIO()
    if max(picture.size) <= FEWEST_PIXELS:
        picture.save(stream, "PNG")
        kind = "png"
    else:
        picture.thumbnail((most, most), Image.Resampling.BICUBIC)
        picture.save(stream, "JPEG", quality=82, subsampling=0)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def _tables(summary: Summary | None, confusion: Confusion | None) -> str:
    parts = []
    if summary is not None:
        columns = summary.columns
        heads = "".join(f"<th scope=col>{escape(column)}</th>" for column in columns)
        rows = []
        for group, row in summary.rows.items():
            cells = []
            for column in columns:
                judged = summary.judged.get(group, {}).get(column)
                hint = f' title="{judged} pairs"' if judged is not None else ""
                cells.append(f"<td{hint}>{row[column]:.1f}</td>" if column in row else "<td></td>")
            whole = " class=whole" if group == "all" else ""
            rows.append(
                f"<tr{whole}><th scope=row>{escape(group)}</th><td>{summary.counts[group]}</td>{''.join(cells)}</tr>"
            )
        notes = "".join(f"<p class=quiet>{escape(remark)}</p>" for remark in remarks(summary))
        parts.append(
            f"<div class=scroll><table><caption>scores x100, {summary.references} references</caption><thead><tr>"
            f"<th scope=col>change</th><th scope=col>pairs</th>{heads}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>{notes}</div>"
        )
    if confusion is not None:
        counts = (
            ("unchanged", confusion.same_same, confusion.same_changed),
            ("changed", confusion.changed_same, confusion.changed_changed),
        )
        rows = [f"<tr><th scope=row>{name}</th><td>{same}</td><td>{other}</td></tr>" for name, same, other in counts]
        parts.append(
            "<div class=scroll><table><caption>change against no change</caption><thead><tr><th scope=col>truth</th>"
            '<th scope=col>said "no change"</th><th scope=col>said a change</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )
    return "\n".join(parts)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: no sign in it can end that element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    """Hash of a style or script, as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _part(name: str) -> str:
    """A file of this folder."""
    return resources.files("lightning_idc.report").joinpath(name).read_text(encoding="utf-8")

"""The report: one HTML file with every pair, what was said of it, and the scores. Needs no network and no server."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from lightning_idc.metrics.confusion import Confusion
from lightning_idc.report.baselines import BaselineCheck
from lightning_idc.report.pages import FEWEST_PIXELS, as_picture, data_uri, number, write_page
from lightning_idc.report.summary import Summary, as_table
from lightning_idc.report.table import Table
from lightning_idc.utils.outputs import Output

METRICS = ("CIDEr-D", "METEOR", "ROUGE-L")
"""What is shown for each pair, the first in bold: sentence BLEU says little."""
MOST_PAIRS = 5000
"""Greatest number of pairs on a page; a browser opens so many within seconds."""


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
        boxes: changed regions in pixels, ``(N, 2, 4)`` as in `PairSample`: ground truth, or what the captioner found.
        change_score: probability that the pair differs; None where unknown.
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
    change_score: float | None = None


def pictures_of(target: Path) -> Path:
    """Folder of the pictures in full size of a report."""
    return target.with_name(f"{target.stem}_pictures")


def check_report(target: Path, overwrite: bool = False, inputs: Iterable[str | Path] = (), option: str = "") -> None:
    """Refuse a report that :func:`write_report` would refuse, before the work whose result it is to show.

    Args:
        target: the file.
        overwrite: whether files of others may be replaced.
        inputs: files and folders that are read.
        option: that names the report, for the message.

    Raises:
        ConfigError: a file of the report would take the place of another one, or of an input.
    """
    _output(target.expanduser(), overwrite, inputs, option).check(target.name)


def write_report(
    target: Path,
    title: str,
    entries: Iterable[Entry],
    summary: Summary | None = None,
    about: Mapping[str, str] | None = None,
    confusion: Confusion | None = None,
    subtitle: str = "",
    thumbnail: int = 192,
    full_size: bool = False,
    found_boxes: bool = False,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
    baselines: BaselineCheck | None = None,
) -> None:
    """Write a report, one entry after another, so that no more than one pair of images is in memory.

    Args:
        target: the file.
        title: heading.
        entries: drawn in this order, up to `MOST_PAIRS` of them.
        summary: table of scores.
        about: how it was made: captioner, data, decoding, versions.
        confusion: change against no change.
        subtitle: below the heading.
        thumbnail: greatest height and width of the pictures on the page, pixels.
        full_size: write pictures that are greater into the folder of :func:`pictures_of`, too.
        found_boxes: boxes are those that the captioner found, and no ground truth.
        overwrite: whether files of others may be replaced.
        inputs: files and folders that are read.
        baselines: check of the scores, whose warning stands above the tables.

    Raises:
        ConfigError: a file of the report would take the place of another one, or of an input.
    """
    target = target.expanduser()
    tables = [
        *([] if summary is None else [as_table(summary)]),
        *([] if baselines is None else [baselines.table()]),
        *([] if confusion is None else [_confusion_table(confusion)]),
    ]
    output = _output(target, overwrite, inputs)
    with output as draft:
        writer = _Writer(thumbnail, draft / output.own[0] if full_size else None, "found" if found_boxes else "truth")
        write_page(
            draft / target.name,
            "report.html",
            title,
            subtitle,
            scripts=("common.js", "report.js"),
            pairs=map(writer.payload, itertools.islice(entries, MOST_PAIRS)),
            rest=writer.rest,
            tables=tables,
            about=about or {},
            warning="" if baselines is None else baselines.warning,
            found_boxes=found_boxes,
        )


def _output(target: Path, overwrite: bool, inputs: Iterable[str | Path], option: str = "") -> Output:
    return Output(target.parent, target.name, overwrite, inputs, [pictures_of(target).name], option)


@dataclass
class _Writer:
    """Makes plain values of entries, and keeps which metrics and facts there were.

    Args:
        thumbnail: greatest height and width of the pictures on the page, pixels.
        pictures: folder for those in full size.
        box: what stands at a box.
    """

    thumbnail: int
    pictures: Path | None
    box: str
    count: int = 0
    metrics: dict[str, None] = field(default_factory=dict)
    facts: dict[str, None] = field(default_factory=dict)

    def rest(self) -> dict[str, Any]:
        """What the scripts have to know besides the pairs."""
        return {
            "metrics": [name for name in METRICS if name in self.metrics],
            "facts": list(self.facts),
            "box": self.box,
            "most": MOST_PAIRS,
        }

    def payload(self, entry: Entry) -> dict[str, Any]:
        """Plain values of an entry."""
        self.count += 1
        self.metrics.update(dict.fromkeys(name for name in METRICS if name in entry.scores))
        self.facts.update(dict.fromkeys(entry.facts))
        payload: dict[str, Any] = {
            "id": entry.id,
            "type": entry.change_type,
            "caption": entry.caption,
            "references": list(entry.references),
            "log_prob": number(entry.log_prob),
            "change_score": number(entry.change_score),
            "scores": {name: number(entry.scores[name]) for name in METRICS if name in entry.scores},
            "facts": dict(entry.facts),
            "boxes": [[], []],
        }
        if entry.images is not None:
            height, width = entry.images[0].shape[1:]
            payload["size"] = [width, height]
            payload["images"] = [data_uri(image, self.thumbnail) for image in entry.images]
            if self.pictures is not None and max(width, height) > max(self.thumbnail, FEWEST_PIXELS):
                payload["files"] = self._full_size(self.pictures, entry.images)
            if entry.boxes is not None:
                payload["boxes"] = [_shares(entry.boxes[:, side], width, height) for side in (0, 1)]
        return payload

    def _full_size(self, folder: Path, images: tuple[Tensor, Tensor]) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        # ids are not names of files
        names = [f"{self.count:06d}_{side}.jpg" for side in ("before", "after")]
        for image, name in zip(images, names, strict=True):
            as_picture(image).save(folder / name, quality=92, subsampling=0)
        return [f"{quote(folder.name)}/{name}" for name in names]


def _shares(boxes: Tensor, width: int, height: int) -> list[list[float]]:
    """Boxes in shares of width and height; those that are not finite are none."""
    scale = (width, height, width, height)
    return [
        [round(value / full, 4) for value, full in zip(box, scale, strict=True)]
        for box in boxes.tolist()
        if all(map(math.isfinite, box))
    ]


def _confusion_table(confusion: Confusion) -> Table:
    rows = [
        ["unchanged", str(confusion.same_same), str(confusion.same_changed)],
        ["changed", str(confusion.changed_same), str(confusion.changed_changed)],
    ]
    return Table(["truth", 'said "no change"', "said a change"], rows, "change against no change")

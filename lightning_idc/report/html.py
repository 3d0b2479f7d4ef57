"""write_report: one HTML file with all pairs, their captions and scores, which needs no network and no server."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from lightning_idc.images.display import to_pil
from lightning_idc.metrics.confusion import Confusion
from lightning_idc.report.baselines import BaselineCheck
from lightning_idc.report.pages import LOSSLESS_PIXELS, data_uri, number, write_page
from lightning_idc.report.summary import Summary, as_table
from lightning_idc.report.table import Table
from lightning_idc.utils.outputs import Output, file_output

METRICS = ("CIDEr-D", "METEOR", "ROUGE-L")
"""Metrics of each pair, the first in bold; without BLEU, which means little for single sentences."""
TALL = 1.5
"""Height of an image relative to its width above which the page shows a part of it: a page of 1,280 x 6,000 pixels."""
MAX_PAIRS = 5000
"""Maximum number of pairs on a page; a browser opens this many within seconds."""


@dataclass
class Entry:
    """One pair of a report.

    Args:
        id: id of the pair.
        caption: predicted caption.
        references: reference captions.
        change_type: type of change; None if unknown.
        log_prob: mean log-probability per token.
        scores: scores by metric, times 100.
        facts: whether each fact of the caption is right; None if a fact does not apply.
        images: images before and after, uint8 ``(3, H, W)``; None for text only.
        boxes: changed regions in pixels, ``(N, 2, 4)`` as in `PairSample`: ground truth or predictions.
        change_score: probability that the pair differs; None if unknown.
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


def image_folder(target: Path) -> Path:
    """Folder of the full-size images of a report."""
    return target.with_name(f"{target.stem}_pictures")


def check_report(target: Path, overwrite: bool = False, inputs: Iterable[str | Path] = (), option: str = "") -> None:
    """Check that :func:`write_report` can write a report, before the evaluation begins.

    Args:
        target: output file.
        overwrite: whether existing files may be replaced.
        inputs: input files and folders, which are not overwritten.
        option: command-line option of the report, for the message.

    Raises:
        ConfigError: a file of the report would replace an existing file or an input.
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
    predicted_boxes: bool = False,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
    baselines: BaselineCheck | None = None,
) -> None:
    """Write a report entry by entry, with only one pair of images in memory at a time.

    Args:
        target: output file.
        title: heading.
        entries: pairs in their order on the page, up to `MAX_PAIRS`.
        summary: table of scores.
        about: settings of the evaluation: captioner, data, decoding, versions.
        confusion: confusion of change and no change.
        subtitle: text below the heading.
        thumbnail: maximum height and width of the images on the page in pixels.
        full_size: whether to write larger images to the folder :func:`image_folder` as well.
        predicted_boxes: whether the boxes are predictions instead of ground truth.
        overwrite: whether existing files may be replaced.
        inputs: input files and folders, which are not overwritten.
        baselines: baseline check, whose warning is shown above the tables.

    Raises:
        ConfigError: a file of the report would replace an existing file or an input.
    """
    target = target.expanduser()
    tables = [
        *([] if summary is None else [as_table(summary)]),
        *([] if baselines is None else [baselines.table()]),
        *([] if confusion is None else [_confusion_table(confusion)]),
    ]
    output = _output(target, overwrite, inputs)
    with output as draft:
        writer = _Writer(
            thumbnail=thumbnail,
            folder=draft / output.reserved[0] if full_size else None,
            box_label="predicted" if predicted_boxes else "ground truth",
        )
        write_page(
            draft / target.name,
            "report.html",
            title,
            subtitle,
            scripts=("common.js", "report.js"),
            pairs=map(writer.payload, itertools.islice(entries, MAX_PAIRS)),
            rest=writer.rest,
            tables=tables,
            about=about or {},
            warning="" if baselines is None else baselines.warning,
            predicted_boxes=predicted_boxes,
        )


def _output(target: Path, overwrite: bool, inputs: Iterable[str | Path], option: str = "") -> Output:
    reserved = [image_folder(target).name]
    return file_output(target, overwrite, inputs, reserved, option)


@dataclass
class _Writer:
    """Converts entries to plain values, and collects the names of their metrics and facts.

    Args:
        thumbnail: maximum height and width of the images on the page in pixels.
        folder: folder of full-size images; None for none.
        box_label: label of boxes.
    """

    thumbnail: int
    folder: Path | None
    box_label: str
    count: int = 0
    metrics: dict[str, None] = field(default_factory=dict)
    facts: dict[str, None] = field(default_factory=dict)

    def rest(self) -> dict[str, Any]:
        """Further values for the scripts."""
        return {
            "metrics": [name for name in METRICS if name in self.metrics],
            "facts": list(self.facts),
            "box_label": self.box_label,
            "max_pairs": MAX_PAIRS,
        }

    def payload(self, entry: Entry) -> dict[str, Any]:
        """Plain values of an entry for the page."""
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
            top, bottom = 0, height
            if self.folder is not None and max(width, height) > max(self.thumbnail, LOSSLESS_PIXELS):
                payload["files"] = self._full_size(self.folder, entry.images)
                top, bottom = _shown_rows(entry.boxes, width, height)
            if bottom - top < height:
                payload["rows"] = [top, bottom]
            payload["images"] = [data_uri(image[:, top:bottom], self.thumbnail) for image in entry.images]
            if entry.boxes is not None:
                payload["boxes"] = [_fractions(entry.boxes[:, side], width, height) for side in (0, 1)]
        return payload

    def _full_size(self, folder: Path, images: tuple[Tensor, Tensor]) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        # ids may not be valid file names
        names = [f"{self.count:06d}_{side}.jpg" for side in ("before", "after")]
        for image, name in zip(images, names, strict=True):
            to_pil(image).save(folder / name, quality=92, subsampling=0)
        return [f"{quote(folder.name)}/{name}" for name in names]


def _shown_rows(boxes: Tensor | None, width: int, height: int) -> tuple[int, int]:
    """First row that a small image shows, and the one after the last: of a tall page, a square around its first box."""
    finite = [] if boxes is None else _finite(boxes.flatten(0, 1))
    if height <= TALL * width or not finite:
        return 0, height
    _, y1, _, y2 = finite[0]
    middle = round((y1 + y2) / 2)
    top = max(0, min(middle - width // 2, height - width))
    return top, top + width


def _fractions(boxes: Tensor, width: int, height: int) -> list[list[float]]:
    """Boxes as fractions of width and height, without boxes that are not finite."""
    scale = (width, height, width, height)
    return [[round(value / full, 4) for value, full in zip(box, scale, strict=True)] for box in _finite(boxes)]


def _finite(boxes: Tensor) -> list[list[float]]:
    return [box for box in boxes.tolist() if all(map(math.isfinite, box))]


def _confusion_table(confusion: Confusion) -> Table:
    rows = [
        ["unchanged", str(confusion.same_same), str(confusion.same_changed)],
        ["changed", str(confusion.changed_same), str(confusion.changed_changed)],
    ]
    return Table(["ground truth", "no change predicted", "change predicted"], rows, "change detection by captions")

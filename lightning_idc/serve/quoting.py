"""QuotingDescriber: adds the words that changed, read from the images, to sentences about texts.

1. A sentence is quoted if it makes one claim: that a text changed, or that something was added or removed.
2. ``_changed_lines``: the first changed lines in the box of the change, or of the whole picture without a box; of what
   was added or removed, the box.
3. ``TextReader.read``: the text of this part of each image.
4. The words that differ, or those of the box, take the place of "something else" or follow the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import list_differences
from lightning_idc.metrics.page_claims import claimed_operator
from lightning_idc.models.web.candidates import is_marked, marked_length
from lightning_idc.models.web.core import changed_pixels
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.describer import Describer
from lightning_idc.utils.boxes import PixelBox
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.quotes import differing_words, excerpt

MAX_HEIGHT = 120
"""Largest height in pixels of the lines that are read."""
LINE = 8
"""Pixels above and below the changed ones that are read with them."""
GAP = 24
"""Pixels without a mark that end a line of text."""
MAX_LINE = 40
"""Largest height of one line in pixels."""
SCALE = 2
"""Magnification before reading: the text of pages is smaller than that of photographs."""
MAX_SIDE = 1600
"""Largest side of an image in which lines are looked for, in pixels."""
VAGUE = "something else"
"""Words of a sentence that the new text replaces."""


class Reader(Protocol):
    """Reads the text of an image."""

    def read(self, image: np.ndarray) -> str:
        """Text of an image, uint8 ``(3, H, W)``, line by line; empty if it has none."""


class TextReader:
    """RapidOCR with the models that its wheel has, on the CPU.

    Raises:
        ConfigError: it is not installed.
    """

    def __init__(self) -> None:
        try:
            from rapidocr import RapidOCR
        except ImportError as error:
            raise ConfigError("--ocr needs RapidOCR; install lightning_idc[ocr]") from error
        limits = {"Det.limit_type": "max", "Det.limit_side_len": MAX_SIDE}
        self._engine: Any = RapidOCR(params={"Global.log_level": "error", **limits})

    def read(self, image: np.ndarray) -> str:
        from PIL import Image

        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        large = picture.resize((SCALE * picture.width, SCALE * picture.height), Image.Resampling.BICUBIC)
        pixels = np.asarray(large)[:, :, ::-1]  # blue first
        result = self._engine(pixels, use_cls=False)
        if getattr(result, "boxes", None) is None:
            # of a single short word no line is detected
            is_line = picture.height <= MAX_LINE
            return " ".join(self._engine(pixels, use_cls=False, use_det=False).txts or ()) if is_line else ""
        return _in_reading_order(result.boxes, result.txts)


def _in_reading_order(boxes: np.ndarray, texts: Sequence[str]) -> str:
    """Texts of boxes ``(N, 4, 2)``, from the left in each line; centres within half of a height are of one line."""
    centers, heights, lefts = boxes[:, :, 1].mean(1), np.ptp(boxes[:, :, 1], axis=1), boxes[:, :, 0].min(1)
    order = np.argsort(centers)
    is_new_line = np.diff(centers[order], prepend=centers[order[:1]]) > heights[order] / 2
    lines = np.cumsum(is_new_line)
    by_line = sorted(zip(lines.tolist(), lefts[order].tolist(), order.tolist(), strict=True))
    return " ".join(texts[index] for *_, index in by_line)


class QuotingDescriber:
    """A describer whose sentences about texts quote them.

    Args:
        describer: captioner or rules.
        reader: reads text.
    """

    def __init__(self, describer: Describer, reader: Reader) -> None:
        self.describer, self.reader = describer, reader
        self.input_spec, self.scope = describer.input_spec, describer.scope
        self.takes_prompt, self.decides_change = describer.takes_prompt, describer.decides_change

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> Sequence[PairSample]:
        return self.describer.with_prompt(samples, prompt)

    def answer(self, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
        answers = self.describer.answer(samples, where)
        return [
            quoted(answer, sample.before, sample.after, self.reader)
            for answer, sample in zip(answers, samples, strict=True)
        ]

    def prediction_key(self, settings: Sequence[str]) -> str:
        return self.describer.prediction_key([*settings, "ocr"])


def quoted(answer: Answer, before: Tensor, after: Tensor, reader: Reader) -> Answer:
    """An answer with the words that changed; unchanged if no text can be read, or the sentence is not about one.

    Args:
        answer: answer about a pair.
        before: uint8 ``(3, H, W)`` at its own size.
        after: image of the same shape.
        reader: reads text.
    """
    operator = claimed_operator(answer.caption)
    is_one = answer.says_changed and len(list_differences([answer.caption])) == 1
    is_full_size = answer.size == (before.shape[2], before.shape[1]) and before.shape == after.shape
    if operator not in ("text", "add", "remove") or not is_one or not is_full_size or len(before) != 3:
        return answer
    images = [image.numpy() for image in (before, after)]
    box = answer.boxes[0] if answer.boxes else None
    if operator != "text":
        words = "" if box is None else excerpt(reader.read(_cut(images[operator == "add"], box)))
        return replace(answer, caption=f'{answer.caption}: "{words}"') if words else answer
    region = _changed_lines(images[0], images[1], box)
    if region is None:
        return answer
    old, new = map(excerpt, differing_words(*(reader.read(_cut(image, region)) for image in images)))
    if not old or not new or old == new:
        return answer
    if VAGUE in answer.caption:
        return replace(answer, caption=answer.caption.replace(VAGUE, f'"{new}" instead of "{old}"'))
    return replace(answer, caption=f'{answer.caption.rstrip(".")}: "{new}" instead of "{old}"')


def _cut(image: np.ndarray, box: Sequence[int]) -> np.ndarray:
    left, top, right, bottom = box
    return image[:, top:bottom, left:right]


def _changed_lines(before: np.ndarray, after: np.ndarray, box: Sequence[int] | None) -> PixelBox | None:
    """The first changed lines in a box, up to both ends of their text; None if no pixel changed in the box."""
    height, width = before.shape[1:]
    x1, y1, x2, y2 = box or (0, 0, width, height)
    x1, y1, x2, y2 = max(0, x1 - LINE), max(0, y1 - LINE), min(width, x2 + LINE), min(height, y2 + LINE)
    changed = changed_pixels(before[:, y1:y2, x1:x2], after[:, y1:y2, x1:x2])
    rows = np.flatnonzero(changed.any(1))
    if not len(rows):
        return None
    last = int(rows[rows < rows[0] + MAX_HEIGHT][-1])
    columns = x1 + np.flatnonzero(changed[: last + 1].any(0))
    top, bottom = max(0, y1 + int(rows[0]) - LINE), min(height, y1 + last + 1 + LINE)
    marked = np.zeros(width, bool)
    for line in (before[:, top:bottom], after[:, top:bottom]):
        marked |= is_marked(line, np.median(line[:, :, columns[0] : columns[-1] + 1], (1, 2)), 0)
    left = int(columns[0]) - marked_length(marked[: columns[0]][::-1], GAP)
    right = int(columns[-1]) + 1 + marked_length(marked[columns[-1] + 1 :], GAP)
    return max(0, left - LINE), top, min(width, right + LINE), bottom

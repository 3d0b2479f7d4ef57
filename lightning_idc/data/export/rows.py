"""Rows of an export: one pair with its images as PNG, a prompt, captions, rejected captions, facts and difficulty."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image
from torch import Tensor

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.loading import PairDataset
from lightning_idc.data.splits import Split
from lightning_idc.data.transforms.pairs import Resize
from lightning_idc.utils.errors import DataError

PROMPT = "What changed from the first image to the second?"
"""Prompt of pairs that have none of their own."""
RejectedImages = Literal["identical", "swapped"]
"""The images for which the caption is wrong: the first image twice, or both in reverse order."""
_OF_PREFERENCES = ("rejected", "margin", "question", "seed")


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One row of an export.

    Args:
        id: id of the pair.
        images: both images as PNG.
        prompt: question about the pair.
        captions: all references.
        chosen: caption to learn; None for a pair without captions.
        rejected: caption that is wrong for the pair; None without negatives.
        change_type: label of the change.
        difficulty: 1 - overlap of the views (``meta["iou"]``); None where it is not known.
        difficulty_level: level of difficulty that the data names; None without one.
        boxes: changed regions in pixels, as :class:`PairSample` has them, with None for NaN; None without any.
        facts: JSON of the pair's ``meta``, from which :class:`~lightning_idc.methods.FactsReward` reads.
    """

    id: str
    images: tuple[bytes, bytes]
    prompt: str
    captions: list[str]
    chosen: str | None
    rejected: str | None
    change_type: str | None
    difficulty: float | None
    difficulty_level: str | None
    boxes: list[list[list[float | None]]] | None
    facts: str


class ExportRows:
    """The rows of one split, made one after another.

    Args:
        data: data module, prepared.
        split: split to export.
        rejected: rejected captions of each pair, in the order of the split; None for an export without negatives.
        rows_per_pair: maximum number of rows per pair, each with another chosen caption.
        prompt: prompt of pairs without one.
    """

    def __init__(
        self,
        data: PairDataModule,
        split: Split,
        rejected: Sequence[Sequence[str]] | None = None,
        rows_per_pair: int = 1,
        prompt: str = PROMPT,
    ) -> None:
        self.source, self.rejected, self.prompt = data.pairs_of(split), rejected, prompt
        self.pairs = resized_pairs(data, split)
        # a pair without captions has one row, for evaluation, and nothing to prefer
        fewest = 1 if rejected is None else 0
        num_captions = [len(self.source.captions(index)) for index in range(len(self.source))]
        self.counts = [min(rows_per_pair, max(fewest, count)) for count in num_captions]

    def __len__(self) -> int:
        return sum(self.counts)

    def __iter__(self) -> Iterator[ExportRow]:
        """Yield all rows.

        Raises:
            DataError: an image cannot be read, or has other than one or three channels.
        """
        for index, count in enumerate(self.counts):
            if not count:
                continue
            sample = self.pairs[index]
            images = (encode_png(sample.before, sample.id), encode_png(sample.after, sample.id))
            for number in range(count):
                rejected = self.rejected[index] if self.rejected is not None else None
                yield ExportRow(
                    id=sample.id,
                    images=images,
                    prompt=sample.prompt or sample.meta.get("question") or self.prompt,
                    captions=list(sample.captions),
                    chosen=sample.captions[number] if sample.captions else None,
                    rejected=None if rejected is None else rejected[number % len(rejected)],
                    change_type=sample.change_type,
                    difficulty=None if (iou := sample.meta.get("iou")) is None else 1.0 - float(iou),
                    difficulty_level=None if (level := sample.meta.get("difficulty")) is None else str(level),
                    boxes=None if sample.boxes is None else _without_nan(sample.boxes),
                    facts=facts_of(sample.meta),
                )


def resized_pairs(data: PairDataModule, split: Split) -> PairDataset:
    """The pairs of a split at the ``image_size`` of the data module, without its transform."""
    transforms = [Resize(data.image_size, data.interpolation)] if data.image_size else []
    return PairDataset(data.pairs_of(split), transforms, seed=0, sample_captions=False)


def _without_nan(boxes: Tensor) -> list[list[list[float | None]]]:
    """Boxes ``(N, 2, 4)`` as lists with None for NaN, which JSON does not have."""
    return [[[None if value != value else value for value in box] for box in sides] for sides in boxes.tolist()]


def facts_of(meta: Mapping[str, Any]) -> str:
    """JSON of a pair's ``meta`` without its preferences and its question, which have columns of their own."""
    return json.dumps({key: value for key, value in meta.items() if key not in _OF_PREFERENCES}, ensure_ascii=False)


def encode_png(image: Tensor, id: str) -> bytes:
    """A uint8 image ``(C, H, W)`` as PNG.

    Raises:
        DataError: the image has other than one or three channels.
    """
    if len(image) not in (1, 3):
        raise DataError(f"pair {id!r} has images of {len(image)} channels; expected 1 or 3 (bands=[0,1,2])")
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    stream = io.BytesIO()
    # of the levels of compression, 1 takes a third of the time of the default for about a tenth more bytes
    Image.fromarray(pixels[..., 0] if len(image) == 1 else pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()

"""WebCaptioner: describes the change of one element between two screenshots of a web page, at their native scale.

1. ``collate``: the core of the change (:mod:`~lightning_idc.models.web.core`) and its measures
   (:mod:`~lightning_idc.models.web.measures`) of each pair, in the workers of the loader; a pair that is equal, or
   differs only by noise of the capture (:mod:`lightning_idc.rules.noise`), is marked as unchanged;
2. ``encode``: measures (B, F) -> log-probabilities of all sentences (B, 1, S) and the box of the element (B, 4);
3. ``training_loss``: cross-entropy of the sentence, and the distance of the box where the data have boxes, as a mean
   over the members of the ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.metrics.page_sentences import NOTHING, all_sentences
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.web.core import find_core
from lightning_idc.models.web.measures import NAMES, measure
from lightning_idc.models.web.net import WebNet
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.rules.noise import noise_of
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import DataError

OFFSET_SCALE = 4.0
"""Pixels beyond which offsets of a box are compressed."""


class WebCaptioner(PairCaptioner):
    """Names the changed property, the kind of element and the direction of a change of a web page, and its box.

    It reads measures of the changed pixels, not the images themselves, and says one of the sentences of
    :mod:`~lightning_idc.metrics.page_sentences`. Images keep their size; those of a pair must have the same.

    Args:
        width: hidden width of the networks.
        members: number of networks, whose probabilities are averaged.
        dropout: dropout probability.
        box_weight: weight of the distance of the box in the loss.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    def __init__(
        self,
        width: PositiveInt = 128,
        members: PositiveInt = 8,
        dropout: ShareBelowOne = 0.35,
        box_weight: NonNegativeFloat = 0.1,
        **options: Any,
    ) -> None:
        check_arguments(WebCaptioner.__init__, locals())
        super().__init__(**options)

    def make_net(self) -> nn.Module:
        vocabulary = Vocabulary.build(all_sentences())
        length = max(len(vocabulary.encode(text)) for text in all_sentences())
        self.store_hparams(vocabulary=vocabulary.key, max_length=length, no_change_captions=[NOTHING])
        self.use_vocabulary(vocabulary)
        options = self.hparams
        return WebNet(vocabulary, len(NAMES), options["width"], options["members"], options["dropout"])

    def batch_image_size(self, batch: PairBatch) -> None:
        """None: images keep their size."""

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        measured = [_measured(sample.before.numpy(), sample.after.numpy()) for sample in samples]
        sizes = [sample.before.shape[1:] for sample in samples]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        padded = [
            replace(sample, before=_padded(sample.before, height, width), after=_padded(sample.after, height, width))
            for sample in samples
        ]
        batch = self.built_codec.collate(padded)
        return replace(batch, pixels=_stacked(measured), pixels_of=batch.images)

    def encode(self, batch: PairBatch) -> PairFeatures:
        inputs = self._inputs(batch)
        log_probs, offsets = self.built_net(inputs["measures"], inputs["is_same"])
        boxes = inputs["cores"] + _pixels(offsets)
        return PairFeatures(log_probs[:, None], extras={"boxes": boxes, "is_same": inputs["is_same"]})

    def _inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        """Measures of a batch; computed here if its images were replaced."""
        if batch.prepared is not None:
            return batch.prepared
        measured = _stacked([_measured(*pair) for pair in batch.images.cpu().numpy()])
        return {name: value.to(batch.images.device) for name, value in measured.items()}

    def training_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        inputs = self._inputs(batch)
        log_probs, offsets = self.built_net.member_log_probs(inputs["measures"], inputs["is_same"])  # (M, B, S)
        indices = self.built_net.sentence_index(batch.tokens[:, 0])
        if bool((indices < 0).any()):
            unknown = next(texts for texts, index in zip(batch.chosen, indices.tolist(), strict=True) if index < 0)
            raise DataError(f"the caption {unknown[:1]} is no sentence of WebCaptioner; expected the fact `sentence`")
        is_changed = ~inputs["is_same"]
        chosen = log_probs.gather(-1, indices.expand(len(log_probs), -1)[..., None])[..., 0]  # (M, B)
        caption_loss = -(chosen * is_changed).sum(1).mean() / is_changed.sum().clamp(min=1)
        self.log("train/caption_loss", caption_loss.detach(), batch_size=len(batch))
        targets, has_box = _first_boxes(batch.boxes, inputs["cores"])
        if not bool(has_box.any()):
            return caption_loss
        distance = nn.functional.smooth_l1_loss(
            offsets[:, has_box], _offsets(targets - inputs["cores"])[has_box].expand(len(offsets), -1, -1)
        )
        return caption_loss + self.hparams["box_weight"] * distance

    def change_boxes(self, batch: PairBatch) -> list[list[list[float]]]:
        features = self.encode(batch)
        height, width = batch.images.shape[-2:]
        limits = torch.tensor([width, height, width, height], device=features.memory.device)
        boxes = features.extras["boxes"].clamp(min=0).minimum(limits)
        # at least a pixel, also where the offsets cross
        boxes = torch.cat([boxes[:, :2], torch.maximum(boxes[:, 2:], boxes[:, :2] + 1)], 1)
        same = features.extras["is_same"].tolist()
        return [[] if is_same else [box] for box, is_same in zip(boxes.tolist(), same, strict=True)]


def _measured(before: np.ndarray, after: np.ndarray) -> tuple[list[float], list[float], bool]:
    """Measures of a pair, the core in the first image, and whether the pair is unchanged."""
    core = None if np.array_equal(before, after) or noise_of(before, after) else find_core(before, after)
    if core is None:
        return [0.0] * len(NAMES), [0.0, 0.0, 1.0, 1.0], True
    return list(measure(before, after, core).values()), [float(side) for side in core.before], False


def _stacked(measured: Sequence[tuple[list[float], list[float], bool]]) -> dict[str, Tensor]:
    measures, cores, same = zip(*measured, strict=True)
    return {"measures": torch.tensor(measures), "cores": torch.tensor(cores), "is_same": torch.tensor(same)}


def _padded(image: Tensor, height: int, width: int) -> Tensor:
    return nn.functional.pad(image, (0, width - image.shape[2], 0, height - image.shape[1]))


def _first_boxes(boxes: Sequence[Tensor | None], cores: Tensor) -> tuple[Tensor, Tensor]:
    """Box of the element in the first image ``(B, 4)``, and whether there is one ``(B,)``."""
    targets = [torch.full((4,), float("nan")) if b is None or not len(b) else b[0, 0].float() for b in boxes]
    stacked = torch.stack(targets).to(cores.device) if targets else cores.new_full(cores.shape, float("nan"))
    has_box = stacked.isfinite().all(1)
    return stacked.nan_to_num(), has_box


def _offsets(pixels: Tensor) -> Tensor:
    """Compress distances in pixels, so that large ones do not dominate the loss."""
    return pixels.sign() * (pixels.abs() / OFFSET_SCALE).log1p()


def _pixels(offsets: Tensor) -> Tensor:
    """Inverse of :func:`_offsets`."""
    return offsets.sign() * OFFSET_SCALE * offsets.abs().clamp(max=7).expm1()

"""WebCaptioner: describes the change of one element between two screenshots of a web page, at their native scale.

1. ``collate``: the core of the change (:mod:`~lightning_idc.models.web.core`), the words around it
   (:mod:`~lightning_idc.models.web.words`), measures of both (:mod:`~lightning_idc.models.web.measures`) and boxes that
   may be the element (:mod:`~lightning_idc.models.web.candidates`) of each pair, in the workers of the loader; a pair
   that is equal, or differs only by noise of the capture (:mod:`lightning_idc.rules.noise`), is marked as unchanged;
2. ``encode``: values (B, F) -> log-probabilities of all sentences (B, 1, S) and the most probable box (B, 4);
3. ``training_loss``: cross-entropy of the sentence, and, where the data have boxes, binary cross-entropy of whether
   each candidate overlaps the element by more than one half; both as means over the members of the ensemble;
4. ``decoder``: the most probable sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.metrics.diffspot import MARGIN, MIN_IOU
from lightning_idc.metrics.page_sentences import NOTHING, all_sentences
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.web.candidates import CANDIDATES
from lightning_idc.models.web.decoder import SentenceDecoder
from lightning_idc.models.web.details import NUM_DETAILS
from lightning_idc.models.web.measured import MEASURED, MeasuredPair, measure_pair, stacked
from lightning_idc.models.web.measures import NAMES
from lightning_idc.models.web.net import WebNet
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import DataError

CHUNK = 64
"""Number of pairs that are measured at once for the trees."""


class WebCaptioner(PairCaptioner):
    """Names the changed property, the kind of element and the direction of a change of a web page, and its box.

    It reads measures of the changed pixels, not the images themselves, and says one of the sentences of
    :mod:`~lightning_idc.metrics.page_sentences`. Images keep their size; those of a pair must have the same.

    Args:
        width: hidden width of the networks.
        members: number of networks, whose probabilities are averaged.
        dropout: dropout probability.
        box_weight: weight of the boxes in the loss.
        trees: number of trees, which are grown from the training pairs when training begins, unless there are trees
            already; the answer is then mixed from trees and networks. 0 for networks only.
        tree_nodes: largest number of nodes of a tree.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    def __init__(
        self,
        width: PositiveInt = 128,
        members: PositiveInt = 8,
        dropout: ShareBelowOne = 0.35,
        box_weight: NonNegativeFloat = 0.1,
        trees: NonNegativeInt = 0,
        tree_nodes: PositiveInt = 601,
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
        sizes = [options[name] for name in ("width", "members", "dropout", "trees", "tree_nodes")]
        return WebNet(vocabulary, len(NAMES), (len(CANDIDATES), NUM_DETAILS), *sizes)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.hparams["trees"] and not self.built_net.forest.is_grown:
            loader: Any = self.trainer.train_dataloader
            self._grow_trees(loader.dataset)

    def _grow_trees(self, dataset: Any) -> None:
        """Grow the trees from all changed pairs of a data set; every process grows the same ones."""
        parts: list[tuple[Tensor, ...]] = []
        for start in range(0, len(dataset), CHUNK):
            batch = self.collate([dataset[index] for index in range(start, min(start + CHUNK, len(dataset)))])
            inputs, sentences = self._inputs(batch), self._sentences(batch)
            labels, _ = box_labels(inputs["boxes"], batch.boxes)
            columns = inputs["values"], inputs["details"], sentences, labels
            parts.append(tuple(column[~inputs["is_same"]] for column in columns))
        measures, details, sentences, boxes = (torch.cat(part) for part in zip(*parts, strict=True))
        if len(measures):
            self.built_net.grow(measures, details, sentences, boxes, torch.initial_seed() % 2**32)

    @property
    def decoder(self) -> SentenceDecoder:
        return SentenceDecoder(self.built_net, self.built_vocabulary.special, self.hparams)

    def batch_image_size(self, batch: PairBatch) -> None:
        """None: images keep their size."""

    def prepared(self, samples: Sequence[PairSample]) -> Sequence[PairSample]:
        """Pairs with their measures in ``meta``."""
        return [replace(sample, meta={**sample.meta, MEASURED: _measured(sample)}) for sample in samples]

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        measured = [_measured(sample) for sample in samples]
        sizes = [sample.before.shape[1:] for sample in samples]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        padded = [
            replace(sample, before=_padded(sample.before, height, width), after=_padded(sample.after, height, width))
            for sample in samples
        ]
        batch = self.built_codec.collate(padded)
        return replace(batch, pixels=stacked(measured), pixels_of=batch.images)

    def encode(self, batch: PairBatch) -> PairFeatures:
        inputs = self._inputs(batch)
        log_probs, probabilities = self.built_net(inputs["values"], inputs["details"], inputs["is_same"])
        best = probabilities.sum(-1).argmax(1)
        boxes = inputs["boxes"][torch.arange(len(best), device=best.device), best]
        return PairFeatures(log_probs[:, None], extras={"boxes": boxes, "is_same": inputs["is_same"]})

    def _inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        """Numbers of a batch; computed here if its images were replaced."""
        if batch.prepared is not None:
            return batch.prepared
        measured = stacked([measure_pair(*pair) for pair in batch.images.cpu().numpy()])
        return {name: value.to(batch.images.device) for name, value in measured.items()}

    def training_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        inputs = self._inputs(batch)
        # (M, B, S), (M, B, N, 2)
        log_probs, boxes = self.built_net.member_log_probs(inputs["values"], inputs["details"], inputs["is_same"])
        indices = self._sentences(batch)
        is_changed = ~inputs["is_same"]
        chosen = log_probs.gather(-1, indices.expand(len(log_probs), -1)[..., None])[..., 0]  # (M, B)
        caption_loss = -(chosen * is_changed).sum(1).mean() / is_changed.sum().clamp(min=1)
        self.log("train/caption_loss", caption_loss.detach(), batch_size=len(batch))
        targets, has_box = box_labels(inputs["boxes"], batch.boxes)  # (B, N, 2), (B,)
        has_box &= is_changed
        if not bool(has_box.any()):
            return caption_loss
        box_loss = nn.functional.binary_cross_entropy_with_logits(
            boxes[:, has_box], targets[has_box].expand(len(boxes), -1, -1, -1)
        )
        return caption_loss + self.hparams["box_weight"] * box_loss

    def _sentences(self, batch: PairBatch) -> Tensor:
        """Index of the sentence of each pair ``(B,)``."""
        indices: Tensor = self.built_net.sentence_index(batch.tokens[:, 0].to(self.built_net.table.device))
        if bool((indices < 0).any()):
            unknown = next(texts for texts, index in zip(batch.chosen, indices.tolist(), strict=True) if index < 0)
            raise DataError(f"the caption {unknown[:1]} is no sentence of WebCaptioner; expected the fact `sentence`")
        return indices

    def change_boxes(self, batch: PairBatch) -> list[list[list[float]]]:
        features = self.encode(batch)
        boxes, same = features.extras["boxes"].tolist(), features.extras["is_same"].tolist()
        return [[] if is_same else [box] for box, is_same in zip(boxes, same, strict=True)]


def _measured(sample: PairSample) -> MeasuredPair:
    return sample.meta.get(MEASURED) or measure_pair(sample.before.numpy(), sample.after.numpy())


def _padded(image: Tensor, height: int, width: int) -> Tensor:
    missing = width - image.shape[2], height - image.shape[1]
    return nn.functional.pad(image, (0, missing[0], 0, missing[1])) if any(missing) else image


def box_labels(candidates: Tensor, boxes: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Labels of candidates ``(B, N, 2)``, see `NUM_LABELS` of the network, and whether there is an element ``(B,)``.

    The element may be where it is before or after the change. Margin and overlap are those of the protocol
    ``diffspot``.

    Args:
        candidates: boxes ``(B, N, 4)`` of the first image.
        boxes: of each pair ``(elements, 2, 4)``, of which the first element counts; NaN on a side without it.
    """
    missing = torch.full((2, 4), float("nan"))
    elements = torch.stack([missing if b is None or not len(b) else b[0].float() for b in boxes]).to(candidates.device)
    first, second = candidates[:, :, None], elements[:, None]  # (B, N, 1, 4), (B, 1, 2, 4)
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    overlap = sides.clamp(min=0).prod(-1)
    areas = sum((box[..., 2:] - box[..., :2]).prod(-1) for box in (first, second))
    center = (first[..., :2] + first[..., 2:]) / 2
    is_inside = ((center >= second[..., :2] - MARGIN) & (center <= second[..., 2:] + MARGIN)).all(-1)
    is_element = overlap / (areas - overlap) > MIN_IOU
    labels = torch.stack([is_inside, is_element], -1).any(2)  # comparisons with NaN are false
    return labels.float(), elements.isfinite().all(-1).any(-1)

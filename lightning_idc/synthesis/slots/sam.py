"""SAM as a segmenter: masks of everything in either picture of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.synthesis.slots.base import Region, Segmenter
from lightning_idc.synthesis.slots.pretrained import Pretrained, as_pil

_ALIKE = 0.7
"""IoU of boxes from which on two masks of one picture count as one; SAM's own."""


class SamSegmenter(Pretrained, Segmenter):
    """SAM's masks of everything in either picture, in place of FastSAM, whose licence and package do not fit here.

    Both pictures of several pairs go through the image encoder at once; then each is asked at a grid of points.

    Args:
        model: see `Pretrained`, as for the two arguments below; for example ``facebook/sam-vit-huge``.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: pictures per forward pass of the image encoder.
        overlap: IoU from which on two masks of one pair count as one.
        thresholds: least predicted IoU and stability of a mask; SAM's own are 0.88 and 0.95.
        points: along each side of the grid; SAM's own are 32.
        points_at_once: per forward pass of the mask decoder.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: int = 4,
        overlap: float = 0.5,
        thresholds: tuple[float, float] = (0.88, 0.95),
        points: int = 32,
        points_at_once: int = 256,
    ) -> None:
        super().__init__(model, revision, dtype, batch_size)
        self.overlap, self.thresholds = overlap, tuple(thresholds)
        self.points, self.points_at_once = points, points_at_once

    def settings(self) -> dict[str, Any]:
        own = {"overlap": self.overlap, "thresholds": list(self.thresholds), "points": self.points}
        return {**super().settings(), **own}

    def load(self) -> None:
        from transformers import AutoImageProcessor, SamModel

        self.read(SamModel, AutoImageProcessor)

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[list[Region]]:
        images = [image for pair in zip(before, after, strict=True) for image in pair]
        found = self.in_batches([0] * len(images), lambda part: self._segment([images[n] for n in part]))
        return [self._merged([*found[n], *found[n + 1]]) for n in range(0, len(found), 2)]

    def _merged(self, found: list[Region]) -> list[Region]:
        kept: list[Region] = []
        for region in sorted(found, key=lambda region: -region.confidence):
            if all(_mask_iou(region.mask, other.mask) <= self.overlap for other in kept):
                kept.append(region)
        return kept

    @torch.inference_mode()
    def _segment(self, images: list[Tensor]) -> list[list[Region]]:
        pictures = as_pil(images)
        inputs = self.processor(images=pictures, return_tensors="pt").to(self.device)
        embeddings = self.net.get_image_embeddings(inputs["pixel_values"].to(self.net.dtype))
        return [
            self._ask(picture, embeddings[n : n + 1], inputs["reshaped_input_sizes"][n].tolist())
            for n, picture in enumerate(pictures)
        ]

    def _ask(self, picture: Any, embedding: Tensor, scaled: list[int]) -> list[Region]:
        """Masks of one picture at all points of a grid.

        Args:
            picture: as it was.
            embedding: of the image encoder, ``(1, C, h, w)``.
            scaled: height and width that the picture has for the model, before padding.
        """
        whole, grid, _, labels = self.processor.generate_crop_boxes(
            picture, self.processor.size["longest_edge"], points_per_crop=self.points
        )
        size = [picture.height, picture.width]
        masks: list[Any] = []
        scores, boxes = [], []
        for start in range(0, grid.shape[1], self.points_at_once):
            asked = slice(start, start + self.points_at_once)
            out = self.net(
                image_embeddings=embedding,
                input_points=grid[:, asked].to(embedding),
                input_labels=labels[:, asked].to(embedding.device),
            )
            full = self.processor.post_process_masks(out.pred_masks, [size], [scaled], binarize=False)[0]
            own, score, box = self.processor.filter_masks(full, out.iou_scores[0], size, whole[0], *self.thresholds)
            masks += own
            scores.append(score.cpu())
            boxes.append(box.cpu())
        found, confidence, _, _ = self.processor.post_process_for_mask_generation(
            masks, torch.cat(scores).float(), torch.cat(boxes), _ALIKE
        )
        inside = [torch.as_tensor(mask).bool() for mask in found]
        return [_region(mask, float(score)) for mask, score in zip(inside, confidence, strict=True) if mask.any()]


def _region(mask: Tensor, confidence: float) -> Region:
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return Region(box, confidence, mask)


def _mask_iou(a: Tensor, b: Tensor) -> float:
    return float((a & b).sum() / (a | b).sum().clamp(min=1))

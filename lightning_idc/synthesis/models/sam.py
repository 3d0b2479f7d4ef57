"""SAM and its successors as segmenters: boxes, and optionally masks, of all segments of both images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import nms

from lightning_idc.synthesis.models.base import Region, Segmenter
from lightning_idc.synthesis.models.pretrained import Pretrained, as_pil
from lightning_idc.utils.bounds import PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import ConfigError

_STABILITY_OFFSET = 1.0
"""Offset of the mask threshold for the stability score, as in SAM."""
_MASKS_PER_RESIZE = 64
"""Number of masks resized to the image size at a time."""


class SamSegmenter(Pretrained, Segmenter):
    """Segments both images with a model of the SAM family, prompted by a grid of points.

    Boxes of both images are returned with the index of their image. Overlapping boxes are suppressed only within an
    image, because their difference decides between boxes of different images (section 18.4). Supports checkpoints of
    transformers with ``model_type`` sam, sam_hq, sam2 or edgetam, for example
    ``facebook/sam-vit-huge``, ``facebook/sam2.1-hiera-tiny``, or a SlimSAM.

    Args:
        model: see `Pretrained`.
        revision: commit or tag.
        dtype: dtype of the weights.
        batch_size: number of images per forward pass of the image encoder.
        overlap: IoU threshold of non-maximum suppression within an image; the scripts use 0.5 with FastSAM.
        confidence: minimum predicted IoU; the scripts use 0.05 with FastSAM, the default of SAM is 0.88.
        stability: minimum IoU of a mask between two thresholds; the default of SAM is 0.95.
        points: number of points along each side of the grid; the default of SAM is 32.
        points_at_once: number of points per forward pass of the mask decoder.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: PositiveInt = 4,
        overlap: Share = 0.5,
        confidence: float = 0.05,
        stability: float = 0.95,
        points: PositiveInt = 32,
        points_at_once: PositiveInt = 256,
    ) -> None:
        check_arguments(SamSegmenter.__init__, locals())
        super().__init__(model, revision, dtype, batch_size)
        self.overlap, self.confidence, self.stability = overlap, confidence, stability
        self.points, self.points_at_once = points, points_at_once

    def settings(self) -> dict[str, Any]:
        thresholds = {"overlap": self.overlap, "confidence": self.confidence, "stability": self.stability}
        return {**super().settings(), **thresholds, "points": self.points}

    def load(self) -> None:
        from transformers import AutoImageProcessor, AutoModelForMaskGeneration

        self.read(AutoModelForMaskGeneration, AutoImageProcessor)

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        images = [image for pair in zip(before, after, strict=True) for image in pair]
        regions_by_image = self.in_batches(
            [0] * len(images), lambda part: self._segment([images[n] for n in part], masks)
        )
        return [
            merge_regions(first, second)
            for first, second in zip(regions_by_image[::2], regions_by_image[1::2], strict=True)
        ]

    @torch.inference_mode()
    def _segment(self, images: list[Tensor], masks: bool) -> list[list[Region]]:
        pil_images = as_pil(images)
        inputs = self.processor(images=pil_images, return_tensors="pt").to(self.device)
        pixels = inputs["pixel_values"].to(self.net.dtype)
        embeddings = self.net.get_image_embeddings(pixels)
        sizes = inputs["reshaped_input_sizes"].tolist() if "reshaped_input_sizes" in inputs else None
        regions_by_image = []
        for n, image in enumerate(images):
            # SAM 2 has one embedding per scale
            image_embedding = (
                [e[n : n + 1] for e in embeddings] if isinstance(embeddings, list) else embeddings[n : n + 1]
            )
            scaled = None if sizes is None else sizes[n]
            regions_by_image.append(
                self._segment_image(
                    image.shape[1:], image_embedding, scaled or list(pixels.shape[2:]), list(pixels.shape[2:]), masks
                )
            )
        return regions_by_image

    def _segment_image(
        self, size: Sequence[int], embedding: Any, scaled: Sequence[int], padded: Sequence[int], masks: bool
    ) -> list[Region]:
        """Segment one image at all points of a grid.

        Args:
            size: height and width of the image.
            embedding: output of the image encoder.
            scaled: height and width of the resized image before padding.
            padded: height and width of the resized image after padding.
            masks: whether to return masks.
        """
        grid = point_grid(self.points, scaled)
        boxes, scores, all_masks = [], [], []
        for start in range(0, len(grid), self.points_at_once):
            points = grid[start : start + self.points_at_once]
            out = self.net(
                image_embeddings=embedding,
                input_points=points[None, :, None].to(self.device, torch.float32),
                input_labels=torch.ones(1, len(points), 1, dtype=torch.long, device=self.device),
            )
            score, small = out.iou_scores[0].flatten(), out.pred_masks[0].flatten(0, 1)
            is_confident = score > self.confidence
            for part in torch.arange(len(score), device=score.device)[is_confident].split(_MASKS_PER_RESIZE):
                full = _full_size(small[part], size, scaled, padded)
                is_stable = stability(full) > self.stability
                inside = full[is_stable] > 0
                is_nonempty = inside.flatten(1).any(1)
                boxes.append(mask_boxes(inside[is_nonempty]).cpu())
                scores.append(score[part][is_stable][is_nonempty].float().cpu())
                all_masks += list(inside[is_nonempty].cpu()) if masks else []
        if not boxes:
            return []
        all_boxes, confidence = torch.cat(boxes), torch.cat(scores)
        chosen = nms(all_boxes.float(), confidence, self.overlap).tolist()
        return [Region(_box(all_boxes[n]), float(confidence[n]), all_masks[n] if masks else None) for n in chosen]


class FastSamSegmenter(Segmenter):
    """FastSAM, as in the paper, with ultralytics, which is licensed under the AGPL and must be installed separately.

    Args:
        model: file of the weights; the paper uses ``FastSAM-x.pt``.
        confidence: minimum confidence; the scripts use 0.05, and 0.1 for object removal.
        overlap: IoU threshold of non-maximum suppression within an image.
        size: longer side in pixels to which images are resized.
    """

    def __init__(
        self, model: str = "FastSAM-x.pt", confidence: Share = 0.05, overlap: Share = 0.5, size: PositiveInt = 1024
    ) -> None:
        check_arguments(FastSamSegmenter.__init__, locals())
        super().__init__()
        self.name, self.confidence, self.overlap, self.size = model, confidence, overlap, size
        self._net: Any = None

    def settings(self) -> dict[str, Any]:
        thresholds = {"confidence": self.confidence, "overlap": self.overlap, "size": self.size}
        return {"model": self.name, **thresholds}

    def requirements(self) -> list[str]:
        from importlib.util import find_spec

        if find_spec("ultralytics") is None:
            return ["the package ultralytics (AGPL) is not installed: pip install ultralytics, or use SamSegmenter"]
        return []

    def load(self) -> None:
        for problem in self.requirements():
            raise ConfigError(problem)
        from ultralytics import FastSAM

        self._net = FastSAM(self.name)

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        images = [image for pair in zip(before, after, strict=True) for image in pair]
        regions_by_image = [self._segment(pil_image, masks) for pil_image in as_pil(images)]
        return [
            merge_regions(first, second)
            for first, second in zip(regions_by_image[::2], regions_by_image[1::2], strict=True)
        ]

    def _segment(self, pil_image: Any, masks: bool) -> list[Region]:
        (result,) = self._net(
            pil_image, retina_masks=True, imgsz=self.size, conf=self.confidence, iou=self.overlap, verbose=False
        )
        # without any detection, masks is None
        has_masks = masks and result.masks is not None
        inside = list(result.masks.data.bool().cpu()) if has_masks else [None] * len(result.boxes)
        return [
            Region(_box(box.round().long()), float(score), mask)
            for box, score, mask in zip(result.boxes.xyxy.cpu(), result.boxes.conf.cpu(), inside, strict=True)
        ]


def merge_regions(first: Sequence[Region], second: Sequence[Region]) -> list[Region]:
    """Merge the regions of both images of a pair, marked with the index of their image, most confident first."""
    for region in first:
        region.image_index = 0
    for region in second:
        region.image_index = 1
    return sorted([*first, *second], key=lambda region: -region.confidence)


def point_grid(points: int, size: Sequence[int]) -> Tensor:
    """Build the cell centres of a grid over an image, x and y in pixels, ``(points ** 2, 2)``.

    Args:
        points: number of points along each side.
        size: height and width.
    """
    steps = (torch.arange(points) + 0.5) / points
    y, x = torch.meshgrid(steps * size[0], steps * size[1], indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def stability(masks: Tensor) -> Tensor:
    """Compute the IoU of each mask between a higher and a lower threshold, logits ``(N, H, W)`` to ``(N,)``."""
    inner, outer = ((masks > by).flatten(1).sum(1) for by in (_STABILITY_OFFSET, -_STABILITY_OFFSET))
    return inner / outer.clamp(min=1)


def mask_boxes(masks: Tensor) -> Tensor:
    """Compute the boxes x1 y1 x2 y2 of non-empty masks, the last two exclusive, bool ``(N, H, W)`` to ``(N, 4)``."""
    edges = []
    for axis in (1, 2):  # columns with any row, then rows with any column
        line = masks.any(axis).byte()
        edges += [line.argmax(1), line.shape[1] - line.flip(1).argmax(1)]
    return torch.stack([edges[0], edges[2], edges[1], edges[3]], 1)


def _full_size(masks: Tensor, size: Sequence[int], scaled: Sequence[int], padded: Sequence[int]) -> Tensor:
    """Resize the logits of the mask decoder ``(N, h, w)`` to the size of the image, without padding."""
    full = F.interpolate(masks[:, None].float(), list(padded), mode="bilinear", align_corners=False)
    full = full[..., : scaled[0], : scaled[1]]
    return F.interpolate(full, list(size), mode="bilinear", align_corners=False)[:, 0]


def _box(box: Tensor) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = box.tolist()
    return int(x1), int(y1), int(x2), int(y2)

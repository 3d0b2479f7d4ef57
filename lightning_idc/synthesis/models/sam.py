"""SAM and its successors as segmenters: boxes of everything in either picture, and masks where they are asked for."""

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

_STABLE = 1.0
"""How far the threshold of a mask is moved to see whether the mask changes; SAM's own."""
_AT_ONCE = 64
"""Masks that have the size of the picture at a time."""


class SamSegmenter(Pretrained, Segmenter):
    """What a model of the SAM family finds in either picture, asked at a grid of points.

    The boxes of both pictures are handed on, each with the picture that it is from; which of two overlapping ones is
    kept is decided by their difference (section 18.4), so only within a picture are near copies left out. Any
    checkpoint of transformers with ``model_type`` sam, sam_hq, sam2 or edgetam fits, for example
    ``facebook/sam-vit-huge``, ``facebook/sam2.1-hiera-tiny``, or a SlimSAM.

    Args:
        model: see `Pretrained`, as for the two arguments below.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: pictures per forward pass of the image encoder.
        overlap: IoU of boxes from which on two regions of one picture count as one; the scripts ask FastSAM for 0.5.
        confidence: least predicted IoU; the scripts ask FastSAM for 0.05. SAM's own is 0.88.
        stability: least IoU of a mask with itself at another threshold; SAM's own is 0.95.
        points: along each side of the grid; SAM's own are 32.
        points_at_once: per forward pass of the mask decoder.
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
        found = self.in_batches([0] * len(images), lambda part: self._segment([images[n] for n in part], masks))
        return [both_pictures(first, second) for first, second in zip(found[::2], found[1::2], strict=True)]

    @torch.inference_mode()
    def _segment(self, images: list[Tensor], masks: bool) -> list[list[Region]]:
        pictures = as_pil(images)
        inputs = self.processor(images=pictures, return_tensors="pt").to(self.device)
        pixels = inputs["pixel_values"].to(self.net.dtype)
        embeddings = self.net.get_image_embeddings(pixels)
        sizes = inputs["reshaped_input_sizes"].tolist() if "reshaped_input_sizes" in inputs else None
        found = []
        for n, image in enumerate(images):
            # SAM 2 has an embedding for each scale
            own = [e[n : n + 1] for e in embeddings] if isinstance(embeddings, list) else embeddings[n : n + 1]
            scaled = None if sizes is None else sizes[n]
            found.append(
                self._ask(image.shape[1:], own, scaled or list(pixels.shape[2:]), list(pixels.shape[2:]), masks)
            )
        return found

    def _ask(
        self, size: Sequence[int], embedding: Any, scaled: Sequence[int], padded: Sequence[int], masks: bool
    ) -> list[Region]:
        """Regions of one picture at all points of a grid.

        Args:
            size: height and width of the picture.
            embedding: of the image encoder.
            scaled: height and width that the picture has for the model, before padding.
            padded: and after it.
            masks: whether the masks are kept.
        """
        grid = point_grid(self.points, scaled)
        boxes, scores, kept = [], [], []
        for start in range(0, len(grid), self.points_at_once):
            points = grid[start : start + self.points_at_once]
            out = self.net(
                image_embeddings=embedding,
                input_points=points[None, :, None].to(self.device, torch.float32),
                input_labels=torch.ones(1, len(points), 1, dtype=torch.long, device=self.device),
            )
            score, small = out.iou_scores[0].flatten(), out.pred_masks[0].flatten(0, 1)
            sure = score > self.confidence
            for part in torch.arange(len(score), device=score.device)[sure].split(_AT_ONCE):
                full = _full_size(small[part], size, scaled, padded)
                stable = stability(full) > self.stability
                inside = full[stable] > 0
                some = inside.flatten(1).any(1)
                boxes.append(mask_boxes(inside[some]).cpu())
                scores.append(score[part][stable][some].float().cpu())
                kept += list(inside[some].cpu()) if masks else []
        if not boxes:
            return []
        every, confidence = torch.cat(boxes), torch.cat(scores)
        chosen = nms(every.float(), confidence, self.overlap).tolist()
        return [Region(_box(every[n]), float(confidence[n]), kept[n] if masks else None) for n in chosen]


class FastSamSegmenter(Segmenter):
    """FastSAM, the paper's, through ultralytics, which is under the AGPL and which you install yourself.

    Args:
        model: file of the weights; the paper's is ``FastSAM-x.pt``.
        confidence: least confidence; the scripts take 0.05, and 0.1 for object removal.
        overlap: IoU of the suppression within a picture.
        size: longer side that pictures are resized to, pixels.
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
        found = [self._segment(picture, masks) for picture in as_pil(images)]
        return [both_pictures(first, second) for first, second in zip(found[::2], found[1::2], strict=True)]

    def _segment(self, picture: Any, masks: bool) -> list[Region]:
        (result,) = self._net(
            picture, retina_masks=True, imgsz=self.size, conf=self.confidence, iou=self.overlap, verbose=False
        )
        # where nothing is found there are no masks either
        some = masks and result.masks is not None
        inside = list(result.masks.data.bool().cpu()) if some else [None] * len(result.boxes)
        return [
            Region(_box(box.round().long()), float(score), mask)
            for box, score, mask in zip(result.boxes.xyxy.cpu(), result.boxes.conf.cpu(), inside, strict=True)
        ]


def both_pictures(first: Sequence[Region], second: Sequence[Region]) -> list[Region]:
    """Regions of both pictures of a pair, each marked with the picture it is from, the most confident first."""
    for region in first:
        region.picture = 0
    for region in second:
        region.picture = 1
    return sorted([*first, *second], key=lambda region: -region.confidence)


def point_grid(points: int, size: Sequence[int]) -> Tensor:
    """Middle points of a grid of cells over a picture, x and y in pixels, ``(points ** 2, 2)``.

    Args:
        points: along each side.
        size: height and width.
    """
    steps = (torch.arange(points) + 0.5) / points
    y, x = torch.meshgrid(steps * size[0], steps * size[1], indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def stability(masks: Tensor) -> Tensor:
    """IoU of each mask at a higher and at a lower threshold, logits ``(N, H, W)`` to ``(N,)``."""
    inner, outer = ((masks > by).flatten(1).sum(1) for by in (_STABLE, -_STABLE))
    return inner / outer.clamp(min=1)


def mask_boxes(masks: Tensor) -> Tensor:
    """Boxes x1 y1 x2 y2 of masks, the last two exclusive, bool ``(N, H, W)`` to ``(N, 4)``; none of them is empty."""
    found = []
    for axis in (1, 2):  # columns of any row, then rows of any column
        line = masks.any(axis).byte()
        found += [line.argmax(1), line.shape[1] - line.flip(1).argmax(1)]
    return torch.stack([found[0], found[2], found[1], found[3]], 1)


def _full_size(masks: Tensor, size: Sequence[int], scaled: Sequence[int], padded: Sequence[int]) -> Tensor:
    """Logits of the mask decoder ``(N, h, w)`` in the size of the picture, without what was padded."""
    full = F.interpolate(masks[:, None].float(), list(padded), mode="bilinear", align_corners=False)
    full = full[..., : scaled[0], : scaled[1]]
    return F.interpolate(full, list(size), mode="bilinear", align_corners=False)[:, 0]


def _box(box: Tensor) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = box.tolist()
    return int(x1), int(y1), int(x2), int(y2)

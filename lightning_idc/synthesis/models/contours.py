"""Segmenters and an inpainter without weights, based on OpenCV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.synthesis.models.base import Inpainter, Region, Segmenter
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, Share, check_arguments
from lightning_idc.utils.boxes import box_iou

_SIDES: tuple[Literal[0], Literal[1]] = (0, 1)
_LIGHT_COLOR, _LIGHT_STRUCTURE = 0.5, 2.0
"""Increase of the colour and structure thresholds per global change of brightness."""


class DifferenceContours(Segmenter):
    """Finds regions in which two aligned images differ in colour or structure, as contours.

    A change of light preserves colour ratios and edges, so that soft shadows are not regions. Since it also moves
    shadows and highlights, the thresholds increase with the global change of brightness. If an object moved slightly,
    one region covers its old and new position; it is split according to which image has edges there.

    Args:
        color: minimum difference in log colour under the same light.
        structure: minimum difference in high-pass filtered log brightness under the same light.
        min_area: minimum area of a region as a fraction of the image; the ImgDiff scripts use 1/400.
        gap: largest gap inside a region, as a fraction of the longer side.
    """

    def __init__(
        self,
        color: NonNegativeFloat = 0.1,
        structure: NonNegativeFloat = 0.12,
        min_area: Share = 1 / 400,
        gap: Share = 1 / 16,
    ) -> None:
        check_arguments(DifferenceContours.__init__, locals())
        super().__init__()
        self.color, self.structure, self.min_area, self.gap = color, structure, min_area, gap

    def settings(self) -> dict[str, Any]:
        return {
            "model": "DifferenceContours",
            "color": self.color,
            "structure": self.structure,
            "min_area": self.min_area,
            "gap": self.gap,
        }

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        return [self._changed_regions(*both) for both in zip(before, after, strict=True)]

    def _changed_regions(self, before: Tensor, after: Tensor) -> list[Region]:
        import cv2

        side = max(before.shape[1:])
        images = [image.permute(1, 2, 0).numpy().astype(np.float32) for image in (before, after)]
        smooth = [cv2.GaussianBlur(image, (0, 0), max(side / 200, 0.6)) for image in images]
        first, second = (np.log(image + 8) for image in smooth)
        ratio = second - first
        light = ratio.mean(2)
        color = np.abs(ratio - light[..., None]).max(2)
        structure = np.abs(light - cv2.GaussianBlur(light, (0, 0), side / 16))
        change = float(np.median(np.abs(light)))
        color /= self.color + _LIGHT_COLOR * change
        structure /= self.structure + _LIGHT_STRUCTURE * change
        strength = np.maximum(color, structure)
        is_visible = np.abs(smooth[0] - smooth[1]).max(2) > 8
        mask = ((strength > 1) & is_visible).astype(np.uint8)
        edges = [_edges(values, side) for values in (first, second)]
        regions = []
        for box, inside in self._components(mask):
            parts = [self._largest(inside & (edges[i] > edges[1 - i])) for i in (0, 1)]
            pair = [part for part in parts if part is not None and part[1].sum() > 0.3 * inside.sum()]
            is_moved = len(pair) == 2 and box_iou(pair[0][0], pair[1][0]) < 0.3
            for number, (part_box, area) in enumerate(pair if is_moved else [(box, inside)]):
                confidence = 1 - 1 / (1 + float(strength[area].mean()))
                # a moved object is in one image at each position; otherwise edges do not identify the image
                image_index = _SIDES[number] if is_moved else None
                regions.append(Region(part_box, confidence, torch.from_numpy(area), image_index))
        return sorted(regions, key=lambda region: -region.confidence)

    def _components(self, mask: np.ndarray) -> list[tuple[tuple[int, int, int, int], np.ndarray]]:
        import cv2

        mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3)))
        radius = max(3, int(max(mask.shape) * self.gap)) | 1
        mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (radius, radius)))
        outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        mask = cv2.drawContours(np.zeros_like(mask), outlines, -1, 1, -1)
        _, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        min_pixels = mask.size * self.min_area
        return [
            ((int(x), int(y), int(x + w), int(y + h)), labels == number)
            for number, (x, y, w, h, area) in enumerate(stats)
            if number and area >= min_pixels
        ]

    def _largest(self, mask: np.ndarray) -> tuple[tuple[int, int, int, int], np.ndarray] | None:
        return max(self._components(mask.astype(np.uint8)), key=lambda part: part[1].sum(), default=None)


def _edges(values: np.ndarray, side: int) -> np.ndarray:
    import cv2

    across, down = cv2.Sobel(values, cv2.CV_32F, 1, 0), cv2.Sobel(values, cv2.CV_32F, 0, 1)
    steps = np.hypot(across, down).sum(2)
    return cv2.GaussianBlur(steps, (0, 0), side / 48)


class ColorRegions(Segmenter):
    """Finds uniformly coloured regions of the first image by colour clustering, for images without a partner.

    Args:
        colors: number of clusters.
        min_area: minimum area of a region as a fraction of the image.
        max_area: maximum area of a region as a fraction of the image.
    """

    def __init__(self, colors: PositiveInt = 6, min_area: Share = 1 / 200, max_area: Share = 1 / 6) -> None:
        check_arguments(ColorRegions.__init__, locals())
        super().__init__()
        self.colors, self.min_area, self.max_area = colors, min_area, max_area

    def settings(self) -> dict[str, Any]:
        return {
            "model": "ColorRegions",
            "colors": self.colors,
            "min_area": self.min_area,
            "max_area": self.max_area,
        }

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor], masks: bool = False) -> list[list[Region]]:
        return [self._segment(image) for image in before]

    def _segment(self, image: Tensor) -> list[Region]:
        import cv2

        pixels = cv2.GaussianBlur(image.permute(1, 2, 0).numpy(), (0, 0), max(image.shape[1:]) / 150)
        lab = cv2.cvtColor(pixels, cv2.COLOR_RGB2LAB).astype(np.float32)
        cv2.setRNGSeed(0)  # clusters are initialised randomly
        stop = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 12, 1.0)
        start = cv2.KMEANS_PP_CENTERS
        _, labels, _ = cv2.kmeans(lab.reshape(-1, 3), self.colors, None, stop, 1, start)  # type: ignore[call-overload]
        labels = labels.reshape(lab.shape[:2])
        regions = []
        for color in range(self.colors):
            mask = cv2.morphologyEx((labels == color).astype(np.uint8), cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
            _, parts, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4)
            for number, (x, y, w, h, area) in enumerate(stats):
                if number and self.min_area <= area / mask.size <= self.max_area:
                    box = (int(x), int(y), int(x + w), int(y + h))
                    regions.append(Region(box, float(area / (w * h)), torch.from_numpy(parts == number), 0))
        return sorted(regions, key=lambda region: -region.confidence)


class TeleaInpainter(Inpainter):
    """OpenCV's fast-marching inpainting, with a dilated mask that includes object edges.

    Args:
        grow: dilation as a fraction of the longer side.
    """

    def __init__(self, grow: Share = 1 / 80) -> None:
        check_arguments(TeleaInpainter.__init__, locals())
        super().__init__()
        self.grow = grow

    def settings(self) -> dict[str, Any]:
        return {"model": "OpenCV INPAINT_TELEA", "grow": self.grow}

    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        import cv2

        filled = []
        for image, mask in zip(images, masks, strict=True):
            radius = max(1, round(max(image.shape[1:]) * self.grow))
            grown = cv2.dilate(mask.numpy().astype(np.uint8), np.ones((2 * radius + 1,) * 2, np.uint8))
            pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            filled.append(
                torch.from_numpy(cv2.inpaint(pixels, grown, 3, cv2.INPAINT_TELEA)).permute(2, 0, 1).contiguous()
            )
        return filled

"""Captioner without weights that recognises the cut-outs of a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.library import Cutout, cutouts, library_identity
from lightning_idc.synthesis.models.base import ImageCaptioner
from lightning_idc.synthesis.models.embedded import opponent
from lightning_idc.utils.bounds import PositiveInt, check_arguments

_SCALES = (1.0, 0.94, 0.88, 0.82)
"""Sizes of an object relative to its box, which may be loose or belong to a larger object of the other image."""
_RELATIVE_POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Positions of an object in its box, from one side to the other."""
_STEP_WEIGHT, _MAX_STEP = 0.1, 0.5
"""Penalty for an image without a step at the outline, and the step at which the penalty ends."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Cut-outs of one shape, sampled on a grid of points relative to width and height.

    Args:
        aspect: width divided by height.
        inside: points inside of the shape, ``(N, 2)``, x and y.
        outside: points around the shape, ``(M, 2)``.
        neighbour_weights: weights of the inside points adjacent to each outside point, ``(M, N)``; rows sum to 1.
        vectors: unit vectors of the cut-outs, see `_unit`, ``(K, 3 N)``.
    """

    aspect: float
    inside: Tensor
    outside: Tensor
    neighbour_weights: Tensor
    vectors: Tensor


class NearestPrototype(ImageCaptioner):
    """Captions an image with the name of the most similar cut-out of a library, or as plain background.

    Records whose images were not made from this library, according to the fact ``library`` of `PasteEdits`, are
    rejected, since their captions would be guesses.

    Each cut-out is compared in several sizes and positions: only inside its outline, to ignore the background, and
    with a penalty if the image has no step at the outline, to reject parts of larger objects.

    Args:
        library: folder of the cut-outs in the images; None for rendered objects.
        side: longer side in pixels of a cut-out for the comparison.
        min_similarity: minimum similarity of a recognised cut-out.
        background: caption of images without a recognised cut-out.
    """

    def __init__(
        self,
        library: str | None = None,
        side: PositiveInt = 20,
        min_similarity: float = 0.92,
        background: str = "plain background",
    ) -> None:
        check_arguments(NearestPrototype.__init__, locals())
        super().__init__()
        self.library, self.identity = library, library_identity(library)
        self.side, self.min_similarity, self.background = side, min_similarity, background
        self.names: list[str] = []
        self.outlines: list[Outline] = []

    def load(self) -> None:
        shapes: dict[bytes, list[Cutout]] = {}
        for cutout in cutouts(self.library):
            shapes.setdefault(cutout.alpha.numpy().tobytes(), []).append(cutout)
        self.names = [cutout.name for group in shapes.values() for cutout in group]
        self.outlines = [self._outline(group[0].alpha, [cutout.image for cutout in group]) for group in shapes.values()]

    def settings(self) -> dict[str, Any]:
        return {
            "model": "NearestPrototype",
            "library": self.identity,
            "side": self.side,
            "min_similarity": self.min_similarity,
            "background": self.background,
        }

    def unsupported_reason(self, facts: Mapping[str, Any]) -> str | None:
        if facts.get("library") == self.identity:
            return None
        return (
            f"NearestPrototype recognises cut-outs of the library {self.identity!r}; these images are of "
            f"{facts.get('library', 'unknown origin')!r}"
        )

    def _outline(self, alpha: Tensor, images: Sequence[Tensor]) -> Outline:
        size = (self.side, self.side)
        within = resize((alpha * 255).to(torch.uint8)[None].expand(3, -1, -1), size)[0] > 200
        padded = F.pad(within, [2] * 4)
        wide, wider = (F.max_pool2d(padded[None].float(), 2 * by + 1, 1, by)[0] > 0 for by in (1, 2))
        # a pixel away, since object and background mix on the outline itself
        inside, outside = (mask.nonzero() - 2 for mask in (padded, wider & ~wide))
        neighbour_weights = ((outside[:, None] - inside[None]).abs().amax(2) <= 3).float()
        values = torch.stack([opponent(resize(image, size))[:, within] for image in images])
        return Outline(
            aspect=alpha.shape[1] / alpha.shape[0],
            inside=(inside.flip(1) + 0.5) / self.side,
            outside=(outside.flip(1) + 0.5) / self.side,
            neighbour_weights=neighbour_weights / neighbour_weights.sum(1, keepdim=True),
            vectors=_unit(values),
        )

    def similarities(self, images: Sequence[Tensor]) -> Tensor:
        """Compute the similarity of each image to each cut-out at its best position, ``(N, K)``; at most 1."""
        return torch.stack([self._similarities(image) for image in images])

    def _similarities(self, image: Tensor) -> Tensor:
        height, width = image.shape[1:]
        shrink = max(height, width) / (1.5 * self.side)
        if shrink > 1:
            image = resize(image, (max(1, round(height / shrink)), max(1, round(width / shrink))))
        values, (height, width) = opponent(image), image.shape[1:]
        similarities = []
        for outline in self.outlines:
            corner, extent = _candidate_boxes(outline.aspect, height, width)
            points = torch.cat([outline.inside, outline.outside])
            grid = (corner[:, None] + extent[:, None] * points) / torch.tensor([width, height]) * 2 - 1
            samples = F.grid_sample(values[None], grid[None], padding_mode="border", align_corners=False)[0]
            inside, outside = samples.transpose(0, 1).split([len(outline.inside), len(outline.outside)], 2)
            step = (outside - inside @ outline.neighbour_weights.T).norm(dim=1).clamp(max=_MAX_STEP).mean(1) / _MAX_STEP
            similarities.append((_unit(inside) @ outline.vectors.T - _STEP_WEIGHT * (1 - step[:, None])).amax(0))
        return torch.cat(similarities)

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        best = self.similarities(images).max(1)
        return [
            f"a {self.names[index]}" if value >= self.min_similarity else self.background
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


def _candidate_boxes(aspect: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """List the unique corners and extents of a cut-out in an image, ``(P, 2)`` each, x and y in pixels."""
    box = (aspect * height, float(height)) if width / height > aspect else (float(width), width / aspect)
    boxes = {
        (
            round((width - box[0] * scale) * x, 2),
            round((height - box[1] * scale) * y, 2),
            box[0] * scale,
            box[1] * scale,
        )
        for scale in _SCALES
        for x in _RELATIVE_POSITIONS
        for y in _RELATIVE_POSITIONS
    }
    corner, extent = torch.tensor(sorted(boxes)).split(2, 1)
    return corner, extent


def _unit(values: Tensor) -> Tensor:
    """Convert centred brightness and colours to unit vectors, ``(..., 3, N)`` to ``(..., 3 N)``."""
    values = torch.cat([values[..., :1, :] - values[..., :1, :].mean(-1, keepdim=True), values[..., 1:, :]], -2)
    return F.normalize(values.flatten(-2), dim=-1)

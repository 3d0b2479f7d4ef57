"""A captioner without weights, which knows the things of a library by their pictures, and nothing else."""

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

_SCALES = (1.0, 0.94, 0.88, 0.82)
"""Size of a thing in its box, whose border may be loose or belong to a larger thing of the other picture."""
_SPOTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where it is in there, between either side."""
_STEP_WEIGHT, _STEP_MOST = 0.1, 0.5
"""What a picture loses that does not change at the outline, and the change from which on nothing is lost."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Things of one shape on a grid, whose points are in shares of the thing's width and height.

    Args:
        aspect: width over height.
        inside: points within, ``(N, 2)``, x and y.
        outside: points right around it, ``(M, 2)``.
        near: for each of these the mean of the points within beside it, ``(M, N)``.
        vectors: the things, as `_unit` makes them, ``(K, 3 N)``.
    """

    aspect: float
    inside: Tensor
    outside: Tensor
    near: Tensor
    vectors: Tensor


class NearestPrototype(ImageCaptioner):
    """Names a picture after the most similar thing of the library that was pasted; plain background where none is.

    It knows nothing but that library: a record whose pictures were not pasted from it (`PasteEdits` says so in the fact
    ``library``) is refused, since whatever would be said of it is a guess.

    Each thing is looked for in several sizes and places. It is compared inside its outline only, so that what it stands
    on does not matter, and the picture has to change at the outline, so that a part of something is not named.

    Args:
        library: folder of cut-outs that the pictures were made with; None for rendered things.
        side: longer side of a thing when it is compared, pixels.
        min_similarity: similarity below which nothing is recognised.
        background: what is said then.
    """

    def __init__(
        self,
        library: str | None = None,
        side: int = 20,
        min_similarity: float = 0.92,
        background: str = "plain background",
    ) -> None:
        super().__init__()
        self.library, self.identity = library, library_identity(library)
        self.side, self.min_similarity, self.background = side, min_similarity, background
        self.names: list[str] = []
        self.outlines: list[Outline] = []

    def load(self) -> None:
        shapes: dict[bytes, list[Cutout]] = {}
        for thing in cutouts(self.library):
            shapes.setdefault(thing.alpha.numpy().tobytes(), []).append(thing)
        self.names = [thing.name for things in shapes.values() for thing in things]
        self.outlines = [
            self._outline(things[0].alpha, [thing.image for thing in things]) for things in shapes.values()
        ]

    def settings(self) -> dict[str, Any]:
        return {
            "model": "NearestPrototype",
            "library": self.identity,
            "side": self.side,
            "min_similarity": self.min_similarity,
            "background": self.background,
        }

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        if facts.get("library") == self.identity:
            return None
        return (
            f"NearestPrototype knows things of the library {self.identity!r}; these pictures are of "
            f"{facts.get('library', 'unknown origin')!r}"
        )

    def _outline(self, alpha: Tensor, images: Sequence[Tensor]) -> Outline:
        size = (self.side, self.side)
        within = resize((alpha * 255).to(torch.uint8)[None].expand(3, -1, -1), size)[0] > 200
        padded = F.pad(within, [2] * 4)
        wide, wider = (F.max_pool2d(padded[None].float(), 2 * by + 1, 1, by)[0] > 0 for by in (1, 2))
        # a pixel away, since thing and ground mix on the outline itself
        inside, outside = (mask.nonzero() - 2 for mask in (padded, wider & ~wide))
        near = ((outside[:, None] - inside[None]).abs().amax(2) <= 3).float()
        values = torch.stack([opponent(resize(image, size))[:, within] for image in images])
        return Outline(
            alpha.shape[1] / alpha.shape[0],
            (inside.flip(1) + 0.5) / self.side,
            (outside.flip(1) + 0.5) / self.side,
            near / near.sum(1, keepdim=True),
            _unit(values),
        )

    def similarities(self, images: Sequence[Tensor]) -> Tensor:
        """How well each picture fits each of the known things at its best place, ``(N, K)``; 1 at most."""
        return torch.stack([self._one(image) for image in images])

    def _one(self, image: Tensor) -> Tensor:
        height, width = image.shape[1:]
        shrink = max(height, width) / (1.5 * self.side)
        if shrink > 1:
            image = resize(image, (max(1, round(height / shrink)), max(1, round(width / shrink))))
        values, (height, width) = opponent(image), image.shape[1:]
        found = []
        for outline in self.outlines:
            corner, extent = _places(outline.aspect, height, width)
            points = torch.cat([outline.inside, outline.outside])
            at = (corner[:, None] + extent[:, None] * points) / torch.tensor([width, height]) * 2 - 1
            seen = F.grid_sample(values[None], at[None], padding_mode="border", align_corners=False)[0].transpose(0, 1)
            inside, outside = seen.split([len(outline.inside), len(outline.outside)], 2)
            step = (outside - inside @ outline.near.T).norm(dim=1).clamp(max=_STEP_MOST).mean(1) / _STEP_MOST
            found.append((_unit(inside) @ outline.vectors.T - _STEP_WEIGHT * (1 - step[:, None])).amax(0))
        return torch.cat(found)

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        best = self.similarities(images).max(1)
        return [
            f"a {self.names[index]}" if value >= self.min_similarity else self.background
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


def _places(aspect: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Corners and extents of a thing within a picture, ``(P, 2)`` each, x and y in pixels, without repetitions."""
    box = (aspect * height, float(height)) if width / height > aspect else (float(width), width / aspect)
    places = {
        (
            round((width - box[0] * scale) * x, 2),
            round((height - box[1] * scale) * y, 2),
            box[0] * scale,
            box[1] * scale,
        )
        for scale in _SCALES
        for x in _SPOTS
        for y in _SPOTS
    }
    corner, extent = torch.tensor(sorted(places)).split(2, 1)
    return corner, extent


def _unit(values: Tensor) -> Tensor:
    """Brightness around its mean and colour as unit vectors, ``(..., 3, N)`` to ``(..., 3 N)``."""
    values = torch.cat([values[..., :1, :] - values[..., :1, :].mean(-1, keepdim=True), values[..., 1:, :]], -2)
    return F.normalize(values.flatten(-2), dim=-1)

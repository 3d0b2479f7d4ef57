"""Libraries of named cut-outs that are pasted into photographs and recognised there: rendered, or from a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_idc.images.decode import decode
from lightning_idc.images.raw import max_alpha
from lightning_idc.images.resize import resize
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import DataError

_RENDER_SIZE = 112


@dataclass(frozen=True, slots=True)
class Cutout:
    """Object without its background.

    Args:
        name: name of the object, without an article.
        image: uint8 ``(3, H, W)``, cropped to the object.
        alpha: opacity, float ``(H, W)``, 0 to 1.
    """

    name: str
    image: Tensor
    alpha: Tensor

    def scaled(self, side: int) -> Cutout:
        """Resize a copy so that the longer side has ``side`` pixels."""
        height, width = self.image.shape[1:]
        scale = side / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        alpha = resize((self.alpha * 255).round().to(torch.uint8)[None].expand(3, -1, -1), size)[0] / 255
        return Cutout(self.name, resize(self.image, size), alpha)


RENDERED = "rendered"
"""Identity of the library of rendered objects."""


def cutouts(library: str | Path | None) -> tuple[Cutout, ...]:
    """Load the cut-outs of a folder, or the rendered ones for None."""
    return rendered_things() if library is None else cutouts_from(library)


def library_identity(library: str | Path | None) -> str:
    """Compute the identity of a library from its file names and contents, independent of its location."""
    if library is None:
        return RENDERED
    state = hashlib.sha256()
    for path in sorted(Path(library).expanduser().glob("*.png")):
        state.update(f"{path.name}:".encode() + path.read_bytes())
    return state.hexdigest()[:16]


@cache
def rendered_things() -> tuple[Cutout, ...]:
    """Render CLEVR's shapes in all materials and colours as 48 cut-outs."""
    from lightning_idc.data.synthetic.render import DEFAULT_LIGHTS, render
    from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, Camera, Scene, SceneObject

    camera = Camera((7.2, -6.5, 5.4), (0.0, 0.0, 0.6), 11.5)
    names, scenes = [], []
    for shape in SHAPES:
        for material in MATERIALS:
            for color in COLORS:
                names.append(f"{color} {material} {shape}")
                scenes.append(
                    Scene((SceneObject(shape, "large", color, material, 0.0, 0.0, 0.5),), camera, DEFAULT_LIGHTS)
                )
    images, object_indices = render(scenes, _RENDER_SIZE, _RENDER_SIZE)
    return tuple(
        _crop_cutout(name, image, index == 0) for name, image, index in zip(names, images, object_indices, strict=True)
    )


def _crop_cutout(name: str, image: np.ndarray, object_mask: np.ndarray) -> Cutout:
    rows, columns = np.flatnonzero(object_mask.any(1)), np.flatnonzero(object_mask.any(0))
    part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return Cutout(
        name,
        torch.from_numpy(image[(slice(None), *part)].copy()),
        torch.from_numpy(object_mask[part].astype(np.float32)),
    )


def cutouts_from(folder: str | Path) -> tuple[Cutout, ...]:
    """Load cut-outs from PNG files with transparency, named after the files (``coffee_cup.png``).

    Raises:
        DataError: there are fewer than two files, or one has no transparent pixel.
    """
    loaded = []
    for path in sorted(Path(folder).expanduser().glob("*.png")):
        raw = decode(path)
        object_mask = np.zeros(raw.size, bool) if raw.alpha is None else raw.alpha > max_alpha(raw.alpha.dtype) // 2
        if object_mask.all() or not object_mask.any():
            raise DataError(f"{path} has no transparent surroundings; expected a cut-out with an alpha channel")
        raw.alpha = None
        loaded.append(_crop_cutout(path.stem.replace("_", " "), to_uint8([raw], name=str(path))[0], object_mask))
    if len(loaded) < 2:
        raise DataError(f"{folder} has {len(loaded)} cut-outs; expected at least two PNG files with transparency")
    return tuple(loaded)

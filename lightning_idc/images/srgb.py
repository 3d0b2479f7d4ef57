"""Convert colours from their ICC profile to sRGB."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

_MAX_DIFFERENCE = 3  # largest difference, in levels, between sRGB profiles
_LEVELS = np.arange(0, 256, 17, dtype=np.uint8)
_GRID = np.stack(np.meshgrid(_LEVELS, _LEVELS, _LEVELS)).reshape(3, 64, 64)  # colours for probing a profile


def to_srgb(values: np.ndarray, profile: bytes | None, space: str = "") -> np.ndarray:
    """Convert 8-bit values ``(C, H, W)`` to sRGB, or to grey with the sRGB tone curve.

    Args:
        values: Values in grey, RGB or the given colour space.
        profile: ICC profile; None for sRGB. A profile that is damaged or for another colour space is ignored.
        space: Pillow mode of the values if they are neither grey nor RGB.
    """
    mode = space or ("L" if len(values) == 1 else "RGB")
    transform = _transform(profile, mode) if profile and len(values) in (1, 3, 4) else None
    if transform is None and not space:
        return values
    image = _to_pillow(values, mode)
    if transform is None:
        image = image.convert("RGB")
    else:
        from PIL import ImageCms

        image = ImageCms.applyTransform(image, transform) or image
    planes = np.asarray(image).transpose(2, 0, 1)
    return planes[:1] if mode == "L" else planes


def _to_pillow(values: np.ndarray, mode: str) -> Image.Image:
    """Convert ``(C, H, W)`` to a Pillow image."""
    planes = values[0] if len(values) == 1 else values.transpose(1, 2, 0)
    shape = planes.shape[1], planes.shape[0]
    return Image.frombytes(mode, shape, np.ascontiguousarray(planes).tobytes())


@lru_cache(maxsize=32)
def _transform(profile: bytes, mode: str) -> Any:
    """Build the transform from a profile to sRGB; None if it is close to identity or cannot be built."""
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    if mode not in ("L", "RGB"):
        return transform
    probe = np.arange(256, dtype=np.uint8).reshape(1, 1, 256) if mode == "L" else _GRID
    result = np.asarray(ImageCms.applyTransform(_to_pillow(probe, mode), transform)).transpose(2, 0, 1)
    return None if np.abs(result.astype(int) - probe).max() <= _MAX_DIFFERENCE else transform

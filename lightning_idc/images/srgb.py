"""Colours by their ICC profile to sRGB, which captioners are trained on."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

_SAME = 3  # levels by which profiles of sRGB differ from each other
_LEVELS = np.arange(0, 256, 17, dtype=np.uint8)
_GRID = np.stack(np.meshgrid(_LEVELS, _LEVELS, _LEVELS)).reshape(3, 64, 64)  # colours to try a profile on


def to_srgb(values: np.ndarray, profile: bytes | None, space: str = "") -> np.ndarray:
    """Values ``(C, H, W)`` of 8 bits in sRGB, or grey ones of sRGB's curve.

    Args:
        values: Grey, RGB, or of the space.
        profile: ICC profile; None for sRGB. One that is damaged or of another kind of colours is ignored.
        space: Pillow's mode of values that are neither grey nor RGB.
    """
    mode = space or ("L" if len(values) == 1 else "RGB")
    transform = _transform(profile, mode) if profile and len(values) in (1, 3, 4) else None
    if transform is None and not space:
        return values
    image = _image(values, mode)
    if transform is None:
        image = image.convert("RGB")
    else:
        from PIL import ImageCms

        image = ImageCms.applyTransform(image, transform) or image
    planes = np.asarray(image).transpose(2, 0, 1)
    return planes[:1] if mode == "L" else planes


def _image(values: np.ndarray, mode: str) -> Image.Image:
    """Pillow image of ``(C, H, W)``."""
    planes = values[0] if len(values) == 1 else values.transpose(1, 2, 0)
    shape = planes.shape[1], planes.shape[0]
    return Image.frombytes(mode, shape, np.ascontiguousarray(planes).tobytes())


@lru_cache(maxsize=32)
def _transform(profile: bytes, mode: str) -> Any:
    """Transform of a profile to sRGB; None where it changes nothing to speak of, or cannot be made."""
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    if mode not in ("L", "RGB"):
        return transform
    probe = np.arange(256, dtype=np.uint8).reshape(1, 1, 256) if mode == "L" else _GRID
    result = np.asarray(ImageCms.applyTransform(_image(probe, mode), transform)).transpose(2, 0, 1)
    return None if np.abs(result.astype(int) - probe).max() <= _SAME else transform

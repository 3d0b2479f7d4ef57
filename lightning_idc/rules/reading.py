"""Read both images of a pair as uint8 ``(3, H, W)`` arrays of one size, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_idc.images.decode import decode, decode_pil, label_of
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.raw import RawImage
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import DataError


def read_pair(before: Any, after: Any, options: ImageOptions | None, resize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read both images of a pair with one value range.

    Args:
        before: Path, contents of a file, Pillow image or uint8 ``(C, H, W)`` array or tensor.
        after: Image of the same kinds.
        options: Value range, bands and page. None maps the common range of both images to 8 bits if a file stores more
            than 8.
        resize: Whether the after image is scaled to the size of the before image.

    Raises:
        DataError: An image cannot be read, or the two differ in size.
    """
    raws = [_raw(image, f"the {side} image", options) for side, image in (("before", before), ("after", after))]
    if options is None:
        deep = any(raw.values.dtype != np.uint8 for raw in raws)
        options = ImageOptions(value_range="auto") if deep else PLAIN
    first, second = (_three_channels(image) for image in to_uint8(raws, options, "the pair"))
    if first.shape != second.shape:
        if not resize:
            sizes = [f"{image.shape[2]}x{image.shape[1]}" for image in (first, second)]
            raise DataError(
                f"before is {sizes[0]} and after is {sizes[1]} pixels; expected one size: crop both in the same way, "
                "or scale the second with resize=True"
            )
        second = _scaled(second, first.shape[1:])
    return first, second


def _raw(image: Any, label: str, options: ImageOptions | None) -> RawImage:
    page = 0 if options is None else options.page or 0
    if isinstance(image, (str, Path, bytes)):
        return decode(image, "" if isinstance(image, (str, Path)) else label, page)
    if isinstance(image, Image.Image):
        return decode_pil(image, label_of(image, label), page)
    if not hasattr(image, "__array__"):
        raise DataError(
            f"{label} is of type {type(image).__name__}; expected a path, the bytes of a file, a PIL image or a uint8 "
            "array (C, H, W)"
        )
    values = np.asarray(image)
    if values.dtype != np.uint8 or values.ndim != 3 or not values.size:
        raise DataError(f"{label} is {values.dtype} {values.shape}; expected uint8 (C, H, W)")
    return RawImage(values, 8, "array")


def _three_channels(image: np.ndarray) -> np.ndarray:
    if len(image) not in (1, 3):
        raise DataError(f"the images have {len(image)} channels; expected 1 or 3: choose with ImageOptions(bands=...)")
    return np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])))


def _scaled(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    height, width = size
    pil_image = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    scaled = np.asarray(pil_image.resize((width, height), Image.Resampling.BICUBIC))
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))

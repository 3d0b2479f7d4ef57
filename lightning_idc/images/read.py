"""Read one image, or a pair with a common value range, from files, Pillow images or tensors to uint8 ``(C, H, W)``."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from lightning_idc.images.decode import decode, decode_pil, label_of
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.raw import RawImage
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import DataError

Source = str | Path | bytes | Image | Tensor
"""Path of an image file, its contents, a Pillow image, or a uint8 tensor ``(C, H, W)``."""
_MAX_ASPECT_DIFFERENCE = 0.02  # images whose aspect ratios differ by more cannot be overlaid


def read_image(image: Source, options: ImageOptions = PLAIN, name: str = "") -> Tensor:
    """Read an image as uint8 ``(C, H, W)``, three channels unless the options name bands.

    Args:
        image: Path, contents of a file, Pillow image or uint8 tensor.
        options: Value range, bands and page.
        name: Name of the pair that the image belongs to, for messages.

    Raises:
        DataError: The image is missing, damaged or too large, or needs an option to be mapped to 8 bits.
    """
    raw = _load(image, options, name)
    return raw if isinstance(raw, Tensor) else _tensors([raw], options, label_of(image, name))[0]


def read_pair(before: Source, after: Source, options: ImageOptions = PLAIN, name: str = "") -> tuple[Tensor, Tensor]:
    """Read both images of a pair at their original sizes, with one value range, so that equal values stay equal.

    Args:
        before: Path, contents of a file, Pillow image or uint8 tensor.
        after: Image of the same kinds.
        options: Value range, bands and page, the same for both.
        name: Name of the pair, for messages.

    Raises:
        DataError: An image cannot be read, or the two have different numbers of channels.
    """
    sides = []
    for side, image in (("before", before), ("after", after)):
        side_name = f"the {side} image{f' of {name}' if name else ''}"
        sides.append(_load(image, options, name if isinstance(image, (str, Path)) else side_name))
    raws = [side for side in sides if isinstance(side, RawImage)]
    label = label_of(before, name) if isinstance(before, (str, Path)) else name or "the pair"
    tensors = iter(_tensors(raws, options, label) if raws else [])
    first, second = (side if isinstance(side, Tensor) else next(tensors) for side in sides)
    if len(first) != len(second):
        pair = f"{name}: " if name else ""
        raise DataError(f"{pair}before has {len(first)} channels and after has {len(second)}; expected equally many")
    return first, second


def _tensors(raws: list[RawImage], options: ImageOptions, label: str) -> list[Tensor]:
    return [torch.from_numpy(np.require(values, requirements=["C", "W"])) for values in to_uint8(raws, options, label)]


def _load(image: Source, options: ImageOptions, name: str) -> RawImage | Tensor:
    label = label_of(image, name)
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or not image.numel():
            raise DataError(f"{label} is {image.dtype} {tuple(image.shape)}; expected uint8 (C, H, W)")
        return image
    if isinstance(image, Image):
        return decode_pil(image, label, options.page or 0)
    if not isinstance(image, (str, Path, bytes)):
        raise DataError(
            f"{label} is of type {type(image).__name__}; expected a path, the bytes of a file, a PIL image or a uint8 "
            "tensor (C, H, W), such as torch.from_numpy(array).permute(2, 0, 1)"
        )
    return decode(image, name, options.page or 0)


def warn_if_sizes_differ(
    first: tuple[int, int], second: tuple[int, int], size: tuple[int, int] | None, scaled: bool = False
) -> None:
    """Warn if the two images of a pair differ in size, because they will be stretched.

    Args:
        first: Height and width.
        second: Height and width.
        size: Height and width of both after scaling; None for those of the first.
        scaled: Whether to warn even if both images keep their aspect ratio.
    """
    if first == second:
        return
    (height, width), (other_height, other_width) = first, second
    ratio = (width / height) / (other_width / other_height)
    target = "x".join(map(str, size[::-1])) if size is not None else f"{width}x{height}"
    consequence = f"stretched to {target}, so unchanged objects may seem to move. Crop or register the two first"
    if size is not None and abs(ratio - 1) <= _MAX_ASPECT_DIFFERENCE:
        if not scaled:
            return
        consequence = f"scaled to {target}"
    warnings.warn(
        f"before is {width}x{height} and after is {other_width}x{other_height} pixels; both are {consequence}",
        stacklevel=4,
    )

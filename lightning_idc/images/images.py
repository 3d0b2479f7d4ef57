"""Images from files, PIL and tensors to uint8 ``(C, H, W)``, refusing what would hurt or lose information."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.image_files import from_pil_raster, read_raster
from lightning_idc.images.raster import Raster, refuse_huge
from lightning_idc.images.value_range import PLAIN, ImageOptions, bounds, to_uint8
from lightning_idc.utils.errors import DataError

Interpolation = Literal["bilinear", "bicubic"]
_AT_ONCE = 1 << 20  # values of an image that are numbers at once, 4 MB
_ASPECT = 0.02  # sides whose aspects differ by more cannot be laid over each other


def read_image(path: str | Path, record: str | None = None, options: ImageOptions = PLAIN) -> Tensor:
    """Decode an image file to uint8 ``(3, H, W)``, or to as many channels as ``options`` names.

    Args:
        path: of the file.
        record: what the image belongs to, for the message.
        options: value range, bands and page.

    Raises:
        DataError: the file is missing, not an image, truncated, too large, or would lose information.
    """
    return _mapped([_raster(path, record, options)], _name(path, record), options)[0]


def read_image_bytes(data: bytes, name: str, options: ImageOptions = PLAIN) -> Tensor:
    """Decode an encoded image to uint8 ``(3, H, W)``, or to as many channels as ``options`` names.

    Args:
        data: contents of an image file.
        name: of the image, for the message.
        options: value range, bands and page.

    Raises:
        DataError: the bytes are not an image, truncated, too large, or would lose information.
    """
    return _mapped([read_raster(data, name, options)], name, options)[0]


def read_pair(
    before: str | Path | bytes, after: str | Path | bytes, record: str, options: ImageOptions = PLAIN
) -> tuple[Tensor, Tensor]:
    """Decode both images of a pair with one value range, so that equal values stay equal.

    Args:
        before: path, or contents of a file.
        after: path, or contents of a file.
        record: what the images belong to, for the message.
        options: value range, bands and page.

    Raises:
        DataError: a file is missing, not an image, truncated, too large, or would lose information.
    """
    rasters = [_raster(side, record, options) for side in (before, after)]
    name = record if isinstance(before, bytes) else _name(before, record)
    first, second = _mapped(rasters, name, options)
    return first, second


def _name(path: str | Path | bytes, record: str | None) -> str:
    shown = "image" if isinstance(path, bytes) else repr(str(path))
    return f"{record}: {shown}" if record else shown


def _raster(file: str | Path | bytes, record: str | None, options: ImageOptions) -> Raster:
    if not isinstance(file, bytes) and not os.path.isfile(file):
        where = f"{record}: " if record else ""
        if "://" in str(file):
            raise DataError(
                f"{where}{str(file)!r} is an address of the network; expected the path of a file: fetch it first"
            )
        if os.path.exists(file):
            kind = "a folder" if os.path.isdir(file) else "a pipe or a device"
            raise DataError(f"{where}{str(file)!r} is {kind}; expected the path of an image file")
        raise DataError(f"{where}there is no image {str(file)!r}; check the path and that the download is complete")
    return read_raster(file, _name(file, record), options)


def _mapped(rasters: Sequence[Raster], name: str, options: ImageOptions) -> list[Tensor]:
    """All images with one value range as uint8 ``(C, H, W)``."""
    ends = bounds(options, [raster.values for raster in rasters], name)
    found = []
    for raster in rasters:
        values = raster.values if ends is None else to_uint8(raster.values, *ends)
        values = 255 - values if raster.inverted else values
        found.append(torch.from_numpy(np.require(values, requirements=["C", "W"])))
    return found


def as_tensor(image: str | Path | bytes | Image | Tensor, name: str, options: ImageOptions = PLAIN) -> Tensor:
    """Path, contents of a file, PIL image or uint8 tensor to uint8 ``(C, H, W)``."""
    raster = _as_raster(image, f"the {name} image", options)
    return raster if isinstance(raster, Tensor) else _mapped([raster], f"the {name} image", options)[0]


def _as_raster(image: str | Path | bytes | Image | Tensor, name: str, options: ImageOptions) -> Raster | Tensor:
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or not image.numel():
            raise DataError(f"{name} is {image.dtype} {tuple(image.shape)}; expected uint8 (C, H, W)")
        return image
    if isinstance(image, bytes):
        return read_raster(image, name, options)
    if isinstance(image, (str, Path)):
        return _raster(image, name, options)
    if not isinstance(image, Image):
        raise DataError(
            f"{name} is of type {type(image).__name__}; expected a path, the bytes of a file, a PIL image or a uint8 "
            "tensor (C, H, W), as torch.from_numpy(array).permute(2, 0, 1) gives"
        )
    refuse_huge(image.size, name)
    return from_pil_raster(image, name, options)


def open_pair(
    before: str | Path | bytes | Image | Tensor,
    after: str | Path | bytes | Image | Tensor,
    options: ImageOptions = PLAIN,
    name: str = "",
) -> tuple[Tensor, Tensor]:
    """Both images of a pair as uint8 ``(C, H, W)``, each in its own size, with one value range.

    Args:
        before: path, contents of a file, PIL image or uint8 tensor.
        after: the same.
        options: value range, bands and page, the same for both.
        name: of the pair, for messages.

    Raises:
        DataError: an image cannot be read, or the two have different numbers of channels.
    """
    of = f" of {name}" if name else ""
    sides = [
        _as_raster(image, f"the {side} image{of}", options) for image, side in ((before, "before"), (after, "after"))
    ]
    rasters = [side for side in sides if isinstance(side, Raster)]
    mapped = iter(_mapped(rasters, name or "the pair", options) if rasters else [])
    first, second = (side if isinstance(side, Tensor) else next(mapped) for side in sides)
    if len(first) != len(second):
        raise DataError(f"before has {len(first)} channels and after has {len(second)}{of}; expected equally many")
    return first, second


def as_pair(
    before: str | Path | Image | Tensor,
    after: str | Path | Image | Tensor,
    size: tuple[int, int] | None,
    options: ImageOptions = PLAIN,
    interpolation: Interpolation = "bilinear",
) -> tuple[Tensor, Tensor]:
    """Both images as uint8 ``(C, H, W)`` of one size: ``size``, or that of the first.

    Images of different size are stretched onto each other with a warning that names both sizes.

    Args:
        before: path, PIL image or uint8 tensor.
        after: the same.
        size: height and width that both are resized to.
        options: value range, bands and page, the same for both.
        interpolation: how images are scaled.

    Raises:
        DataError: an image cannot be read, or the two have different numbers of channels.
    """
    first, second = open_pair(before, after, options)
    own = (first.shape[1], first.shape[2])
    warn_of_sizes(own, (second.shape[1], second.shape[2]), size)
    return resize(first, size or own, interpolation), resize(second, size or own, interpolation)


def warn_of_sizes(
    first: tuple[int, int], second: tuple[int, int], size: tuple[int, int] | None, scaled: bool = False
) -> None:
    """Say that two images of different size are stretched onto each other.

    Args:
        first: height and width.
        second: the same.
        size: that both are scaled to; that of the first when None.
        scaled: also say so where both only change their scale.
    """
    if first == second:
        return
    (height, width), (own_height, own_width) = first, second
    ratio = (width / height) / (own_width / own_height)
    goal = "x".join(map(str, size[::-1])) if size is not None else f"{width}x{height}"
    how = f"stretched to {goal}, so what stands still may seem to move. Crop or register the two first"
    if size is not None and abs(ratio - 1) <= _ASPECT:
        if not scaled:
            return
        how = f"scaled to {goal}"
    warnings.warn(
        f"before is {width}x{height} and after is {own_width}x{own_height} pixels; both are {how}", stacklevel=4
    )


def resize(image: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resize uint8 ``(C, H, W)`` to height and width, antialiased as PIL does; the aspect is not kept."""
    if tuple(image.shape[1:]) == tuple(size):
        return image
    # bytes throughout where values overshoot, since PIL cuts them off between its two passes
    pixels = image if interpolation == "bicubic" else _narrowed(image, size[1]).float()
    return _interpolated(pixels, size, interpolation).round().clamp(0, 255).to(torch.uint8)


def _narrowed(image: Tensor, width: int) -> Tensor:
    """A large image scaled to a width some rows at a time: all its pixels as numbers would be memory that is new for
    every image, which takes longer than to scale them."""
    if image.numel() <= _AT_ONCE:
        return image
    rows = max(1, _AT_ONCE // image[:, 0].numel())
    parts = (image[:, start : start + rows] for start in range(0, image.shape[1], rows))
    return torch.cat([_interpolated(part.float(), (part.shape[1], width), "bilinear") for part in parts], 1)


def _interpolated(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    return F.interpolate(image[None], size=size, mode=interpolation, antialias=True, align_corners=False)[0]

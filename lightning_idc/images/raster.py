"""What an image file stores, and how much of it a worker takes into memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_idc.utils.errors import DataError

MAX_PIXELS = 64_000_000
"""Largest image that is decoded; 8-bit colour of this size takes about 1.1 GB in a worker while it is read."""
MAX_BYTES = 2**30
"""Most that the stored values of an image may take."""


@dataclass(slots=True)
class Raster:
    """What a file stores of an image, before it is mapped to 8 bits.

    Args:
        values: of the chosen bands, ``(C, H, W)``, any type of numbers.
        inverted: the greatest value is black, as in some X-rays.
    """

    values: np.ndarray
    inverted: bool = False


def refuse_huge(size: tuple[int, int], name: str) -> None:
    """Raise on an image of more pixels than a worker has memory for, or of none.

    Args:
        size: width and height.
        name: of the image, for the message.

    Raises:
        DataError: it is too large, or empty.
    """
    width, height = size
    if width * height > MAX_PIXELS:
        raise DataError(too_large(f"{name} claims {width} x {height} pixels"))
    if width * height == 0:
        raise DataError(f"{name} is {width} x {height} pixels: there is nothing in it")


def too_large(what: str) -> str:
    """The message that an image is too large."""
    return f"{what}; at most {MAX_PIXELS:,} are read. Scale it down or cut it into tiles first"

"""Read TIFF files: plain ones with Pillow, GeoTIFF and other bands, data types and pages with tifffile."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from lightning_idc.images.pillow import formats, from_pillow
from lightning_idc.images.raw import (
    File,
    Pages,
    RawImage,
    apply_orientation,
    channels_first,
    check_bytes,
    check_size,
    decoder_errors,
    import_codec,
    not_finite,
    scale_to_8_bits,
    stream_of,
)
from lightning_idc.utils.errors import DataError

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_CHANNELS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # samples per pixel by photometric interpretation
_PILLOW_PHOTOMETRICS = (3, 5, 6, 8)  # palette, CMYK, YCbCr and Lab, which tifffile does not convert
_REDUCED, _MASK = 1, 4  # bits of NewSubfileType
_NODATA = 42113  # GDAL's tag
# none, CCITT, LZW, JPEG, deflate, PackBits: others, such as WebP, only some builds of Pillow decode
_PILLOW_COMPRESSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946)
_BYTE_COUNTS = (279, 325)  # of strips and tiles; 0 where GDAL has left out an empty one
_ULP = 4 * np.finfo(np.float32).eps  # GDAL's tolerance, since writers print nodata with too few digits

# silence tifffile's warnings about tags, which this module parses itself
logging.getLogger("tifffile").addHandler(logging.NullHandler())


@contextmanager
def open_tiff(file: File, name: str) -> Iterator[Pages]:
    """Open a TIFF and yield its number of images, without overviews and masks, and a function that decodes one."""
    with decoder_errors(name):
        plain = _open_with_pillow(file)
        if plain is not None:
            with plain:
                check_size(plain.size, name)
                # check the first page only: seeking fails if a later page is a mask
                if not plain.is_animated and is_plain(plain):
                    yield 1, lambda page: from_pillow(plain, name)
                    return
        tifffile = import_codec("tifffile", name, "a TIFF that Pillow does not read without loss")
        with tifffile.TiffFile(stream_of(file)) as tiff:
            pages = _pair_with_masks(tiff.pages, name)
            yield len(pages), lambda index: _read(*pages[index], file, name)


def is_plain(image: Any) -> bool:
    """Whether Pillow reads the current page of a TIFF without loss."""
    tags = image.tag_v2
    bits, kinds = (_as_set(tags.get(tag, 1)) for tag in (258, 339))
    photometric = tags.get(262, 1)
    extra = tags.get(277, 1) - _CHANNELS.get(photometric, 3)
    if _NODATA in tags or tags.get(259, 1) not in _PILLOW_COMPRESSIONS:
        return False
    if any(0 in _as_set(tags[tag]) for tag in _BYTE_COUNTS if tag in tags):
        return False
    if image.mode.startswith(("I", "F")):
        # tifffile reads unsigned 32-bit values and inverted grey
        return (bits == {16} or (bits == {32} and kinds != {1})) and not extra and photometric == 1
    # Pillow would divide premultiplied colours by their opacity
    has_alpha = extra == 1 and image.mode in ("RGBA", "LA") and _as_set(tags.get(338, 0)) == {2}
    return max(bits) <= 8 and kinds == {1} and (not extra or has_alpha)


def _as_set(value: Any) -> set[Any]:
    return set(value) if isinstance(value, tuple) else {value}


def _open_with_pillow(file: File) -> Any:
    assert "TIFF" in formats()
    try:
        return Image.open(stream_of(file), formats=["TIFF"])
    except UnidentifiedImageError:  # for example 13 bands
        return None


def _pair_with_masks(pages: Iterable[Any], name: str) -> list[tuple[Any, Any]]:
    """Pair each full-resolution page with its mask page or None; GDAL writes a mask after its image."""
    offsets: set[int] = set()
    images: list[tuple[Any, Any]] = []
    for page in pages:
        if page.offset in offsets:  # tifffile would loop forever
            raise DataError(f"{name} is damaged (its list of pages is circular); download it again")
        offsets.add(page.offset)
        kind = int(page.subfiletype)
        if not kind & (_REDUCED | _MASK):
            images.append((page, None))
        elif kind & _MASK and not kind & _REDUCED and images and images[-1][1] is None:
            images[-1] = images[-1][0], page
    if not images:
        raise DataError(f"{name} has no full-resolution image, only masks and overviews")
    return images


def _read(page: Any, mask: Any, file: File, name: str) -> RawImage:
    check_size((page.imagewidth, page.imagelength), name)
    check_bytes(page.nbytes + (0 if mask is None else mask.nbytes), name)
    nodata = _nodata(page, name)
    page.nodata = 0 if nodata is None else nodata  # tifffile fills missing tiles with it
    stored = channels_first(page.asarray(), page.axes, name)
    missing = union(not_finite(stored), nodata_mask(stored, nodata), _hidden_mask(mask, stored.shape, name))
    orientation = int(page.tags[274].value) if 274 in page.tags else 1
    missing = None if missing is None else apply_orientation(missing, orientation)
    if int(page.photometric) in _PILLOW_PHOTOMETRICS:
        return replace(_read_with_pillow(page, file, name), missing=missing)
    bits = int(np.max(page.bitspersample))
    values = apply_orientation(scale_to_8_bits(stored, bits), orientation)
    extra = [int(kind) for kind in page.extrasamples]
    alpha = values[-1] if extra and extra[-1] in (1, 2) and len(values) > 1 else None
    if alpha is not None and missing is not None and len(missing) > 1:
        missing = missing[:-1]
    profile = page.tags[34675].value if 34675 in page.tags else None
    return RawImage(
        values if alpha is None else values[:-1],
        max(8, bits),
        "TIFF",
        missing=missing,
        nodata=nodata,
        alpha=alpha,
        profile=profile,
        inverted=int(page.photometric) == 0,
    )


def _read_with_pillow(page: Any, file: File, name: str) -> RawImage:
    image = _open_with_pillow(file)
    if image is None:
        raise DataError(
            f"{name} is a TIFF of the kind {page.photometric.name}, which is not supported; convert it to RGB"
        )
    with image:
        image.seek(page.index)
        check_size(image.size, name)
        return from_pillow(image, name)


def _nodata(page: Any, name: str) -> int | float | None:
    """Parse the nodata value in the data type of the page; None if it is absent or not representable in that type.

    The value is parsed here because tifffile returns 0 for a tag that it cannot parse, and valid zeros would then count
    as missing.
    """
    if _NODATA not in page.tags:
        return None
    return parse_nodata(str(page.tags[_NODATA].value), page.dtype, f"{name}: its GDAL_NODATA tag")


def parse_nodata(text: str, dtype: np.dtype, owner: str) -> int | float | None:
    """Parse the text of a nodata value in a data type; None if it is empty or not representable in that type.

    Args:
        text: Text of the value.
        dtype: Data type of the image.
        owner: Owner of the text, for the message.

    Raises:
        DataError: The text is not a number.
    """
    text = text.strip(" \0\t\r\n").replace(",", ".")
    if not text:
        return None
    try:
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise DataError(f"{owner} is {text[:40]!r}; expected a number (gdal_edit.py -unsetnodata removes it)") from None
    if dtype.kind == "f":
        return None if math.isnan(value) else float(value)
    if dtype.kind not in "iu" or not math.isfinite(value) or value != int(value):
        return None
    limits = np.iinfo(dtype)
    return int(value) if limits.min <= value <= limits.max else None


def nodata_mask(values: np.ndarray, nodata: float | None) -> np.ndarray | None:
    """Build the mask of values that mark missing data."""
    if nodata is None:
        return None
    if values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            missing: np.ndarray = np.asarray(np.isclose(values, values.dtype.type(nodata), rtol=_ULP, atol=0))
    else:
        missing = values == nodata
    if values.dtype == np.uint8:  # like GDAL, require the value in all bands of an 8-bit colour
        missing = np.asarray(missing.all(0, keepdims=True))
    return missing


def _hidden_mask(mask: Any, shape: tuple[int, ...], name: str) -> np.ndarray | None:
    """Build the mask of pixels hidden by a mask page; None without one."""
    if mask is None:
        return None
    valid = channels_first(mask.asarray(), mask.axes, name)
    if valid.shape != (1, *shape[1:]):
        raise DataError(f"{name} is damaged: its mask is {valid.shape}; expected {(1, *shape[1:])}")
    hidden: np.ndarray = valid == 0
    return hidden


def union(*masks: np.ndarray | None) -> np.ndarray | None:
    """Compute the union of masks; None if it is empty."""
    union: np.ndarray | None = None
    for mask in masks:
        if mask is not None:
            union = mask if union is None else union | mask
    return union if union is not None and union.any() else None

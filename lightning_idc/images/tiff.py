"""Read TIFF files: plain ones with Pillow, GeoTIFF and other bands, data types and pages with tifffile."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from lightning_idc.images.missing import (
    colour_mask,
    nodata_mask,
    not_finite,
    parse_nodata,
    separate_opacity,
    union,
)
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
    scale_to_8_bits,
    stream_of,
)
from lightning_idc.images.scaling import apply_scaling, scaling_of_tiff
from lightning_idc.utils.errors import DataError

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_CHANNELS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # samples per pixel by photometric interpretation; others, such
# as the colour filter of cameras, are not read
_PILLOW_PHOTOMETRICS = (3, 5, 6, 8)  # palette, CMYK, YCbCr and Lab, which tifffile does not convert
_REDUCED, _MASK = 1, 4  # bits of NewSubfileType
_TRANSPARENCY_MASK = 4  # photometric interpretation
_GDAL_METADATA, _NODATA = 42112, 42113
_NODATA_VALUES = re.compile(r'<Item name="NODATA_VALUES"[^>]*>([^<]{1,200})</Item>')  # a colour: one value a band
_SUBIFDS, _DEPTH = 330, 32997  # tags of pages below a page, and of the number of slices of a volume
# none, CCITT, LZW, JPEG, deflate, PackBits: others, such as WebP, only some builds of Pillow decode
_PILLOW_COMPRESSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 32773, 32946)
_BYTE_COUNTS = (279, 325)  # of strips and tiles; 0 where GDAL has left out an empty one

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
    compression = tags.get(259, 1)
    if (
        _NODATA in tags
        or any(mark in str(tags.get(_GDAL_METADATA, "")) for mark in ("NODATA_VALUES", 'role="scale"', 'role="offset"'))
        or compression not in _PILLOW_COMPRESSIONS
    ):
        return False
    if tags.get(254, 0) or _SUBIFDS in tags or tags.get(_DEPTH, 1) != 1 or photometric not in _CHANNELS:
        return False
    if any(0 in _as_set(tags[tag]) for tag in _BYTE_COUNTS if tag in tags):
        return False
    if image.mode.startswith(("I", "F")):
        # tifffile reads unsigned 32-bit values and inverted grey; Pillow swaps the bytes of compressed values twice
        is_swapped = compression != 1 and image.tag_v2.prefix == b"MM"
        return (bits == {16} or (bits == {32} and kinds != {1})) and not extra and photometric == 1 and not is_swapped
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
    for page in _with_pages_below(pages):
        if page.offset in offsets:  # tifffile would loop forever
            raise DataError(f"{name} is damaged (its list of pages is circular); download it again")
        offsets.add(page.offset)
        kind = int(page.subfiletype) | (_MASK if page.photometric == _TRANSPARENCY_MASK else 0)
        if not kind & (_REDUCED | _MASK):
            images.append((page, None))
        elif kind & _MASK and not kind & _REDUCED and images and images[-1][1] is None:
            images[-1] = images[-1][0], page
    if not images:
        raise DataError(f"{name} has no full-resolution image, only masks and overviews")
    return images


def _with_pages_below(pages: Iterable[Any]) -> Iterator[Any]:
    """Yield each page and the pages below it, where camera files store the image and pyramids its overviews."""
    for page in pages:
        yield page
        if page.subifds:
            yield from page.pages


def _read(page: Any, mask: Any, file: File, name: str) -> RawImage:
    check_size((page.imagewidth, page.imagelength), name)
    check_bytes(page.nbytes + (0 if mask is None else mask.nbytes), name)
    bits = int(np.max(page.bitspersample))
    if page.photometric not in _CHANNELS or (page.photometric in _PILLOW_PHOTOMETRICS and bits > 8):
        kind = getattr(page.photometric, "name", page.photometric)
        raise DataError(
            f"{name} is a TIFF of the kind {kind} with {bits} bits, which is not supported; convert it to RGB"
        )
    nodata = _nodata(page, name)
    page.nodata = 0 if nodata is None else nodata  # tifffile fills missing tiles with it
    stored = channels_first(page.asarray(), page.axes, name)
    missing = union(
        not_finite(stored),
        nodata_mask(stored, nodata),
        _colour_mask(page, stored, name),
        _hidden_mask(mask, stored.shape, name),
    )
    orientation = int(page.tags[274].value) if 274 in page.tags else 1
    missing = None if missing is None else apply_orientation(missing, orientation)
    if int(page.photometric) in _PILLOW_PHOTOMETRICS:
        return replace(_read_with_pillow(page, file, name), missing=missing)
    values = apply_orientation(scale_to_8_bits(stored, bits), orientation)
    alpha, opacity = None, _opacity_band(page, len(values))
    if opacity is not None:
        alpha, values, missing = separate_opacity(values, opacity, missing)
    profile = page.tags[34675].value if 34675 in page.tags else None
    raw = RawImage(
        values,
        max(8, bits),
        "TIFF",
        missing=missing,
        nodata=nodata,
        alpha=alpha,
        profile=profile,
        inverted=int(page.photometric) == 0,
    )
    apply_scaling(raw, scaling_of_tiff(_metadata(page), f"{name}: its GDAL_METADATA tag"), opacity, name)
    return raw


def _metadata(page: Any) -> str:
    """GDAL's metadata of a page as XML; empty without any."""
    text = page.tags[_GDAL_METADATA].value if _GDAL_METADATA in page.tags else ""
    return text if isinstance(text, str) else ""


def _opacity_band(page: Any, count: int) -> int | None:
    """Find the index of the opacity among the bands of a page; None if there is none."""
    extra = [int(kind) for kind in page.extrasamples]
    kind = next((kind for kind in (2, 1) if kind in extra), None)
    index = None if kind is None else count - len(extra) + extra.index(kind)
    return index if index is not None and 0 < index < count else None


def _read_with_pillow(page: Any, file: File, name: str) -> RawImage:
    image = _open_with_pillow(file)
    if image is None:
        raise DataError(
            f"{name} is a TIFF of the kind {page.photometric.name} that Pillow cannot decode; convert it to RGB"
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


def _colour_mask(page: Any, values: np.ndarray, name: str) -> np.ndarray | None:
    """Build the mask ``(1, H, W)`` of the colour that GDAL's metadata marks as missing; None without one."""
    match = _NODATA_VALUES.search(_metadata(page))
    if match is None:
        return None
    colour = [parse_nodata(text, values.dtype, f"{name}: its NODATA_VALUES") for text in match[1].split()]
    return colour_mask(values, colour)


def _hidden_mask(mask: Any, shape: tuple[int, ...], name: str) -> np.ndarray | None:
    """Build the mask of pixels hidden by a mask page; None without one."""
    if mask is None:
        return None
    valid = channels_first(mask.asarray(), mask.axes, name)
    if valid.shape != (1, *shape[1:]):
        raise DataError(f"{name} is damaged: its mask is {valid.shape}; expected {(1, *shape[1:])}")
    hidden: np.ndarray = valid == 0
    return hidden

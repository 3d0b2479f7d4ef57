"""Comparisons by stored values: changes that rendering would hide count, and invisible ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from lightning_idc.images.compare import compare, compare_files, equal
from lightning_idc.images.raw import RawImage
from lightning_idc.images.tolerance import Tolerance

SIZE = (24, 16)
NOISE = np.random.default_rng(0).integers(0, 256, (16, 24, 4)).astype(np.uint8)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def logo(x: int, grey: int) -> Image.Image:
    image = Image.new("RGBA", SIZE)
    image.paste((grey, grey, grey, 255), (x, 4, x + 6, 12))
    return image


@pytest.mark.parametrize(
    ("before", "after", "pixels"),
    [
        (logo(2, 255), logo(14, 255), 96),  # white on transparent
        (Image.new("RGBA", SIZE, (255, 255, 255, 255)), Image.new("RGBA", SIZE, (255, 255, 255, 0)), 384),
        (Image.new("RGBA", SIZE, (0, 0, 0, 0)), Image.new("RGBA", SIZE, (9, 200, 3, 0)), 0),  # both invisible
        (logo(2, 255), logo(2, 255), 0),
        (Image.new("L", SIZE, 7), Image.new("RGB", SIZE, (7, 7, 7)), 0),  # grey equals three equal bands
        (Image.new("RGB", SIZE, (7, 7, 7)), Image.new("RGBA", SIZE, (7, 7, 7, 255)), 0),
        (Image.new("RGB", SIZE), Image.new("RGB", (24, 15)), 384),
    ],
)
def test_opacity_counts_and_invisible_colours_do_not(
    tmp_path: Path, before: Image.Image, after: Image.Image, pixels: int
) -> None:
    result = compare_files(save(tmp_path / "a.png", before), save(tmp_path / "b.png", after))
    assert result.pixels == pixels and result.equal == (not pixels)


def test_every_band_and_every_frame_is_compared(tmp_path: Path) -> None:
    other = NOISE.copy()
    other[3, 5, 3] ^= 4
    for name, values in (("a", NOISE), ("b", other)):
        tifffile.imwrite(tmp_path / f"{name}.tif", values, photometric="rgb", extrasamples=["unspecified"])
    result = compare_files(tmp_path / "a.tif", tmp_path / "b.tif")
    assert (result.pixels, result.largest, result.total, result.subject) == (1, 4, 384, "4 bands of 8 bits")
    frames = [Image.fromarray(NOISE[..., 0]).point(lambda v, k=k: v // 2 + k) for k in (0, 20, 40)]
    for name, pages in (("a", frames), ("b", [frames[0], frames[2], frames[2]]), ("c", frames[:2])):
        pages[0].save(tmp_path / f"{name}.tiff", save_all=True, append_images=pages[1:])
    assert compare_files(tmp_path / "a.tiff", tmp_path / "a.tiff").equal
    result = compare_files(tmp_path / "a.tiff", tmp_path / "b.tiff")
    assert result.pixels == 384 and result.subject == "1 band of 8 bits in 3 images"
    assert compare_files(tmp_path / "a.tiff", tmp_path / "c.tiff").pixels == 384, "a frame that is gone"


def test_a_difference_below_the_tolerance_does_not_count(tmp_path: Path) -> None:
    page = Image.new("RGB", SIZE, (250, 250, 250))
    before = save(tmp_path / "a.png", page)
    page.putpixel((3, 2), (246, 250, 246))
    after = save(tmp_path / "b.png", page)
    result = compare_files(before, after)
    assert str(result) == "1 of 384 pixels differ by up to 4 (3 bands of 8 bits)"
    assert compare_files(before, after, tolerance=Tolerance(4)).equal
    assert not compare_files(before, after, tolerance=Tolerance(3)).equal
    mask = np.zeros((16, 24), bool)
    mask[2, 3] = True
    assert compare_files(before, after, ignore=lambda size: mask).equal


def test_missing_pixels_of_either_side_are_left_out() -> None:
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    gap = np.zeros((1, 3, 4), bool)
    gap[0, 0] = True
    before = RawImage(np.where(gap, -9999, values), 32, "TIFF", missing=gap)
    result = compare(before, RawImage(values, 32, "TIFF"))
    assert result.equal and result.missing == 4 and "4 not compared" in str(result)
    assert compare(before, RawImage(values + 1, 32, "TIFF")).pixels == 8


def test_depths_are_compared_as_fractions_of_their_maximum() -> None:
    shades = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    same = RawImage(shades.astype(np.uint16) * 257, 16, "PNG")
    assert equal(RawImage(shades, 8, "PNG"), same)
    same.values[0, 3, 3] += 1
    assert compare(RawImage(shades, 8, "PNG"), same).pixels == 1
    assert not equal(RawImage(shades, 8, "PNG"), RawImage(255 - shades, 8, "PNG"))


def test_cmyk_values_are_compared_as_stored() -> None:
    black = RawImage(np.full((4, 2, 2), 255, np.uint8), 8, "TIFF", space="CMYK")
    key = RawImage(np.concatenate([np.zeros((3, 2, 2), np.uint8), black.values[:1]]), 8, "TIFF", space="CMYK")
    assert compare(black, key).pixels == 4

"""Reading images. Oracle: PIL, or bytes written by hand; every invalid file must raise a DataError."""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_idc.images import resize as resizing
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_image, read_pair, warn_if_sizes_differ
from lightning_idc.images.resize import resize
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.paths import inside


def png_header(width: int, height: int) -> bytes:
    """Return an 8-bit grey PNG with a given size in its header and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)


def test_pixels_equal_the_file(tmp_path: Path, noise: np.ndarray) -> None:
    Image.fromarray(noise).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png").permute(1, 2, 0).numpy(), noise)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pair 'x': '.*absent\.png': no such image file"):
        read_image(tmp_path / "absent.png", name="pair 'x'")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated(tmp_path: Path, noise: np.ndarray, kept: float) -> None:
    Image.fromarray(noise).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(DataError, match=r"a\.png.*damaged"):
        read_image(tmp_path / "a.png")


def test_every_truncation_of_png_and_jpeg_is_an_error(tmp_path: Path, noise: np.ndarray) -> None:
    for kind in ("png", "jpg"):
        path = tmp_path / f"a.{kind}"
        Image.fromarray(noise).save(path)
        whole = path.read_bytes()
        for length in range(0, len(whole) - 40, 97):
            path.write_bytes(whole[:length])
            with pytest.raises(DataError):
                read_image(path)


def test_huge_header_is_rejected_before_decoding(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_header(100_000, 100_000))
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(DataError, match="claims 10,000,000,000 pixels; expected at most"):
        read_image(tmp_path / "a.png")
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_header_without_pixels(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "a.png").write_bytes(png_header(*size))
    with pytest.raises(DataError):
        read_image(tmp_path / "a.png")


def test_web_page_saved_as_png(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("<!DOCTYPE html><html>please log in</html>")
    with pytest.raises(DataError, match="web page"):
        read_image(tmp_path / "a.png")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        read_image(tmp_path / "a.png")


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"uint16 values from 0 to 65535, which do not fit in 8 bits.*value_range"):
        read_image(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", ImageOptions(value_range=(0, 65535)))
    assert np.abs(image[0].numpy().astype(int) - np.arange(256).reshape(16, 16)).max() <= 1


def test_transparent_palette_is_composited_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 2))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1, 0, 1, 0, 1, 0, 1])
    image.save(tmp_path / "a.png", transparency=1)
    pixels = read_image(tmp_path / "a.png").permute(1, 2, 0)
    assert pixels[0, 0].tolist() == [255, 0, 0] and pixels[0, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "CMYK", "YCbCr", "I", "F"])
def test_modes(mode: str) -> None:
    deep = mode in ("I", "F")
    if deep:
        with pytest.raises(DataError, match="do not fit in 8 bits"):
            read_image(Image.new(mode, (6, 4)))
    options = ImageOptions(value_range="auto") if deep else ImageOptions()
    image = read_image(Image.new(mode, (6, 4)), options)
    assert image.shape == (3, 4, 6) and image.dtype == torch.uint8


def test_exif_orientation(tmp_path: Path, noise: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show a quarter turn clockwise
    Image.fromarray(noise).save(tmp_path / "a.png", exif=exif)
    shown = read_image(tmp_path / "a.png").permute(1, 2, 0).numpy()
    assert np.array_equal(shown, np.rot90(noise, -1))


@pytest.mark.parametrize("path", ["../a.png", "/etc/passwd", "b/../../a.png", "", "link/a.png", "a\0b"])
def test_path_that_leaves_the_root(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    (tmp_path / "a.png").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="line 3"):
        inside(root, path, "line 3")


def test_circular_links_are_data_errors(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(DataError):  # from inside() or, if this Python accepts the path, because the file is missing
        read_image(inside(tmp_path, "circle/a.png", "line 3"))


def test_path_below_the_root_is_accepted(tmp_path: Path) -> None:
    assert inside(tmp_path, "b/../c/d.png", "x") == (tmp_path / "c/d.png").resolve()


def test_second_image_is_resized_with_a_warning() -> None:
    before, after = torch.zeros(3, 8, 9, dtype=torch.uint8), torch.zeros(3, 5, 5, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="before is 9x8 and after is 5x5 pixels; both are stretched to 9x8"):
        assert InputSpec().read(before, after).after.shape == (3, 8, 9)
    with pytest.warns(UserWarning, match="stretched to 4x2"):
        assert InputSpec((2, 4)).read(before, after).after.shape == (3, 2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an equal aspect ratio only changes the scale, as requested by the size
        warn_if_sizes_differ((8, 9), (16, 18), (2, 4))
    with pytest.raises(DataError, match=r"after image is torch.float32"):
        read_pair(before, after.float())


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.zeros((8, 9, 3), np.uint8), "ndarray"),
        (None, "NoneType"),
        (["a.png"], "list"),
        (io.BytesIO(b""), "BytesIO"),
    ],
)
def test_other_files_are_errors_that_list_the_formats(given: Any, found: str) -> None:
    image = torch.zeros(3, 8, 9, dtype=torch.uint8)
    expected = (
        f"the after image is of type {found}; expected a path, the bytes of a file, a PIL image or a uint8 tensor"
    )
    with pytest.raises(DataError, match=expected):
        read_pair(image, given)


def test_folder_and_pipe_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path, "is a folder"), (tmp_path / "pipe", "is a pipe or a device")):
        with pytest.raises(DataError, match=rf"'{re.escape(str(path))}' {found}; expected the path of an image file"):
            read_image(path)


@pytest.mark.parametrize("shape", [(0, 8, 9), (3, 0, 9), (3, 8, 0)])
def test_empty_tensor_is_an_error(shape: tuple[int, int, int]) -> None:
    image = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(DataError, match=rf"before image is torch.uint8 {re.escape(str(shape))}; expected uint8"):
        InputSpec((8, 8)).read(image, image)


@pytest.mark.parametrize("size", [(5, 13), (9, 40), (40, 9), (64, 1), (1, 64), (31, 17), (50, 60)])
@pytest.mark.parametrize("at_once", [1, 100, 700])
def test_large_images_are_resized_like_small_ones(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], at_once: int
) -> None:
    image = torch.randint(0, 256, (3, 31, 17), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    whole = resize(image, size)
    made: list[int] = []
    scale = resizing._interpolate

    def counted(pixels: torch.Tensor, *arguments: Any) -> torch.Tensor:
        made.append(pixels.numel())
        return scale(pixels, *arguments)

    monkeypatch.setattr(resizing, "_MAX_VALUES", at_once)
    monkeypatch.setattr(resizing, "_interpolate", counted)
    assert torch.equal(resize(image, size), whole)
    # the last pass is over the result of the first one
    assert size == image.shape[1:] or max(made[:-1]) <= max(at_once, 3 * 17)


def test_resize_keeps_flat_images_flat() -> None:
    image = torch.tensor([10, 20, 30], dtype=torch.uint8).view(3, 1, 1).expand(3, 11, 7)
    assert (resize(image, (5, 13)) == image[:, :1, :1]).all()

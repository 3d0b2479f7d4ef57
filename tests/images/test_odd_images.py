"""Unusual images are read correctly or refused in one sentence. Oracle: the array written by the test."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import IcoImagePlugin, Image
from pydicom.data import get_testdata_file

from lightning_idc.data import FolderPairs
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_image, read_pair
from lightning_idc.images.types import PairSample, stack_images
from lightning_idc.utils.errors import ConfigError, DataError, IDCError

RNG = np.random.default_rng(0)
SHAPE = (8, 10)
REFLECTANCE = RNG.uniform(0.02, 0.4, SHAPE).astype(np.float32)
SAR = RNG.uniform(-25, -3, SHAPE).astype(np.float32)
HOLED = np.where(np.arange(80).reshape(SHAPE) == 5, np.nan, REFLECTANCE).astype(np.float32)
CT = RNG.integers(-1000, 1500, SHAPE).astype(np.int16)
XRAY = RNG.integers(0, 4096, SHAPE).astype(np.uint16)
NEAR_INFRARED = RNG.integers(0, 255, (*SHAPE, 4)).astype(np.uint8)
THIRTEEN = RNG.integers(0, 10_000, (13, *SHAPE)).astype(np.uint16)
GREY_PAGES = RNG.integers(0, 255, (5, *SHAPE)).astype(np.uint8)


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint(((values.astype(np.float64) - low) / (high - low) * 255).clip(0, 255)).astype(np.uint8)


def with_missing(value: int) -> np.ndarray:
    """Return the X-ray with one value replaced."""
    return np.where(XRAY[0, 0] == XRAY, value, XRAY).astype(np.uint16)


def tiff(path: Path, values: np.ndarray, **options: Any) -> Path:
    tifffile.imwrite(path, values, **options)
    return path


def animation(path: Path) -> Path:
    frames = [Image.fromarray(np.full((*SHAPE, 3), value, np.uint8)) for value in (0, 90, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    return path


def deep_png(path: Path, values: np.ndarray) -> Path:
    """Write a 16-bit colour PNG, which Pillow cannot write."""
    height, width = values.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    return path


def ppm(path: Path, values: np.ndarray, maximum: int) -> Path:
    kind, (height, width) = ("P6" if values.ndim == 3 else "P5"), values.shape[:2]
    path.write_bytes(f"{kind} {width} {height} {maximum}\n".encode() + values.astype(">u2").tobytes())
    return path


DEEP_COLOUR = RNG.integers(0, 4096, (*SHAPE, 3)).astype(np.uint16)
# file, error of a plain read, options that solve it, result with them (C, H, W)
Case = tuple[Callable[[Path], Path], str, dict[str, Any], np.ndarray]
CASES: dict[str, Case] = {
    "float reflectance": (
        lambda p: tiff(p / "a.tif", REFLECTANCE),
        r"float32 values from 0\.0.* to 0\.3.*value_range",
        {"value_range": (0, 0.5)},
        scaled(REFLECTANCE, 0, 0.5),
    ),
    "SAR in dB": (
        lambda p: tiff(p / "a.tif", SAR),
        r"float32 values from -2\d\.\d+ to -3\.\d+",
        {"value_range": (-25, -3)},
        scaled(SAR, -25, -3),
    ),
    "float with NaN": (
        lambda p: tiff(p / "a.tif", HOLED),
        r"1 of 80 values are NaN or infinite; .*fill_nan",
        {"value_range": (0, 0.5), "fill_nan": 0},
        scaled(np.nan_to_num(HOLED), 0, 0.5),
    ),
    "NaN in a band that is not read": (
        lambda p: tiff(p / "a.tif", np.dstack([REFLECTANCE, HOLED]), photometric="minisblack", planarconfig="contig"),
        r"1 of 160 values are NaN or infinite; .*fill_nan",
        {"value_range": (0, 0.5), "bands": [0, 0, 0]},
        scaled(REFLECTANCE, 0, 0.5),
    ),
    "missing data by GDAL's tag": (
        lambda p: tiff(p / "a.tif", with_missing(9999), extratags=[(42113, "s", 5, "9999", True)]),
        r"marked as missing \(9999\)",
        {"value_range": (0, 4095), "fill_nan": 0},
        scaled(with_missing(0), 0, 4095),
    ),
    "CT in int16": (
        lambda p: tiff(p / "a.tif", CT),
        r"values from -\d+ to 1\d+, which do not fit in 8 bits",
        {"value_range": {"center": 40, "width": 400}},
        scaled(CT, -160, 240),
    ),
    "12-bit X-ray": (
        lambda p: tiff(p / "a.tif", XRAY),
        r"uint16 values from \d+ to 4\d+",
        {"value_range": (0, 4095)},
        scaled(XRAY, 0, 4095),
    ),
    "12-bit X-ray as PNG": (
        lambda p: (Image.fromarray(XRAY).save(p / "a.png"), p / "a.png")[1],
        r"uint16 values",
        {"value_range": {"percentile": [2, 98]}},
        scaled(XRAY, *np.percentile(XRAY, [2, 98])),
    ),
    "12-bit X-ray as PGM": (
        lambda p: ppm(p / "a.pgm", XRAY, 4095),
        r"uint16 values from \d+ to 4\d\d\d,",
        {"value_range": (0, 4095)},
        scaled(XRAY, 0, 4095),
    ),
    "12-bit colour as PPM": (
        lambda p: ppm(p / "a.ppm", DEEP_COLOUR, 4095),
        r"uint16 values from \d+ to 4\d\d\d,",
        {"value_range": (0, 4095)},
        scaled(DEEP_COLOUR, 0, 4095).transpose(2, 0, 1),
    ),
    "16-bit colour PNG": (
        lambda p: deep_png(p / "a.png", DEEP_COLOUR),
        "uint16 values",
        {"value_range": (0, 4095)},
        scaled(DEEP_COLOUR, 0, 4095).transpose(2, 0, 1),
    ),
    "int32": (
        lambda p: tiff(p / "a.tif", XRAY.astype(np.int32) * 250),
        r"int32 values",
        {"value_range": (0, 1e6)},
        scaled(XRAY.astype(np.int32) * 250, 0, 1e6),
    ),
    "uint32 beyond 2^31": (
        lambda p: tiff(p / "a.tif", XRAY.astype(np.uint32) * 1_000_000),
        r"uint32 values",
        {"value_range": (0, 4.095e9)},
        scaled(XRAY.astype(np.uint32) * 1_000_000, 0, 4.095e9),
    ),
    "near infrared, unspecified": (
        lambda p: tiff(p / "a.tif", NEAR_INFRARED, photometric="rgb", extrasamples=["unspecified"]),
        r"has 4 bands; expected 1 or 3.*bands: all",
        {"bands": [3, 0, 1]},
        NEAR_INFRARED.transpose(2, 0, 1)[[3, 0, 1]],
    ),
    "near infrared, marked as opacity": (
        lambda p: tiff(p / "a.tif", NEAR_INFRARED, photometric="rgb", extrasamples=["unassalpha"]),
        r"band 3 is marked as opacity.*near infrared",
        {"bands": "all"},
        NEAR_INFRARED.transpose(2, 0, 1),
    ),
    "near infrared, marked as multiplied opacity": (
        lambda p: tiff(p / "a.tif", NEAR_INFRARED, photometric="rgb", extrasamples=["assocalpha"]),
        r"band 3 is marked as opacity",
        {"bands": [0, 1, 2]},
        NEAR_INFRARED.transpose(2, 0, 1)[:3],
    ),
    "thirteen bands": (
        lambda p: tiff(p / "a.tif", THIRTEEN, photometric="minisblack", planarconfig="separate"),
        r"has 13 bands; expected 1 or 3. Choose with bands.*; and map the uint16 values .* value_range: \[LOW, HIGH\]",
        {"bands": [3, 2, 1], "value_range": (0, 10_000)},
        scaled(THIRTEEN[[3, 2, 1]], 0, 10_000),
    ),
    "thirteen bands, packed": (
        lambda p: tiff(p / "a.tif", THIRTEEN, photometric="minisblack", planarconfig="separate", compression="lzw"),
        r"has 13 bands",
        {"bands": "all", "value_range": (0, 10_000)},
        scaled(THIRTEEN, 0, 10_000),
    ),
    "five pages": (
        lambda p: tiff(p / "a.tif", GREY_PAGES, photometric="minisblack"),
        r"holds 5 images .* page: 0 to 4",
        {"page": 3},
        GREY_PAGES[3],
    ),
    "animation": (
        lambda p: animation(p / "a.gif"),
        "holds 3 images",
        {"page": 1},
        np.full((3, *SHAPE), 90, np.uint8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_images_that_need_an_option_are_one_line_errors(name: str, tmp_path: Path) -> None:
    make, refused, how, expected = CASES[name]
    path = make(tmp_path)
    for read in (lambda **o: read_image(path, **o), lambda **o: read_image(path.read_bytes(), name=str(path), **o)):
        with pytest.raises(DataError, match=refused) as caught:
            read()
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
        if how:
            image = read(options=ImageOptions(**how))
            expected = expected if expected.ndim == 3 else np.stack([expected] * 3)
            assert image.dtype == torch.uint8
            np.testing.assert_array_equal(image.numpy(), expected)


RIGHT: dict[str, tuple[Callable[[Path], Path], np.ndarray]] = {
    "opaque fourth band": (
        lambda p: tiff(
            p / "a.tif",
            np.dstack([NEAR_INFRARED[..., :3], np.full(SHAPE, 255, np.uint8)]),
            photometric="rgb",
            extrasamples=["unassalpha"],
        ),
        NEAR_INFRARED[..., :3].transpose(2, 0, 1),
    ),
    "grey TIFF": (lambda p: tiff(p / "a.tif", GREY_PAGES[0]), np.stack([GREY_PAGES[0]] * 3)),
    "CMYK": (
        lambda p: (Image.new("CMYK", SHAPE[::-1], (255, 0, 255, 0)).save(p / "a.tif"), p / "a.tif")[1],
        np.broadcast_to(np.array([0, 255, 0], np.uint8)[:, None, None], (3, *SHAPE)),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_images_that_need_no_option(name: str, tmp_path: Path) -> None:
    make, expected = RIGHT[name]
    np.testing.assert_array_equal(read_image(make(tmp_path)).numpy(), expected)


def test_overviews_are_not_pages(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(GREY_PAGES[0], photometric="minisblack")
        file.write(GREY_PAGES[0][::2, ::2], photometric="minisblack", subfiletype=1)
    assert (read_image(tmp_path / "a.tif")[0].numpy() == GREY_PAGES[0]).all()


def test_ct_from_dicom_in_hounsfield_units() -> None:
    path = get_testdata_file("CT_small.dcm", download=False)
    with pytest.raises(
        DataError, match=r"CT_small\.dcm' holds float32 values from -\d+ to \d+, which do not fit in 8 bits"
    ):
        read_image(path)
    import pydicom

    data = pydicom.dcmread(path)
    stored = np.frombuffer(data.PixelData, np.int16).reshape(data.Rows, data.Columns)
    units = stored * float(data.RescaleSlope) + float(data.RescaleIntercept)
    image = read_image(path, options=ImageOptions(value_range={"center": 40, "width": 400}))
    np.testing.assert_array_equal(image[0].numpy(), scaled(units, -160, 240))


def test_dicom_monochrome1(tmp_path: Path) -> None:
    import pydicom

    data = pydicom.dcmread(get_testdata_file("CT_small.dcm", download=False))
    data.PhotometricInterpretation = "MONOCHROME1"
    data.save_as(tmp_path / "a.dcm")
    straight = read_image(
        get_testdata_file("CT_small.dcm", download=False), options=ImageOptions(value_range=(-1000, 1000))
    )
    assert (read_image(tmp_path / "a.dcm", options=ImageOptions(value_range=(-1000, 1000))) == 255 - straight).all()


def test_damaged_dicom_and_tiff_are_errors(tmp_path: Path) -> None:
    whole = Path(get_testdata_file("CT_small.dcm", download=False)).read_bytes()
    tiff(tmp_path / "whole.tif", THIRTEEN, photometric="minisblack", planarconfig="separate")
    for name, data in (("a.dcm", whole), ("a.tif", (tmp_path / "whole.tif").read_bytes())):
        for length in range(140, len(data) - 40, len(data) // 7):
            (tmp_path / name).write_bytes(data[:length])
            with pytest.raises(DataError):
                read_image(tmp_path / name, options=ImageOptions(value_range="auto", bands=[0]))


def test_images_of_a_pair_share_their_value_range(tmp_path: Path) -> None:
    glint = REFLECTANCE.copy()
    glint[0, 0] = 0.9
    before, after = tiff(tmp_path / "a.tif", REFLECTANCE), tiff(tmp_path / "b.tif", glint)
    for how in ("auto", {"percentile": [0, 99]}):
        first, second = read_pair(before, after, ImageOptions(value_range=how))
        assert int((first != second).any(0).sum()) == 1, "one pixel changed, and no other may"
    first, second = read_pair(before, after, ImageOptions(value_range="auto"))
    assert second.max() == 255 and first.max() < 130 and first.min() == 0


def test_value_range_outside_the_data_is_an_error(tmp_path: Path) -> None:
    path = tiff(tmp_path / "a.tif", XRAY)
    with pytest.raises(DataError, match=r"all values, .* are outside the value_range -1 to -0.5"):
        read_image(path, options=ImageOptions(value_range=(-1, -0.5)))


@pytest.mark.parametrize(
    "options",
    [
        {"value_range": (3, 3)},
        {"value_range": "minmax"},
        {"value_range": {"percentile": [98, 2]}},
        {"value_range": {"center": 1}},
        {"value_range": (0, float("nan"))},
        {"bands": []},
        {"bands": [-1]},
        {"bands": "rgb"},
        {"page": -1},
        {"fill_nan": float("nan")},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ImageOptions(**options)


def test_all_bands_reach_a_batch_and_a_captioner(tmp_path: Path) -> None:
    from lightning_idc.models import PairTransformer
    from lightning_idc.nn.vocabulary import Vocabulary

    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        for number in range(2):
            values = RNG.integers(0, 10_000, (13, 32, 32)).astype(np.uint16)
            tiff(tmp_path / side / f"{number}.tif", values, photometric="minisblack", planarconfig="separate")
    data = FolderPairs(tmp_path, bands="all", value_range=(0, 10_000))
    source = data.pairs_of("predict")
    images = stack_images([source.load(0), source.load(1)])
    assert images.shape == (2, 2, 13, 32, 32)
    spec = data.input_spec()
    assert spec["channels"] == 13 and spec["image_size"] == [32, 32] and spec["value_range"] == [0.0, 10_000.0]
    words = Vocabulary.build(["a b"])
    net = PairTransformer(in_channels=13, width=16, image_size=(32, 32)).build_net(words)
    assert net.encode(images).memory.shape[0] == 2
    with pytest.raises(IDCError, match=r"images have 13 channels; the backbone expects 3.*in_channels: 13"):
        PairTransformer(width=16, image_size=(32, 32)).build_net(words).encode(images)


def test_different_channels_are_an_error() -> None:
    with pytest.raises(IDCError, match="before has 3 channels and after has 4"):
        PairSample("x", torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(4, 4, 4, dtype=torch.uint8))


# ---- no code execution and no unbounded memory ---------------------------------------------------------------------


def test_postscript_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = tmp_path / "bin/gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:/usr/bin:/bin")
    box = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "innocent.png").write_bytes(box)
    with pytest.raises(DataError, match=r"innocent\.png' is not a supported image; it is PostScript"):
        read_image(tmp_path / "innocent.png")
    assert not (tmp_path / "ran").exists()


def test_icons_are_rejected_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGBA", (64, 64)).save(tmp_path / "a.ico")

    def never(*given: Any) -> None:
        raise AssertionError("an icon decodes the images in it while it is opened")

    monkeypatch.setattr(IcoImagePlugin, "IcoFile", never)
    with pytest.raises(DataError, match="it is a Windows icon"):
        read_image(tmp_path / "a.ico")


@pytest.mark.slow
def test_global_pixel_limit_is_unchanged_in_threads(tmp_path: Path) -> None:
    Image.fromarray(RNG.integers(0, 255, (600, 600, 3)).astype(np.uint8)).save(tmp_path / "a.png")
    limit, seen, done = Image.MAX_IMAGE_PIXELS, set(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(Image.MAX_IMAGE_PIXELS)

    def read() -> None:
        for _ in range(10):
            read_image(tmp_path / "a.png")

    watcher = threading.Thread(target=watch)
    watcher.start()
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    done.set()
    watcher.join()
    assert seen == {limit} and limit is not None

"""Files of other programs, format by format: stored values and masks against the arrays that were written.

fixtures/images/README.md names the program and version of every file.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_idc.images.compare import equal
from lightning_idc.images.decode import decode, decode_pages
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_image, read_pair
from lightning_idc.utils.errors import DataError

FILES = Path(__file__).parents[1] / "fixtures/images"
TRUTH = dict(np.load(FILES / "truth.npz"))
DEEP, GREY, SOFT, BANDS, DEM = (TRUTH[name] for name in ("deep", "grey", "soft", "bands", "dem"))
RGB = TRUTH["rgb"].transpose(2, 0, 1)
GAP = TRUTH["alpha"] == 0
DEEP_RGB = np.stack([DEEP, DEEP // 2, 65535 - DEEP])
BAND = "<PAMRasterBand band='{}'><NoDataValue le_hex_equiv='0'>{}</NoDataValue></PAMRasterBand>"
COLOUR = RGB[:, 5, 6]
IS_COLOUR = (COLOUR[:, None, None] == RGB).all(0)
SOFT_16 = SOFT.astype(np.uint16) * 257

# file: values, bits, maximum difference of a lossy file
VALUES: dict[str, tuple[np.ndarray, int, int]] = {
    "imagemagick_rgba.png": (RGB, 8, 0),
    "netpbm_rgb16.png": (DEEP_RGB, 16, 0),
    "graphicsmagick_grey16.png": (DEEP[None], 16, 0),
    "netpbm_grey4.png": ((GREY >> 4)[None] * 17, 8, 0),
    "imagemagick_rgba16.png": (RGB.astype(np.uint16) * 257, 16, 0),
    "netpbm_rgb16.ppm": (DEEP_RGB, 16, 0),
    "graphicsmagick_grey16.pgm": (DEEP[None], 16, 0),
    "netpbm_plain12.pgm": ((DEEP >> 4)[None], 12, 0),
    "imagemagick_rgb10.ppm": (DEEP_RGB >> 6, 10, 2),
    "imagemagick_rgb.jpg": (RGB, 8, 60),
    "netpbm_rgb.jpg": (RGB, 8, 90),
    "graphicsmagick_grey.jpg": (GREY[None], 8, 3),
    "imagemagick_rgb.bmp": (RGB, 8, 0),
    "netpbm_rgb.bmp": (RGB, 8, 0),
    "graphicsmagick_rgba.bmp": (RGB, 8, 0),
    "graphicsmagick_grey.gif": (GREY[None], 8, 0),
    "netpbm_grey.gif": (np.stack([GREY] * 3), 8, 0),
    "imagemagick_two.gif": (RGB, 8, 60),
    "cwebp_rgba.webp": (RGB, 8, 0),
    "imagemagick_rgb.webp": (RGB, 8, 0),
    "graphicsmagick_rgb.webp": (RGB, 8, 0),
    "openjpeg_grey9.jp2": ((DEEP >> 7)[None], 9, 0),
    "openjpeg_grey12.jp2": ((DEEP >> 4)[None], 12, 0),
    "openjpeg_grey12.j2k": ((DEEP >> 4)[None], 12, 0),
    "openjpeg_grey15.jp2": ((DEEP >> 1)[None], 15, 0),
    "openjpeg_rgb10.jp2": (DEEP_RGB >> 6, 10, 0),
    "openjpeg_rgb8.jp2": (RGB, 8, 0),
    "openjpeg_rgba8.jp2": (RGB, 8, 0),
    "gdal_15bit.jp2": ((DEEP >> 1)[None], 15, 0),
    "gdal_3bands.jp2": (RGB, 8, 0),
    "gdal_4bands.jp2": (np.concatenate([RGB, SOFT[None]]), 8, 0),
    "imagemagick_grey16.jp2": (DEEP[None], 16, 0),
    "netpbm_interlaced16.png": (DEEP_RGB, 16, 0),
    "avifenc_turned10.avif": (np.rot90(DEEP_RGB >> 6, 1, (1, 2)), 10, 2),
    "avifenc_rgb8.avif": (RGB, 8, 0),
    "avifenc_rgb10.avif": (DEEP_RGB >> 6, 10, 2),
    "avifenc_rgba12.avif": (RGB.astype(np.uint16) * 257 >> 4, 12, 2),
    "libheif_rgb.avif": (RGB, 8, 90),
    "netpbm_rgb16.tif": (DEEP_RGB, 16, 0),
    "libtiff_zip16.tif": (DEEP_RGB, 16, 0),
    "libtiff_two.tif": (DEEP_RGB, 16, 0),
    "imagemagick_rgba.tif": (RGB, 8, 0),
    "gdal_bands.tif": (BANDS, 16, 0),
    "gdal_webp.tif": (RGB, 8, 0),
    "gdal_zstd.tif": (RGB, 8, 0),
    "gdal_lerc16.tif": (DEEP[None], 16, 0),
    "gdal_nbits12.tif": ((DEEP >> 4)[None], 12, 0),
    "gdal_sparse.tif": (np.where(np.add.outer(np.arange(24) // 16, np.arange(32) // 16) > 0, RGB, 0), 8, 0),
    "dcmtk_rgb.dcm": (RGB, 8, 0),
    "dcmtk_rgb_jpeg.dcm": (RGB, 8, 30),
}


@pytest.mark.parametrize("name", VALUES)
def test_stored_values_and_depth(name: str) -> None:
    values, bits, error = VALUES[name]
    raw = decode(FILES / name)
    assert raw.values.shape == values.shape and raw.bits == bits and raw.missing is None and not raw.space
    assert raw.values.dtype == (np.uint8 if bits == 8 else np.uint16)
    difference = np.abs(raw.values.astype(int) - values)
    assert difference.max() <= error and difference.mean() <= max(1, error / 10)


@pytest.mark.parametrize(
    ("name", "alpha", "error"),
    [
        ("imagemagick_rgba.png", SOFT, 0),
        ("imagemagick_rgba16.png", SOFT_16, 0),
        ("graphicsmagick_rgba.bmp", SOFT, 0),
        ("cwebp_rgba.webp", SOFT, 0),
        ("openjpeg_rgba8.jp2", SOFT, 0),
        ("avifenc_rgba12.avif", SOFT_16, 32),
        ("imagemagick_rgba.tif", SOFT, 0),
        ("gdal_alpha_rgb.tif", TRUTH["alpha"], 0),
    ],
)
def test_stored_opacity(name: str, alpha: np.ndarray, error: int) -> None:
    stored = decode(FILES / name).alpha
    assert stored is not None and stored.dtype == alpha.dtype
    assert np.abs(stored.astype(int) - alpha).max() <= error


# file: values of the valid pixels, the value that marks the others
MISSING: dict[str, tuple[np.ndarray, float | None]] = {
    "gdal_dem_max.tif": (DEM[None], -3.4028234663852886e38),
    "gdal_dem_9999.tif": (DEM[None], -9999),
    "gdal_dem_nan.tif": (DEM[None], None),
    "gdal_nodata16.tif": (DEEP[None], 9999),
    "gdal_nodata8.tif": (np.maximum(RGB, 1), 0),
    "gdal_mask_uint16.tif": (DEEP[None], None),
    "gdal_mask_rgb.tif": (RGB, None),
    "gdal_alpha_rgb.tif": (RGB, None),
    "gdal_msk.tif": (DEEP[None], None),  # in gdal_msk.tif.msk
    "gdal_nodata.jp2": (DEEP[None] | 1, 0),  # in gdal_nodata.jp2.aux.xml
    "gdal_bigendian32.tif": (DEM[None], None),
    "gdal_nodata_colour.tif": (RGB, None),  # NODATA_VALUES=255 0 255
    "gdal_alpha_middle.tif": (np.concatenate([RGB, TRUTH["alpha"][None], SOFT[None]]), None),
    "gdal_int64.tif": (DEEP[None].astype(np.int64) * 10**10, -(2**63)),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_pixels_equal_gdal(name: str) -> None:
    values, nodata = MISSING[name]
    raw = decode(FILES / name)
    assert raw.missing_mask is not None and np.array_equal(raw.missing_mask[0], GAP) and raw.nodata == nodata
    np.testing.assert_array_equal(raw.values[:, ~GAP], values[:, ~GAP])


@pytest.mark.parametrize("name", [name for name in MISSING if name != "gdal_nodata8.tif"])
def test_missing_pixels_need_fill_nan(name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}': 192 of 768 values are .*(missing|NaN or infinite).*fill_nan"):
        read_image(FILES / name, ImageOptions(value_range="auto"))
    bands = [0, 1, 2] if "middle" in name else None
    filled = read_image(FILES / name, ImageOptions(value_range="auto", fill_nan=450, bands=bands)).numpy()
    valid = MISSING[name][0][slice(bands and 3), ~GAP]
    low, high = float(valid.min()), float(valid.max())
    expected = np.rint((valid - low) / (high - low) * 255)
    np.testing.assert_array_equal(filled[:, ~GAP], np.broadcast_to(expected, (3, expected.shape[1])))
    assert (filled[:, GAP] == np.clip(np.rint((450 - low) / (high - low) * 255), 0, 255)).all()


@pytest.mark.parametrize(
    ("metadata", "missing"),
    [
        (BAND.format(2, RGB[1, 3, 4]), [None, RGB[1] == RGB[1, 3, 4], None]),
        (BAND.format(1, 7) + BAND.format(3, RGB[2, 0, 0]), [RGB[0] == 7, None, RGB[2] == RGB[2, 0, 0]]),
        (f"<Metadata><MDI key='NODATA_VALUES'>{' '.join(map(str, COLOUR))}</MDI></Metadata>", [IS_COLOUR]),
        ("<PAMRasterBand band='3'><ColorInterp>Alpha</ColorInterp></PAMRasterBand>", None),
        ("<PAMRasterBand band='3'><NoDataValue>", "is damaged"),
        (BAND.format(1, "none"), "'none'; expected a number"),
    ],
)
def test_metadata_beside_an_image(metadata: str, missing: list[np.ndarray | None] | str | None, tmp_path: Path) -> None:
    """``IMAGE.aux.xml`` in GDAL's format: nodata of single bands, a colour, opacity."""
    (tmp_path / "a.bmp").write_bytes((FILES / "imagemagick_rgb.bmp").read_bytes())
    (tmp_path / "a.bmp.aux.xml").write_text(f"<PAMDataset>{metadata}</PAMDataset>")
    if isinstance(missing, str):
        with pytest.raises(DataError, match=rf"a.bmp.aux.xml' .*{missing}"):
            decode(tmp_path / "a.bmp")
        return
    raw = decode(tmp_path / "a.bmp")
    if missing is None:
        assert raw.alpha is not None and np.array_equal(raw.alpha, RGB[2]) and np.array_equal(raw.values, RGB[:2])
        return
    expected = [np.zeros_like(GAP) if band is None else band.reshape(GAP.shape) for band in missing]
    assert raw.missing is not None and np.array_equal(raw.missing, expected)


def test_8_bit_nodata_colour_is_applied_to_both_images(tmp_path: Path) -> None:
    image = read_image(FILES / "gdal_nodata8.tif").numpy()
    assert (image[:, GAP] == 0).all() and (image[:, ~GAP] == np.maximum(RGB, 1)[:, ~GAP]).all()
    other = np.where(GAP, 200, np.maximum(RGB, 1)).astype(np.uint8)
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "b.tif", other.transpose(1, 2, 0), photometric="rgb")
    before, after = read_pair(FILES / "gdal_nodata8.tif", tmp_path / "b.tif")
    assert bool((before == after).all())


def test_jpeg_tiles_with_a_mask() -> None:
    raw = decode(FILES / "gdal_mask_jpeg.tif")
    gap = np.kron(GAP, np.ones((2, 2), bool))
    assert raw.missing is not None and np.array_equal(raw.missing[0], gap)
    twice = np.kron(RGB, np.ones((1, 2, 2), np.uint8))
    assert np.abs(raw.values.astype(int) - twice)[:, ~gap].mean() < 6


@pytest.mark.parametrize("name", ["gdal_mask_rgb.jpg", "gdal_mask_grey.jpg"])
def test_a_mask_after_the_end_of_a_jpeg(name: str, tmp_path: Path) -> None:
    """GDAL's JPEG driver appends the mask; the grey file has 13 x 11 pixels, so its rows end within bytes."""
    gap = GAP
    if name == "gdal_mask_grey.jpg":
        gap = np.zeros((11, 13), bool)
        gap[:, :3] = gap[7:, :9] = True
    raw = decode(FILES / name)
    assert raw.missing is not None and np.array_equal(raw.missing[0], gap)
    with pytest.raises(DataError, match=rf"{gap.sum()} of {gap.size} values are marked as missing.*fill_nan"):
        read_image(FILES / name)
    content = (FILES / name).read_bytes()
    assert np.array_equal(decode(content).missing_mask[0], gap)  # type: ignore[index]
    with pytest.raises(DataError, match=r"has a (damaged )?mask .*after the image"):
        decode(content[:-14] + b"0123456789" + content[-4:])
    plain = content[: int.from_bytes(content[-4:], "little")]
    assert decode(plain).missing is None and decode(plain + b"trailing text").missing is None


@pytest.mark.parametrize("name", ["imagemagick_adobe.png", "imagemagick_adobe.tif", "graphicsmagick_adobe.jpg"])
def test_colours_are_converted_to_srgb(name: str) -> None:
    raw = decode(FILES / name)
    assert raw.profile is not None and np.abs(raw.values.astype(int) - RGB).mean() > 10
    assert np.abs(read_image(FILES / name).numpy().astype(int) - RGB).mean() < 1.5
    stored = read_image(FILES / name, ImageOptions(bands=[0, 1, 2])).numpy()
    assert np.array_equal(stored, raw.values), "bands are numbers, not colours"


def test_the_profile_of_a_jpeg2000_is_that_of_its_colour_box(tmp_path: Path) -> None:
    """The box is replaced by the test for 8 and 10 bits, since no available program writes a profile."""
    profile = decode(FILES / "imagemagick_adobe.png").profile
    assert profile is not None
    for name in ("openjpeg_rgb8.jp2", "openjpeg_rgb10.jp2"):
        data = (FILES / name).read_bytes()
        box, header = data.index(b"colr") - 4, data.index(b"jp2h") - 4
        colours = (11 + len(profile)).to_bytes(4, "big") + b"colr\2\0\0" + profile
        size = int.from_bytes(data[header : header + 4], "big") + len(colours) - 15
        changed = data[:header] + size.to_bytes(4, "big") + data[header + 4 : box] + colours + data[box + 15 :]
        assert decode(changed).profile == profile
        np.testing.assert_array_equal(decode(changed).values, decode(data).values)


def test_the_mask_beside_an_image_is_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.jp2").write_bytes((FILES / "openjpeg_grey12.jp2").read_bytes())
    (tmp_path / "a.jp2.msk").write_bytes((FILES / "gdal_mask_jpeg.tif").read_bytes())
    with pytest.raises(DataError, match=r"a.jp2.msk.* expected a mask of the image"):
        decode(tmp_path / "a.jp2")
    (tmp_path / "a.jp2.msk").write_bytes(b"II*\0")
    with pytest.raises(DataError, match=r"a.jp2.msk"):
        decode(tmp_path / "a.jp2")


def test_a_profile_of_srgb_changes_nothing() -> None:
    assert decode(FILES / "imagemagick_srgb.png").profile and np.array_equal(
        read_image(FILES / "imagemagick_srgb.png").numpy(), RGB
    )


@pytest.mark.parametrize(("name", "error"), [("imagemagick_cmyk.tif", 0), ("imagemagick_cmyk.jpg", 1.5)])
def test_cmyk_is_stored_as_four_values_and_displayed_as_rgb(name: str, error: float) -> None:
    raw = decode(FILES / name)
    assert raw.space == "CMYK" and len(raw.values) == 4
    assert np.abs(read_image(FILES / name).numpy().astype(int) - RGB).mean() <= error


@pytest.mark.parametrize("name", ["libtiff_two.tif", "imagemagick_two.gif"])
def test_page_selects_an_image_of_a_file(name: str) -> None:
    first, second = decode_pages(FILES / name)
    assert (first.page, first.pages, second.page, second.pages) == (0, 2, 1, 2)
    options = ImageOptions(page=1, value_range=(0, 255))
    assert np.abs(read_image(FILES / name, options).numpy().astype(int)).any()
    with pytest.raises(DataError, match=r"holds 2 images .* page: 0 to 1"):
        read_image(FILES / name)
    with pytest.raises(DataError, match="has 2 images; there is no page 2"):
        decode(FILES / name, page=2)
    assert first.size == second.size == RGB.shape[1:]


@pytest.mark.parametrize("name", ["MR_small_RLE", "MR_small_bigendian", "MR_small_jp2klossless", "MR_small_expb"])
def test_dicom_transfer_syntaxes_give_equal_images(name: str) -> None:
    from pydicom.data import get_testdata_file

    first, second = (decode(get_testdata_file(f"{file}.dcm", download=False)) for file in ("MR_small", name))
    assert first.values.dtype == np.int16 and first.bits == 16 and equal(first, second)


def test_one_bit_of_dicom_is_black_and_white() -> None:
    from pydicom.data import get_testdata_file

    raw = decode(get_testdata_file("liver_1frame.dcm", download=False))
    assert (raw.bits, np.unique(raw.values).tolist()) == (8, [0, 255])


def test_the_unit_of_enhanced_dicom_is_that_of_each_frame(tmp_path: Path) -> None:
    """Two frames of one scanner's file, with functional groups written by pydicom."""
    import pydicom
    from pydicom.data import get_testdata_file
    from pydicom.dataset import Dataset

    data = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False))
    stored = data.pixel_array.astype(np.float32)
    data.PixelData, data.NumberOfFrames, groups = data.PixelData * 2, 2, []
    for slope, intercept in ((2.0, -5.0), (0.5, 1.0)):
        item, group = Dataset(), Dataset()
        item.RescaleSlope, item.RescaleIntercept, item.RescaleType = slope, intercept, "US"
        group.PixelValueTransformationSequence = [item]
        groups.append(group)
    data.PerFrameFunctionalGroupsSequence = groups
    data.save_as(tmp_path / "enhanced.dcm")
    first, second = decode_pages(tmp_path / "enhanced.dcm")
    np.testing.assert_allclose(first.values[0], stored * 2 - 5)
    np.testing.assert_allclose(second.values[0], stored * 0.5 + 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libheif_rgb.heic", "it is a HEIC photograph"),
        ("libjxl_rgb.jxl", "it is JPEG XL"),
        ("libjpeg_grey12.jpg", "it is a JPEG that is damaged, lossless or has more than 8 bits"),
        ("libjpeg_lossless.jpg", "it is a JPEG that is damaged, lossless or has more than 8 bits"),
        ("imagemagick_rgba.tif", "band 3 is marked as opacity.*near infrared"),
        ("gdal_bands.tif", "has 4 bands; expected 1 or 3"),
        ("gdal_4bands.jp2", "has 4 bands; expected 1 or 3"),
        ("gdal_alpha1bit.jp2", r"has channels of \(8, 8, 8, 1\) bits"),
        ("openjpeg_subsampled.jp2", "stores colours at a lower resolution"),
        ("avifenc_pq10.avif", r"stores colours of BT.2020, PQ \(HDR\)"),
        ("avifenc_p3.avif", "stores colours of Display P3"),
        ("openjpeg_grey15.jp2", "uint16 values from 0 to .*value_range"),
        ("avifenc_rgb10.avif", "uint16 values"),
    ],
)
def test_lossy_formats_are_rejected(name: str, kind: str) -> None:
    with pytest.raises(DataError, match=rf"{name}'.*{kind}") as caught:
        read_image(FILES / name)
    assert "\n" not in str(caught.value) and ("damaged (" not in str(caught.value))


def _tiff(*images: tuple[np.ndarray, dict[str, Any]]) -> bytes:
    tifffile, stream = pytest.importorskip("tifffile"), io.BytesIO()
    with tifffile.TiffWriter(stream) as writer:
        for values, options in images:
            writer.write(values, **({"photometric": "minisblack", "metadata": None} | options))
    return stream.getvalue()


PREVIEW = (RGB[:, ::2, ::2].transpose(1, 2, 0).copy(), {"photometric": "rgb", "subfiletype": 1, "subifds": 1})


@pytest.mark.parametrize(
    ("images", "kind"),
    [
        ([(GREY, {"photometric": 32803})], "of the kind CFA with 8 bits"),
        ([PREVIEW, (DEEP, {"photometric": 32803})], "of the kind CFA with 16 bits"),  # a camera's DNG
        ([(RGB.transpose(1, 2, 0).copy(), {"photometric": 9})], "of the kind ICCLAB"),
        ([(DEEP, {"photometric": 32844})], "of the kind LOGL"),
        ([(np.stack([DEEP] * 4, -1), {"photometric": 5})], "of the kind SEPARATED with 16 bits"),
        ([(np.stack([DEEP] * 16), {"volumetric": True, "tile": (16, 16, 16)})], "has the axes ZYX"),
    ],
)
def test_kinds_of_tiff_that_are_not_images(images: list[Any], kind: str) -> None:
    with pytest.raises(DataError, match=kind):
        decode(_tiff(*images))


def test_the_image_below_a_preview_and_a_mask_without_subfile_type() -> None:
    """In files written by tifffile, the preview is page 0, and the image its SubIFD."""
    raw = decode(_tiff(PREVIEW, (RGB.transpose(1, 2, 0).copy(), {"photometric": "rgb"})))
    np.testing.assert_array_equal(raw.values, RGB)
    raw = decode(_tiff((DEEP, {}), (~GAP, {"photometric": 4}), (DEEP, {}), (GAP, {"photometric": 4})), page=1)
    assert raw.pages == 2 and raw.missing is not None and np.array_equal(raw.missing[0], ~GAP)


def _png(bits: int, colour_type: int, values: np.ndarray, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG written by its specification, with values ``(H, W)`` or ``(H, W, 3)`` of at most 8 bits."""
    rows = [np.unpackbits(row.reshape(-1, 1), 1)[:, 8 - bits :] for row in values]
    data = zlib.compress(b"".join(b"\0" + np.packbits(row).tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    blocks = [struct.pack(">I", len(part)) + name + part for name, part in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(block + struct.pack(">I", zlib.crc32(block[4:])) for block in blocks)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_transparent_grey_of_a_png_is_that_of_its_depth(bits: int) -> None:
    values = GREY >> (8 - bits)
    raw = decode(_png(bits, 0, values, (b"tRNS", struct.pack(">H", int(values[0, 0])))))
    assert raw.alpha is not None and np.array_equal(raw.alpha == 0, values == values[0, 0])


SRGB = (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
P3 = (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)


@pytest.mark.parametrize(
    ("chunks", "space"),
    [
        ([(b"gAMA", struct.pack(">I", 45455)), (b"cHRM", struct.pack(">8I", *SRGB))], None),
        ([(b"gAMA", struct.pack(">I", 0))], None),
        ([(b"gAMA", struct.pack(">I", 100000)), (b"sRGB", b"\0")], None),
        ([(b"gAMA", struct.pack(">I", 100000))], "gamma 1;"),
        ([(b"gAMA", struct.pack(">I", 45455)), (b"cHRM", struct.pack(">8I", *P3))], "other primaries"),
        ([(b"cICP", b"\x0c\x0d\0\1")], "Display P3"),
    ],
)
def test_colours_that_a_png_marks_without_a_profile(chunks: list[tuple[bytes, bytes]], space: str | None) -> None:
    data = _png(8, 2, RGB.transpose(1, 2, 0), *chunks)
    if space is None:
        np.testing.assert_array_equal(decode(data).values, RGB)
    else:
        with pytest.raises(DataError, match=f"stores colours of {space}"):
            decode(data)


@pytest.mark.parametrize("details", [{0xA001: 2}, {0xA005: {1: "R03"}}])
def test_cameras_mark_adobe_rgb_in_exif(details: dict[int, Any]) -> None:
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x8769] = details
    Image.fromarray(RGB.transpose(1, 2, 0)).save(stream, "JPEG", exif=exif.tobytes())
    with pytest.raises(DataError, match="stores colours of Adobe RGB"):
        decode(stream.getvalue())
    assert decode(stream.getvalue().replace(exif.tobytes()[-24:], b"\xff" * 24)).bits == 8, "damaged EXIF is ignored"


def test_dicom_of_real_numbers_and_of_shifted_bits(tmp_path: Path) -> None:
    import pydicom
    from pydicom.data import get_testdata_file

    data = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False))
    values = data.pixel_array.astype("<f4") / 7
    values[:2] = np.nan
    shifted = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False))
    shifted.BitsStored, shifted.HighBit = 12, 15
    shifted.save_as(tmp_path / "shifted.dcm")
    with pytest.raises(DataError, match=r"its 12 bits up to bit 15 \(HighBit\); expected 11"):
        decode(tmp_path / "shifted.dcm")
    del data.PixelData, data.BitsStored, data.HighBit, data.PixelRepresentation
    data.BitsAllocated, data.FloatPixelData = 32, values.tobytes()
    data.save_as(tmp_path / "map.dcm")
    raw = decode(tmp_path / "map.dcm")
    np.testing.assert_array_equal(raw.values[0], values)
    assert raw.bits == 32 and raw.missing is not None and np.array_equal(raw.missing[0], np.isnan(values))


@pytest.mark.parametrize("name", ["openjpeg_grey12.jp2", "openjpeg_rgb8.jp2", "gdal_mask_rgb.tif", "dcmtk_rgb.dcm"])
def test_truncated_files_are_errors(name: str, tmp_path: Path) -> None:
    data = (FILES / name).read_bytes()
    for length in range(150, len(data) - 60, max(40, len(data) // 12)):
        (tmp_path / name).write_bytes(data[:length])
        with pytest.raises(DataError, match=name):
            read_image(tmp_path / name, ImageOptions(value_range="auto", fill_nan=0))


def test_scale_and_offset_of_bands_are_applied() -> None:
    """Scales and offsets equal those of rasterio (`scales`, `offsets`); nodata is a stored value."""
    raw = decode(FILES / "rasterio_scaled.tif")
    stored = BANDS[:2].astype(np.float64)
    expected = stored * np.array([0.5, 0.25])[:, None, None] + np.array([-100.0, 3.0])[:, None, None]
    np.testing.assert_array_equal(raw.values, expected.astype(np.float32))
    assert raw.missing is not None and np.array_equal(raw.missing, BANDS[:2] == BANDS[0, 0, 0])
    scaled = read_image(
        FILES / "rasterio_scaled.tif", ImageOptions(bands=[0], value_range=(-100.0, 32667.5), fill_nan=0)
    )
    plain = read_image(FILES / "gdal_bands.tif", ImageOptions(bands=[0], value_range=(0, 65535)))
    valid = BANDS[0] != BANDS[0, 0, 0]
    assert np.abs(scaled.numpy()[0].astype(int) - plain.numpy()[0])[valid].max() <= 1, "rounded from float32"
    raw = decode(FILES / "rasterio_scaled8.tif")
    np.testing.assert_array_equal(raw.values, RGB.astype(np.float32) * 2 + 1)
    with pytest.raises(DataError, match=r"holds float32 values .* set the values mapped to 0 and 255 with value_range"):
        read_image(FILES / "rasterio_scaled8.tif")


def test_scale_and_offset_next_to_an_image_are_applied(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(GREY).save(path)
    band = "<PAMDataset><PAMRasterBand band='1'><NoDataValue>{}</NoDataValue><Offset>{}</Offset><Scale>{}</Scale>"
    sidecar = tmp_path / "a.png.aux.xml"
    sidecar.write_text(band.format(int(GREY[0, 0]), -3, 0.5) + "</PAMRasterBand></PAMDataset>")
    raw = decode(path)
    np.testing.assert_array_equal(raw.values, GREY[None].astype(np.float32) * 0.5 - 3)
    assert raw.missing is not None and np.array_equal(raw.missing, (GREY[0, 0] == GREY)[None])
    sidecar.write_text(band.format("", 0, 1) + "</PAMRasterBand></PAMDataset>")
    assert decode(path).values.dtype == np.uint8, "as stored"
    for scale in ("0", "nan", "two"):
        sidecar.write_text(band.format("", 0, scale) + "</PAMRasterBand></PAMDataset>")
        with pytest.raises(DataError, match=f"has the scale '{scale}'; expected a finite number"):
            decode(path)

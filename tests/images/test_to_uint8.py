"""Mapping to 8 bits: missing pixels set no range and are no change; opacity is blended on white as in Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from lightning_idc.images.decode import decode
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.raw import RawImage
from lightning_idc.images.read import read_image, read_pair
from lightning_idc.images.to_uint8 import to_uint8
from lightning_idc.utils.errors import DataError

DEM = np.linspace(400, 500, 4096, dtype=np.float32).reshape(64, 64)


def tiff(path: Path, values: np.ndarray, nodata: str) -> Path:
    tifffile.imwrite(path, values, extratags=[(42113, "s", 0, nodata, True)])
    return path


@pytest.mark.parametrize("nodata", ["-9999", "-3.4028234663852886e+38", "-3.40282346638529e+38", "-3.4e+38", "nan"])
def test_float32_nodata_in_any_notation(tmp_path: Path, nodata: str) -> None:
    values = DEM.copy()
    values[:8] = np.float32(float(nodata))
    values[20, 20] = 0  # a true zero
    path = tiff(tmp_path / "a.tif", values, nodata)
    with pytest.raises(DataError, match="512 of 4,096 values"):
        read_image(path, ImageOptions(value_range="auto"))
    image = read_image(path, ImageOptions(value_range=(400, 500), fill_nan=450))
    assert image.unique().numel() > 200 and (image[:, :8] == 128).all() and (image[:, 20, 20] == 0).all()


def test_nodata_with_rounded_digits(tmp_path: Path) -> None:
    values = DEM.copy()
    values[:2] = np.finfo(np.float32).min
    raw = decode(tiff(tmp_path / "a.tif", values, "-3.402823e+38"))
    assert raw.missing is not None and int(raw.missing.sum()) == 128


@pytest.mark.parametrize("nodata", ["-9999", "nan", "65536", "0.5"])
def test_nodata_outside_the_data_type_is_ignored(
    tmp_path: Path, nodata: str, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    raw = decode(tiff(tmp_path / "a.tif", counts, nodata))
    assert raw.missing is None and np.array_equal(raw.values[0], counts)
    assert capfd.readouterr().err == ""


def test_invalid_nodata_tag_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="GDAL_NODATA tag is 'none'; expected a number"):
        decode(tiff(tmp_path / "a.tif", DEM, "none"))


@pytest.mark.parametrize("value_range", ["auto", {"percentile": [2, 98]}])
@pytest.mark.parametrize("fill", [0.0, -9999.0])
def test_pixels_missing_in_one_image_are_no_change(tmp_path: Path, value_range: Any, fill: float) -> None:
    before, after = DEM.copy(), DEM.copy()
    before[:, :16] = -9999
    paths = tiff(tmp_path / "b.tif", before, "-9999"), tiff(tmp_path / "a.tif", after, "-9999")
    first, second = read_pair(*paths, ImageOptions(value_range=value_range, fill_nan=fill))
    assert bool((first == second).all()) and second[0].unique().numel() > 240
    whole = tiff(tmp_path / "w.tif", after, "-1")
    plain = read_image(whole, ImageOptions(value_range=value_range))
    ends = np.percentile(np.concatenate([before[:, 16:].ravel(), after.ravel()]), [2, 98])
    if value_range == "auto":
        assert bool((second[:, :, 16:] == plain[:, :, 16:]).all()), "the range is that of the valid values"
    else:
        expected = np.rint(((after.astype(float) - ends[0]) / (ends[1] - ends[0]) * 255).clip(0, 255))
        assert np.array_equal(second[0, :, 16:].numpy(), expected[:, 16:])


def test_image_without_valid_pixels_is_an_error(tmp_path: Path) -> None:
    path = tiff(tmp_path / "a.tif", np.full((8, 8), -9999, np.float32), "-9999")
    with pytest.raises(DataError, match="has no valid values"):
        read_image(path, ImageOptions(value_range="auto", fill_nan=0))
    assert (read_image(path, ImageOptions(value_range=(0, 255), fill_nan=7)) == 7).all(), (
        "a range of one's own needs none"
    )


def test_8_bit_nodata_requires_all_bands() -> None:
    from lightning_idc.images.tiff import nodata_mask

    values = np.zeros((3, 2, 2), np.uint8)
    values[0, 0, 0] = 200  # pure red is a colour
    missing = nodata_mask(values, 0)
    assert missing is not None and missing.tolist() == [[[False, True], [True, True]]]


def test_compositing_on_white_equals_pillow() -> None:
    values, alpha = (grid.astype(np.uint8) for grid in np.mgrid[:256, :256])
    raw = RawImage(np.stack([values, alpha, 255 - values]), 8, "PNG", alpha=alpha)
    image = Image.fromarray(np.dstack([*raw.values, alpha]))
    expected = Image.alpha_composite(Image.new("RGBA", image.size, (255,) * 4), image).convert("RGB")
    assert np.array_equal(to_uint8([raw])[0].transpose(1, 2, 0), np.asarray(expected))


def test_mask_band_can_be_selected(tmp_path: Path) -> None:
    values = np.full((4, 6, 4), 90, np.uint8)
    values[:, :2] = 0
    values[:, 2:, 3] = 255
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb", extrasamples=["unassalpha"])
    with pytest.raises(DataError, match="8 of 24 values are marked as missing"):
        read_image(tmp_path / "a.tif")
    assert (read_image(tmp_path / "a.tif", ImageOptions(fill_nan=7))[:, :, :2] == 7).all()
    bands = read_image(tmp_path / "a.tif", ImageOptions(bands="all"))
    assert np.array_equal(bands.numpy(), values.transpose(2, 0, 1))


def test_dicom_padding_is_excluded_from_the_range(tmp_path: Path) -> None:
    import pydicom
    from pydicom.data import get_testdata_file

    data = pydicom.dcmread(get_testdata_file("CT_small.dcm", download=False))
    stored = data.pixel_array.copy()
    valid = stored * float(data.RescaleSlope) + float(data.RescaleIntercept)
    stored[:20] = -2000
    data.PixelData, data.PixelPaddingValue = stored.tobytes(), -2000
    data.save_as(tmp_path / "a.dcm")
    raw = decode(tmp_path / "a.dcm")
    assert raw.missing is not None and raw.missing[0, :20].all() and not raw.missing[0, 20:].any()
    image = read_image(tmp_path / "a.dcm", ImageOptions(value_range="auto"))
    low, high = valid[20:].min(), valid[20:].max()
    assert (image[:, :20] == 0).all()
    assert np.array_equal(image[0, 20:].numpy(), np.rint((valid[20:] - low) / (high - low) * 255))

"""Georeference of a raster: from pixels to coordinates, and the name of their reference system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_idc.images.raw import decoder_errors, import_codec, stream_of
from lightning_idc.utils.errors import DataError

_SCALE, _TIEPOINT, _MATRIX, _KEYS = 33550, 33922, 34264, 34735  # tags of GeoTIFF
_RASTER_TYPE, _GEOGRAPHIC, _PROJECTED = 1025, 2048, 3072  # keys of GeoTIFF
_POINT = 2  # raster type in which coordinates are those of the centres of pixels
_USER_DEFINED = 32767

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Georeference:
    """Affine map from pixels to coordinates.

    Args:
        x: coefficients of column, row and 1 for the first coordinate; columns and rows are those of pixel corners.
        y: the same for the second coordinate.
        crs: reference system as a URN, such as ``urn:ogc:def:crs:EPSG::32633``; None if the file does not name one.
    """

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    crs: str | None = None

    def point(self, column: float, row: float) -> list[float]:
        """Coordinates of the corner of a pixel."""
        return [a * column + b * row + c for a, b, c in (self.x, self.y)]

    def ring(self, box: Box) -> list[list[float]]:
        """Closed ring of the corners of a box, x1 y1 x2 y2 in pixels, counterclockwise on a map with north up."""
        left, top, right, bottom = box
        corners = ((left, top), (left, bottom), (right, bottom), (right, top), (left, top))
        return [self.point(column, row) for column, row in corners]


def georeference_of(path: str | Path) -> Georeference:
    """Georeference of a GeoTIFF.

    Raises:
        DataError: the file is not a TIFF, or has no georeference.
    """
    name = str(path)
    with decoder_errors(name):
        tifffile = import_codec("tifffile", name, "the georeference of a TIFF")
        try:
            with tifffile.TiffFile(stream_of(Path(path))) as tiff:
                tags = {tag.code: tag.value for tag in tiff.pages[0].tags}
        except tifffile.TiffFileError as error:
            raise DataError(f"{name} is not a TIFF; expected a georeferenced one (GeoTIFF)") from error
    keys = _keys(tags.get(_KEYS) or ())
    if _MATRIX in tags and len(tags[_MATRIX]) == 16:
        matrix = [float(value) for value in tags[_MATRIX]]
        x, y = (matrix[0], matrix[1], matrix[3]), (matrix[4], matrix[5], matrix[7])
    elif _SCALE in tags and len(tags.get(_TIEPOINT) or ()) >= 6:
        width, height = (float(value) for value in tags[_SCALE][:2])
        column, row, _, east, north, _ = (float(value) for value in tags[_TIEPOINT][:6])
        x, y = (width, 0.0, east - width * column), (0.0, -height, north + height * row)
    else:
        raise DataError(f"{name} has no georeference; expected the tags of a GeoTIFF")
    if keys.get(_RASTER_TYPE) == _POINT:
        x, y = ((a, b, c - (a + b) / 2) for a, b, c in (x, y))
    return Georeference(x, y, _crs(keys))


def _keys(directory: tuple[int, ...]) -> dict[int, int]:
    """Keys of GeoTIFF with a value in the directory itself: four numbers each, behind a head of four."""
    rows = [directory[start : start + 4] for start in range(4, len(directory) - 3, 4)]
    return {int(key): int(value) for key, location, _, value in rows if location == 0}


def _crs(keys: dict[int, int]) -> str | None:
    codes = [code for key in (_PROJECTED, _GEOGRAPHIC) if (code := keys.get(key, 0)) not in (0, _USER_DEFINED)]
    return f"urn:ogc:def:crs:EPSG::{codes[0]}" if codes else None

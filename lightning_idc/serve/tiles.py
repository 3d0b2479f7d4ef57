"""Large scenes: a pair of images is described tile by tile, and the answers are merged into one.

1. :func:`windows` covers the images with overlapping tiles,
2. each pair of tiles is answered on its own, at its full resolution, and
3. :func:`merge` moves boxes to their position in the scene and joins those that neighbouring tiles share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_idc.images.georeference import georeference_of
from lightning_idc.serve.answer import Answer
from lightning_idc.utils.bounds import PositiveInt, check_fields
from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from lightning_idc.serve.describer import Describer

Box = Sequence[int]
SHARED = 0.5
"""Minimum part of the smaller one of two boxes that lies in the other for the two to be joined."""
MAX_SENTENCES = 5
"""Maximum number of different captions of tiles in the caption of a scene, the most frequent ones."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class TileOptions:
    """Options for scenes that are larger than a captioner's images.

    Args:
        tile: height and width of a tile in pixels; the images are described as one by default.
        stride: distance of neighbouring tiles in pixels, three quarters of the tile by default; smaller ones overlap
            more, so that fewer changes are cut by a border.
    """

    tile: PositiveInt | None = None
    stride: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.stride is not None and (self.tile is None or self.stride > self.tile):
            raise ConfigError(f"stride is {self.stride}; expected at most the size of a tile, which is {self.tile}")


def windows(size: tuple[int, int], tile: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Windows x1 y1 x2 y2 that cover an image; the last ones of a row and a column end at its border.

    Args:
        size: width and height of the image.
        tile: height and width of a window; smaller only if the image is.
        stride: distance of neighbouring windows.

    Example:
        >>> windows((10, 4), 4, 3)
        [(0, 0, 4, 4), (3, 0, 7, 4), (6, 0, 10, 4)]
    """
    starts = [sorted({min(start, max(length - tile, 0)) for start in range(0, length, stride)}) for length in size]
    width, height = size
    return [(x, y, min(x + tile, width), min(y + tile, height)) for y in starts[1] for x in starts[0]]


def answer_scene(
    describer: Describer,
    before: str | Path,
    after: str | Path,
    options: TileOptions,
    where: bool = True,
    id: str = "pair",
) -> tuple[Answer, list[Answer]]:
    """Answer about a pair of large images, tile by tile.

    Args:
        describer: captioner or rules; its image options map both images to 8 bits with one range for the scene.
        before: image file.
        after: image file of the same size.
        options: size and distance of tiles.
        where: whether changes are located.
        id: name of the pair.

    Returns:
        The merged answer, and those of the changed tiles, whose boxes are in pixels of the scene.

    Raises:
        ConfigError: the tile size is not set.
        DataError: an image cannot be read.
    """
    from lightning_idc.images.read import read_pair
    from lightning_idc.images.resize import resize

    if options.tile is None:
        raise ConfigError("a scene is described by tiles; expected --tile with their size in pixels")
    first, second = read_pair(before, after, describer.input_spec.options)
    second = resize(second, (first.shape[1], first.shape[2]))
    size = (int(first.shape[2]), int(first.shape[1]))
    tiles = windows(size, options.tile, options.stride or max(1, options.tile * 3 // 4))
    answers: list[Answer] = []
    for chunk in _chunks(tiles):
        samples = [
            describer.input_spec.read(first[:, y1:y2, x1:x2].clone(), second[:, y1:y2, x1:x2].clone(), f"{x1},{y1}")
            for x1, y1, x2, y2 in chunk
        ]
        answers += describer.answer(samples, where)
    return merge(id, answers, tiles, size)


def _chunks(tiles: Sequence[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Tiles in batches; those of one size together, since tiles are only smaller where the scene is."""
    for start in range(0, len(tiles), _AT_ONCE):
        yield list(tiles[start : start + _AT_ONCE])


def merge(
    id: str, answers: Sequence[Answer], tiles: Sequence[tuple[int, int, int, int]], size: tuple[int, int]
) -> tuple[Answer, list[Answer]]:
    """Answer about a scene from those about its tiles.

    The change score is the highest one of a tile. The caption counts the changed tiles and repeats their captions, each
    one once, the most frequent first; of an unchanged scene it is the most frequent caption.

    Args:
        id: name of the pair.
        answers: answers of all tiles, with boxes in pixels of their tile.
        tiles: windows of the tiles in the scene.
        size: width and height of the scene.

    Returns:
        The merged answer, and those of the changed tiles with boxes in pixels of the scene.
    """
    changed = [
        replace(
            answer,
            boxes=[[x1 + left, y1 + top, x1 + right, y1 + bottom] for left, top, right, bottom in answer.boxes],
            map=None,
            size=size,
            regions=[],
        )
        for answer, (x1, y1, _, _) in zip(answers, tiles, strict=True)
        if answer.says_changed
    ]
    frequent = [text for text, _ in Counter(answer.caption for answer in changed or answers).most_common(MAX_SENTENCES)]
    scores = [answer.change_score for answer in answers if answer.change_score is not None]
    boxes = join_boxes([box for answer in changed for box in answer.boxes])
    caption = f"{len(changed)} of {len(tiles)} tiles changed: {' '.join(frequent)}" if changed else frequent[0]
    is_changed = bool(changed) if any(answer.changed is not None for answer in answers) else None
    scene = Answer(
        id=id,
        caption=caption,
        log_prob=None,
        change_score=max(scores, default=None),
        changed=is_changed,
        boxes=boxes,
        size=size,
    )
    return scene, changed


def join_boxes(boxes: Sequence[Box]) -> list[list[int]]:
    """Boxes in which those that share most of the smaller one are replaced by their common bounding box.

    Example:
        >>> join_boxes([[0, 0, 10, 10], [4, 0, 14, 10], [50, 50, 60, 60]])
        [[0, 0, 14, 10], [50, 50, 60, 60]]
    """
    joined: list[list[int]] = []
    for box in boxes:
        current = list(box)
        while (other := next((one for one in joined if _shared(current, one) >= SHARED), None)) is not None:
            joined.remove(other)
            current = [*map(min, current[:2], other[:2]), *map(max, current[2:], other[2:])]
        joined.append(current)
    return sorted(joined, key=lambda box: -(box[2] - box[0]) * (box[3] - box[1]))


def _shared(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(0, width) * max(0, height) / max(1, smaller)


def geojson(answer: Answer, tiles: Sequence[Answer], raster: str | Path) -> str:
    """Boxes of an answer as a GeoJSON collection in the reference system of a raster.

    Coordinates are those of the raster, and ``crs`` names their system, as GDAL and QGIS read it; RFC 7946 knows only
    longitude and latitude.

    Args:
        answer: merged answer.
        tiles: answers of changed tiles; empty for an answer without tiles.
        raster: GeoTIFF whose pixels the boxes are in.

    Raises:
        DataError: the raster has no georeference.
    """
    reference = georeference_of(raster)
    features = []
    for box in answer.boxes:
        of_box = [tile for tile in tiles if any(_shared(box, other) >= SHARED for other in tile.boxes)] or [answer]
        best = max(of_box, key=lambda tile: tile.change_score or 0.0)
        left, top, right, bottom = box
        features.append(
            {
                "type": "Feature",
                "properties": {"caption": best.caption, "change_score": best.change_score, "pixels": list(box)},
                "geometry": {"type": "Polygon", "coordinates": [reference.ring((left, top, right, bottom))]},
            }
        )
    crs = {} if reference.crs is None else {"crs": {"type": "name", "properties": {"name": reference.crs}}}
    collection = {"type": "FeatureCollection", "name": answer.id, **crs, "features": features}
    return json.dumps(collection, indent=1, ensure_ascii=False) + "\n"

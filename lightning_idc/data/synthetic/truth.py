"""Ground truth of a rendered pair, measured on its object maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from lightning_idc.data.synthetic.sampling import ScenePair
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES, Camera, Light, Scene, SceneObject
from lightning_idc.utils.boxes import box_iou

ATTRIBUTE_WORDS: dict[str, tuple[str, ...]] = {
    "size": tuple(SIZES),
    "color": tuple(COLORS),
    "material": MATERIALS,
    "shape": SHAPES,
}
"""Label words of the grid cells by attribute; label 0 is an empty cell, label i + 1 is word i."""

FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Scene, SceneObject, Camera, Light)}
"""Names of the fields of the parts of a scene, in the order in which they are stored."""


def boxes_of(seen: np.ndarray, count: int) -> list[list[float] | None]:
    """Boxes x1, y1, x2, y2 of the visible part of each object in pixels, exclusive ends; None for a hidden object.

    Args:
        seen: index of the object at each pixel or -1, ``(H, W)``.
        count: number of objects.
    """
    boxes: list[list[float] | None] = []
    for index in range(count):
        mask = seen == index
        columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
        if len(rows) == 0:
            boxes.append(None)
        else:
            boxes.append([float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)])
    return boxes


def union_box(boxes: Iterable[list[float] | None]) -> list[float] | None:
    """Smallest box around all boxes that are not None; None if there are none."""
    visible = [box for box in boxes if box is not None]
    if not visible:
        return None
    return [
        min(b[0] for b in visible),
        min(b[1] for b in visible),
        max(b[2] for b in visible),
        max(b[3] for b in visible),
    ]


def view_overlap(
    before: Sequence[list[float] | None], after: Sequence[list[float] | None], same: Iterable[tuple[int, int]]
) -> float | None:
    """Overlap of two views: mean IoU of each object's boxes in the before and the after image.

    CLEVR-Change measures the difficulty of a pair by this IoU; a low value means a large shift.

    Args:
        before: boxes of the objects of the before scene.
        after: boxes of the objects of the after scene.
        same: index pairs (before, after) of the objects that did not move.
    """
    overlaps = []
    for i, j in same:
        first, second = before[i], after[j]
        overlaps.append(box_iou(first, second) if first is not None and second is not None else 0.0)
    return sum(overlaps) / len(overlaps) if overlaps else None


def cell_labels(
    seen: np.ndarray, things: Sequence[Any], grid: int | tuple[int, int] = 8, min_share: float = 0.08
) -> np.ndarray:
    """Labels of the dominant object in each cell of a grid over the image, uint8 ``(4, rows, columns)``.

    Args:
        seen: index of the object at each pixel or -1, ``(H, W)``.
        things: mappings with the keys of `ATTRIBUTE_WORDS`, one per object.
        grid: numbers of rows and columns, or one number for both.
        min_share: minimum fraction of a cell that an object must cover to be its label.
    """
    num_rows, num_columns = (grid, grid) if isinstance(grid, int) else grid
    height, width = seen.shape
    rows, columns = np.arange(height) * num_rows // height, np.arange(width) * num_columns // width
    cells = rows[:, None] * num_columns + columns
    num_labels = len(things) + 1
    counts = np.bincount(
        (cells * num_labels + seen + 1).ravel(), minlength=num_rows * num_columns * num_labels
    ).reshape(-1, num_labels)
    area = counts.sum(1)
    dominant = counts[:, 1:].argmax(1) if len(things) else np.zeros(len(counts), int)
    is_covered = (
        counts[np.arange(len(counts)), dominant + 1] >= min_share * area if len(things) else np.zeros(len(counts), bool)
    )
    table = np.zeros((num_labels, len(ATTRIBUTE_WORDS)), np.uint8)
    for index, thing in enumerate(things):
        table[index + 1] = [words.index(thing[name]) + 1 for name, words in ATTRIBUTE_WORDS.items()]
    return table[np.where(is_covered, dominant + 1, 0)].T.reshape(-1, num_rows, num_columns)


def measure(pair: ScenePair, seen: np.ndarray) -> dict[str, Any]:
    """Complete ground truth of a pair in plain types.

    Args:
        pair: scenes and changes.
        seen: index of the object at each pixel or -1, ``(2, H, W)``.
    """
    scenes = (pair.before, pair.after)
    boxes = [boxes_of(seen[side], len(scene.things)) for side, scene in enumerate(scenes)]
    moved = {index for change in pair.changes for index in change.before}
    unmoved = [(i, j) for i, j in pair.same if i not in moved]
    return {
        "change_type": pair.change_type,
        "changes": [change.plain() for change in pair.changes],
        "boxes": [
            [union_box(boxes[0][i] for i in change.before), union_box(boxes[1][i] for i in change.after)]
            for change in pair.changes
        ],
        "iou": view_overlap(boxes[0], boxes[1], unmoved),
        "same": [list(both) for both in pair.same],
        "before": _plain_scene(scenes[0], boxes[0], seen[0]),
        "after": _plain_scene(scenes[1], boxes[1], seen[1]),
    }


def _plain_scene(scene: Scene, boxes: Sequence[list[float] | None], seen: np.ndarray) -> dict[str, Any]:
    pixels = np.bincount(seen[seen >= 0].ravel(), minlength=len(scene.things))
    # not `dataclasses.asdict`, which copies every number and took half the time of this function
    plain = _plain(scene)
    if scene.albedo == 1.0:
        del plain["albedo"]  # omitted for modes without random albedo, so that their stored ground truth stays the same
    plain["things"] = [
        {**_plain(thing), "box": box, "pixels": int(count)}
        for thing, box, count in zip(scene.things, boxes, pixels, strict=True)
    ]
    plain["camera"], plain["lights"] = _plain(scene.camera), tuple(map(_plain, scene.lights))
    return plain


def _plain(part: Scene | SceneObject | Camera | Light) -> dict[str, Any]:
    """Fields of a part of a scene by name."""
    return {name: getattr(part, name) for name in FIELDS[type(part)]}

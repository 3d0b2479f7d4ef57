"""Ray tracer compiled by numba: one thread, without the GIL, without allocations per pixel.

Scalars and objects are as in :mod:`~lightning_idc.data.synthetic.rays`; a light is a row of `Packed.lights`. Rays are
traced in blocks, whose numbers are in one array, see `ground.FIELDS`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Callable
from math import sqrt

import numpy as np

from lightning_idc.data.synthetic import bounds, ground, rays, shading, surfaces
from lightning_idc.data.synthetic.bounds import boxes_of_all, list_row
from lightning_idc.data.synthetic.ground import (
    BLOCK,
    BLUE,
    DISTANCE,
    DX,
    DY,
    DZ,
    FIELDS,
    GREEN,
    PX,
    PY,
    QX,
    QY,
    RED,
    _u,
    aim,
    between,
    light_ground,
)  # fmt: skip
from lightning_idc.data.synthetic.rays import (
    HALF,
    ONE,
    OPTIONS,
    ZERO,
    _f,
    inlined,
    meet,
    shared,
)  # fmt: skip
from lightning_idc.data.synthetic.surfaces import backdrop, colour
from lightning_idc.utils.compiled import compiled

ENCODE_2, ENCODE_4, ENCODE_1 = (_f(value) for value in shading.ENCODE)
CODES, CONTRAST = _f(255), _f(shading.CONTRAST)
SAMPLES = np.array(shading.SAMPLES, np.float32)
SAMPLE_WEIGHT = _f(1 / (1 + len(shading.SAMPLES)))


@shared
def _trace(things, count, lights, light_count, camera, boxes, active, columns, number, height, width, rays, hits):
    """Colours and objects of rays through points of one row of pixels, in `rays` and `hits`.

    Almost all rays meet the ground, so all are lit as if they did, in loops that a compiler vectorises; then objects
    are put in front.
    """
    aim(camera, number, height, width, rays, hits)
    light_ground(things, count, lights, light_count, camera[12], boxes, active, columns, number, rays)
    for i in range(number):
        red, green, blue = rays[RED + i], rays[GREEN + i], rays[BLUE + i]
        rays[RED + i], rays[GREEN + i], rays[BLUE + i] = backdrop(
            hits[i], rays[QX + i], rays[QY + i], rays[DZ + i], red, green, blue
        )
    ox, oy, oz = camera[0], camera[1], camera[2]
    for j in range(active[0, 0]):
        k = active[0, 1 + j]
        first, last = between(columns, number, boxes[0, k])
        for i in range(first, last):
            distance = meet(things, k, ox, oy, oz, rays[DX + i], rays[DY + i], rays[DZ + i])
            if distance < rays[DISTANCE + i]:
                rays[DISTANCE + i], hits[i] = distance, k
    for i in range(number):
        if hits[i] >= 0:
            rays[RED + i], rays[GREEN + i], rays[BLUE + i] = colour(
                things, count, lights, light_count, camera[12], hits[i], rays[DISTANCE + i], ox, oy, oz,
                rays[DX + i], rays[DY + i], rays[DZ + i],
            )  # fmt: skip


@shared
def _encode(value):
    value = min(max(value, ZERO), ONE)
    root = sqrt(value)
    return CODES * max(ENCODE_2 * root + ENCODE_4 * sqrt(root) + ENCODE_1 * value, ZERO)


@shared
def _differ(codes, seen, row, column, other_row, other_column):
    difference = abs(codes[0, row, column] - codes[0, other_row, other_column])
    difference = max(difference, abs(codes[1, row, column] - codes[1, other_row, other_column]))
    difference = max(difference, abs(codes[2, row, column] - codes[2, other_row, other_column]))
    return difference > CONTRAST or seen[row, column] != seen[other_row, other_column]


@inlined
def _centres(things, count, lights, light_count, camera, boxes, active, linear, codes, columns, rays, hits, seen):
    """Trace the centres of all pixels."""
    height, width = seen.shape
    for row in range(height):
        list_row(boxes, count, light_count, row, active)
        for start in range(0, width, BLOCK):
            number = _u(min(width - start, BLOCK))
            for i in range(number):
                columns[i] = start + i
                rays[PX + i], rays[PY + i] = _f(columns[i]) + HALF, _f(row) + HALF
            _trace(
                things, count, lights, light_count, camera, boxes, active, columns, number, _f(height), _f(width),
                rays, hits,
            )  # fmt: skip
            for i in range(number):
                column = columns[i]
                seen[row, column] = max(hits[i], -1)
                for c in range(3):
                    value = rays[FIELDS[c] + i]
                    linear[c, row, column], codes[c, row, column] = value, _encode(value)


@inlined
def _samples(things, count, lights, light_count, camera, boxes, active, linear, codes, rough, columns, rays, hits):
    """Trace the additional samples of rough pixels, and replace their codes by those of the mean."""
    _, height, width = codes.shape
    for row in range(height):
        list_row(boxes, count, light_count, row, active)
        number = _u(0)
        for column in range(width):
            if rough[row, column]:
                for s in range(SAMPLES.shape[0]):
                    columns[number] = column
                    rays[PX + number] = _f(column) + HALF + SAMPLES[s, 0]
                    rays[PY + number] = _f(row) + HALF + SAMPLES[s, 1]
                    number += _u(1)
            if number == _u(BLOCK) or (number > _u(0) and column == width - 1):
                _trace(
                    things, count, lights, light_count, camera, boxes, active, columns, number, _f(height), _f(width),
                    rays, hits,
                )  # fmt: skip
                # overexposed values are clipped to white, as the edges of highlights would stay jagged otherwise
                for i in range(_u(0), number, _u(SAMPLES.shape[0])):
                    for c in range(3):
                        total = min(linear[c, row, columns[i]], ONE)
                        for s in range(SAMPLES.shape[0]):
                            total += min(rays[FIELDS[c] + i + _u(s)], ONE)
                        codes[c, row, columns[i]] = _encode(total * SAMPLE_WEIGHT)
                number = _u(0)


@inlined
def _picture(
    things, count, lights, light_count, camera, boxes, active, linear, codes, rough, columns, rays, hits, image, seen
):
    height, width = seen.shape
    boxes_of_all(things, count, lights, light_count, camera, height, width, boxes)
    _centres(things, count, lights, light_count, camera, boxes, active, linear, codes, columns, rays, hits, seen)
    rough[:] = False
    _mark_rough(codes, seen, rough)
    _samples(things, count, lights, light_count, camera, boxes, active, linear, codes, rough, columns, rays, hits)
    for c in range(3):
        for row in range(height):
            for column in range(width):
                image[c, row, column] = np.uint8(codes[c, row, column] + HALF)


@shared
def _mark_rough(codes, seen, rough):
    """Mark the pixels that differ from a neighbour."""
    height, width = seen.shape
    for row in range(height):
        for column in range(width):
            if column + 1 < width and _differ(codes, seen, row, column, row, column + 1):
                rough[row, column] = rough[row, column + 1] = True
            if row + 1 < height and _differ(codes, seen, row, column, row + 1, column):
                rough[row, column] = rough[row + 1, column] = True


def _drawer(stamp: int) -> Callable[..., None]:
    """Compile the loop over scenes; `stamp` becomes part of numba's cache key."""

    def _draw(things, counts, lights, light_counts, cameras, images, seen):
        total, height, width = seen.shape
        if stamp < 0:
            return
        linear = np.empty((3, height, width), np.float32)
        codes = np.empty((3, height, width), np.float32)
        rough = np.empty((height, width), np.bool_)
        boxes = np.empty((1 + lights.shape[1], things.shape[1], 4), np.int32)
        active = np.empty((1 + lights.shape[1], 1 + things.shape[1]), np.int32)
        columns, hits = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
        rays = np.empty(len(FIELDS) * BLOCK, np.float32)
        for n in range(total):
            _picture(
                things[n], counts[n], lights[n], light_counts[n], cameras[n], boxes, active, linear, codes, rough,
                columns, rays, hits, images[n], seen[n],
            )  # fmt: skip

    return compiled(_draw, **OPTIONS)


# numba's cache checks this file only, but functions of the other modules are compiled in as well
SOURCES = [bounds, ground, rays, shading, surfaces, sys.modules[__name__]]
_draw = _drawer(zlib.crc32("".join(map(inspect.getsource, SOURCES)).encode()))


def draw(packed: shading.Packed, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and object maps, as returned by `lightning_idc.data.synthetic.render.render`."""
    total = len(packed.counts)
    images = np.empty((total, 3, height, width), np.uint8)
    seen = np.empty((total, height, width), np.int16)
    _draw(packed.things, packed.counts, packed.lights, packed.light_counts, packed.cameras, images, seen)
    return images, seen

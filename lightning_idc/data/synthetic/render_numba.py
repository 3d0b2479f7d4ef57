"""Ray tracer compiled by numba: one thread, without the GIL, without allocations per pixel.

Scalars and objects are as in :mod:`~lightning_idc.data.synthetic.rays`; a light is a row of `Packed.lights`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Callable
from math import sqrt

import numpy as np

from lightning_idc.data.synthetic import rays, shading
from lightning_idc.data.synthetic.rays import (
    FAR,
    HALF,
    NEAR,
    ONE,
    OPTIONS,
    SMALL,
    TINY,
    TWO,
    ZERO,
    inlined,
    meet,
    nearest,
    normal,
    openness,
    passed,
    visibility,
)  # fmt: skip
from lightning_idc.utils.compiled import compiled

_f = np.float32
P2, P8 = _f(0.2), _f(0.8)
ALBEDO, HORIZON, ZENITH = _f(shading.GROUND_ALBEDO), _f(shading.HORIZON), _f(shading.ZENITH)
HAZE4 = _f(shading.HAZE**4)
RUBBER_GLOSS, METAL_GLOSS, METAL_SHEEN = _f(shading.RUBBER_GLOSS), _f(shading.METAL_GLOSS), _f(shading.METAL_SHEEN)
METAL_DIFFUSE, METAL_MIRROR, METAL_WHITE = _f(shading.METAL_DIFFUSE), _f(shading.METAL_MIRROR), _f(shading.METAL_WHITE)
GLOSS_SCALE = _f(1 / shading.LIGHT_POWER)
ENCODE_2, ENCODE_4, ENCODE_1 = (_f(value) for value in shading.ENCODE)
CODES, CONTRAST = _f(255), _f(shading.CONTRAST)
SAMPLES = np.array(shading.SAMPLES, np.float32)
SAMPLE_WEIGHT = _f(1 / (1 + len(shading.SAMPLES)))


@inlined
def _lit(things, count, lights, light_count, ambient, skip, metal, px, py, pz, nx, ny, nz, rx, ry, rz):
    """Light that reaches a surface: three diffuse and three specular colour values."""
    level = ambient * (P8 + P2 * nz) * openness(things, count, skip, px, py, pz, nx, ny, nz)
    red, green, blue = level, level, level
    gloss_red, gloss_green, gloss_blue = ZERO, ZERO, ZERO
    for n in range(light_count):
        x, y, z = lights[n, 0] - px, lights[n, 1] - py, lights[n, 2] - pz
        square = x * x + y * y + z * z + TINY
        inverse = ONE / sqrt(square)
        x, y, z = x * inverse, y * inverse, z * inverse
        facing = x * nx + y * ny + z * nz
        if facing > ZERO:
            seen = visibility(things, count, skip, px, py, pz, x, y, z, lights[n, 3] * inverse)
            level = max(x * lights[n, 7] + y * lights[n, 8] + z * lights[n, 9], ZERO)
            level *= seen * facing * inverse * inverse
            red += lights[n, 4] * level
            green += lights[n, 5] * level
            blue += lights[n, 6] * level
            if skip >= 0:
                mirrored = x * rx + y * ry + z * rz
                if mirrored > ZERO:
                    power = mirrored * mirrored
                    power *= power
                    power *= power
                    if metal > ZERO:
                        wide = power * power
                        narrow = wide * wide
                        narrow *= narrow
                        narrow *= narrow
                        power = METAL_GLOSS * narrow + METAL_SHEEN * wide
                    else:
                        power *= RUBBER_GLOSS
                    power *= seen * GLOSS_SCALE
                    gloss_red += lights[n, 4] * power
                    gloss_green += lights[n, 5] * power
                    gloss_blue += lights[n, 6] * power
    return red, green, blue, gloss_red, gloss_green, gloss_blue


@inlined
def _backdrop(hit, px, py, dz, red, green, blue):
    """Colour of a ray that hits the ground under the given light, or the background."""
    if hit == -2:
        level = HORIZON + (ZENITH - HORIZON) * min(dz, ONE)
        return level, level, level
    square = px * px + py * py
    square *= square
    haze = square / (square + HAZE4)
    keep = (ONE - haze) * ALBEDO
    level = haze * HORIZON
    return level + keep * red, level + keep * green, level + keep * blue


@inlined
def _colour(things, count, lights, light_count, ambient, hit, t, ox, oy, oz, dx, dy, dz):
    """Linear colour of the object that a ray hits."""
    px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
    metal = things[hit, 10]
    nx, ny, nz = normal(things, hit, px, py, pz)
    twice = TWO * (dx * nx + dy * ny + dz * nz)
    rx, ry, rz = dx - twice * nx, dy - twice * ny, dz - twice * nz
    red, green, blue, gloss_red, gloss_green, gloss_blue = _lit(
        things, count, lights, light_count, ambient, hit, metal, px, py, pz, nx, ny, nz, rx, ry, rz
    )
    if metal == ZERO:
        return (
            things[hit, 7] * red + gloss_red,
            things[hit, 8] * green + gloss_green,
            things[hit, 9] * blue + gloss_blue,
        )
    t, other = nearest(things, count, hit, px, py, pz, rx, ry, rz)
    qx, qy, qz = px + t * rx, py + t * ry, pz + t * rz
    mx, my, mz = ZERO, ZERO, ONE
    if other >= 0:
        mx, my, mz = normal(things, other, qx, qy, qz)
    a, b, c = ZERO, ZERO, ZERO
    if other >= -1:
        a, b, c, _, _, _ = _lit(
            things, count, lights, light_count, ambient, other, ZERO, qx, qy, qz, mx, my, mz, ZERO, ZERO, ONE
        )
    if other >= 0:
        a, b, c = things[other, 7] * a, things[other, 8] * b, things[other, 9] * c
    else:
        a, b, c = _backdrop(other, qx, qy, rz, a, b, c)
    red, green, blue = METAL_DIFFUSE * red, METAL_DIFFUSE * green, METAL_DIFFUSE * blue
    tint = ONE - METAL_WHITE
    return (
        things[hit, 7] * (red + METAL_MIRROR * a) + gloss_red * (METAL_WHITE + tint * things[hit, 7]),
        things[hit, 8] * (green + METAL_MIRROR * b) + gloss_green * (METAL_WHITE + tint * things[hit, 8]),
        things[hit, 9] * (blue + METAL_MIRROR * c) + gloss_blue * (METAL_WHITE + tint * things[hit, 9]),
    )


@inlined
def _trace(things, count, lights, light_count, camera, boxes, active, column, px, py, height, width):
    """Colour and object of the ray through a point of the image; `active` is the list from `_list_row` for its row."""
    u = (TWO * px - width) / width
    v = (height - TWO * py) / width
    dx = camera[9] + u * camera[3] + v * camera[6]
    dy = camera[10] + u * camera[4] + v * camera[7]
    dz = camera[11] + u * camera[5] + v * camera[8]
    scale = ONE / sqrt(dx * dx + dy * dy + dz * dz)
    dx, dy, dz = dx * scale, dy * scale, dz * scale
    ox, oy, oz = camera[0], camera[1], camera[2]
    best, hit = FAR, -2
    if dz < -SMALL and oz > ZERO:
        best, hit = -oz / dz, -1
    for i in range(active[0, 0]):
        k = active[0, 1 + i]
        if boxes[0, k, 0] <= column <= boxes[0, k, 1]:
            distance = meet(things, k, ox, oy, oz, dx, dy, dz)
            if distance < best:
                best, hit = distance, k
    if hit == -1:
        qx, qy = ox + best * dx, oy + best * dy
        level = camera[12] * openness(things, count, -1, qx, qy, ZERO, ZERO, ZERO, ONE)
        red, green, blue = level, level, level
        for n in range(light_count):
            x, y, z = lights[n, 0] - qx, lights[n, 1] - qy, lights[n, 2]
            if z > ZERO:
                inverse = ONE / sqrt(x * x + y * y + z * z)
                x, y, z = x * inverse, y * inverse, z * inverse
                level = z * inverse * inverse * max(x * lights[n, 7] + y * lights[n, 8] + z * lights[n, 9], ZERO)
                for i in range(active[1 + n, 0]):
                    k = active[1 + n, 1 + i]
                    if boxes[1 + n, k, 0] <= column <= boxes[1 + n, k, 1]:
                        level *= passed(things, k, qx, qy, ZERO, x, y, z, lights[n, 3] * inverse)
                red, green, blue = red + lights[n, 4] * level, green + lights[n, 5] * level, blue + lights[n, 6] * level
        red, green, blue = _backdrop(hit, qx, qy, dz, red, green, blue)
    elif hit == -2:
        red, green, blue = _backdrop(hit, ZERO, ZERO, dz, ZERO, ZERO, ZERO)
    else:
        red, green, blue = _colour(things, count, lights, light_count, camera[12], hit, best, ox, oy, oz, dx, dy, dz)
    return red, green, blue, hit


@inlined
def _box(camera, focal, x, y, z, bound, height, width, box):
    """Bounding box of a sphere's pixels, including all samples: first and last column, first and last row."""
    x, y, z = x - camera[0], y - camera[1], z - camera[2]
    u = x * camera[3] + y * camera[4] + z * camera[5]
    v = x * camera[6] + y * camera[7] + z * camera[8]
    depth = (x * camera[9] + y * camera[10] + z * camera[11]) / focal
    box[0], box[1], box[2], box[3] = 0, width - 1, 0, height - 1
    if depth + bound <= ZERO:
        box[1] = -1  # behind the camera
    elif depth - bound > _f(0.1):
        u, v = u / depth, v / depth
        scale = HALF * _f(width) * focal
        reach = bound / (depth - bound) * scale
        middle, half = HALF * _f(width) + u * scale, reach * (ONE + abs(u)) + ONE
        box[0], box[1] = max(int(middle - half), 0), min(int(middle + half) + 1, width - 1)
        middle, half = HALF * _f(height) - v * scale, reach * (ONE + abs(v)) + ONE
        box[2], box[3] = max(int(middle - half), 0), min(int(middle + half) + 1, height - 1)


@inlined
def _patch(camera, cx, cy, x, y, near, far, half, height, width, box):
    """Bounding box of a rectangle on the ground: `near` to `far` along a direction, `half` to both sides."""
    left, right, top, bottom = FAR, -FAR, FAR, -FAR
    for corner in range(4):
        along, aside = near if corner < 2 else far, half if corner % 2 else -half
        px, py, pz = cx + along * x - aside * y - camera[0], cy + along * y + aside * x - camera[1], -camera[2]
        depth = px * camera[9] + py * camera[10] + pz * camera[11]  # times the focal length
        if depth < _f(0.1):
            return
        scale = HALF * _f(width) / depth * (camera[9] * camera[9] + camera[10] * camera[10] + camera[11] * camera[11])
        column = HALF * _f(width) + scale * (px * camera[3] + py * camera[4] + pz * camera[5])
        row = HALF * _f(height) - scale * (px * camera[6] + py * camera[7] + pz * camera[8])
        left, right = min(left, column), max(right, column)
        top, bottom = min(top, row), max(bottom, row)
    limit = _f(1 << 20)  # avoids integer overflow
    box[0], box[1] = max(int(max(left, -limit)) - 2, 0), min(int(min(right, limit)) + 2, width - 1)
    box[2], box[3] = max(int(max(top, -limit)) - 2, 0), min(int(min(bottom, limit)) + 2, height - 1)


@inlined
def _bounds(things, count, lights, light_count, camera, height, width, boxes):
    """Bounding boxes of objects and of their shadows on the ground."""
    focal = sqrt(camera[9] * camera[9] + camera[10] * camera[10] + camera[11] * camera[11])
    for k in range(count):
        cx, cy, cz, bound = things[k, 1], things[k, 2], things[k, 3], things[k, 4]
        _box(camera, focal, cx, cy, cz, bound, height, width, boxes[0, k])
        for n in range(light_count):
            box = boxes[1 + n, k]
            box[0], box[1], box[2], box[3] = 0, width - 1, 0, height - 1
            x, y, z = cx - lights[n, 0], cy - lights[n, 1], lights[n, 2] - cz
            flat = sqrt(x * x + y * y)
            distance = sqrt(flat * flat + z * z)
            # cone of the shadow and its penumbra: first with an upper bound of the penumbra, then with a tighter one
            blur = HALF * lights[n, 3] + NEAR
            for step in range(2):
                sine = (bound + blur) / distance
                if sine >= ONE:
                    break
                cosine = sqrt(ONE - sine * sine)
                # directions to the near and far end of the shadow by the angle addition formulas
                fall, run = (z * cosine - flat * sine) / distance, (flat * cosine + z * sine) / distance
                if fall < _f(0.05):
                    break
                slant = lights[n, 2] / fall
                if step == 0:
                    blur = min(lights[n, 3] * (ONE - distance / slant) + TWO * NEAR, blur)
                    if blur == HALF * lights[n, 3] + NEAR:
                        break
                    continue
                far = slant * run
                near = lights[n, 2] * (flat * cosine - z * sine) / (z * cosine + flat * sine)
                x, y = (x / flat, y / flat) if flat > NEAR else (ONE, ZERO)
                _patch(camera, lights[n, 0], lights[n, 1], x, y, near, far, slant * sine / cosine, height, width, box)


@inlined
def _list_row(boxes, count, light_count, row, active):
    """Count and list the objects, and the shadows of each light, that can be visible in a row of pixels."""
    for g in range(1 + light_count):
        num_active = 0
        for k in range(count):
            if boxes[g, k, 2] <= row <= boxes[g, k, 3]:
                num_active += 1
                active[g, num_active] = k
        active[g, 0] = num_active


@inlined
def _encode(value):
    value = min(max(value, ZERO), ONE)
    root = sqrt(value)
    return CODES * max(ENCODE_2 * root + ENCODE_4 * sqrt(root) + ENCODE_1 * value, ZERO)


@inlined
def _differ(codes, seen, row, column, other_row, other_column):
    difference = abs(codes[row, column, 0] - codes[other_row, other_column, 0])
    difference = max(difference, abs(codes[row, column, 1] - codes[other_row, other_column, 1]))
    difference = max(difference, abs(codes[row, column, 2] - codes[other_row, other_column, 2]))
    return difference > CONTRAST or seen[row, column] != seen[other_row, other_column]


@inlined
def _picture(things, count, lights, light_count, camera, boxes, active, linear, codes, rough, image, seen):
    height, width = seen.shape
    high, wide = _f(height), _f(width)
    _bounds(things, count, lights, light_count, camera, height, width, boxes)
    for row in range(height):
        _list_row(boxes, count, light_count, row, active)
        for column in range(width):
            red, green, blue, hit = _trace(
                things, count, lights, light_count, camera, boxes, active, column,
                _f(column) + HALF, _f(row) + HALF, high, wide,
            )  # fmt: skip
            linear[row, column, 0], linear[row, column, 1], linear[row, column, 2] = red, green, blue
            codes[row, column, 0], codes[row, column, 1], codes[row, column, 2] = (
                _encode(red), _encode(green), _encode(blue),
            )  # fmt: skip
            seen[row, column] = max(hit, -1)
    rough[:] = False
    for row in range(height):
        for column in range(width):
            if column + 1 < width and _differ(codes, seen, row, column, row, column + 1):
                rough[row, column] = rough[row, column + 1] = True
            if row + 1 < height and _differ(codes, seen, row, column, row + 1, column):
                rough[row, column] = rough[row + 1, column] = True
    for row in range(height):
        _list_row(boxes, count, light_count, row, active)
        for column in range(width):
            if rough[row, column]:
                # overexposed values are clipped to white, as the edges of highlights would stay jagged otherwise
                red, green = min(linear[row, column, 0], ONE), min(linear[row, column, 1], ONE)
                blue = min(linear[row, column, 2], ONE)
                for s in range(SAMPLES.shape[0]):
                    a, b, c, _ = _trace(
                        things, count, lights, light_count, camera, boxes, active, column,
                        _f(column) + HALF + SAMPLES[s, 0], _f(row) + HALF + SAMPLES[s, 1], high, wide,
                    )  # fmt: skip
                    red, green, blue = red + min(a, ONE), green + min(b, ONE), blue + min(c, ONE)
                codes[row, column, 0], codes[row, column, 1], codes[row, column, 2] = (
                    _encode(red * SAMPLE_WEIGHT), _encode(green * SAMPLE_WEIGHT), _encode(blue * SAMPLE_WEIGHT),
                )  # fmt: skip
            for c in range(3):
                image[c, row, column] = np.uint8(codes[row, column, c] + HALF)


def _drawer(stamp: int) -> Callable[..., None]:
    """Compile the loop over scenes; `stamp` becomes part of numba's cache key."""

    def _draw(things, counts, lights, light_counts, cameras, images, seen):
        total, height, width = seen.shape
        if stamp < 0:
            return
        linear = np.empty((height, width, 3), np.float32)
        codes = np.empty((height, width, 3), np.float32)
        rough = np.empty((height, width), np.bool_)
        boxes = np.empty((1 + lights.shape[1], things.shape[1], 4), np.int32)
        active = np.empty((1 + lights.shape[1], 1 + things.shape[1]), np.int32)
        for n in range(total):
            _picture(
                things[n], counts[n], lights[n], light_counts[n], cameras[n], boxes, active, linear, codes, rough,
                images[n], seen[n],
            )  # fmt: skip

    return compiled(_draw, **OPTIONS)


# numba's cache checks this file only, but functions of the other modules are compiled in as well
_draw = _drawer(zlib.crc32("".join(map(inspect.getsource, (rays, shading, sys.modules[__name__]))).encode()))


def draw(packed: shading.Packed, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and object maps, as returned by `lightning_idc.data.synthetic.render.render`."""
    total = len(packed.counts)
    images = np.empty((total, 3, height, width), np.uint8)
    seen = np.empty((total, height, width), np.int16)
    _draw(packed.things, packed.counts, packed.lights, packed.light_counts, packed.cameras, images, seen)
    return images, seen

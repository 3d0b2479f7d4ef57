"""Light and shadows on the ground for a block of rays, in loops that a compiler vectorises.

The numbers of a block are in one array, see `FIELDS`. Scalars and objects are as in
:mod:`~lightning_idc.data.synthetic.rays`; a light is a row of `Packed.lights`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from math import sqrt

import numpy as np

from lightning_idc.data.synthetic.rays import (
    FAR,
    NEAR,
    OCCLUSION,
    ONE,
    SMALL,
    TWO,
    ZERO,
    ball_depth,
    box_depth,
    cylinder_depth,
    inlined,
    occlusion,
    shared,
    uncovered,
)  # fmt: skip

_u = np.uint64  # no index is negative, which loops must know to be vectorised
BLOCK = 256
"""Maximum number of rays traced together."""
(
    RED, GREEN, BLUE, PX, PY, DX, DY, DZ, DISTANCE, QX, QY, LX, LY, LZ, INVERSE, LEVEL, ALONG, BLUR, DEPTH,
) = FIELDS = tuple(_u(BLOCK * n) for n in range(19))  # fmt: skip
"""Where a block has the numbers of its rays: colour, point of the image, direction, distance, the point where a ray
meets the ground; from there the direction of a light, one over its distance and its level; then of an object's shadow.

Constant offsets in one array show a compiler that no two overlap.
"""


@shared
def aim(camera, number, height, width, rays, hits):
    """Rays through points of the image: their directions, and the distance of the ground, if they meet it."""
    ox, oy, oz = camera[0], camera[1], camera[2]
    for i in range(number):
        u = (TWO * rays[PX + i] - width) / width
        v = (height - TWO * rays[PY + i]) / width
        dx = camera[9] + u * camera[3] + v * camera[6]
        dy = camera[10] + u * camera[4] + v * camera[7]
        dz = camera[11] + u * camera[5] + v * camera[8]
        scale = ONE / sqrt(dx * dx + dy * dy + dz * dz)
        dx, dy, dz = dx * scale, dy * scale, dz * scale
        is_ground = dz < -SMALL and oz > ZERO
        distance = -oz / (dz if is_ground else -ONE)
        rays[DX + i], rays[DY + i], rays[DZ + i] = dx, dy, dz
        rays[DISTANCE + i] = distance if is_ground else FAR
        rays[QX + i], rays[QY + i] = ox + distance * dx, oy + distance * dy
        hits[i] = -1 if is_ground else -2


@shared
def between(columns, number, box):
    """First and last + 1 of the rays in the columns of a box; columns ascend."""
    first, last = _u(0), number
    while first < number and columns[first] < box[0]:
        first += _u(1)
    while last > first and columns[last - _u(1)] > box[1]:
        last -= _u(1)
    return first, last


@inlined
def _cast(things, k, light_radius, first, last, rays):
    """Darken the ground by the shadow of an object, for one light; every loop is over one shape and has no branches."""
    kind, cx, cy, radius, bound = things[k, 0], things[k, 1], things[k, 2], things[k, 3], things[k, 4]
    cos, sin = things[k, 5], things[k, 6]
    for i in range(first, last):
        dx, dy, dz = rays[LX + i], rays[LY + i], rays[LZ + i]
        x, y, z = rays[QX + i] - cx, rays[QY + i] - cy, -radius
        along = -(x * dx + y * dy + z * dz)
        blur = light_radius * rays[INVERSE + i] * along + NEAR
        reach = bound + blur
        is_near = along > ZERO and x * x + y * y + z * z - along * along < reach * reach
        rays[BLUR + i] = blur if is_near else ZERO
        rays[ALONG + i] = along
    if kind == ZERO:
        for i in range(first, last):
            x, y, z = rays[QX + i] - cx, rays[QY + i] - cy, -radius
            rays[DEPTH + i] = ball_depth(radius, x, y, z, rays[ALONG + i])
    elif kind == ONE:
        for i in range(first, last):
            x, y, z = rays[QX + i] - cx, rays[QY + i] - cy, -radius
            rays[DEPTH + i] = box_depth(radius, cos, sin, x, y, z, rays[LX + i], rays[LY + i], rays[LZ + i])
    else:
        for i in range(first, last):
            x, y, z = rays[QX + i] - cx, rays[QY + i] - cy, -radius
            rays[DEPTH + i] = cylinder_depth(radius, x, y, z, rays[LX + i], rays[LY + i], rays[LZ + i])
    for i in range(first, last):
        blur = rays[BLUR + i]
        seen = uncovered(rays[DEPTH + i], blur if blur > ZERO else ONE)
        rays[LEVEL + i] *= seen if blur > ZERO else ONE


@inlined
def light_ground(things, count, lights, light_count, ambient, boxes, active, columns, number, rays):
    """Light that reaches the ground where rays meet it."""
    for i in range(number):
        rays[LEVEL + i] = ZERO
    for k in range(count):
        cx, cy, radius = things[k, 1], things[k, 2], things[k, 3]
        for i in range(number):
            rays[LEVEL + i] += occlusion(radius, cx - rays[QX + i], cy - rays[QY + i], radius, radius)
    for i in range(number):
        level = ambient * max(ONE - OCCLUSION * rays[LEVEL + i], ZERO)
        rays[RED + i], rays[GREEN + i], rays[BLUE + i] = level, level, level
    for n in range(light_count):
        height = lights[n, 2]
        if height <= ZERO:
            continue
        for i in range(number):
            x, y, z = lights[n, 0] - rays[QX + i], lights[n, 1] - rays[QY + i], height
            inverse = ONE / sqrt(x * x + y * y + z * z)
            x, y, z = x * inverse, y * inverse, z * inverse
            rays[LX + i], rays[LY + i], rays[LZ + i], rays[INVERSE + i] = x, y, z, inverse
            facing = max(x * lights[n, 7] + y * lights[n, 8] + z * lights[n, 9], ZERO)
            rays[LEVEL + i] = z * inverse * inverse * facing
        for j in range(active[1 + n, 0]):
            k = active[1 + n, 1 + j]
            first, last = between(columns, number, boxes[1 + n, k])
            _cast(things, k, lights[n, 3], first, last, rays)
        for i in range(number):
            level = rays[LEVEL + i]
            rays[RED + i] += lights[n, 4] * level
            rays[GREEN + i] += lights[n, 5] * level
            rays[BLUE + i] += lights[n, 6] * level

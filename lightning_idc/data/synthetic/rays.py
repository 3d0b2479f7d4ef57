"""Rays that meet balls, boxes and cylinders: the geometry of the compiled ray tracer.

All scalars are float32, so constants are too: numba would widen to float64 where a literal meets them. A thing is a
row of `THING_FIELDS`; -1 in place of a thing is the ground, -2 is nothing at all.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numba
import numpy as np

from lightning_idc.data.synthetic import shading

OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy"}

_f = np.float32
ZERO, HALF, ONE, TWO = _f(0), _f(0.5), _f(1), _f(2)
TINY, SMALL, NEAR, FAR = _f(1e-12), _f(1e-7), _f(1e-3), _f(1e9)
P25, P75 = _f(0.25), _f(0.75)
OCCLUSION, BEVEL = _f(shading.OCCLUSION), _f(shading.BEVEL)


def inlined(function: Callable[..., Any]) -> Any:
    """A function that is compiled into those that call it."""
    return numba.njit(nogil=True, **OPTIONS)(function)


@inlined
def meet(things, k, ox, oy, oz, dx, dy, dz):
    """Distance along a ray to a thing, FAR where it is missed."""
    radius = things[k, 3]
    x, y, z = ox - things[k, 1], oy - things[k, 2], oz - radius
    if things[k, 0] == ZERO:
        along = x * dx + y * dy + z * dz
        inside = along * along - (x * x + y * y + z * z) + radius * radius
        if inside <= ZERO:
            return FAR
        near = -along - sqrt(inside)
        return near if near > ZERO else FAR
    iz = ONE / (dz if abs(dz) > SMALL else SMALL)
    mid, reach = -z * iz, abs(radius * iz)
    near, far = mid - reach, mid + reach
    if things[k, 0] == ONE:
        cos, sin = things[k, 5], things[k, 6]
        u, v = x * cos + y * sin, y * cos - x * sin
        du, dv = dx * cos + dy * sin, dy * cos - dx * sin
        iu = ONE / (du if abs(du) > SMALL else SMALL)
        iv = ONE / (dv if abs(dv) > SMALL else SMALL)
        mid, reach = -u * iu, abs(radius * iu)
        near, far = max(near, mid - reach), min(far, mid + reach)
        mid, reach = -v * iv, abs(radius * iv)
        near, far = max(near, mid - reach), min(far, mid + reach)
    else:
        ia = ONE / (dx * dx + dy * dy + TINY)
        mid = -(x * dx + y * dy) * ia
        inside = mid * mid - (x * x + y * y - radius * radius) * ia
        if inside <= ZERO:
            return FAR
        reach = sqrt(inside)
        near, far = max(near, mid - reach), min(far, mid + reach)
    return near if far > near and near > ZERO else FAR


@inlined
def normal(things, k, px, py, pz):
    """Unit normal at a point of a thing, bent where an edge would be rounded."""
    radius = things[k, 3]
    x, y, z = (px - things[k, 1]) / radius, (py - things[k, 2]) / radius, pz / radius - ONE
    if things[k, 0] == ONE:
        cos, sin = things[k, 5], things[k, 6]
        u, v = x * cos + y * sin, y * cos - x * sin
        # a face has its own coordinate at 1: the rounding of the others grows from 0 to 1 over the bevel
        bu = max(abs(u) - (ONE - BEVEL), ZERO)
        bv = max(abs(v) - (ONE - BEVEL), ZERO)
        bz = max(abs(z) - (ONE - BEVEL), ZERO)
        bu *= bu if u > ZERO else -bu
        bv *= bv if v > ZERO else -bv
        z = bz * (bz if z > ZERO else -bz)
        x, y = bu * cos - bv * sin, bu * sin + bv * cos
    elif things[k, 0] == TWO:
        out = sqrt(x * x + y * y) + TINY
        br = max(out - (ONE - BEVEL), ZERO)
        bz = max(abs(z) - (ONE - BEVEL), ZERO)
        x, y, z = x / out * br * br, y / out * br * br, bz * bz * (ONE if z > ZERO else -ONE)
    scale = ONE / sqrt(x * x + y * y + z * z + TINY * TINY)
    return x * scale, y * scale, z * scale


@inlined
def nearest(things, count, skip, ox, oy, oz, dx, dy, dz):
    """What a ray meets first, and at what distance; `skip` is the convex thing that it leaves."""
    best, found = FAR, -2
    if dz < -SMALL:
        best, found = -oz / dz, -1
    for k in range(count):
        if k != skip:
            x, y, z = things[k, 1] - ox, things[k, 2] - oy, things[k, 3] - oz
            along = x * dx + y * dy + z * dz
            if along > -things[k, 4] and x * x + y * y + z * z - along * along < things[k, 4] * things[k, 4]:
                distance = meet(things, k, ox, oy, oz, dx, dy, dz)
                if distance < best:
                    best, found = distance, k
    return best, found


@inlined
def depth(things, k, x, y, z, along, dx, dy, dz):
    """How deep a line passes below a thing's silhouette, negative outside; from the thing's centre, unit direction."""
    radius = things[k, 3]
    if things[k, 0] == ZERO:
        return radius - sqrt(max(x * x + y * y + z * z - along * along, ZERO))
    if things[k, 0] == ONE:
        cos, sin = things[k, 5], things[k, 6]
        u, v = x * cos + y * sin, y * cos - x * sin
        du, dv = dx * cos + dy * sin, dy * cos - dx * sin
        au, av, az = abs(du), abs(dv), abs(dz)
        # seen along each axis the box is a rectangle: distance of the line from its nearest corner
        a = (radius * (au + av) - abs(u * dv - v * du)) / sqrt(du * du + dv * dv + TINY)
        b = (radius * (au + az) - abs(u * dz - z * du)) / sqrt(du * du + dz * dz + TINY)
        c = (radius * (av + az) - abs(v * dz - z * dv)) / sqrt(dv * dv + dz * dz + TINY)
        return min(a, min(b, c))
    flat = sqrt(dx * dx + dy * dy + TINY)
    side = abs(x * dy - y * dx) / flat
    chord = sqrt(max(radius * radius - side * side, ZERO))
    over = chord * abs(dz) + radius * flat - abs((x * dx + y * dy) / flat * dz - z * flat)
    return min(radius - side, over)


@inlined
def passed(things, k, px, py, pz, dx, dy, dz, spread):
    """Share of a light's disc that a thing leaves to a point; `spread` is the disc's radius over its distance."""
    x, y, z = px - things[k, 1], py - things[k, 2], pz - things[k, 3]
    along = -(x * dx + y * dy + z * dz)
    if along > ZERO:
        blur = spread * along + NEAR
        reach = things[k, 4] + blur
        if x * x + y * y + z * z - along * along < reach * reach:
            d = depth(things, k, x, y, z, along, dx, dy, dz) / blur
            d = min(max(d, -ONE), ONE)
            return HALF - d * (P75 - P25 * d * d)
    return ONE


@inlined
def visibility(things, count, skip, px, py, pz, dx, dy, dz, spread):
    """Share of a light's disc that a point sees."""
    share = ONE
    for k in range(count):
        if k != skip:
            share *= passed(things, k, px, py, pz, dx, dy, dz, spread)
    return share


@inlined
def openness(things, count, skip, px, py, pz, nx, ny, nz):
    """Share of the ambient light that the things around leave to a point: each takes as much as a sphere would."""
    taken = ZERO
    for k in range(count):
        if k != skip:
            radius = things[k, 3]
            x, y, z = things[k, 1] - px, things[k, 2] - py, radius - pz
            facing = x * nx + y * ny + z * nz
            square = x * x + y * y + z * z
            if facing > ZERO and square < (_f(36) * radius * radius):
                square = max(square, radius * radius)
                # less a constant, so that it ends smoothly at six radii
                near = max(radius * radius / square - ONE / _f(36), ZERO)
                taken += near * facing / sqrt(square)
    return max(ONE - OCCLUSION * taken, ZERO)

"""Intersection of rays with spheres, boxes and cylinders: the geometry of the compiled ray tracer.

All scalars and constants are float32, since numba would widen to float64 where a Python literal is used. An object is
a row of `THING_FIELDS`; the index -1 is the ground, and -2 is the background.
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


def shared(function: Callable[..., Any]) -> Any:
    """Compile a function on its own, for use in other compiled functions."""
    return numba.njit(nogil=True, **OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Copy a function into those that call it: what is called once is then compiled once, not once a level."""
    return numba.njit(nogil=True, inline="always", **OPTIONS)(function)


@shared
def meet(things, k, ox, oy, oz, dx, dy, dz):
    """Distance along a ray to an object, FAR if the ray misses it."""
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


@shared
def normal(things, k, px, py, pz):
    """Unit normal at a point of an object, interpolated at edges to make them look rounded."""
    radius = things[k, 3]
    x, y, z = (px - things[k, 1]) / radius, (py - things[k, 2]) / radius, pz / radius - ONE
    if things[k, 0] == ONE:
        cos, sin = things[k, 5], things[k, 6]
        u, v = x * cos + y * sin, y * cos - x * sin
        # the coordinate normal to a face is 1; the weight of the others grows from 0 to 1 over the bevel
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


@shared
def nearest(things, count, skip, ox, oy, oz, dx, dy, dz):
    """Distance and index of the first object that a ray hits; `skip` is the convex object at its origin."""
    best, hit = FAR, -2
    if dz < -SMALL:
        best, hit = -oz / dz, -1
    for k in range(count):
        if k != skip:
            x, y, z = things[k, 1] - ox, things[k, 2] - oy, things[k, 3] - oz
            along = x * dx + y * dy + z * dz
            if along > -things[k, 4] and x * x + y * y + z * z - along * along < things[k, 4] * things[k, 4]:
                distance = meet(things, k, ox, oy, oz, dx, dy, dz)
                if distance < best:
                    best, hit = distance, k
    return best, hit


@shared
def ball_depth(radius, x, y, z, along):
    """Depth of a line inside a sphere's silhouette, negative outside; see `depth`."""
    return radius - sqrt(max(x * x + y * y + z * z - along * along, ZERO))


@shared
def box_depth(radius, cos, sin, x, y, z, dx, dy, dz):
    """Depth of a line inside a cube's silhouette, negative outside; see `depth`."""
    u, v = x * cos + y * sin, y * cos - x * sin
    du, dv = dx * cos + dy * sin, dy * cos - dx * sin
    au, av, az = abs(du), abs(dv), abs(dz)
    # along each axis, the projected box is a rectangle: distance of the line from its nearest corner
    a = (radius * (au + av) - abs(u * dv - v * du)) / sqrt(du * du + dv * dv + TINY)
    b = (radius * (au + az) - abs(u * dz - z * du)) / sqrt(du * du + dz * dz + TINY)
    c = (radius * (av + az) - abs(v * dz - z * dv)) / sqrt(dv * dv + dz * dz + TINY)
    return min(a, min(b, c))


@shared
def cylinder_depth(radius, x, y, z, dx, dy, dz):
    """Depth of a line inside a cylinder's silhouette, negative outside; see `depth`."""
    flat = sqrt(dx * dx + dy * dy + TINY)
    side = abs(x * dy - y * dx) / flat
    chord = sqrt(max(radius * radius - side * side, ZERO))
    over = chord * abs(dz) + radius * flat - abs((x * dx + y * dy) / flat * dz - z * flat)
    return min(radius - side, over)


@shared
def depth(things, k, x, y, z, along, dx, dy, dz):
    """Depth of a line inside an object's silhouette, negative outside; the direction is a unit vector."""
    if things[k, 0] == ZERO:
        return ball_depth(things[k, 3], x, y, z, along)
    if things[k, 0] == ONE:
        return box_depth(things[k, 3], things[k, 5], things[k, 6], x, y, z, dx, dy, dz)
    return cylinder_depth(things[k, 3], x, y, z, dx, dy, dz)


@shared
def uncovered(depth, blur):
    """Fraction of a light's disc that an edge leaves visible, at a depth inside a silhouette."""
    d = min(max(depth / blur, -ONE), ONE)
    return HALF - d * (P75 - P25 * d * d)


@shared
def passed(things, k, px, py, pz, dx, dy, dz, spread):
    """Fraction of a light's disc that an object leaves visible; `spread` is the disc's radius over its distance."""
    x, y, z = px - things[k, 1], py - things[k, 2], pz - things[k, 3]
    along = -(x * dx + y * dy + z * dz)
    if along > ZERO:
        blur = spread * along + NEAR
        reach = things[k, 4] + blur
        if x * x + y * y + z * z - along * along < reach * reach:
            return uncovered(depth(things, k, x, y, z, along, dx, dy, dz), blur)
    return ONE


@shared
def visibility(things, count, skip, px, py, pz, dx, dy, dz, spread):
    """Fraction of a light's disc that is visible from a point."""
    visible = ONE
    for k in range(count):
        if k != skip:
            visible *= passed(things, k, px, py, pz, dx, dy, dz, spread)
    return visible


@shared
def occlusion(radius, x, y, z, facing):
    """Occlusion of the ambient light by an object in the direction x, y, z, as if it were a sphere."""
    square = x * x + y * y + z * z
    is_near = facing > ZERO and square < (_f(36) * radius * radius)
    square = max(square, radius * radius)
    # minus a constant, so that it vanishes continuously at six radii
    near = max(radius * radius / square - ONE / _f(36), ZERO)
    return near * facing / sqrt(square) if is_near else ZERO


@shared
def openness(things, count, skip, px, py, pz, nx, ny, nz):
    """Fraction of the ambient light that reaches a point; each nearby object occludes like a sphere."""
    occluded = ZERO
    for k in range(count):
        if k != skip:
            radius = things[k, 3]
            x, y, z = things[k, 1] - px, things[k, 2] - py, radius - pz
            occluded += occlusion(radius, x, y, z, x * nx + y * ny + z * nz)
    return max(ONE - OCCLUSION * occluded, ZERO)

"""Light and colours of what rays meet: objects with their highlights and mirror images, ground and background.

Scalars and objects are as in :mod:`~lightning_idc.data.synthetic.rays`; a light is a row of `Packed.lights`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from math import sqrt

from lightning_idc.data.synthetic import shading
from lightning_idc.data.synthetic.rays import (
    ONE,
    TINY,
    TWO,
    ZERO,
    _f,
    nearest,
    normal,
    openness,
    shared,
    visibility,
)  # fmt: skip

P2, P8 = _f(0.2), _f(0.8)
ALBEDO, HORIZON, ZENITH = _f(shading.GROUND_ALBEDO), _f(shading.HORIZON), _f(shading.ZENITH)
HAZE4 = _f(shading.HAZE**4)
RUBBER_GLOSS, METAL_GLOSS, METAL_SHEEN = _f(shading.RUBBER_GLOSS), _f(shading.METAL_GLOSS), _f(shading.METAL_SHEEN)
METAL_DIFFUSE, METAL_MIRROR, METAL_WHITE = _f(shading.METAL_DIFFUSE), _f(shading.METAL_MIRROR), _f(shading.METAL_WHITE)
GLOSS_SCALE = _f(1 / shading.LIGHT_POWER)


@shared
def lit(things, count, lights, light_count, ambient, skip, metal, px, py, pz, nx, ny, nz, rx, ry, rz):
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


@shared
def backdrop(hit, px, py, dz, red, green, blue):
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


@shared
def colour(things, count, lights, light_count, ambient, hit, t, ox, oy, oz, dx, dy, dz):
    """Linear colour of the object that a ray hits."""
    px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
    metal = things[hit, 10]
    nx, ny, nz = normal(things, hit, px, py, pz)
    twice = TWO * (dx * nx + dy * ny + dz * nz)
    rx, ry, rz = dx - twice * nx, dy - twice * ny, dz - twice * nz
    red, green, blue, gloss_red, gloss_green, gloss_blue = lit(
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
        a, b, c, _, _, _ = lit(
            things, count, lights, light_count, ambient, other, ZERO, qx, qy, qz, mx, my, mz, ZERO, ZERO, ONE
        )
    if other >= 0:
        a, b, c = things[other, 7] * a, things[other, 8] * b, things[other, 9] * c
    else:
        a, b, c = backdrop(other, qx, qy, rz, a, b, c)
    red, green, blue = METAL_DIFFUSE * red, METAL_DIFFUSE * green, METAL_DIFFUSE * blue
    tint = ONE - METAL_WHITE
    return (
        things[hit, 7] * (red + METAL_MIRROR * a) + gloss_red * (METAL_WHITE + tint * things[hit, 7]),
        things[hit, 8] * (green + METAL_MIRROR * b) + gloss_green * (METAL_WHITE + tint * things[hit, 8]),
        things[hit, 9] * (blue + METAL_MIRROR * c) + gloss_blue * (METAL_WHITE + tint * things[hit, 9]),
    )

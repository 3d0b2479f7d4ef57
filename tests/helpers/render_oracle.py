"""A second implementation of the ray tracer, in torch: the oracle for the compiled one.

The formulas are those of `render_numba` in the same order, on flat lists of rays. Things and lights are added up in
loops and not in sums, whose order could depend on the number of scenes; so an image does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lightning_idc.data.synthetic import shading
from lightning_idc.data.synthetic.scene import Scene

Vector = tuple[Tensor, Tensor, Tensor]

RAYS = 1 << 15
"""Rays traced at once, to stay in the cache of a CPU."""
TINY, SMALL, NEAR, FAR = 1e-12, 1e-7, 1e-3, 1e9


@dataclass(frozen=True, slots=True)
class _World:
    """Packed scenes on a device, and the scene of each ray; thing -1 is the ground, and thing -2 is nothing.

    Args:
        things: ``(11, T, N)``.
        lights: ``(10, L, N)``.
        cameras: ``(13, N)``.
        scene: scene index of each ray, ``(R,)``.
        bounds: kind, position, radius and bounding radius of the things of each ray's scene, ``(5, T, R)``.
        exists: whether each thing exists in the ray's scene, ``(T, R)``.
    """

    things: Tensor
    lights: Tensor
    cameras: Tensor
    scene: Tensor
    bounds: Tensor
    exists: Tensor

    def at(self, rays: Tensor) -> _World:
        """The same scenes for a subset of the rays."""
        return replace(self, scene=self.scene[rays], bounds=self.bounds[:, :, rays], exists=self.exists[:, rays])

    def thing(self, k: int, rays: Tensor) -> tuple[Tensor, ...]:
        """Kind, x, y, radius, bound, cosine, sine of thing `k` in the scenes of some rays."""
        return tuple(self.things[:7, k][:, self.scene[rays]])

    def own(self, found: Tensor) -> tuple[Tensor, ...]:
        """All fields of one thing for each ray."""
        return tuple(self.things[:, found.clamp(min=0), self.scene])

    def there(self, k: int, skip: Tensor) -> Tensor:
        """Whether thing `k` is in a ray's scene and is not the one to skip."""
        return self.exists[k] & (skip != k)


def _dot(a: Vector, b: Vector) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _take(vector: Vector, rays: Tensor) -> Vector:
    return vector[0][rays], vector[1][rays], vector[2][rays]


def _inverse(value: Tensor) -> Tensor:
    return 1 / torch.where(value.abs() > SMALL, value, SMALL)


def _meet(thing: tuple[Tensor, ...], origin: Vector, way: Vector) -> Tensor:
    kind, cx, cy, radius, _, cos, sin = thing
    x, y, z = origin[0] - cx, origin[1] - cy, origin[2] - radius
    dx, dy, dz = way
    along = x * dx + y * dy + z * dz
    inside = along * along - (x * x + y * y + z * z) + radius * radius
    ball = torch.where(inside > 0, -along - inside.clamp(min=0).sqrt(), FAR)

    def slab(at: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        inverse = _inverse(step)
        middle, reach = -at * inverse, (radius * inverse).abs()
        return middle - reach, middle + reach

    low, high = slab(z, dz)
    u0, u1 = slab(x * cos + y * sin, dx * cos + dy * sin)
    v0, v1 = slab(y * cos - x * sin, dy * cos - dx * sin)
    ia = 1 / (dx * dx + dy * dy + TINY)
    middle = -(x * dx + y * dy) * ia
    inside = middle * middle - (x * x + y * y - radius * radius) * ia
    reach = inside.clamp(min=0).sqrt()
    box = kind == 1
    near = low.maximum(torch.where(box, u0.maximum(v0), middle - reach))
    far = high.minimum(torch.where(box, u1.minimum(v1), middle + reach))
    near = torch.where((far > near) & (box | (inside > 0)), near, FAR)
    near = torch.where(kind == 0, ball, near)
    return torch.where(near > 0, near, FAR)


def _sign(value: Tensor) -> Tensor:
    return torch.where(value > 0, 1.0, -1.0)


def _normal(thing: tuple[Tensor, ...], point: Vector) -> Vector:
    kind, cx, cy, radius, _, cos, sin = thing[:7]
    x, y, z = (point[0] - cx) / radius, (point[1] - cy) / radius, point[2] / radius - 1

    def bend(value: Tensor) -> Tensor:
        bent = (value.abs() - (1 - shading.BEVEL)).clamp(min=0)
        return bent * bent * _sign(value)

    u, v, edge = bend(x * cos + y * sin), bend(y * cos - x * sin), bend(z)
    out = (x * x + y * y).sqrt() + TINY
    side = bend(out)
    box, ball = kind == 1, kind == 0
    nx = torch.where(ball, x, torch.where(box, u * cos - v * sin, x / out * side))
    ny = torch.where(ball, y, torch.where(box, u * sin + v * cos, y / out * side))
    nz = torch.where(ball, z, edge)
    scale = 1 / (nx * nx + ny * ny + nz * nz + 1e-24).sqrt()
    return nx * scale, ny * scale, nz * scale


def _nearest(world: _World, skip: Tensor, origin: Vector, way: Vector) -> tuple[Tensor, Tensor]:
    down = (way[2] < -SMALL) & (origin[2] > 0)
    best = torch.where(down, -origin[2] / torch.where(down, way[2], -1.0), FAR)
    found = torch.where(down, -1, -2)
    for k in range(world.things.shape[1]):
        (_, cx, cy, cz, bound), there = world.bounds[:, k], world.there(k, skip)
        x, y, z = cx - origin[0], cy - origin[1], cz - origin[2]
        along = x * way[0] + y * way[1] + z * way[2]
        rays = (there & (along > -bound) & (x * x + y * y + z * z - along * along < bound * bound)).nonzero()[:, 0]
        distance = _meet(world.thing(k, rays), _take(origin, rays), _take(way, rays))
        closer = distance < best[rays]
        rays = rays[closer]
        best[rays], found[rays] = distance[closer], k
    return best, found


def _depth(thing: tuple[Tensor, ...], x: Tensor, y: Tensor, z: Tensor, along: Tensor, way: Vector) -> Tensor:
    kind, _, _, radius, _, cos, sin = thing
    dx, dy, dz = way
    ball = radius - (x * x + y * y + z * z - along * along).clamp(min=0).sqrt()
    u, v = x * cos + y * sin, y * cos - x * sin
    du, dv = dx * cos + dy * sin, dy * cos - dx * sin
    au, av, az = du.abs(), dv.abs(), dz.abs()
    a = (radius * (au + av) - (u * dv - v * du).abs()) / (du * du + dv * dv + TINY).sqrt()
    b = (radius * (au + az) - (u * dz - z * du).abs()) / (du * du + dz * dz + TINY).sqrt()
    c = (radius * (av + az) - (v * dz - z * dv).abs()) / (dv * dv + dz * dz + TINY).sqrt()
    flat = (dx * dx + dy * dy + TINY).sqrt()
    side = (x * dy - y * dx).abs() / flat
    chord = (radius * radius - side * side).clamp(min=0).sqrt()
    over = chord * az + radius * flat - ((x * dx + y * dy) / flat * dz - z * flat).abs()
    upright = torch.where(kind == 1, a.minimum(b.minimum(c)), (radius - side).minimum(over))
    return torch.where(kind == 0, ball, upright)


def _visible(world: _World, skip: Tensor, point: Vector, way: Vector, spread: Tensor) -> Tensor:
    share = torch.ones_like(spread)
    for k in range(world.things.shape[1]):
        (_, cx, cy, cz, bound), there = world.bounds[:, k], world.there(k, skip)
        x, y, z = point[0] - cx, point[1] - cy, point[2] - cz
        along = -(x * way[0] + y * way[1] + z * way[2])
        blur = spread * along + NEAR
        reach = bound + blur
        close = there & (along > 0) & (x * x + y * y + z * z - along * along < reach * reach)
        rays = close.nonzero()[:, 0]
        deep = _depth(world.thing(k, rays), x[rays], y[rays], z[rays], along[rays], _take(way, rays))
        deep = (deep / blur[rays]).clamp(-1, 1)
        share[rays] *= 0.5 - deep * (0.75 - 0.25 * deep * deep)
    return share


def _open(world: _World, skip: Tensor, point: Vector, normal: Vector) -> Tensor:
    taken = torch.zeros_like(point[0])
    for k in range(world.things.shape[1]):
        _, cx, cy, radius, _ = world.bounds[:, k]
        x, y, z = cx - point[0], cy - point[1], radius - point[2]
        facing = _dot((x, y, z), normal).clamp(min=0)
        square = (x * x + y * y + z * z).maximum(radius * radius + TINY)
        near = (radius * radius / square - 1 / 36).clamp(min=0)
        taken = taken + torch.where(world.there(k, skip), near * facing / square.sqrt(), 0.0)
    return (1 - shading.OCCLUSION * taken).clamp(min=0)


def _lit(
    world: _World, skip: Tensor, metal: Tensor, point: Vector, normal: Vector, mirror: Vector | None
) -> tuple[list[Tensor], list[Tensor]]:
    level = world.cameras[12, world.scene] * (0.8 + 0.2 * normal[2]) * _open(world, skip, point, normal)
    matte, gloss = [level] * 3, [torch.zeros_like(level)] * 3
    for k in range(world.lights.shape[1]):
        lx, ly, lz, size, *power, ax, ay, az = world.lights[:, k][:, world.scene]
        x, y, z = lx - point[0], ly - point[1], lz - point[2]
        inverse = 1 / (x * x + y * y + z * z + TINY).sqrt()
        way = (x * inverse, y * inverse, z * inverse)
        facing = _dot(way, normal)
        seen = torch.where(facing > 0, _visible(world, skip, point, way, size * inverse), 0.0)
        level = seen * facing * inverse * inverse * _dot(way, (ax, ay, az)).clamp(min=0)
        matte = [value + colour * level for value, colour in zip(matte, power, strict=True)]
        if mirror is not None:
            eighth = _dot(way, mirror).clamp(min=0) ** 2
            eighth = (eighth * eighth) * (eighth * eighth)
            wide = eighth * eighth
            narrow = wide * wide
            narrow = narrow * narrow
            narrow = narrow * narrow
            shine = shading.METAL_GLOSS * narrow + shading.METAL_SHEEN * wide
            shine = torch.where(metal > 0, shine, shading.RUBBER_GLOSS * eighth) * seen * (1 / shading.LIGHT_POWER)
            gloss = [value + colour * shine for value, colour in zip(gloss, power, strict=True)]
    return matte, gloss


def _backdrop(found: Tensor, point: Vector, rise: Tensor, lit: list[Tensor]) -> list[Tensor]:
    sky = shading.HORIZON + (shading.ZENITH - shading.HORIZON) * rise.clamp(max=1)
    square = point[0] * point[0] + point[1] * point[1]
    square = square * square
    haze = square / (square + shading.HAZE**4)
    keep = (1 - haze) * shading.GROUND_ALBEDO
    return [torch.where(found == -2, sky, haze * shading.HORIZON + keep * value) for value in lit]


def _reach(origin: Vector, way: Vector, distance: Tensor, found: Tensor) -> Vector:
    """End points of rays; rays that hit nothing end at their origin, to avoid overflow."""
    distance = torch.where(found == -2, 0.0, distance)
    x, y, z = (o + distance * d for o, d in zip(origin, way, strict=True))
    return x, y, torch.where(found == -1, 0.0, z)


def _surface(world: _World, found: Tensor, point: Vector) -> tuple[tuple[Tensor, ...], Vector]:
    own = world.own(found)
    thing = found >= 0
    nx, ny, nz = _normal(own, point)
    return own, (torch.where(thing, nx, 0.0), torch.where(thing, ny, 0.0), torch.where(thing, nz, 1.0))


def _thing_colour(world: _World, found: Tensor, point: Vector, way: Vector) -> list[Tensor]:
    """Linear colour of the things that rays hit."""
    own, normal = _surface(world, found, point)
    tint, metal = own[7:10], own[10]
    twice = 2 * _dot(way, normal)
    mirror = (way[0] - twice * normal[0], way[1] - twice * normal[1], way[2] - twice * normal[2])
    matte, gloss = _lit(world, found, metal, point, normal, mirror)
    colours = [t * m + g for t, m, g in zip(tint, matte, gloss, strict=True)]
    rays = (metal > 0).nonzero()[:, 0]
    if not len(rays):
        return colours
    world, start, way = world.at(rays), _take(point, rays), _take(mirror, rays)
    distance, other = _nearest(world, found[rays], start, way)
    end = _reach(start, way, distance, other)
    if world.things.shape[1]:
        their, normal = _surface(world, other, end)
    lit, _ = _lit(world, other, metal[rays], end, normal, None)
    behind = _backdrop(other, end, way[2], lit)
    for c in range(3):
        seen = torch.where(other >= 0, their[7 + c] * lit[c], behind[c])
        own_tint = tint[c][rays]
        white = shading.METAL_WHITE + (1 - shading.METAL_WHITE) * own_tint
        shown = (
            own_tint * (shading.METAL_DIFFUSE * matte[c][rays] + shading.METAL_MIRROR * seen) + gloss[c][rays] * white
        )
        colours[c] = colours[c].index_put((rays,), shown)
    return colours


def _trace(world: _World, px: Tensor, py: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Linear colours ``(R, 3)`` and hit things of the rays through points of the images."""
    camera = world.cameras[:, world.scene]
    u, v = (2 * px - width) / width, (height - 2 * py) / width
    dx, dy, dz = (camera[9 + i] + u * camera[3 + i] + v * camera[6 + i] for i in range(3))
    scale = 1 / (dx * dx + dy * dy + dz * dz).sqrt()
    way, origin = (dx * scale, dy * scale, dz * scale), (camera[0], camera[1], camera[2])
    nobody = torch.full_like(world.scene, -2)
    distance, found = _nearest(world, nobody, origin, way)
    point = _reach(origin, way, distance, found)
    colours = torch.empty((len(px), 3), device=px.device)
    rays = (found < 0).nonzero()[:, 0]
    if len(rays):
        part, ground = world.at(rays), _take(point, rays)
        zero = torch.zeros_like(ground[0])
        lit, _ = _lit(part, nobody[rays], zero, ground, (zero, zero, zero + 1), None)
        colours[rays] = torch.stack(_backdrop(found[rays], ground, way[2][rays], lit), 1)
    rays = (found >= 0).nonzero()[:, 0]
    if len(rays):
        shown = _thing_colour(world.at(rays), found[rays], _take(point, rays), _take(way, rays))
        colours[rays] = torch.stack(shown, 1)
    return colours, found


def _encode(colours: Tensor) -> Tensor:
    colours = colours.clamp(0, 1)
    root = colours.sqrt()
    square, fourth, first = shading.ENCODE
    return 255 * (square * root + fourth * root.sqrt() + first * colours).clamp(min=0)


def _rough(codes: Tensor, seen: Tensor) -> Tensor:
    """Whether each pixel differs from one of its four neighbours, ``(N, H, W)``."""
    rough = torch.zeros_like(seen, dtype=torch.bool)
    across = ((codes[:, :, 1:] - codes[:, :, :-1]).abs() > shading.CONTRAST).any(-1) | (
        seen[:, :, 1:] != seen[:, :, :-1]
    )
    down = ((codes[:, 1:] - codes[:, :-1]).abs() > shading.CONTRAST).any(-1) | (seen[:, 1:] != seen[:, :-1])
    rough[:, :, 1:] |= across
    rough[:, :, :-1] |= across
    rough[:, 1:] |= down
    rough[:, :-1] |= down
    return rough


@torch.no_grad()
def render(scenes: Sequence[Scene], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and maps of the visible things, as `lightning_idc.data.synthetic.render.render` returns them."""
    packed = shading.pack(scenes)
    total = len(packed.counts)
    things, lights = (torch.from_numpy(rows).permute(2, 1, 0) for rows in (packed.things, packed.lights))
    cameras = torch.from_numpy(packed.cameras).T
    exists = torch.arange(things.shape[1])[:, None] < torch.from_numpy(packed.counts)

    def trace(pixels: Tensor, shift: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Colours and hit things at flat indices into (N, H, W)."""
        parts = []
        for some in pixels.split(RAYS):
            scene, place = some // (height * width), some % (height * width)
            px, py = (place % width).float() + 0.5 + shift[0], (place // width).float() + 0.5 + shift[1]
            world = _World(things, lights, cameras, scene, things[:5][:, :, scene], exists[:, scene])
            parts.append(_trace(world, px, py, height, width))
        return torch.cat([colours for colours, _ in parts]), torch.cat([found for _, found in parts])

    if not total:
        return np.empty((0, 3, height, width), np.uint8), np.empty((0, height, width), np.int16)
    linear, seen = trace(torch.arange(total * height * width), (0.0, 0.0))
    seen = seen.clamp(min=-1).view(total, height, width)
    codes = _encode(linear)
    pixels = _rough(codes.view(total, height, width, 3), seen).flatten().nonzero()[:, 0]
    if len(pixels):
        mixed = linear[pixels].clamp(max=1)
        for shift in shading.SAMPLES:
            mixed = mixed + trace(pixels, shift)[0].clamp(max=1)
        codes[pixels] = _encode(mixed * (1 / (1 + len(shading.SAMPLES))))
    images = (codes + 0.5).to(torch.uint8).view(total, height, width, 3).permute(0, 3, 1, 2).contiguous()
    return images.numpy(), seen.to(torch.int16).numpy()

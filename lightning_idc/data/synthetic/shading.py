"""Constants of light and materials, and conversion of scenes to arrays, shared by both ray tracers.

One is :mod:`~lightning_idc.data.synthetic.render_numba`; the other, in torch, is the reference for the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, Camera, Light, Scene, SceneObject
from lightning_idc.utils.errors import DataError

DEFAULT_CAMERA = Camera((7.2, -6.5, 5.4), (0.0, 0.0, 0.35), 46.0)
"""CLEVR's camera; everything within |x|, |y| <= 3 is visible in a square image."""
DEFAULT_LIGHTS = (
    Light((6.4, -2.9, 4.3), 1.0, 0.9),
    Light((-4.7, -3.7, 2.4), 0.35, 0.9),
    Light((-1.1, 2.6, 5.8), 0.45, 0.9),
)
"""Key, fill and back light of CLEVR's base scene."""

# appearance of objects in linear light, fitted by eye to images of CLEVR-Change
GROUND_ALBEDO = 0.33
HORIZON, ZENITH = 0.135, 0.03  # background brightness
HAZE = 11.0  # distance from the centre at which ground and horizon are mixed equally, world units
LIGHT_POWER = 34.0  # light at distance d of intensity i gives i * LIGHT_POWER / d^2
LIGHT_TINTS = ((1.04, 1.0, 0.94), (0.94, 0.99, 1.08), (1.0, 1.0, 1.0))  # key warm, fill cool, others neutral
AMBIENT_GAIN = 0.75  # ambient light on an upward surface
OCCLUSION = 0.9  # strength of the ambient occlusion
BEVEL = 0.14  # width of the rounded edges in the normals, relative to the radius
RUBBER_GLOSS = 0.05  # times the 8th power of the mirrored light's cosine
METAL_DIFFUSE, METAL_MIRROR = 0.16, 1.15  # weights of diffuse and mirrored light, both tinted
METAL_GLOSS, METAL_SHEEN = 3.0, 0.55  # times the 128th and the 16th power of the mirrored light's cosine
METAL_WHITE = 0.45  # white fraction of metal highlights; the rest has the object's colour
SAMPLES = ((-0.125, -0.375), (0.375, -0.125), (0.125, 0.375), (-0.375, 0.125))
"""Offsets in pixels of the additional rays of a pixel that differs from its neighbours."""
CONTRAST = 10.0  # difference of neighbours (0 to 255) above which both get additional rays
ENCODE = (1.3054, -0.0796, -0.2258)  # times x^(1/2), x^(1/4) and x, their sum is nearly the sRGB code of linear x

THING_FIELDS = ("kind", "x", "y", "radius", "bound", "cos", "sin", "red", "green", "blue", "metal")
_KIND = {"sphere": 0, "cube": 1, "cylinder": 2}
_BOUND = {"sphere": 1.0, "cube": 3**0.5, "cylinder": 2**0.5}  # bounding sphere over radius


@dataclass(frozen=True, slots=True)
class Packed:
    """Scenes as float32 arrays.

    Args:
        things: ``(N, T, 11)`` with `THING_FIELDS` last; rows after `counts` are zero.
        counts: number of objects of each scene, int64 ``(N,)``.
        lights: ``(N, L, 10)``: x, y, z, radius, power in red, green and blue, and the direction from the
            world's centre to which its disc is perpendicular; unused rows are zero.
        light_counts: number of lights of each scene, int64 ``(N,)``.
        cameras: ``(N, 13)``: position, right, up, forward times focal length, ambient light.
    """

    things: np.ndarray
    counts: np.ndarray
    lights: np.ndarray
    light_counts: np.ndarray
    cameras: np.ndarray


def _thing_row(thing: SceneObject, albedo: float) -> tuple[float, ...]:
    factor = albedo if thing.material == "rubber" else math.sqrt(albedo)
    red, green, blue = (factor * value / 255 for value in COLORS[thing.color])
    radius = thing.radius
    return (
        _KIND[thing.shape], thing.x, thing.y, radius, radius * _BOUND[thing.shape] * 1.0001,
        math.cos(thing.rotation), math.sin(thing.rotation), red, green, blue, MATERIALS.index(thing.material),
    )  # fmt: skip


def _camera_row(camera: Camera, ambient: float) -> tuple[float, ...]:
    forward = [t - p for t, p in zip(camera.target, camera.position, strict=True)]
    length = math.sqrt(sum(value * value for value in forward))
    ground = math.hypot(forward[0], forward[1])
    if not (length > 0 and ground > 1e-6 * length and 0 < camera.fov < 180):
        raise DataError(
            f"the camera at {camera.position} looks at {camera.target} with a field of view of {camera.fov} degrees; "
            "expected a view that is not straight up or down and an angle between 0 and 180"
        )
    fx, fy, fz = (value / length for value in forward)
    rx, ry = forward[1] / ground, -forward[0] / ground
    focal = 1 / math.tan(math.radians(camera.fov) / 2)
    return (*camera.position, rx, ry, 0.0, ry * fz, -rx * fz, rx * fy - ry * fx,
            fx * focal, fy * focal, fz * focal, ambient * AMBIENT_GAIN)  # fmt: skip


def pack(scenes: Sequence[Scene]) -> Packed:
    """Convert scenes to arrays for the renderer.

    Raises:
        DataError: a camera is invalid, or a number is not finite.
    """
    count = len(scenes)
    things = np.zeros((count, max((len(scene.things) for scene in scenes), default=0), len(THING_FIELDS)), np.float32)
    lights = np.zeros((count, max((len(scene.lights) for scene in scenes), default=0), 10), np.float32)
    cameras = np.empty((count, 13), np.float32)
    for n, scene in enumerate(scenes):
        if scene.things:
            things[n, : len(scene.things)] = [_thing_row(thing, scene.albedo) for thing in scene.things]
        for k, light in enumerate(scene.lights):
            power = light.intensity * LIGHT_POWER
            red, green, blue = LIGHT_TINTS[min(k, len(LIGHT_TINTS) - 1)]
            x, y, z = light.position
            away = 1 / max(math.sqrt(x * x + y * y + z * z), 1e-9)
            lights[n, k] = (
                x, y, z, light.radius, red * power, green * power, blue * power, x * away, y * away, z * away
            )  # fmt: skip
        cameras[n] = _camera_row(scene.camera, scene.ambient)
        if not (np.isfinite(things[n]).all() and np.isfinite(lights[n]).all() and np.isfinite(cameras[n]).all()):
            raise DataError(f"scene {n} has a number that is not finite: {scene}")
    return Packed(
        things,
        np.array([len(scene.things) for scene in scenes], np.int64),
        lights,
        np.array([len(scene.lights) for scene in scenes], np.int64),
        cameras,
    )

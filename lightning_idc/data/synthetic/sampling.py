"""Random scenes: attributes, positions, cameras and lights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from lightning_idc.data.synthetic.claims import Attributes, Change
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES, Camera, Light, Scene, SceneObject

T = TypeVar("T")

Relations = Literal["always", "needed"]

GROUND_RADIUS = 3.0
"""Maximum distance of objects from the centre in world units."""
GAP = 0.25
"""Minimum gap between two objects in world units; CLEVR's value."""
TRIES = 400
"""Maximum number of layouts per scene; 5 are enough for 90 % of the scenes."""

_CAMERA = Camera((6.7, -5.9, 6.8), (0.0, 0.0, 0.35), 42.0)
# CLEVR's direction and distance, ten degrees higher: a square image shows more ground, with less occlusion
_LIGHTS = (
    Light((6.4, -2.9, 4.3), 1.0, 0.9),
    Light((-4.7, -3.7, 2.4), 0.35, 0.9),
    Light((-1.1, 2.6, 5.8), 0.45, 0.9),
)


class Rng:
    """Random choices with a numpy generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._draw = rng.random

    def uniform(self, low: float, high: float) -> float:
        """Uniform random number between two bounds."""
        return low + (high - low) * float(self._draw())

    def pick(self, options: Sequence[T]) -> T:
        """Uniform random choice of one option."""
        return options[int(self._draw() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return float(self._draw()) < probability

    def integer(self, low: int, high: int) -> int:
        """Uniform random integer from low to high, both included."""
        return low + int(self._draw() * (high - low + 1))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Items in random order."""
        return [items[i] for i in np.argsort([self._draw() for _ in items])]


@dataclass(frozen=True, slots=True)
class World:
    """Distribution of the scenes and cameras of a mode.

    Args:
        things: minimum and maximum number of objects.
        camera_jitter: maximum shift of each camera coordinate per image in world units.
        light_jitter: maximum shift of each light coordinate per image in world units.
        no_change: fraction of pairs in which only camera and lights change.
        aspect: width over height of the images.
        relations: whether captions of a single change always give the object's position, or only if another object has
            the same four attributes.
        visible: minimum visible fraction of the changed object and its anchor, and of all other objects.
    """

    things: tuple[int, int] = (3, 6)
    camera_jitter: float = 0.7
    light_jitter: float = 1.0
    no_change: float = 1 / 6
    aspect: float = 1.0
    relations: Relations = "always"
    visible: tuple[float, float] = (0.6, 0.45)


def draw_attributes(rng: Rng, shapes: Sequence[str] = SHAPES) -> Attributes:
    """Draw all four attributes uniformly."""
    return Attributes(rng.pick(tuple(SIZES)), rng.pick(tuple(COLORS)), rng.pick(MATERIALS), rng.pick(shapes))


def draw_camera(rng: Rng, jitter: float, turn: float = 0.0) -> Camera:
    """Draw a camera around CLEVR's camera.

    Args:
        turn: rotation around the scene before the jitter, in radians.
    """
    x, y, z = _CAMERA.position
    cos, sin = math.cos(turn), math.sin(turn)
    moved = (x * cos - y * sin, x * sin + y * cos, z)
    x, y, z = (value + rng.uniform(-jitter, jitter) for value in moved)
    a, b, c = _CAMERA.target
    return Camera(
        (x, y, z), (a + rng.uniform(-jitter, jitter) / 4, b + rng.uniform(-jitter, jitter) / 4, c), _CAMERA.fov
    )


def draw_lights(rng: Rng, jitter: float, strength: float = 1.0) -> tuple[Light, ...]:
    """Draw CLEVR's key, fill and back light with random shifts and intensities."""
    lights = []
    for light in _LIGHTS:
        x, y, z = (value + rng.uniform(-jitter, jitter) for value in light.position)
        lights.append(replace(light, position=(x, y, z), intensity=light.intensity * strength * rng.uniform(0.9, 1.1)))
    return tuple(lights)


@dataclass(frozen=True, slots=True)
class Spot:
    """Occupied disc on the ground."""

    x: float
    y: float
    radius: float


def is_free(x: float, y: float, radius: float, occupied: Sequence[Spot], gap: float = GAP) -> bool:
    """Whether an object of this radius fits at a position."""
    if x * x + y * y > GROUND_RADIUS * GROUND_RADIUS:
        return False
    for spot in occupied:
        dx, dy, reach = x - spot.x, y - spot.y, radius + spot.radius + gap
        if dx * dx + dy * dy < reach * reach:
            return False
    return True


def find_spot(rng: Rng, radius: float, occupied: Sequence[Spot], tries: int = 30) -> Spot | None:
    """Random free position on the ground, or None if all tries fail."""
    for _ in range(tries):
        x, y = rng.uniform(-GROUND_RADIUS, GROUND_RADIUS), rng.uniform(-GROUND_RADIUS, GROUND_RADIUS)
        if is_free(x, y, radius, occupied):
            return Spot(x, y, radius)
    return None


def place_object(rng: Rng, attributes: Attributes, spot: Spot) -> SceneObject:
    """Object with the attributes at a position, with a random rotation."""
    size, color, material, shape = (word or "" for word in attributes)
    return SceneObject(shape, size, color, material, spot.x, spot.y, rng.uniform(0.0, 2 * math.pi))


@dataclass(frozen=True, slots=True)
class ScenePair:
    """Two scenes and the changes between them.

    Args:
        before: scene of the before image.
        after: scene of the after image.
        changes: changes, empty for a pair of the kind ``no_change``.
        captions: all reference captions.
        change_type: kind of the first change, or ``no_change``.
        same: index pairs (before, after) of the same object, changed or not.
    """

    before: Scene
    after: Scene
    changes: tuple[Change, ...]
    captions: tuple[str, ...]
    change_type: str
    same: tuple[tuple[int, int], ...]

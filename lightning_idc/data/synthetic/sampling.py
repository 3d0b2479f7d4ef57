"""Drawing scenes by lot: attributes, places, cameras and lights."""

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
"""Things stand within this distance of the centre, world units."""
GAP = 0.25
"""Least free ground between two things, world units; CLEVR's value."""
TRIES = 400
"""Layouts drawn before a scene counts as impossible; 5 are enough for nine scenes in ten."""

_CAMERA = Camera((6.7, -5.9, 6.8), (0.0, 0.0, 0.35), 42.0)
# CLEVR's direction and distance, ten degrees higher: a square picture shows more ground, so things hide each other less
_LIGHTS = (
    Light((6.4, -2.9, 4.3), 1.0, 0.9),
    Light((-4.7, -3.7, 2.4), 0.35, 0.9),
    Light((-1.1, 2.6, 5.8), 0.45, 0.9),
)


class Rng:
    """Random choices from a numpy generator, as few lines as scenes need."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._draw = rng.random

    def uniform(self, low: float, high: float) -> float:
        """A number between the two."""
        return low + (high - low) * float(self._draw())

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[int(self._draw() * len(options))]

    def chance(self, probability: float) -> bool:
        """True that often."""
        return float(self._draw()) < probability

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._draw() * (high - low + 1))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        return [items[i] for i in np.argsort([self._draw() for _ in items])]


@dataclass(frozen=True, slots=True)
class World:
    """What a mode may put into a scene and how it looks at it.

    Args:
        things: least and greatest number of things.
        camera_jitter: each coordinate of the camera moves by up to this much, in both pictures, world units.
        light_jitter: the same for the lights, world units.
        no_change: share of pairs in which nothing changes but camera and lights.
        aspect: width of the pictures over their height.
        relations: in captions of a single change, where a thing stands is said always, or only where another thing
            has the same four attributes.
        visible: least visible share of what changes and its anchor, and of everything else.
    """

    things: tuple[int, int] = (3, 6)
    camera_jitter: float = 0.7
    light_jitter: float = 1.0
    no_change: float = 1 / 6
    aspect: float = 1.0
    relations: Relations = "always"
    visible: tuple[float, float] = (0.6, 0.45)


def draw_attributes(rng: Rng, shapes: Sequence[str] = SHAPES) -> Attributes:
    """Every combination is equally likely."""
    return Attributes(rng.pick(tuple(SIZES)), rng.pick(tuple(COLORS)), rng.pick(MATERIALS), rng.pick(shapes))


def draw_camera(rng: Rng, jitter: float, turn: float = 0.0) -> Camera:
    """CLEVR's camera, moved by chance.

    Args:
        turn: angle by which it is first carried around the scene, radians.
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
    """CLEVR's key, fill and back light, moved by chance and a little brighter or dimmer."""
    lights = []
    for light in _LIGHTS:
        x, y, z = (value + rng.uniform(-jitter, jitter) for value in light.position)
        lights.append(replace(light, position=(x, y, z), intensity=light.intensity * strength * rng.uniform(0.9, 1.1)))
    return tuple(lights)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place on the ground that is taken."""

    x: float
    y: float
    radius: float


def free(x: float, y: float, radius: float, taken: Sequence[Spot], gap: float = GAP) -> bool:
    """Whether a thing of that radius can stand there."""
    if x * x + y * y > GROUND_RADIUS * GROUND_RADIUS:
        return False
    for spot in taken:
        dx, dy, reach = x - spot.x, y - spot.y, radius + spot.radius + gap
        if dx * dx + dy * dy < reach * reach:
            return False
    return True


def find_spot(rng: Rng, radius: float, taken: Sequence[Spot], tries: int = 30) -> Spot | None:
    """A free place on the ground, or None when there seems to be none."""
    for _ in range(tries):
        x, y = rng.uniform(-GROUND_RADIUS, GROUND_RADIUS), rng.uniform(-GROUND_RADIUS, GROUND_RADIUS)
        if free(x, y, radius, taken):
            return Spot(x, y, radius)
    return None


def stand(rng: Rng, attributes: Attributes, spot: Spot) -> SceneObject:
    """A thing with all four attributes at a place, turned by chance."""
    size, color, material, shape = (word or "" for word in attributes)
    return SceneObject(shape, size, color, material, spot.x, spot.y, rng.uniform(0.0, 2 * math.pi))


@dataclass(frozen=True, slots=True)
class ScenePair:
    """Two scenes and what happened between them.

    Args:
        before: scene of the before image.
        after: scene of the after image.
        changes: what there is to tell, none in a pair of the kind ``no_change``.
        captions: all references.
        change_type: kind of the first change, or ``no_change``.
        same: pairs of indices (before, after) of one and the same thing, changed or not.
    """

    before: Scene
    after: Scene
    changes: tuple[Change, ...]
    captions: tuple[str, ...]
    change_type: str
    same: tuple[tuple[int, int], ...]

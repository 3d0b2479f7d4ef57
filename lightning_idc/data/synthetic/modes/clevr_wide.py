"""CLEVR-Change's world as the genuine pictures show it: a lower camera at any distance, darker colours, more things.

Of a thing that changes two fifths are seen at least, of the others a seventh: in the genuine pictures, too, much stands
behind something, and a little motion of the camera shows or hides it. One pair in three is unchanged.

`clevr_change` is drawn so that a small square picture shows everything well. Here the camera has CLEVR's own lens; how
high and how far away it stands, and how bright things are, is drawn from ranges around what pictures of CLEVR-Change
show, so that these lie within. Light from everywhere is strong there, and each lamp is as bright as it likes: the dark
side of a rubber thing is little darker than the other one. Captions say where a thing stands only where another one
looks the same, as those of CLEVR-Change do. Meant for pictures of 3:2.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lightning_idc.data.synthetic.phrases import KINDS
from lightning_idc.data.synthetic.sampling import Rng, ScenePair, World
from lightning_idc.data.synthetic.scene import Camera, Scene
from lightning_idc.data.synthetic.single_change import draw_single

__all__ = ["KINDS", "WORLD", "draw"]

WORLD = World((3, 10), camera_jitter=0.6, no_change=1 / 3, relations="needed", visible=(0.4, 0.15))
DISTANCE, HEIGHT, ANGLE = (7.5, 12.5), (2.4, 6.4), 0.35
"""Of the camera from the centre over the ground and above it, world units, and sidewards, radians either way."""
FOV = (40.0, 49.0)
ALBEDO, AMBIENT, LAMPS = (0.3, 0.75), (0.4, 0.95), ((0.4, 1.0), (0.5, 1.8), (0.2, 1.2))
"""Factors of colours and of the three lamps, key, fill and back; ambient light is absolute."""


def _cameras(rng: Rng, jitter: float) -> tuple[Camera, Camera]:
    distance, height = rng.uniform(*DISTANCE), rng.uniform(*HEIGHT)
    angle = math.atan2(-6.5, 7.2) + rng.uniform(-ANGLE, ANGLE)
    target = rng.uniform(-0.8, 0.8), rng.uniform(-0.8, 0.8), rng.uniform(0.0, 0.7)
    fov = rng.uniform(*FOV)

    def near() -> Camera:
        nearer = rng.uniform(1 - jitter / 4, 1 + jitter / 4)
        place = nearer * distance * math.cos(angle), nearer * distance * math.sin(angle), nearer * height
        x, y, z = (value + rng.uniform(-jitter, jitter) for value in place)
        a, b, c = (value + rng.uniform(-jitter, jitter) / 3 for value in target)
        return Camera((x, y, max(z, 1.2)), (a, b, c), fov)

    return near(), near()


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """One pair with one change or none, and its captions."""
    pair = draw_single(rng, world, _cameras)
    albedo, ambient, gains = rng.uniform(*ALBEDO), rng.uniform(*AMBIENT), [rng.uniform(*lamp) for lamp in LAMPS]

    def shown(scene: Scene) -> Scene:
        own = rng.uniform(0.92, 1.08)
        lights = tuple(
            replace(lamp, intensity=lamp.intensity * gain * own) for lamp, gain in zip(scene.lights, gains, strict=True)
        )
        return replace(scene, lights=lights, albedo=albedo, ambient=ambient * rng.uniform(0.9, 1.1))

    return replace(pair, before=shown(pair.before), after=shown(pair.after))

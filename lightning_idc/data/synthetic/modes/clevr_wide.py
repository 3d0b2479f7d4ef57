"""CLEVR-Change's world closer to the original images: lower and variable camera, darker colours, more objects.

At least 40 % of a changed object and 15 % of the others are visible: in the original images, too, there is much
occlusion, and small camera motions reveal or hide objects. One third of the pairs are unchanged.

`clevr_change` is designed for small square images without much occlusion. Here the camera has CLEVR's field of view;
its height and distance and the brightness of objects are drawn from ranges that cover those in CLEVR-Change's images.
The ambient light is strong and the lamps vary independently, so the dark side of a rubber object is only slightly
darker than the bright one. Captions give an object's position only if another object looks the same, as in
CLEVR-Change. Meant for images with an aspect ratio of 3:2.
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
"""Ground distance and height of the camera in world units, and maximum horizontal angle in radians."""
FOV = (40.0, 49.0)
ALBEDO, AMBIENT, LAMPS = (0.3, 0.75), (0.4, 0.95), ((0.4, 1.0), (0.5, 1.8), (0.2, 1.2))
"""Ranges of the albedo, the ambient light (absolute) and the factors of the key, fill and back light."""


def _cameras(rng: Rng, jitter: float) -> tuple[Camera, Camera]:
    distance, height = rng.uniform(*DISTANCE), rng.uniform(*HEIGHT)
    angle = math.atan2(-6.5, 7.2) + rng.uniform(-ANGLE, ANGLE)
    target = rng.uniform(-0.8, 0.8), rng.uniform(-0.8, 0.8), rng.uniform(0.0, 0.7)
    fov = rng.uniform(*FOV)

    def camera() -> Camera:
        scale = rng.uniform(1 - jitter / 4, 1 + jitter / 4)
        position = scale * distance * math.cos(angle), scale * distance * math.sin(angle), scale * height
        x, y, z = (value + rng.uniform(-jitter, jitter) for value in position)
        a, b, c = (value + rng.uniform(-jitter, jitter) / 3 for value in target)
        return Camera((x, y, max(z, 1.2)), (a, b, c), fov)

    return camera(), camera()


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """Draw one pair with one change or none, and its captions."""
    pair = draw_single(rng, world, _cameras)
    albedo, ambient, gains = rng.uniform(*ALBEDO), rng.uniform(*AMBIENT), [rng.uniform(*lamp) for lamp in LAMPS]

    def relit(scene: Scene) -> Scene:
        exposure = rng.uniform(0.92, 1.08)
        lights = tuple(
            replace(lamp, intensity=lamp.intensity * gain * exposure)
            for lamp, gain in zip(scene.lights, gains, strict=True)
        )
        return replace(scene, lights=lights, albedo=albedo, ambient=ambient * rng.uniform(0.9, 1.1))

    return replace(pair, before=relit(pair.before), after=relit(pair.after))

"""CLEVR-DC's world: CLEVR-Change's changes with an extreme shift of viewpoint.

Kim et al., "Agnostic Change Captioning with Cycle Consistency", 2021. Relations refer to the image that shows the
object as described: the after image for an added object, else the before image.
"""

from __future__ import annotations

import math

from lightning_idc.data.synthetic.phrases import KINDS
from lightning_idc.data.synthetic.sampling import Rng, ScenePair, World, draw_camera
from lightning_idc.data.synthetic.scene import Camera
from lightning_idc.data.synthetic.single_change import draw_single

__all__ = ["KINDS", "WORLD", "draw"]

WORLD = World()
TURN = (math.radians(30), math.radians(100))
"""Minimum and maximum rotation of the camera around the scene in radians, in either direction."""


def _cameras(rng: Rng, jitter: float) -> tuple[Camera, Camera]:
    turn = rng.uniform(*TURN) * rng.pick((-1.0, 1.0))
    return draw_camera(rng, jitter), draw_camera(rng, jitter, turn)


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """Draw one pair with one change or none, and its captions."""
    return draw_single(rng, world, _cameras)

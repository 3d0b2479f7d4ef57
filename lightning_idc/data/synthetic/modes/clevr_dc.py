"""CLEVR-DC's world: CLEVR-Change's changes under an extreme shift of viewpoint.

Kim et al., "Agnostic Change Captioning with Cycle Consistency", 2021. Relations are those of the picture that shows the
thing as the caption describes it: the after image for a thing that was added, else the before image.
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
"""The camera is carried around the scene by an angle between these, either way, radians."""


def _cameras(rng: Rng, jitter: float) -> tuple[Camera, Camera]:
    turn = rng.uniform(*TURN) * rng.pick((-1.0, 1.0))
    return draw_camera(rng, jitter), draw_camera(rng, jitter, turn)


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """One pair with one change or none, and its captions."""
    return draw_single(rng, world, _cameras)

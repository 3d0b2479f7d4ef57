"""CLEVR-Change's world: one of five changes or none, with a moderate change of viewpoint and light.

Park, Darrell and Rohrbach, "Robust Change Captioning", 2019.
"""

from __future__ import annotations

from lightning_idc.data.synthetic.phrases import KINDS
from lightning_idc.data.synthetic.sampling import Rng, ScenePair, World, draw_camera
from lightning_idc.data.synthetic.scene import Camera
from lightning_idc.data.synthetic.single_change import draw_single

__all__ = ["KINDS", "WORLD", "draw"]

WORLD = World()


def _cameras(rng: Rng, jitter: float) -> tuple[Camera, Camera]:
    return draw_camera(rng, jitter), draw_camera(rng, jitter)


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """Draw one pair with one change or none, and its captions."""
    return draw_single(rng, world, _cameras)

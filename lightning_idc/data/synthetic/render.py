"""Pictures of scenes: an analytic ray tracer of CLEVR's world, without any randomness of its own.

Every formula is closed: rays meet spheres, upright boxes and upright cylinders exactly, and an area light is
covered by the share of its disc that lies behind the nearest silhouette of a thing, so soft shadows need no
samples and have no noise. Each pixel is traced through its centre; only where neighbouring pixels differ
are four more rays averaged in. All numbers are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_idc.data.synthetic.scene import Scene
from lightning_idc.data.synthetic.shading import DEFAULT_CAMERA as DEFAULT_CAMERA
from lightning_idc.data.synthetic.shading import DEFAULT_LIGHTS as DEFAULT_LIGHTS
from lightning_idc.data.synthetic.shading import pack
from lightning_idc.utils.errors import ConfigError

MAX_SIZE = 8192
"""Largest height and width, pixels."""


def render(scenes: Sequence[Scene], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw scenes in one thread that holds no lock; the picture of a scene does not depend on what else is drawn.

    Args:
        scenes: what to draw; may be empty.
        height: pixels.
        width: pixels.

    Returns:
        Pictures, uint8 ``(N, 3, height, width)``, and the index of the thing at each pixel's centre or -1 for none,
        int16 ``(N, height, width)``.

    Raises:
        ConfigError: sizes out of range.
        DataError: a scene that cannot be drawn.
    """
    if not (1 <= height <= MAX_SIZE and 1 <= width <= MAX_SIZE):
        raise ConfigError(f"cannot draw {height}x{width} pixels (height x width); expected 1 to {MAX_SIZE} each way")
    # compiled when it is imported, which nobody waits for who only reads what is rendered
    from lightning_idc.data.synthetic.render_numba import draw

    return draw(pack(scenes), height, width)

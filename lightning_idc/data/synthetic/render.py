"""Renderer of scenes: a deterministic analytic ray tracer of CLEVR's world.

All formulas are in closed form: intersections with spheres, upright boxes and upright cylinders are exact, and the
occlusion of an area light is the fraction of its disc behind an object's silhouette, so soft shadows need no samples
and have no noise. Each pixel is traced through its centre; four more rays are averaged only where neighbouring pixels
differ. All numbers are float32.
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
"""Maximum height and width in pixels."""


def render(scenes: Sequence[Scene], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Render scenes in one thread without the GIL; the image of a scene does not depend on the other scenes.

    Args:
        scenes: scenes to render; may be empty.
        height: height in pixels.
        width: width in pixels.

    Returns:
        Images, uint8 ``(N, 3, height, width)``, and the index of the object at each pixel's centre or -1 for none,
        int16 ``(N, height, width)``.

    Raises:
        ConfigError: a size is out of range.
        DataError: a scene cannot be rendered.
    """
    if not (1 <= height <= MAX_SIZE and 1 <= width <= MAX_SIZE):
        raise ConfigError(f"the size is {height}x{width} pixels (height x width); expected 1 to {MAX_SIZE} per side")
    # the import compiles the renderer, which is not needed for reading cached pairs
    from lightning_idc.data.synthetic.render_numba import draw

    return draw(pack(scenes), height, width)

"""Letters made of small objects on the ground, since CLEVR's world has no text."""

from __future__ import annotations

from lightning_idc.data.synthetic.geometry import View
from lightning_idc.data.synthetic.sampling import Spot
from lightning_idc.data.synthetic.scene import SIZES

CELLS = {
    "C": (0, 1, 2, 3, 6, 7, 8),
    "H": (0, 2, 3, 4, 5, 6, 8),
    "I": (1, 4, 7),
    "L": (0, 3, 6, 7, 8),
    "O": (0, 1, 2, 3, 5, 6, 7, 8),
    "T": (0, 1, 2, 4, 7),
    "U": (0, 2, 3, 5, 6, 7, 8),
    "X": (0, 2, 4, 6, 8),
}
"""Occupied cells of a 3 x 3 grid, row by row from the farthest, as seen by the camera."""
LETTERS = tuple(CELLS)
_ACROSS, _ALONG = 0.78, 1.1
"""Distance of the cells in world units; larger between rows because of the perspective."""


def letter_spots(view: View, right: float, behind: float) -> list[Spot]:
    """Positions of the nine cells around a point in the camera's ground coordinates, in world units."""
    spots = []
    for cell in range(9):
        across, along = right + (cell % 3 - 1) * _ACROSS, behind + (1 - cell // 3) * _ALONG
        x = across * view.right[0] + along * view.behind[0]
        y = across * view.right[1] + along * view.behind[1]
        spots.append(Spot(x, y, SIZES["small"]))
    return spots

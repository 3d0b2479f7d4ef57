"""Where things fall in a picture: projection, outlines, occlusion and the four spatial relations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_idc.data.synthetic.scene import Camera, SceneObject

RELATIONS = ("left", "right", "front", "behind")
RELATION_MARGIN = 0.2
"""World units by which a relation must hold, as in CLEVR."""


@dataclass(frozen=True, slots=True)
class View:
    """A camera made ready for projecting; build it with `view_of`.

    Args:
        position: of the camera, world units.
        axes: rows right, up, forward; orthonormal, ``(3, 3)``.
        focal: distance of an image plane whose half width is 1.
        right: camera's right on the ground, unit length.
        behind: away from the camera on the ground, unit length.
    """

    position: tuple[float, float, float]
    axes: np.ndarray
    focal: float
    right: tuple[float, float]
    behind: tuple[float, float]


def view_of(camera: Camera) -> View:
    """Basis and ground directions of a camera whose up is +z."""
    fx, fy, fz = (t - p for t, p in zip(camera.target, camera.position, strict=True))
    length = math.sqrt(fx * fx + fy * fy + fz * fz)
    fx, fy, fz = fx / length, fy / length, fz / length
    ground = math.hypot(fx, fy)
    rx, ry = fy / ground, -fx / ground
    up = (ry * fz, -rx * fz, rx * fy - ry * fx)  # right x forward
    axes = np.array([(rx, ry, 0.0), up, (fx, fy, fz)])
    return View(
        camera.position, axes, 1.0 / math.tan(math.radians(camera.fov) / 2), (rx, ry), (fx / ground, fy / ground)
    )


def offset(view: View, thing: SceneObject, other: SceneObject) -> tuple[float, float]:
    """How far `thing` stands to the right of `other` and behind it, as the camera sees the ground; world units."""
    dx, dy = thing.x - other.x, thing.y - other.y
    return (
        dx * view.right[0] + dy * view.right[1],
        dx * view.behind[0] + dy * view.behind[1],
    )


def related(view: View, thing: SceneObject, relation: str, other: SceneObject, margin: float = RELATION_MARGIN) -> bool:
    """Whether `thing` is left of, right of, in front of or behind `other` by at least `margin` world units."""
    rightness, depth = offset(view, thing, other)
    value = {"left": -rightness, "right": rightness, "front": -depth, "behind": depth}[relation]
    return value > margin


def clear_relation(view: View, thing: SceneObject, other: SceneObject, dominance: float = 1.4) -> str | None:
    """The one relation of `thing` to `other` that a person would name, or None where two compete.

    Args:
        dominance: by how much the larger of the two ground components must exceed the smaller.
    """
    rightness, depth = offset(view, thing, other)
    across, along = abs(rightness), abs(depth)
    if max(across, along) < 2 * RELATION_MARGIN or max(across, along) < dominance * min(across, along):
        return None
    if across > along:
        return "right" if rightness > 0 else "left"
    return "behind" if depth > 0 else "front"


def _unit_points() -> dict[str, np.ndarray]:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    turns = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    rim = np.stack([np.cos(turns), np.sin(turns)], 1)
    cylinder = np.concatenate([np.c_[rim, np.full(8, z)] for z in (-1.0, 1.0)])
    return {"cube": np.concatenate([corners, corners]), "cylinder": cylinder}


_POINTS = _unit_points()
_TURN = np.arange(24) * 2.399963  # the golden angle: points that cover a disc evenly
_DISC = 0.92 * np.sqrt((np.arange(24)[:, None] + 0.5) / 24) * np.stack([np.cos(_TURN), np.sin(_TURN)], 1)


@dataclass(frozen=True, slots=True)
class Outlines:
    """Things as the camera sees them; everything in fractions of the picture, x right and y down.

    Args:
        centre: middle of each outline, ``(N, 2)``.
        half: half its width and height, ``(N, 2)``.
        depth: distance of the thing's centre along the line of sight, ``(N,)``.
        power: 2 for the outline of a sphere, more for a box-like one, ``(N,)``.
    """

    centre: np.ndarray
    half: np.ndarray
    depth: np.ndarray
    power: np.ndarray


def outlines(things: Sequence[SceneObject], view: View, aspect: float = 1.0) -> Outlines:
    """Approximate outlines without drawing anything.

    Args:
        aspect: width of the picture over its height.
    """
    count = len(things)
    points = np.empty((count, 16, 3))
    radii = np.empty(count)
    for i, thing in enumerate(things):
        radius = radii[i] = thing.radius
        if thing.shape == "sphere":
            # a ring that faces the camera bounds the sphere's outline
            turns = _POINTS["cylinder"][:8, :2] * radius
            ring = turns[:, :1] * view.axes[0] + turns[:, 1:] * view.axes[1]
            points[i] = np.concatenate([ring, ring])
        elif thing.shape == "cube" and thing.rotation:
            cos, sin = math.cos(thing.rotation) * radius, math.sin(thing.rotation) * radius
            points[i] = _POINTS["cube"] @ np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, radius]])
        else:
            points[i] = _POINTS[thing.shape] * radius
        points[i] += (thing.x, thing.y, radius)
    seen = (points - view.position) @ view.axes.T
    flat = seen[..., :2] / np.maximum(seen[..., 2:], 1e-3) * view.focal
    flat = 0.5 + 0.5 * flat * (1.0, -aspect)
    low, high = flat.min(1), flat.max(1)
    return Outlines(
        (low + high) / 2,
        (high - low) / 2,
        seen[..., 2].mean(1),
        np.array([2.0 if thing.shape == "sphere" else 4.0 for thing in things]),
    )


def visible_shares(shapes: Outlines, border: float = 0.01) -> np.ndarray:
    """Share of each outline that is inside the picture and not behind a nearer thing, ``(N,)``.

    Args:
        border: strip along the picture's edges that does not count, as a fraction of its size.
    """
    points = shapes.centre[:, None] + shapes.half[:, None] * _DISC  # (N, P, 2)
    inside = ((points > border) & (points < 1 - border)).all(-1)
    apart = np.abs(points[:, :, None] - shapes.centre) / shapes.half  # (N, P, M, 2)
    apart *= apart
    boxy = shapes.power > 2
    apart = np.where(boxy[:, None], apart * apart, apart)
    hit = (apart.sum(-1) < 1) & (shapes.depth[None, :] < shapes.depth[:, None])[:, None]
    return (inside & ~hit.any(-1)).mean(1)


def box_iou(first: Sequence[float], second: Sequence[float]) -> float:
    """Overlap of two boxes x1 y1 x2 y2 over the area of their union."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    overlap = width * height
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)) - overlap
    return overlap / union

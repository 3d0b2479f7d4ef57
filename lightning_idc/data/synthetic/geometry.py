"""Image geometry of objects: projection, outlines, occlusion and the four spatial relations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_idc.data.synthetic.scene import Camera, SceneObject

RELATIONS = ("left", "right", "front", "behind")
RELATION_MARGIN = 0.2
"""Minimum distance in world units for a relation to hold, as in CLEVR."""


@dataclass(frozen=True, slots=True)
class View:
    """Projection of a camera; built by `view_of`.

    Args:
        position: position of the camera in world units.
        axes: orthonormal axes right, up and forward as rows, ``(3, 3)``.
        focal: distance of the image plane of half width 1.
        right: unit vector on the ground to the camera's right.
        behind: unit vector on the ground away from the camera.
    """

    position: tuple[float, float, float]
    axes: np.ndarray
    focal: float
    right: tuple[float, float]
    behind: tuple[float, float]


def view_of(camera: Camera) -> View:
    """Axes and ground directions of a camera with +z up."""
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
    """Offset of `thing` from `other` to the camera's right and away from the camera, in world units."""
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
    """Unambiguous relation of `thing` to `other`, or None if two relations apply.

    Args:
        dominance: minimum ratio of the larger to the smaller ground component.
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
_TURN = np.arange(24) * 2.399963  # golden angle, for an even distribution of points on a disc
_DISC = 0.92 * np.sqrt((np.arange(24)[:, None] + 0.5) / 24) * np.stack([np.cos(_TURN), np.sin(_TURN)], 1)


@dataclass(frozen=True, slots=True)
class Outlines:
    """Projected outlines of objects, in relative image coordinates with x right and y down.

    Args:
        centre: centre of each outline, ``(N, 2)``.
        half: half width and height of each outline, ``(N, 2)``.
        depth: distance of each object's centre along the line of sight, ``(N,)``.
        power: exponent of the superellipse: 2 for a sphere, more for box-like outlines, ``(N,)``.
    """

    centre: np.ndarray
    half: np.ndarray
    depth: np.ndarray
    power: np.ndarray


def outlines(things: Sequence[SceneObject], view: View, aspect: float = 1.0) -> Outlines:
    """Approximate outlines of objects without rendering.

    Args:
        aspect: width over height of the image.
    """
    count = len(things)
    points = np.empty((count, 16, 3))
    radii = np.empty(count)
    for i, thing in enumerate(things):
        radius = radii[i] = thing.radius
        if thing.shape == "sphere":
            # the outline of a sphere is bounded by a ring that faces the camera
            turns = _POINTS["cylinder"][:8, :2] * radius
            ring = turns[:, :1] * view.axes[0] + turns[:, 1:] * view.axes[1]
            points[i] = np.concatenate([ring, ring])
        elif thing.shape == "cube" and thing.rotation:
            cos, sin = math.cos(thing.rotation) * radius, math.sin(thing.rotation) * radius
            points[i] = _POINTS["cube"] @ np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, radius]])
        else:
            points[i] = _POINTS[thing.shape] * radius
        points[i] += (thing.x, thing.y, radius)
    camera_points = (points - view.position) @ view.axes.T
    flat = camera_points[..., :2] / np.maximum(camera_points[..., 2:], 1e-3) * view.focal
    flat = 0.5 + 0.5 * flat * (1.0, -aspect)
    low, high = flat.min(1), flat.max(1)
    return Outlines(
        (low + high) / 2,
        (high - low) / 2,
        camera_points[..., 2].mean(1),
        np.array([2.0 if thing.shape == "sphere" else 4.0 for thing in things]),
    )


def visible_shares(shapes: Outlines, border: float = 0.01) -> np.ndarray:
    """Fraction of each outline that is inside the image and not hidden by a nearer object, ``(N,)``.

    Args:
        border: width of the excluded border as a fraction of the image size.
    """
    points = shapes.centre[:, None] + shapes.half[:, None] * _DISC  # (N, P, 2)
    inside = ((points > border) & (points < 1 - border)).all(-1)
    distances = np.abs(points[:, :, None] - shapes.centre) / shapes.half  # (N, P, M, 2)
    distances *= distances
    is_box_like = shapes.power > 2
    distances = np.where(is_box_like[:, None], distances * distances, distances)
    is_hidden = (distances.sum(-1) < 1) & (shapes.depth[None, :] < shapes.depth[:, None])[:, None]
    return (inside & ~is_hidden.any(-1)).mean(1)

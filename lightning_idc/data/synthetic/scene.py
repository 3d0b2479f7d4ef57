"""CLEVR's world in words and numbers: what a scene is, before anything is drawn.

World units are CLEVR's: the ground is the plane z = 0, objects stand on it within about |x|, |y| <= 3.
"""

from __future__ import annotations

from dataclasses import dataclass

SHAPES = ("cube", "sphere", "cylinder")
MATERIALS = ("rubber", "metal")
SIZES = {"large": 0.7, "small": 0.35}
"""Radius in world units; a cube's edge is radius * sqrt(2), as in CLEVR."""
COLORS = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
"""sRGB, 0 to 255."""


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One object standing on the ground.

    Args:
        shape: one of ``SHAPES``.
        size: a key of ``SIZES``.
        color: a key of ``COLORS``.
        material: one of ``MATERIALS``.
        x: world units.
        y: world units.
        rotation: about the vertical axis, radians.
    """

    shape: str
    size: str
    color: str
    material: str
    x: float
    y: float
    rotation: float = 0.0

    @property
    def radius(self) -> float:
        """Half the extent in world units: of a sphere or cylinder the radius, of a cube half its edge."""
        return SIZES[self.size] / (2**0.5 if self.shape == "cube" else 1.0)


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera that looks at a point; ``up`` is +z.

    Args:
        position: world units.
        target: world units.
        fov: horizontal field of view, degrees.
    """

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    fov: float = 50.0


@dataclass(frozen=True, slots=True)
class Light:
    """A small area light.

    Args:
        position: world units.
        intensity: radiance relative to the key light of CLEVR's base scene.
        radius: world units; 0 casts hard shadows.
    """

    position: tuple[float, float, float]
    intensity: float
    radius: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is needed to draw one image.

    Args:
        things: in it.
        camera: that sees it.
        lights: around it.
        ambient: light from everywhere.
        albedo: factor of the colours of rubber, and by its square root of metal.
    """

    things: tuple[SceneObject, ...]
    camera: Camera
    lights: tuple[Light, ...]
    ambient: float = 0.25
    albedo: float = 1.0

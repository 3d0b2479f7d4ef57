"""Scene description in CLEVR's world: objects, camera and lights.

World units are CLEVR's: the ground is the plane z = 0, and objects are on it within about |x|, |y| <= 3.
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
"""sRGB values, 0 to 255."""


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One object on the ground.

    Args:
        shape: one of ``SHAPES``.
        size: a key of ``SIZES``.
        color: a key of ``COLORS``.
        material: one of ``MATERIALS``.
        x: x coordinate of the centre in world units.
        y: y coordinate of the centre in world units.
        rotation: rotation about the vertical axis in radians.
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
        """Half the extent in world units: the radius of a sphere or cylinder, half the edge of a cube."""
        return SIZES[self.size] / (2**0.5 if self.shape == "cube" else 1.0)


@dataclass(frozen=True, slots=True)
class Camera:
    """Pinhole camera directed at a point, with +z up.

    Args:
        position: position in world units.
        target: target point in world units.
        fov: horizontal field of view in degrees.
    """

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    fov: float = 50.0


@dataclass(frozen=True, slots=True)
class Light:
    """A small area light.

    Args:
        position: position in world units.
        intensity: radiance relative to the key light of CLEVR's base scene.
        radius: radius in world units; 0 for hard shadows.
    """

    position: tuple[float, float, float]
    intensity: float
    radius: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Complete description of one image.

    Args:
        things: objects of the scene.
        camera: camera of the image.
        lights: lights of the scene.
        ambient: intensity of the ambient light.
        albedo: factor of the colours of rubber; its square root is the factor for metal.
    """

    things: tuple[SceneObject, ...]
    camera: Camera
    lights: tuple[Light, ...]
    ambient: float = 0.25
    albedo: float = 1.0

"""The ray tracer. Oracle: projection and brute-force geometry by hand, and a second implementation in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers import render_oracle

from lightning_idc.data.synthetic.ground import BLOCK
from lightning_idc.data.synthetic.render import DEFAULT_CAMERA, DEFAULT_LIGHTS, render
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES, Camera, Light, Scene, SceneObject
from lightning_idc.utils.errors import ConfigError, DataError, IDCError

BACKENDS = ["product", "oracle"]
FRONT = Camera((8.0, 0.0, 0.7), (0.0, 0.0, 0.7), 40.0)  # level, looks along -x: right is +y, up is +z
LIGHT = Light((0.0, -6.0, 6.0), 1.0, 0.5)


def drawn(scenes: Sequence[Scene], height: int, width: int, backend: str) -> tuple[np.ndarray, np.ndarray]:
    return {"product": render, "oracle": render_oracle.render}[backend](scenes, height, width)


def scene(*things: SceneObject, camera: Camera = DEFAULT_CAMERA, lights: tuple[Light, ...] = DEFAULT_LIGHTS) -> Scene:
    return Scene(things, camera, lights)


def thing(shape: str = "sphere", x: float = 0.0, y: float = 0.0, **more: object) -> SceneObject:
    return replace(SceneObject(shape, "large", "red", "rubber", x, y), **more)


def test_albedo_darkens_objects_but_not_the_ground() -> None:
    things = thing("cube", color="cyan"), thing("cube", 2.0, 2.0, color="cyan", material="metal")
    whole = scene(*things)
    (image, darker), (seen, _) = render([whole, replace(whole, albedo=0.5)], 96, 144)
    light = [image[:, seen == index].mean() - darker[:, seen == index].mean() for index in (-1, 0, 1)]
    assert abs(light[0]) < 2 < light[2] < light[1]  # in the shade of a darker thing the ground is a little darker


def random_scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = np.random.default_rng(seed)
    scenes = []
    for _ in range(count):
        things = [
            SceneObject(
                str(rng.choice(SHAPES)), str(rng.choice(list(SIZES))), str(rng.choice(list(COLORS))),
                str(rng.choice(MATERIALS)), *map(float, rng.uniform(-3, 3, 2)), float(rng.uniform(0, 6)),
            )
            for _ in range(int(rng.integers(1, 9)))
        ]  # fmt: skip
        x, y, z = (np.array(DEFAULT_CAMERA.position) + rng.uniform(-1, 1, 3)).tolist()
        lights = tuple(
            replace(light, position=tuple((np.array(light.position) + rng.uniform(-1, 1, 3)).tolist()))
            for light in DEFAULT_LIGHTS
        )
        scenes.append(Scene(tuple(things), replace(DEFAULT_CAMERA, position=(x, y, z)), lights))
    return scenes


@pytest.mark.slow
def test_backends_agree() -> None:
    scenes = random_scenes(20)
    images, seen = render(scenes, 64, 64)
    others, others_seen = render_oracle.render(scenes, 64, 64)
    assert images.dtype == np.uint8 and images.shape == (20, 3, 64, 64)
    assert seen.dtype == np.int16 and seen.shape == (20, 64, 64)
    assert np.abs(images.astype(int) - others).mean() <= 0.05
    assert (seen != others_seen).mean() < 1e-4


def test_rows_longer_than_a_block_agree_with_the_oracle() -> None:
    scenes = random_scenes(2, seed=3)
    images, seen = render(scenes, 8, 2 * BLOCK + 40)
    others, others_seen = render_oracle.render(scenes, 8, 2 * BLOCK + 40)
    assert np.abs(images.astype(int) - others).mean() <= 0.05
    assert (seen != others_seen).mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_image_depends_on_its_scene_only(backend: str) -> None:
    scenes = random_scenes(5, seed=1)
    images, seen = drawn(scenes, 33, 47, backend)
    for again in (drawn(scenes, 33, 47, backend), drawn(scenes[::-1], 33, 47, backend)):
        turned = again if (again[0] == images).all() else (again[0][::-1], again[1][::-1])
        np.testing.assert_array_equal(turned[0], images)
        np.testing.assert_array_equal(turned[1], seen)
    for n, one in enumerate(scenes):
        image, where = drawn([one], 33, 47, backend)
        np.testing.assert_array_equal(image[0], images[n])
        np.testing.assert_array_equal(where[0], seen[n])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("height", "width"), [(96, 96), (60, 80)])
def test_sphere_covers_its_projected_cone(backend: str, height: int, width: int) -> None:
    """Oracle: a ray hits a sphere if its angle to the sphere's centre is below asin(radius / distance)."""
    position = np.array([1.0, -0.8, 0.7])
    _, seen = drawn([scene(thing(x=1.0, y=-0.8), camera=FRONT)], height, width, backend)
    focal = 1 / math.tan(math.radians(20))
    rows, columns = np.mgrid[:height, :width] + 0.5
    u, v = 2 * columns / width - 1, (height - 2 * rows) / width
    rays = np.stack([np.full_like(u, -focal), u, v], -1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    to = position - FRONT.position
    distance = np.linalg.norm(to)
    expected = np.arccos(rays @ to / distance) < math.asin(0.7 / distance)
    assert 50 < expected.sum() < 0.5 * height * width
    np.testing.assert_array_equal(seen[0] == 0, expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_agree_with_ray_marching(backend: str, shape: str) -> None:
    """Oracle: whether any of the points sampled along a ray is inside the shape."""
    what = thing(shape, rotation=0.5)
    camera = Camera((6.0, -2.0, 3.0), (0.0, 0.0, 0.5), 30.0)
    _, seen = drawn([scene(what, camera=camera)], 48, 48, backend)
    forward = np.subtract(camera.target, camera.position)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, (0, 0, 1))
    right /= np.linalg.norm(right)
    rows, columns = np.mgrid[:48, :48] + 0.5
    u, v = columns / 24 - 1, 1 - rows / 24
    rays = forward / math.tan(math.radians(15)) + u[..., None] * right + v[..., None] * np.cross(right, forward)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    points = camera.position + rays[..., None, :] * np.linspace(4.5, 8.5, 1000)[:, None]
    x, y, z = points[..., 0], points[..., 1], points[..., 2] - what.radius
    cos, sin = math.cos(0.5), math.sin(0.5)
    inside = {
        "sphere": x**2 + y**2 + z**2 < what.radius**2,
        "cylinder": (x**2 + y**2 < what.radius**2) & (abs(z) < what.radius),
        "cube": np.maximum(abs(x * cos + y * sin), np.maximum(abs(y * cos - x * sin), abs(z))) < what.radius,
    }[shape].any(-1)
    assert inside.sum() > 200
    assert ((seen[0] == 0) != inside).sum() <= 0.02 * inside.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nearer_object_occludes_the_other(backend: str) -> None:
    far, near = thing("cube", x=-2.0), thing("sphere", x=2.0)
    _, seen = drawn([scene(far, near, camera=FRONT), scene(near, far, camera=FRONT)], 64, 64, backend)
    assert seen[0, 32, 32] == 1 and seen[1, 32, 32] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_shadows_are_soft_and_point_away_from_the_light(backend: str) -> None:
    above = Camera((0.01, 0.0, 12.0), (0.0, 0.0, 0.0), 50.0)  # looks down; light from -y, which is left
    images, seen = drawn(
        [scene(thing(), camera=above, lights=(LIGHT,)), scene(camera=above, lights=(LIGHT,))], 128, 128, backend
    )
    drop = images[1].astype(int).sum(0) - images[0].astype(int).sum(0)
    drop[seen[0] == 0] = 0
    away, towards = drop[60:68, 76:].max(), drop[60:68, :50].max()
    assert away > 100 and towards < 0.3 * away
    hard, _ = drawn([scene(thing(), camera=above, lights=(replace(LIGHT, radius=0.0),))], 128, 128, backend)

    def edge(image: np.ndarray) -> int:
        line = image[0, 64, 80:].astype(int)
        return int(np.abs(np.diff(line)).max())

    assert edge(hard[0]) > 1.5 * edge(images[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("color", COLORS)
def test_metal_has_brighter_highlights_and_a_darker_body(backend: str, color: str) -> None:
    scenes = [scene(thing(color=color, material=m), camera=replace(DEFAULT_CAMERA, fov=20.0)) for m in MATERIALS]
    images, seen = drawn(scenes, 64, 64, backend)
    rubber, metal = (image.astype(int).sum(0)[where == 0] for image, where in zip(images, seen, strict=True))
    assert metal.max() > rubber.max() + 40
    assert np.median(metal) < np.median(rubber) - 20


def test_metal_mirrors_its_neighbours() -> None:
    mirror, other = thing("cube", color="gray", material="metal"), thing("sphere", 2.0, -1.0, color="yellow")
    camera = Camera((6.0, 3.0, 0.7), (0.0, 0.0, 0.5), 40.0)
    # the ball's mirror image in the cube's front is at (-1, -1), seen through the front at y = -0.15
    alone, seen = render([scene(mirror, camera=camera)], 64, 64)
    both, seen_both = render([scene(mirror, other, camera=camera)], 64, 64)
    face = (seen[0] == 0) & (seen_both[0] == 0)
    gained = (both[0].astype(int) - alone[0])[:, face]
    assert (gained[0] - gained[2]).max() > 20  # yellow: more red than blue


@pytest.mark.parametrize("backend", BACKENDS)
def test_edges_are_antialiased(backend: str) -> None:
    images, seen = drawn([scene(thing("cube", rotation=0.3, color="yellow"))], 64, 64, backend)
    blue = images[0, 2].astype(int)
    left, right = seen[0][:, :-2] == -1, seen[0][:, 2:] == 0
    low, high = np.minimum(blue[:, :-2], blue[:, 2:]), np.maximum(blue[:, :-2], blue[:, 2:])
    between = (blue[:, 1:-1] > low + 5) & (blue[:, 1:-1] < high - 5)
    assert between[left & right].mean() > 0.4


@pytest.mark.parametrize("backend", BACKENDS)
def test_colours_look_like_their_names(backend: str) -> None:
    scenes = [scene(thing(color=color), camera=replace(DEFAULT_CAMERA, fov=20.0)) for color in COLORS]
    images, seen = drawn(scenes, 32, 32, backend)
    shown = np.array([image[:, where == 0].mean(1) for image, where in zip(images, seen, strict=True)])
    named = np.array(list(COLORS.values()), float)
    shown, named = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (shown, np.sqrt(named)))
    assert ((shown @ named.T).argmax(1) == np.arange(len(COLORS))).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_scene_is_gray_ground(backend: str) -> None:
    images, seen = drawn([scene(), scene(lights=())], 48, 64, backend)
    assert (seen == -1).all()
    first = images[0].astype(int)
    assert (first.max(0) - first.min(0)).max() < 25 and 60 < first.mean() < 200
    assert images[1].mean() < images[0].mean()  # without lights only ambient light is left
    images, seen = drawn([], 16, 16, backend)
    assert images.shape == (0, 3, 16, 16) and seen.shape == (0, 16, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ground_near_the_centre_is_visible(backend: str) -> None:
    corners = [thing(x=x, y=y, size="small") for x in (-3.0, 3.0) for y in (-3.0, 3.0)]
    _, seen = drawn([scene(*corners)], 64, 64, backend)
    assert set(np.unique(seen)) == {-1, 0, 1, 2, 3}


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"height": 0}, ConfigError, "0x16"),
        ({"width": -3}, ConfigError, "16x-3"),
        ({"height": 100_000, "width": 100_000}, ConfigError, "100000x100000"),
        ({"scenes": [scene(camera=Camera((0.0, 0.0, 5.0), (0.0, 0.0, 0.0)))]}, DataError, "straight"),
        ({"scenes": [scene(camera=replace(DEFAULT_CAMERA, fov=0.0))]}, DataError, "field of view"),
        ({"scenes": [scene(thing(x=math.nan))]}, DataError, "not finite"),
    ],
)
def test_invalid_scenes_are_errors(arguments: dict, kind: type[IDCError], named: str) -> None:
    with pytest.raises(kind, match=named):
        render(**{"scenes": [scene()], "height": 16, "width": 16, **arguments})


def test_compiles_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a writable folder for its cache, numba still compiles."""
    caching = pytest.importorskip("numba.core.caching")
    from lightning_idc.utils.compiled import compiled

    def twice(x):  # type: ignore[no-untyped-def]
        return x + x

    assert compiled(twice).stats.cache_path
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    bare = compiled(twice)
    assert bare.stats.cache_path is None and bare(3) == 6

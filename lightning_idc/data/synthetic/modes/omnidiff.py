"""OmniDiff's twelve types of change in CLEVR's world: several changes per pair, with long captions.

Liu et al., "OmniDiff: A Comprehensive Benchmark for Fine-grained Image Difference Captioning", 2025. Each sentence has
a referring part (object and position) and a change part, as in the instructions for the benchmark's annotators. The
README of the synthetic data describes how each type is realised with objects that have neither text nor limbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_idc.data.synthetic.claims import Attributes, Change, ParsedChange
from lightning_idc.data.synthetic.geometry import View, clear_relation, outlines, view_of, visible_shares
from lightning_idc.data.synthetic.grammar import NUMBERS
from lightning_idc.data.synthetic.letters import CELLS, LETTERS, letter_spots
from lightning_idc.data.synthetic.report import KINDS, report
from lightning_idc.data.synthetic.sampling import (
    TRIES,
    Rng,
    ScenePair,
    Spot,
    World,
    draw_attributes,
    draw_camera,
    draw_lights,
    find_spot,
    is_free,
    place_object,
)
from lightning_idc.data.synthetic.scene import COLORS, SHAPES, SIZES, Camera, Scene, SceneObject

__all__ = ["KINDS", "WORLD", "draw"]

WORLD = World(things=(3, 5), camera_jitter=0.3, light_jitter=0.6, no_change=0.0)
"""Here ``things`` is the number of unchanged objects, to which the changed ones are added."""
MIN_MOVE = 1.6
MIN_VISIBLE, MIN_VISIBLE_CHANGED = 0.35, 0.5
EDGE = 0.26
"""Maximum distance of an object's centre from the left or right border to count as at the edge, as a fraction of
the width; removed objects are farther inside."""
SINGLE = ("addition", "disappearance", "removal", "substitution", "size", "color", "orientation", "pose")
_VIEWS = ("left", "right", "higher", "lower", "closer", "farther")


@dataclass(slots=True)
class _Actor:
    """Object over time: attributes before and after (None while it is absent), and the radius that it occupies."""

    before: Attributes | None
    after: Attributes | None
    radius: float
    role: str | None = None


def draw(rng: Rng, world: World = WORLD) -> ScenePair:
    """Draw one pair with two or three changes of different types, and its caption.

    Raises:
        RuntimeError: the world is too crowded for any scene.
    """
    first = rng.pick(KINDS)
    extra = rng.integer(1, 2)
    kinds = [first]
    for kind in rng.shuffled(KINDS):
        crowded = {"OCR", "counting"} <= {*kinds, kind}
        if kind not in kinds and not crowded and len(kinds) <= extra:
            kinds.append(kind)
    kinds.sort(key=KINDS.index)
    cast = _cast(rng, world, kinds)
    words = _details(rng, kinds)
    for _ in range(TRIES):
        pair = _attempt(rng, world, kinds, first, cast, words)
        if pair is not None:
            return pair
    raise RuntimeError(f"no valid layout for {kinds} in {TRIES} tries; lower `things`, now {world.things}")


def _details(rng: Rng, kinds: Sequence[str]) -> dict[str, str]:
    """Directions of the changes of viewpoint and illumination, and the two letters."""
    letters = rng.shuffled(LETTERS)
    words = {
        "viewpoint": rng.pick(_VIEWS),
        "illumination": rng.pick(("brighter", "darker")),
        "old": letters[0],
        "new": letters[1],
    }
    return words if "viewpoint" in kinds else {**words, "viewpoint": ""}


def _cast(rng: Rng, world: World, kinds: Sequence[str]) -> list[_Actor]:
    """All objects of the scenes; objects outside of groups have unique attributes, before and after."""
    used: set[Attributes] = set()

    def fresh(shapes: Sequence[str] = SHAPES, **fixed: str) -> Attributes:
        while True:
            attributes = draw_attributes(rng, shapes)._replace(**fixed)
            if attributes not in used:
                used.add(attributes)
                return attributes

    cast = []
    for kind in kinds:
        if kind in SINGLE:
            cast.append(_single(rng, kind, fresh, used))
    if "OCR" in kinds:
        dots = fresh(("sphere",), size="small")
        cast.append(_Actor(dots, dots, SIZES["small"], "OCR"))
    if "counting" in kinds:
        many = fresh(size="small")
        few, more = sorted(rng.shuffled(range(2, 6))[:2])
        grow = rng.chance(0.5)
        cast += [_Actor(many, many, SIZES["small"], "counting") for _ in range(few)]
        late = _Actor(None if grow else many, many if grow else None, SIZES["small"], "counting")
        cast += [replace(late) for _ in range(more - few)]
    bystanders = rng.integer(*world.things) - (1 if "OCR" in kinds else 0)
    for _ in range(bystanders):
        attributes = fresh()
        cast.append(_Actor(attributes, attributes, SIZES[attributes.size or ""]))
    return cast


def _single(rng: Rng, kind: str, fresh: Callable[..., Attributes], used: set[Attributes]) -> _Actor:
    thing = fresh(("cube",)) if kind == "orientation" else fresh()
    after: Attributes | None = thing
    if kind in ("disappearance", "removal"):
        after = None
    elif kind == "substitution":
        shape = rng.pick([name for name in SHAPES if name != thing.shape])
        color = rng.pick([name for name in COLORS if name != thing.color])
        after = fresh((shape,), size=thing.size, color=color)
    elif kind == "size":
        after = thing._replace(size="small" if thing.size == "large" else "large")
    elif kind == "color":
        after = thing._replace(color=rng.pick([name for name in COLORS if name != thing.color]))
    if after is not None:
        used.add(after)
    radius = max(SIZES[attributes.size or ""] for attributes in (thing, after) if attributes is not None)
    return _Actor(None if kind == "addition" else thing, after, radius, kind)


def _cameras(rng: Rng, jitter: float, direction: str) -> tuple[Camera, Camera]:
    before = draw_camera(rng, jitter)
    turn = {"left": -1.0, "right": 1.0}.get(direction, 0.0) * rng.uniform(math.radians(16), math.radians(26))
    after = draw_camera(rng, jitter, turn)
    x, y, z = after.position
    if direction in ("higher", "lower"):
        lift = 1.9 if direction == "higher" else -1.9
        return before, replace(after, position=(x * (1 - lift / 14), y * (1 - lift / 14), z + lift))
    scale = {"closer": 0.8, "farther": 1.3}.get(direction, 1.0)
    return before, replace(after, position=(x * scale, y * scale, z * scale))


def _attempt(
    rng: Rng, world: World, kinds: list[str], first: str, cast: list[_Actor], words: dict[str, str]
) -> ScenePair | None:
    cameras = _cameras(rng, world.camera_jitter, words["viewpoint"])
    views = view_of(cameras[0]), view_of(cameras[1])
    placed = _place(rng, views[0], cast, words)
    if placed is None:
        return None
    before = [(actor, thing) for actor, thing, _ in placed if thing is not None]
    after = [(actor, thing) for actor, _, thing in placed if thing is not None]
    scenes = [[thing for _, thing in before], [thing for _, thing in after]]
    shapes = [outlines(things, view, world.aspect) for things, view in zip(scenes, views, strict=True)]
    for outline, side in zip(shapes, (before, after), strict=True):
        visible = visible_shares(outline)
        if any(
            fraction < (MIN_VISIBLE_CHANGED if actor.role in SINGLE else MIN_VISIBLE)
            for fraction, (actor, _) in zip(visible, side, strict=True)
        ):
            return None
    for (actor, _), (u, _v) in zip(before, shapes[0].centre, strict=True):
        edge = min(u, 1 - u)
        if (actor.role == "disappearance" and edge > EDGE) or (actor.role == "removal" and edge < EDGE + 0.06):
            return None
    where: list[tuple[int | None, int | None]] = []
    counts = [0, 0]
    for _, old, new in placed:
        where.append((counts[0] if old else None, counts[1] if new else None))
        counts = [counts[0] + (old is not None), counts[1] + (new is not None)]
    centres = [outline.centre[:, 0] for outline in shapes]
    changes = tuple(_change(kind, placed, where, views, centres, words) for kind in kinds)
    strength = {"brighter": 1.55, "darker": 0.6}[words["illumination"]] if "illumination" in kinds else 1.0
    base = rng.uniform(0.9, 1.0)
    ambient = [0.25, 0.25 * strength]
    lights = [draw_lights(rng, world.light_jitter, base), draw_lights(rng, world.light_jitter, base * strength)]
    both = [
        Scene(tuple(things), camera, light, level)
        for things, camera, light, level in zip(scenes, cameras, lights, ambient, strict=True)
    ]
    same = tuple(
        (i, j)
        for (i, j), (actor, _, _) in zip(where, placed, strict=True)
        if i is not None and j is not None and actor.role != "substitution"
    )
    return ScenePair(both[0], both[1], changes, (report([change.claim for change in changes]),), first, same)


def _place(
    rng: Rng, view: View, cast: list[_Actor], words: dict[str, str]
) -> list[tuple[_Actor, SceneObject | None, SceneObject | None]] | None:
    occupied: list[Spot] = []
    placed: list[tuple[_Actor, SceneObject | None, SceneObject | None]] = []
    for actor in cast:
        if actor.role == "OCR":
            dots, spots = _letters(rng, view, actor, words)
            placed += dots
            occupied += spots
    for actor in cast:
        if actor.role == "OCR":
            continue
        spot: Spot | None
        if actor.role == "disappearance":
            spot = _edge_spot(rng, view, actor.radius)
            if not is_free(spot.x, spot.y, spot.radius, occupied):
                return None
        else:
            spot = find_spot(rng, actor.radius, occupied)
        if spot is None:
            return None
        occupied.append(spot)
        before = place_object(rng, actor.before, spot) if actor.before is not None else None
        after = None
        if actor.after is not None:
            after = place_object(rng, actor.after, spot)
            if before is not None:
                after = replace(after, rotation=before.rotation)
        if actor.role == "orientation" and after is not None:
            after = replace(after, rotation=after.rotation + rng.uniform(math.radians(35), math.radians(55)))
        if actor.role == "pose" and after is not None:
            goal = find_spot(rng, actor.radius, occupied)
            if goal is None or math.hypot(goal.x - spot.x, goal.y - spot.y) < MIN_MOVE:
                return None
            occupied.append(goal)
            after = replace(after, x=goal.x, y=goal.y)
        placed.append((actor, before, after))
    return placed


def _edge_spot(rng: Rng, view: View, radius: float) -> Spot:
    """Random position near the left or right border of the view."""
    right, behind = rng.uniform(2.4, 2.9) * rng.pick((-1.0, 1.0)), rng.uniform(-0.7, 0.7)
    return Spot(
        right * view.right[0] + behind * view.behind[0], right * view.right[1] + behind * view.behind[1], radius
    )


def _letters(
    rng: Rng, view: View, actor: _Actor, words: dict[str, str]
) -> tuple[list[tuple[_Actor, SceneObject | None, SceneObject | None]], list[Spot]]:
    """Objects of both letters, of which common cells do not change, and the occupied positions."""
    right, behind = rng.uniform(-1.4, 1.4), rng.uniform(-0.6, 0.4)
    spots = letter_spots(view, right, behind)
    dots = actor.before
    assert dots is not None
    placed: list[tuple[_Actor, SceneObject | None, SceneObject | None]] = []
    for cell, spot in enumerate(spots):
        old, new = cell in CELLS[words["old"]], cell in CELLS[words["new"]]
        thing = place_object(rng, dots, spot)
        if old or new:
            placed.append((actor, thing if old else None, thing if new else None))
    return placed, spots


def _change(
    kind: str,
    placed: Sequence[tuple[_Actor, SceneObject | None, SceneObject | None]],
    where: Sequence[tuple[int | None, int | None]],
    views: tuple[View, View],
    centres: Sequence[np.ndarray],
    words: dict[str, str],
) -> Change:
    """Claim of one change, and the indices of the involved objects."""
    if kind in ("viewpoint", "illumination"):
        return Change(ParsedChange(kind, value=words[kind]))
    part = [i for i, (actor, _, _) in enumerate(placed) if actor.role == kind]
    before = tuple(index for i in part if (index := where[i][0]) is not None)
    after = tuple(index for i in part if (index := where[i][1]) is not None)
    actor, old, new = placed[part[0]]
    if kind == "counting":
        claim = ParsedChange(kind, actor.before or actor.after, old=NUMBERS[len(before)], value=NUMBERS[len(after)])
        return Change(claim, before, after)
    if kind == "OCR":
        region = _region(sum(centres[0][index] for index in before) / len(before))
        return Change(
            ParsedChange(kind, actor.before, region=region, old=words["old"], value=words["new"]), before, after
        )
    side = 1 if kind == "addition" else 0
    index = (after if side else before)[0]
    thing = new if side else old
    assert thing is not None
    relation, anchor = _refer(views[side], thing, placed)
    value = replacement = None
    if kind == "color" and actor.after is not None:
        value = actor.after.color
    elif kind == "size" and actor.after is not None:
        value = "larger" if actor.after.size == "large" else "smaller"
    elif kind == "substitution":
        replacement = actor.after
    region = _region(centres[side][index])
    claim = ParsedChange(kind, Attributes.of(thing), relation, anchor, region, None, value, replacement)
    return Change(claim, before, after, side)


def _region(u: float) -> str:
    return "left side" if u < 0.4 else "right side" if u > 0.6 else "center"


def _refer(
    view: View, thing: SceneObject, placed: Sequence[tuple[_Actor, SceneObject | None, SceneObject | None]]
) -> tuple[str | None, Attributes | None]:
    """Relation to the nearest unchanged object with an unambiguous relation, and its attributes."""
    steady = [old for actor, old, _ in placed if actor.role is None and old is not None]
    for other in sorted(steady, key=lambda other: math.hypot(other.x - thing.x, other.y - thing.y)):
        relation = clear_relation(view, thing, other)
        if relation is not None:
            return relation, Attributes.of(other)
    return None, None

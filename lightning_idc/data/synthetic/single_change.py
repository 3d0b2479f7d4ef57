"""Random pairs with one change or none, shared by the modes of the CLEVR-Change kind.

The changed object is drawn first and does not change while layouts are rejected, so that captions are balanced over
shapes, sizes, colours and materials regardless of the layout constraints. Its anchor in the caption is its nearest
neighbour: it has unique attributes, is clearly nearest, and is clearly in one of four directions. The relation in a
sentence is therefore as predictable from the image as the object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from lightning_idc.data.synthetic.claims import Attributes, Change, ParsedChange
from lightning_idc.data.synthetic.geometry import (
    RELATIONS,
    View,
    clear_relation,
    outlines,
    related,
    view_of,
    visible_shares,
)
from lightning_idc.data.synthetic.phrases import KINDS, sentences
from lightning_idc.data.synthetic.sampling import (
    GAP,
    TRIES,
    Rng,
    ScenePair,
    Spot,
    World,
    draw_attributes,
    draw_lights,
    find_spot,
    is_free,
    place_object,
)
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SIZES, Camera, Scene

TWINS = 0.1
"""Fraction of pairs in which another object looks like the changed one; only the relation distinguishes them."""
ANCHOR_MARGIN = 0.5
"""Minimum difference in world units between the distances of the anchor and of any other object."""
MIN_MOVE = 1.6
"""Minimum displacement of a moved object in world units."""

CameraPair = Callable[[Rng, float], tuple[Camera, Camera]]


def draw_single(rng: Rng, world: World, cameras: CameraPair) -> ScenePair:
    """Draw one pair of scenes with its captions.

    Args:
        cameras: function that draws both cameras, given the jitter in world units.

    Raises:
        RuntimeError: the world is too crowded for any scene.
    """
    kind = "no_change" if rng.chance(world.no_change) else rng.pick(KINDS[:-1])
    target = draw_attributes(rng)
    changed = _changed(rng, kind, target)
    count = rng.integer(*world.things)
    for _ in range(TRIES):
        pair = _attempt(rng, world, cameras(rng, world.camera_jitter), kind, target, changed, count)
        if pair is not None:
            return pair
    raise RuntimeError(f"no valid layout of {count} objects in {TRIES} tries; lower `things`, now {world.things}")


def _changed(rng: Rng, kind: str, target: Attributes) -> Attributes:
    if kind == "color":
        return target._replace(color=rng.pick([color for color in COLORS if color != target.color]))
    if kind == "texture":
        return target._replace(material=next(name for name in MATERIALS if name != target.material))
    return target


def _others(rng: Rng, target: Attributes, changed: Attributes, count: int) -> list[Attributes]:
    """Draw the attributes of the anchor and the others; all differ from the target, except for a possible twin."""
    unlike = {target, changed}
    drawn: list[Attributes] = []
    while len(drawn) < count - 1:
        attributes = draw_attributes(rng)
        if attributes not in unlike:
            drawn.append(attributes)
            unlike.add(attributes)
    if len(drawn) > 1 and rng.chance(TWINS):
        drawn[-1] = target
    return drawn


def _attempt(
    rng: Rng,
    world: World,
    cameras: tuple[Camera, Camera],
    kind: str,
    target: Attributes,
    changed: Attributes,
    count: int,
) -> ScenePair | None:
    views = view_of(cameras[0]), view_of(cameras[1])
    side = 1 if kind == "add" else 0
    others = _others(rng, target, changed, count)
    spots = _place(rng, views[side], target, others)
    if spots is None:
        return None
    other_objects = [place_object(rng, attributes, spot) for attributes, spot in zip(others, spots[1:], strict=True)]
    thing = place_object(rng, target, spots[0])
    after = replace(thing, color=changed.color or "", material=changed.material or "")
    if kind == "move":
        spot = _move(rng, spots)
        if spot is None:
            return None
        after = replace(thing, x=spot.x, y=spot.y)
    anchor = other_objects[0]
    relation = clear_relation(views[side], thing, anchor)
    twins = [other for other in other_objects if Attributes.of(other) == target]
    if relation is None or any(related(views[side], twin, relation, anchor, -0.1) for twin in twins):
        return None
    # the changed object is the last one, so that the indices of the others do not change when it is added or dropped
    scenes = [
        tuple(other_objects) if kind == absent else (*other_objects, last)
        for absent, last in (("add", thing), ("drop", after))
    ]
    min_changed, min_others = world.visible
    for things, view, absent_kind in zip(scenes, views, ("add", "drop"), strict=True):
        visible = visible_shares(outlines(things, view, world.aspect))
        if (
            visible.min() < min_others
            or visible[0] < min_changed
            or (kind != absent_kind and visible[-1] < min_changed)
        ):
            return None
    last = len(other_objects)
    same = [(i, i) for i in range(last)] + ([] if kind in ("add", "drop") else [(last, last)])
    claim = ParsedChange(kind)
    changes: tuple[Change, ...] = ()
    if kind != "no_change":
        value = {"color": changed.color, "texture": changed.material}.get(kind)
        claim = ParsedChange(kind, target, value=value)
        if world.relations == "always" or twins:
            claim = replace(claim, relation=relation, anchor=Attributes.of(anchor))
        changes = (Change(claim, () if kind == "add" else (last,), () if kind == "drop" else (last,), side),)
    lights = [draw_lights(rng, world.light_jitter) for _ in range(2)]
    return ScenePair(
        Scene(scenes[0], cameras[0], lights[0]),
        Scene(scenes[1], cameras[1], lights[1]),
        changes,
        tuple(rng.shuffled(sentences(claim))),
        kind,
        tuple(same),
    )


def _place(rng: Rng, view: View, target: Attributes, others: Sequence[Attributes]) -> list[Spot] | None:
    """Find positions for the target, its anchor and the others, which must be farther away than the anchor."""
    radii = [SIZES[attributes.size or ""] for attributes in (target, *others)]
    first = find_spot(rng, radii[0], ())
    if first is None:
        return None
    # direction of the target from its anchor, within 30 degrees
    relation, slant = rng.pick(RELATIONS), rng.uniform(-math.pi / 6, math.pi / 6)
    major, minor = math.cos(slant), math.sin(slant)
    away = radii[0] + radii[1] + GAP + rng.uniform(0.05, 0.7)
    sign = 1.0 if relation in ("right", "behind") else -1.0
    right, behind = (sign * major, minor) if relation in ("left", "right") else (minor, sign * major)
    x = first.x - away * (right * view.right[0] + behind * view.behind[0])
    y = first.y - away * (right * view.right[1] + behind * view.behind[1])
    if not is_free(x, y, radii[1], [first]):
        return None
    spots = [first, Spot(x, y, radii[1])]
    # distances are measured between edges, so the reserved radius depends on the radius of the object
    for radius in radii[2:]:
        reserved = [
            Spot(first.x, first.y, away + ANCHOR_MARGIN - radius - GAP if away + ANCHOR_MARGIN > radius + GAP else 0.0)
        ]
        spot = find_spot(rng, radius, [*reserved, *spots])
        if spot is None:
            return None
        spots.append(spot)
    return spots


def _move(rng: Rng, spots: Sequence[Spot]) -> Spot | None:
    for _ in range(8):
        spot = find_spot(rng, spots[0].radius, spots[1:], 8)
        if spot is not None and math.hypot(spot.x - spots[0].x, spot.y - spots[0].y) >= MIN_MOVE:
            return spot
    return None

"""Scenes, changes and captions, without rendering. Oracle: the scenes themselves, in world coordinates."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lightning_idc.data.synthetic.cache import Key, draw_pair
from lightning_idc.data.synthetic.claims import Attributes
from lightning_idc.data.synthetic.datamodule import SyntheticPairs
from lightning_idc.data.synthetic.geometry import RELATION_MARGIN, offset, related, view_of
from lightning_idc.data.synthetic.grammar import NUMBERS, parse, parse_report
from lightning_idc.data.synthetic.modes import MODES, clevr_change, load_mode, omnidiff
from lightning_idc.data.synthetic.sampling import ScenePair
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES, Camera, SceneObject
from lightning_idc.utils.errors import ConfigError


def draw_many(mode: str, count: int, seed: int = 3) -> list[ScenePair]:
    key = Key(mode, "train", count, 64, 64, seed, load_mode(mode).WORLD)
    return [draw_pair(key, index) for index in range(count)]


@pytest.fixture(scope="module")
def pairs() -> list[ScenePair]:
    return draw_many("clevr_change", 2000)


@pytest.fixture(scope="module")
def reports() -> list[ScenePair]:
    return draw_many("omnidiff", 500)


def chi_square(counts: Counter[str], words: tuple[str, ...]) -> float:
    """Return the chi-square statistic against equal shares, per degree of freedom: about 1 for a fair draw."""
    mean = sum(counts[word] for word in words) / len(words)
    return sum((counts[word] - mean) ** 2 / mean for word in words) / (len(words) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [SHAPES, MATERIALS, tuple(SIZES), tuple(COLORS)], ids=["shape", "material", "size", "color"]
)
def test_words_of_changed_objects_are_balanced(pairs: list[ScenePair], words: tuple[str, ...]) -> None:
    named = Counter(word for pair in pairs for change in pair.changes for word in change.claim.thing or ())
    # seven degrees of freedom at most; 3.5 each is beyond the 99.9th percentile for 7 and near it for 1 (10.8)
    assert chi_square(named, words) < (3.5 if len(words) > 3 else 7.0), named


@pytest.mark.slow
def test_each_shape_has_one_noun(pairs: list[ScenePair]) -> None:
    nouns = Counter(word for pair in pairs for text in pair.captions for word in text.split())
    assert not {"ball", "block", "object", "thing", "sphere's"} & set(nouns)
    assert chi_square(nouns, SHAPES) / sum(nouns[word] for word in SHAPES) < 0.005  # within a few per cent, anchors too


def test_kinds_are_equally_frequent(pairs: list[ScenePair]) -> None:
    kinds = Counter(pair.change_type for pair in pairs)
    assert set(kinds) == set(clevr_change.KINDS)
    assert chi_square(kinds, clevr_change.KINDS) < 4.2  # 99.9th percentile for five degrees of freedom


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clevr_change", "clevr_dc", "clevr_wide"])
def test_captions_parse_to_their_claim(mode: str) -> None:
    for pair in draw_many(mode, 400, seed=11):
        assert len(set(pair.captions)) == len(pair.captions) == 5
        for caption in pair.captions:
            if pair.changes:
                assert parse(caption) == pair.changes[0].claim
                claim = pair.changes[0].claim
                assert claim.thing.complete and (claim.relation is None or claim.anchor.complete)
            else:
                assert parse(caption).kind == "no_change"


@pytest.mark.slow
def test_reports_parse_to_their_claims(reports: list[ScenePair]) -> None:
    for pair in reports:
        (caption,) = pair.captions
        assert parse_report(caption) == [change.claim for change in pair.changes]


@pytest.mark.slow
def test_all_twelve_types_of_omnidiff_occur(reports: list[ScenePair]) -> None:
    assert len(omnidiff.KINDS) == 12
    kinds = Counter(change.claim.kind for pair in reports for change in pair.changes)
    assert min(kinds[kind] for kind in omnidiff.KINDS) > 0.5 * max(kinds.values())
    assert {len(pair.changes) for pair in reports} == {2, 3}
    assert 50 < np.mean([len(pair.captions[0].split()) for pair in reports]) < 90  # the benchmark: 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clevr_change", "clevr_dc", "clevr_wide"])
def test_captions_refer_to_a_unique_object(mode: str) -> None:
    twins = 0
    for pair in draw_many(mode, 400, seed=5):
        for change in pair.changes:
            scene, index = (pair.after, change.after) if change.side else (pair.before, change.before)
            claim, view = change.claim, view_of(scene.camera)
            alike = [thing for thing in scene.things if Attributes.of(thing) == claim.thing]
            twins += len(alike) > 1
            if claim.relation is None:
                assert mode == "clevr_wide" and alike == [scene.things[index[0]]]
                continue
            anchors = [thing for thing in scene.things if Attributes.of(thing) == claim.anchor]
            assert len(anchors) == 1 and (mode != "clevr_wide" or len(alike) > 1)
            fitting = [thing for thing in alike if related(view, thing, claim.relation, anchors[0], 0.0)]
            assert fitting == [scene.things[index[0]]]
    assert twins > 10  # pairs in which only the relation identifies the object


@pytest.mark.slow
def test_needed_relations_do_not_change_the_scenes() -> None:
    world = load_mode("clevr_change").WORLD
    keys = [Key("clevr_change", "train", 200, 64, 64, 5, replace(world, relations=way)) for way in ("always", "needed")]
    num_relations = 0
    for always, needed in zip(*([draw_pair(key, index) for index in range(200)] for key in keys), strict=True):
        assert always.before == needed.before and always.after == needed.after
        for change, short in zip(always.changes, needed.changes, strict=True):
            num_relations += short.claim.relation is not None
            assert short.claim in (change.claim, replace(change.claim, relation=None, anchor=None))
    assert 5 < num_relations < 40
    assert keys[0].folder != keys[1].folder


def test_invalid_relations_are_errors() -> None:
    with pytest.raises(ConfigError, match="'sometimes'; expected one of always, needed"):
        SyntheticPairs(relations="sometimes")
    with pytest.raises(ConfigError, match="not to omnidiff"):
        SyntheticPairs("omnidiff", relations="needed")


def test_anchor_is_the_nearest_object_in_a_clear_direction(pairs: list[ScenePair]) -> None:
    for pair in pairs[:500]:
        for change in pair.changes:
            scene, index = (pair.after, change.after) if change.side else (pair.before, change.before)
            thing = scene.things[index[0]]
            others = [other for other in scene.things if other is not thing]
            near = min(others, key=lambda other: math.hypot(other.x - thing.x, other.y - thing.y))
            assert Attributes.of(near) == change.claim.anchor
            rightness, depth = offset(view_of(scene.camera), thing, near)
            larger, smaller = max(abs(rightness), abs(depth)), min(abs(rightness), abs(depth))
            assert larger > 1.4 * smaller and larger > RELATION_MARGIN
            along = {"left": -rightness, "right": rightness, "front": -depth, "behind": depth}
            assert along[change.claim.relation] == larger


def test_scenes_differ_only_by_the_described_change(pairs: list[ScenePair]) -> None:
    for pair in pairs[:600]:
        before, after = list(pair.before.things), list(pair.after.things)
        index_of = dict(pair.same)
        differing = [i for i, j in index_of.items() if before[i] != after[j]]
        gone, came = set(range(len(before))) - set(index_of), set(range(len(after))) - set(index_of.values())
        if pair.change_type == "no_change":
            assert before == after and not pair.changes
            continue
        (change,) = pair.changes
        if pair.change_type == "add":
            assert (differing, gone, came) == ([], set(), set(change.after))
        elif pair.change_type == "drop":
            assert (differing, gone, came) == ([], set(change.before), set())
        else:
            assert (tuple(differing), gone, came) == (change.before, set(), set())
            old, new = before[change.before[0]], after[change.after[0]]
            fields = {name for name in SceneObject.__slots__ if getattr(old, name) != getattr(new, name)}
            expected = {"color": {"color"}, "texture": {"material"}, "move": {"x", "y"}}[pair.change_type]
            assert fields == expected
            if pair.change_type == "move":
                assert math.hypot(old.x - new.x, old.y - new.y) >= 1.6
            else:
                assert change.claim.value == getattr(new, expected.pop())


def test_camera_and_lights_differ_in_every_pair(pairs: list[ScenePair]) -> None:
    for pair in pairs[:200]:
        assert pair.before.camera != pair.after.camera
        assert all(a != b for a, b in zip(pair.before.lights, pair.after.lights, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_objects_do_not_touch(mode: str) -> None:
    for pair in draw_many(mode, 100, seed=8):
        for scene in (pair.before, pair.after):
            for i, thing in enumerate(scene.things):
                for other in scene.things[:i]:
                    distance = math.hypot(thing.x - other.x, thing.y - other.y)
                    assert distance > SIZES[thing.size] + SIZES[other.size]


def test_extreme_viewpoints_are_extreme() -> None:
    for pair in draw_many("clevr_dc", 50):
        angles = [math.atan2(scene.camera.position[1], scene.camera.position[0]) for scene in (pair.before, pair.after)]
        turn = abs((angles[1] - angles[0] + math.pi) % (2 * math.pi) - math.pi)
        assert math.radians(18) < turn < math.radians(112)  # 30 to 100, and jitter


def test_relations_follow_the_camera() -> None:
    # a camera that looks along +y: right is +x, behind is +y
    view = view_of(Camera((0.0, -9.0, 5.0), (0.0, 0.0, 0.0)))
    centre = SceneObject("cube", "small", "red", "metal", 0.0, 0.0)
    positions = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "behind": (0.0, 1.0), "front": (0.0, -1.0)}
    for relation, (x, y) in positions.items():
        thing = SceneObject("cube", "small", "red", "metal", x, y)
        assert [name for name in positions if related(view, thing, name, centre)] == [relation]


def test_pair_depends_on_seed_split_and_index_only() -> None:
    world = clevr_change.WORLD
    one = Key("clevr_change", "train", 10, 64, 64, 0, world)
    assert draw_pair(one, 7) == draw_pair(Key("clevr_change", "train", 9000, 128, 128, 0, world), 7)
    others = [
        (one, 8),
        (Key("clevr_change", "val", 10, 64, 64, 0, world), 7),
        (Key("clevr_change", "train", 10, 64, 64, 1, world), 7),
    ]
    assert all(draw_pair(one, 7) != draw_pair(key, index) for key, index in others)


def test_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(ConfigError, match="clevr_change, clevr_dc, clevr_wide, omnidiff"):
        load_mode("clevr")


def test_claims_of_reports_hold_in_the_scenes(reports: list[ScenePair]) -> None:
    for pair in reports:
        scenes = (pair.before, pair.after)
        for change in pair.changes:
            claim = change.claim
            old = [pair.before.things[i] for i in change.before]
            new = [pair.after.things[i] for i in change.after]
            if claim.thing is not None:
                assert {Attributes.of(thing) for thing in (new if change.side else old)} == {claim.thing}
            assert TRUE_OF[claim.kind](claim, old, new, scenes), (claim, old, new)
            if claim.relation is not None:
                scene, (thing,) = scenes[change.side], (new if change.side else old)
                (anchor,) = (other for other in scene.things if Attributes.of(other) == claim.anchor)
                assert related(view_of(scene.camera), thing, claim.relation, anchor)


def _moved(claim, scenes) -> bool:
    """Return whether the second camera moved as claimed in the first view; jitter is at most 0.3 per coordinate."""
    view = view_of(scenes[0].camera)
    (x, y, z), (u, v, w) = scenes[0].camera.position, scenes[1].camera.position
    right = (u - x) * view.right[0] + (v - y) * view.right[1]
    nearer = math.dist((x, y, z), (0, 0, 0)) - math.dist((u, v, w), (0, 0, 0))
    amounts = {"right": right, "left": -right, "higher": w - z, "lower": z - w, "closer": nearer, "farther": -nearer}
    return amounts[claim.value] > 1.0


def _brighter(scenes) -> float:
    total = [sum(light.intensity for light in scene.lights) + scene.ambient for scene in scenes]
    return total[1] / total[0]


def _differ(old: SceneObject, new: SceneObject) -> set[str]:
    return {name for name in SceneObject.__slots__ if getattr(old, name) != getattr(new, name)}


TRUE_OF = {
    "viewpoint": lambda claim, old, new, scenes: _moved(claim, scenes),
    "illumination": lambda claim, old, new, scenes: (
        _brighter(scenes) > 1.25 if claim.value == "brighter" else _brighter(scenes) < 0.8
    ),
    "addition": lambda claim, old, new, scenes: not old and len(new) == 1,
    "disappearance": lambda claim, old, new, scenes: len(old) == 1 and not new,
    "removal": lambda claim, old, new, scenes: len(old) == 1 and not new,
    "substitution": lambda claim, old, new, scenes: (
        Attributes.of(new[0]) == claim.replacement
        and (old[0].x, old[0].y) == (new[0].x, new[0].y)
        and old[0].shape != new[0].shape
    ),
    "size": lambda claim, old, new, scenes: (
        _differ(old[0], new[0]) == {"size"} and (new[0].size == "large") == (claim.value == "larger")
    ),
    "color": lambda claim, old, new, scenes: _differ(old[0], new[0]) == {"color"} and new[0].color == claim.value,
    "orientation": lambda claim, old, new, scenes: (
        _differ(old[0], new[0]) == {"rotation"}
        and old[0].shape == "cube"
        and 0.6 < new[0].rotation - old[0].rotation < 1.0
    ),
    "pose": lambda claim, old, new, scenes: (
        _differ(old[0], new[0]) == {"x", "y"} and math.hypot(old[0].x - new[0].x, old[0].y - new[0].y) >= 1.6
    ),
    "OCR": lambda claim, old, new, scenes: (
        _spelled(old, scenes[0].camera) == claim.old and _spelled(new, scenes[0].camera) == claim.value
    ),
    "counting": lambda claim, old, new, scenes: (
        (NUMBERS[len(old)], NUMBERS[len(new)]) == (claim.old, claim.value) and len(old) != len(new)
    ),
}  # fmt: skip

FONT = {
    "C": "### #.. ###", "H": "#.# ### #.#", "L": "#.. #.. ###", "O": "### #.# ###", "T": "### .#. .#.",
    "U": "#.# #.# ###", "X": "#.# .#. #.#", "I": ".#. .#. .#.",
}  # fmt: skip


def _spelled(dots: list[SceneObject], camera: Camera) -> str | None:
    """Return the letter that the dots form in the camera's view: rows from far to near, columns from left to right."""
    view = view_of(camera)
    positions = [
        (thing.x * view.right[0] + thing.y * view.right[1], thing.x * view.behind[0] + thing.y * view.behind[1])
        for thing in dots
    ]
    if len({round(x, 2) for x, _ in positions}) == 1:
        return "I"
    columns, rows = sorted({round(x, 2) for x, _ in positions}), sorted({-round(y, 2) for _, y in positions})
    drawn = {(rows.index(-round(y, 2)), columns.index(round(x, 2))) for x, y in positions}
    picture = " ".join("".join("#" if (row, column) in drawn else "." for column in range(3)) for row in range(3))
    return next((letter for letter, shape in FONT.items() if shape == picture), None)

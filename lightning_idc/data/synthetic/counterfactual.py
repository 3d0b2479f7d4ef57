"""Counterfactual captions: true sentences about a rendered pair with one fact changed.

They are typical errors of captioners: another object of the same scene, the opposite relation, the reverse change in
time, one wrong attribute. Each caption is checked against the scene to be false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from lightning_idc.data.synthetic.claims import Attributes, ParsedChange, claim_of
from lightning_idc.data.synthetic.facts import change_accuracy
from lightning_idc.data.synthetic.phrases import sentences
from lightning_idc.data.synthetic.scene import COLORS, MATERIALS, SHAPES, SIZES
from lightning_idc.utils.errors import ConfigError

BACKWARDS = {"add": "drop", "drop": "add"}
OPPOSITE = {"left": "right", "right": "left", "front": "behind", "behind": "front"}
WORDS: dict[str, tuple[str, ...]] = {
    "size": tuple(SIZES),
    "color": tuple(COLORS),
    "material": tuple(MATERIALS),
    "shape": tuple(SHAPES),
}


def false_claims(ground_truth: Mapping[str, Any]) -> list[ParsedChange]:
    """Distinct claims that differ from the true change in one fact; some may still be true in the scene.

    Args:
        ground_truth: ground truth of a pair of ``clevr_change`` or ``clevr_dc``, from `SyntheticSource.ground_truth`.

    Raises:
        ConfigError: the pair has several changes.
    """
    if ground_truth.get("mode") == "omnidiff" or len(ground_truth["changes"]) > 1:
        raise ConfigError("counterfactuals need pairs with one change; use the modes clevr_change or clevr_dc")
    if not ground_truth["changes"]:
        return list(dict.fromkeys(_invented(ground_truth)))
    return list(dict.fromkeys(_altered(claim_of(ground_truth["changes"][0]), ground_truth)))


def _others(ground_truth: Mapping[str, Any], side: str) -> list[Attributes]:
    things = ground_truth[side]["things"]
    return [Attributes(*(thing[name] for name in Attributes._fields)) for thing in things]


def _invented(ground_truth: Mapping[str, Any]) -> Iterator[ParsedChange]:
    """Claims about changes of existing objects in an unchanged scene."""
    for thing in _others(ground_truth, "before"):
        for kind in ("move", "drop", "add"):
            yield ParsedChange(kind, thing)
        for color in COLORS:
            if color != thing.color:
                yield ParsedChange("color", thing, value=color)


def _altered(claim: ParsedChange, ground_truth: Mapping[str, Any]) -> Iterator[ParsedChange]:
    assert claim.thing is not None and claim.kind is not None
    for name, words in WORDS.items():
        # without contradictions: an object that turns red was not red before
        for word in words:
            if word not in (getattr(claim.thing, name), claim.value):
                yield replace(claim, thing=claim.thing._replace(**{name: word}))
    for thing in _others(ground_truth, "after" if claim.kind == "add" else "before"):
        if thing not in (claim.thing, claim.anchor) and claim.value not in thing:
            yield replace(claim, thing=thing)
    if claim.relation is not None:
        yield replace(claim, relation=OPPOSITE[claim.relation])
    if claim.kind in BACKWARDS:
        yield replace(claim, kind=BACKWARDS[claim.kind])
    elif claim.kind == "move":
        yield replace(claim, kind="drop")
    values = {"color": COLORS, "texture": MATERIALS}.get(claim.kind, ())
    for value in values:
        if value not in (claim.value, *claim.thing):
            yield replace(claim, value=value)


def counterfactuals(
    ground_truth: Mapping[str, Any], count: int, generator: torch.Generator, wording: int | None = None
) -> list[str]:
    """Sample false sentences about a pair, each with one wrong fact, without repetition.

    Args:
        ground_truth: ground truth of a pair of ``clevr_change`` or ``clevr_dc``, from `SyntheticSource.ground_truth`.
        count: maximum number of sentences; a scene may have fewer.
        generator: source of all randomness.
        wording: index of the template of all sentences; None for a random template each.

    Raises:
        ConfigError: the pair has several changes.
    """
    claims = false_claims(ground_truth)
    captions: list[str] = []
    for index in torch.randperm(len(claims), generator=generator).tolist():
        variants = sentences(claims[index])
        choice = int(torch.randint(len(variants), (), generator=generator)) if wording is None else wording
        if is_false(variants[choice], ground_truth):
            captions.append(variants[choice])
        if len(captions) == count:
            break
    return captions


def true_sentence(ground_truth: Mapping[str, Any], wording: int) -> str:
    """True sentence about a pair of ``clevr_change`` or ``clevr_dc``, from the template with this index."""
    claim = claim_of(ground_truth["changes"][0]) if ground_truth["changes"] else ParsedChange("no_change")
    return sentences(claim)[wording]


def is_false(caption: str, ground_truth: Mapping[str, Any]) -> bool:
    """Whether a sentence has at least one wrong fact."""
    return False in change_accuracy(caption, ground_truth).values()

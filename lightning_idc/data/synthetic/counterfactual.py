"""Planted confusable captions: a true sentence about a rendered pair with one fact made wrong.

They are what a careless captioner would say: another thing of the same scene, the opposite relation, the change read
backwards in time, one attribute off. The scene decides that each of them is false.
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


def false_claims(truth: Mapping[str, Any]) -> list[ParsedChange]:
    """Claims that differ from what happened in one fact, each once; some may still hold in the scene.

    Args:
        truth: of a pair of ``clevr_change`` or ``clevr_dc``, as `SyntheticSource.truth` gives it.

    Raises:
        ConfigError: the pair is of a mode with more than one change.
    """
    if truth.get("mode") == "omnidiff" or len(truth["changes"]) > 1:
        raise ConfigError(
            "counterfactuals are planted in pairs with one change; use the modes clevr_change or clevr_dc"
        )
    if not truth["changes"]:
        return list(dict.fromkeys(_invented(truth)))
    return list(dict.fromkeys(_altered(claim_of(truth["changes"][0]), truth)))


def _others(truth: Mapping[str, Any], side: str) -> list[Attributes]:
    things = truth[side]["things"]
    return [Attributes(*(thing[name] for name in Attributes._fields)) for thing in things]


def _invented(truth: Mapping[str, Any]) -> Iterator[ParsedChange]:
    """Changes of things that are there, in a scene where only the view changed."""
    for thing in _others(truth, "before"):
        for kind in ("move", "drop", "add"):
            yield ParsedChange(kind, thing)
        for color in COLORS:
            if color != thing.color:
                yield ParsedChange("color", thing, value=color)


def _altered(claim: ParsedChange, truth: Mapping[str, Any]) -> Iterator[ParsedChange]:
    assert claim.thing is not None and claim.kind is not None
    for name, words in WORDS.items():
        # the change itself would be contradicted: nothing turns red that was red, nor metal that was metal
        for word in words:
            if word not in (getattr(claim.thing, name), claim.value):
                yield replace(claim, thing=claim.thing._replace(**{name: word}))
    for thing in _others(truth, "after" if claim.kind == "add" else "before"):
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
    truth: Mapping[str, Any], count: int, generator: torch.Generator, wording: int | None = None
) -> list[str]:
    """False sentences about a pair, each false in one fact, drawn without repetition.

    Args:
        truth: of a pair of ``clevr_change`` or ``clevr_dc``, as `SyntheticSource.truth` gives it.
        count: how many; fewer come back where a scene does not offer as many.
        generator: draws them and their wording.
        wording: number of the template they are all told with; drawn for each when None.

    Raises:
        ConfigError: the pair is of a mode with more than one change.
    """
    claims = false_claims(truth)
    found: list[str] = []
    for place in torch.randperm(len(claims), generator=generator).tolist():
        ways = sentences(claims[place])
        way = int(torch.randint(len(ways), (), generator=generator)) if wording is None else wording
        if is_false(ways[way], truth):
            found.append(ways[way])
        if len(found) == count:
            break
    return found


def true_sentence(truth: Mapping[str, Any], wording: int) -> str:
    """What happened in a pair of ``clevr_change`` or ``clevr_dc``, told with the template of this number."""
    claim = claim_of(truth["changes"][0]) if truth["changes"] else ParsedChange("no_change")
    return sentences(claim)[wording]


def is_false(caption: str, truth: Mapping[str, Any]) -> bool:
    """Whether a sentence gets at least one fact of the pair wrong."""
    return False in change_accuracy(caption, truth).values()

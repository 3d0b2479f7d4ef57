"""Are the facts of a caption right? Checked against the scene itself, not against reference sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_idc.data.synthetic.claims import Attributes, ParsedChange, claim_of
from lightning_idc.data.synthetic.geometry import RELATION_MARGIN, related, view_of
from lightning_idc.data.synthetic.grammar import parse, parse_report
from lightning_idc.data.synthetic.scene import Camera, SceneObject

Verdict = bool | None


def change_accuracy(caption: str, truth: Mapping[str, Any]) -> dict[str, Verdict]:
    """Judge a caption of the modes `clevr_change` and `clevr_dc`; None where a question does not arise.

    ``type_correct``: the kind of change; "nothing changed" is a kind.
    ``attributes_correct``: size, colour, material and shape of what changed are all named and right. None in a pair
    without a change.
    ``value_correct``: the new colour or material. None for other kinds.
    ``relation_correct``: the sentence places what changed relative to a thing that its four attributes single out, and
    the relation holds in the scene. It need not be the one that the references chose. A sentence without a relation is
    wrong when the references have one. None when neither has one, and in a pair without a change.

    Args:
        caption: any string.
        truth: of the pair, as `SyntheticSource.truth` and ``PairSample.meta`` hold it.
    """
    said = parse(caption)
    if not truth["changes"]:
        verdicts: dict[str, Verdict] = dict.fromkeys(
            ("type_correct", "attributes_correct", "value_correct", "relation_correct")
        )
        return {**verdicts, "type_correct": said.kind == "no_change"}
    change = truth["changes"][0]
    claim = claim_of(change)
    asked = claim.relation is not None or said.relation is not None
    return {
        "type_correct": said.kind == claim.kind,
        "attributes_correct": said.thing == claim.thing,
        "value_correct": said.value == claim.value if claim.value is not None else None,
        "relation_correct": relation_holds(said, change, truth) if asked else None,
    }


def relation_holds(said: ParsedChange, change: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
    """Whether the relation that a sentence gives to what changed is true in the scene that the sentence describes.

    Args:
        change: one entry of ``truth["changes"]``.
    """
    if said.relation is None or said.anchor is None:
        return False
    side = "after" if change["side"] else "before"
    scene = truth[side]
    names = ("shape", "size", "color", "material", "x", "y", "rotation")
    things = [SceneObject(**{name: plain[name] for name in names}) for plain in scene["things"]]
    target = change[side][0]
    anchors = [thing for index, thing in enumerate(things) if index != target and Attributes.of(thing) == said.anchor]
    if len(anchors) != 1:
        return False
    view = view_of(Camera(**scene["camera"]))
    return related(view, things[target], said.relation, anchors[0], RELATION_MARGIN)


def report_accuracy(caption: str, truth: Mapping[str, Any]) -> dict[str, float]:
    """Judge a report of the mode `omnidiff` sentence by sentence, in shares from 0 to 1.

    ``type_recall`` and ``type_precision``: changes told of those that happened, and right ones of those told, by kind.
    ``fact_recall``: changes told with the right kind, the right thing and the right value, of those that happened.

    Args:
        caption: any string.
        truth: of the pair.
    """
    said = parse_report(caption)
    claims = [claim_of(change) for change in truth["changes"]]
    kinds = {claim.kind for claim in said if claim.kind is not None}
    right = sum(claim.kind in kinds for claim in claims)

    def facts(claim: ParsedChange) -> tuple[Any, ...]:
        return claim.kind, claim.thing, claim.old, claim.value, claim.replacement

    told = {facts(claim) for claim in said}
    return {
        "type_recall": right / len(claims),
        "type_precision": right / len(said) if said else 0.0,
        "fact_recall": sum(facts(claim) in told for claim in claims) / len(claims),
    }

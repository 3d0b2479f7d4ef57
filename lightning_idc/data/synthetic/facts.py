"""Correctness of the facts in a caption, checked against the scene instead of reference sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_idc.data.synthetic.claims import Attributes, ParsedChange, claim_of
from lightning_idc.data.synthetic.geometry import RELATION_MARGIN, related, view_of
from lightning_idc.data.synthetic.grammar import parse, parse_report
from lightning_idc.data.synthetic.scene import Camera, SceneObject

Verdict = bool | None


def change_accuracy(caption: str, ground_truth: Mapping[str, Any]) -> dict[str, Verdict]:
    """Check a caption of the modes `clevr_change` and `clevr_dc`; None for a fact that does not apply.

    ``type_correct``: the kind of change is right; "nothing changed" is a kind.
    ``attributes_correct``: size, colour, material and shape of the changed object are all mentioned and right. None for
    an unchanged pair.
    ``value_correct``: the new colour or material is right. None for other kinds of change.
    ``relation_correct``: the position of the changed object is given relative to an object that its four attributes
    identify uniquely, and this relation holds in the scene. It may differ from the relation in the references. A
    sentence without a relation is wrong if the references have one. None if neither has one, and for an unchanged pair.

    Args:
        caption: any string.
        ground_truth: ground truth of the pair, from `SyntheticSource.ground_truth` or ``PairSample.meta``.
    """
    parsed = parse(caption)
    if not ground_truth["changes"]:
        verdicts: dict[str, Verdict] = dict.fromkeys(
            ("type_correct", "attributes_correct", "value_correct", "relation_correct")
        )
        return {**verdicts, "type_correct": parsed.kind == "no_change"}
    change = ground_truth["changes"][0]
    claim = claim_of(change)
    has_relation = claim.relation is not None or parsed.relation is not None
    return {
        "type_correct": parsed.kind == claim.kind,
        "attributes_correct": parsed.thing == claim.thing,
        "value_correct": parsed.value == claim.value if claim.value is not None else None,
        "relation_correct": relation_holds(parsed, change, ground_truth) if has_relation else None,
    }


def relation_holds(parsed: ParsedChange, change: Mapping[str, Any], ground_truth: Mapping[str, Any]) -> bool:
    """Whether the relation of the changed object in a sentence holds in the scene that the sentence describes.

    Args:
        parsed: parsed sentence.
        change: one entry of ``ground_truth["changes"]``.
        ground_truth: ground truth of the pair.
    """
    if parsed.relation is None or parsed.anchor is None:
        return False
    side = "after" if change["side"] else "before"
    scene = ground_truth[side]
    names = ("shape", "size", "color", "material", "x", "y", "rotation")
    things = [SceneObject(**{name: plain[name] for name in names}) for plain in scene["things"]]
    target = change[side][0]
    anchors = [thing for index, thing in enumerate(things) if index != target and Attributes.of(thing) == parsed.anchor]
    if len(anchors) != 1:
        return False
    view = view_of(Camera(**scene["camera"]))
    return related(view, things[target], parsed.relation, anchors[0], RELATION_MARGIN)


def report_accuracy(caption: str, ground_truth: Mapping[str, Any]) -> dict[str, float]:
    """Check a report of the mode `omnidiff` sentence by sentence; all values are in [0, 1].

    ``type_recall``: fraction of the true changes whose kind is reported.
    ``type_precision``: number of these changes over the number of reported changes.
    ``fact_recall``: fraction of the true changes that are reported with the right kind, object and value.

    Args:
        caption: any string.
        ground_truth: ground truth of the pair.
    """
    reported = parse_report(caption)
    claims = [claim_of(change) for change in ground_truth["changes"]]
    kinds = {claim.kind for claim in reported if claim.kind is not None}
    num_correct = sum(claim.kind in kinds for claim in claims)

    def facts(claim: ParsedChange) -> tuple[Any, ...]:
        return claim.kind, claim.thing, claim.old, claim.value, claim.replacement

    reported_facts = {facts(claim) for claim in reported}
    return {
        "type_recall": num_correct / len(claims),
        "type_precision": num_correct / len(reported) if reported else 0.0,
        "fact_recall": sum(facts(claim) in reported_facts for claim in claims) / len(claims),
    }

"""Long captions about several changes: one sentence per change, with a referring part and a change part."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_idc.data.synthetic.claims import Attributes, ParsedChange
from lightning_idc.data.synthetic.grammar import NUMBERS
from lightning_idc.data.synthetic.phrases import RELATION_PHRASES

KINDS = (
    "viewpoint",
    "illumination",
    "addition",
    "disappearance",
    "removal",
    "substitution",
    "size",
    "color",
    "orientation",
    "pose",
    "OCR",
    "counting",
)
"""Types of change in the order of a report."""

_CHANGE_PARTS = {
    "addition": "has newly appeared on ground that was empty before",
    "disappearance": "was at the edge of the picture and has now left it, so that it can no longer be seen",
    "removal": "has been removed, and the ground where it was is now empty",
    "substitution": "has been replaced by a {replacement} in the same place",
    "size": "has become {value} than it was, while nothing else about it is different",
    "color": "has changed from {color} to {value}, while nothing else about it is different",
    "orientation": "has been rotated on the spot, so that its sides now face other ways",
    "pose": "has been moved from there to another place on the ground",
}
_VIEWS = {
    "left": "to the left",
    "right": "to the right",
    "higher": "higher up",
    "lower": "lower down",
    "closer": "closer to the scene",
    "farther": "farther away from the scene",
}
_REGIONS = {
    "left side": "on the left side of the scene",
    "center": "in the center of the scene",
    "right side": "on the right side of the scene",
}


def report(claims: Sequence[ParsedChange]) -> str:
    """One sentence per claim, in order."""
    return " ".join(_sentence(claim) for claim in claims)


def _sentence(claim: ParsedChange) -> str:
    if claim.kind == "viewpoint":
        return (
            f"The camera has moved {_VIEWS[claim.value or '']}, so that everything is seen from another point of view."
        )
    if claim.kind == "illumination":
        return f"The light that falls on all of the scene has become {claim.value} than it was before."
    thing = claim.thing or Attributes()
    if claim.kind == "counting":
        more = NUMBERS.index(claim.value or "") > NUMBERS.index(claim.old or "")
        verb = "increased" if more else "decreased"
        return f"The number of {thing.phrase(plural=True)} in the scene has {verb} from {claim.old} to {claim.value}."
    region = _REGIONS[claim.region or ""]
    if claim.kind == "OCR":
        return (
            f"The letter {claim.old}, written on the ground {region} with {thing.phrase(plural=True)}, "
            f"has changed to the letter {claim.value}."
        )
    where = f"that stands {region}"
    if claim.relation is not None and claim.anchor is not None:
        where += f", {RELATION_PHRASES[claim.relation]} the {claim.anchor.phrase()},"
    part = _CHANGE_PARTS[claim.kind or ""].format(
        color=thing.color, value=claim.value, replacement=claim.replacement.phrase() if claim.replacement else ""
    )
    return f"{'A' if claim.kind == 'addition' else 'The'} {thing.phrase()} {where} {part}."

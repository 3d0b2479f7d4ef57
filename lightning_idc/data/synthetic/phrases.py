"""Sentences about a single change, in the manner of CLEVR-Change.

One word for each attribute and one noun for each shape, because a decoder that picks the likeliest word prefers a
shape whose probability is not shared between synonyms. All references of a pair agree on the facts; they differ in how
they say that something happened.
"""

from __future__ import annotations

from lightning_idc.data.synthetic.claims import ParsedChange

KINDS = ("color", "texture", "add", "drop", "move", "no_change")
RELATION_PHRASES = {"left": "left of", "right": "right of", "front": "in front of", "behind": "behind"}

_TEMPLATES = {
    "color": (
        "{np} changed to {value}",
        "{np} became {value}",
        "{np} turned {value}",
        "{np} is now {value}",
        "the color of {np} changed to {value}",
    ),
    "texture": (
        "{np} changed to {value}",
        "{np} became {value}",
        "{np} turned to {value}",
        "{np} is now {value}",
        "the material of {np} changed to {value}",
    ),
    "add": (
        "{np} appeared",
        "{np} has appeared",
        "{np} was added",
        "{np} has been added",
        "{np} is new",
    ),
    "drop": (
        "{np} disappeared",
        "{np} has disappeared",
        "{np} was removed",
        "{np} has been removed",
        "{np} is gone",
    ),
    "move": (
        "{np} moved",
        "{np} has moved",
        "{np} was moved",
        "{np} has been moved",
        "{np} is in another place",
    ),
    "no_change": (
        "nothing in the scene changed",
        "nothing in the scene has changed",
        "nothing was changed in the scene",
        "the scene is unchanged",
        "there is no change in the scene",
    ),
}


def noun_phrase(claim: ParsedChange) -> str:
    """What and where, such as ``the small red metal cube that is left of the large blue rubber sphere``."""
    if claim.thing is None:
        return ""
    phrase = f"the {claim.thing.phrase()}"
    if claim.relation is not None and claim.anchor is not None:
        phrase += f" that is {RELATION_PHRASES[claim.relation]} the {claim.anchor.phrase()}"
    return phrase


def sentences(claim: ParsedChange) -> list[str]:
    """All ways of saying one change of the CLEVR-Change kinds.

    Args:
        claim: with a kind of `KINDS`.
    """
    if claim.kind is None:
        raise ValueError("a claim without a kind has nothing to say")
    np = noun_phrase(claim)
    return [template.format(np=np, value=claim.value) for template in _TEMPLATES[claim.kind]]

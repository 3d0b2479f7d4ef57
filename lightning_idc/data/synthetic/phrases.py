"""Sentences about a single change in the style of CLEVR-Change.

There is one word per attribute and one noun per shape: synonyms would split the probability of a shape, so that a
greedy decoder would prefer shapes with fewer synonyms. All references of a pair have the same facts and differ in the
verb phrase only.
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
    """Noun phrase of object and relation: ``the small red metal cube that is left of the large blue rubber sphere``."""
    if claim.thing is None:
        return ""
    phrase = f"the {claim.thing.phrase()}"
    if claim.relation is not None and claim.anchor is not None:
        phrase += f" that is {RELATION_PHRASES[claim.relation]} the {claim.anchor.phrase()}"
    return phrase


def sentences(claim: ParsedChange) -> list[str]:
    """All paraphrases of one change of the CLEVR-Change kinds.

    Args:
        claim: claim with a kind of `KINDS`.
    """
    if claim.kind is None:
        raise ValueError(f"claim.kind is None; expected one of {KINDS}")
    np = noun_phrase(claim)
    return [template.format(np=np, value=claim.value) for template in _TEMPLATES[claim.kind]]

"""What a sentence about a change says, as data: the common ground of templates, grammar and truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from lightning_idc.data.synthetic.scene import SceneObject


class Attributes(NamedTuple):
    """What a noun phrase says about a thing; None where it is silent.

    Args:
        size: a key of `scene.SIZES`.
        color: a key of `scene.COLORS`.
        material: one of `scene.MATERIALS`.
        shape: one of `scene.SHAPES`.
    """

    size: str | None = None
    color: str | None = None
    material: str | None = None
    shape: str | None = None

    @classmethod
    def of(cls, thing: SceneObject) -> Attributes:
        """All four attributes of a thing."""
        return cls(thing.size, thing.color, thing.material, thing.shape)

    @property
    def complete(self) -> bool:
        """Whether all four are named."""
        return None not in self

    def phrase(self, plural: bool = False) -> str:
        """The noun phrase without a determiner, such as ``small red metal cube``."""
        return " ".join(word for word in self if word) + ("s" if plural else "")


@dataclass(frozen=True, slots=True)
class ParsedChange:
    """One change as a sentence tells it; every field is None where the sentence is silent.

    Args:
        kind: the type of change, as the mode names it.
        thing: what changed, as it was (as it is, for something new).
        relation: where it stands as seen from the anchor: left, right, front or behind.
        anchor: the thing that the relation refers to.
        region: part of the picture where it stands: left side, center or right side.
        old: what was before: a letter or a number word.
        value: what is now: a colour, a material, a letter, a number word, or a direction of change.
        replacement: the object that is there instead.
    """

    kind: str | None = None
    thing: Attributes | None = None
    relation: str | None = None
    anchor: Attributes | None = None
    region: str | None = None
    old: str | None = None
    value: str | None = None
    replacement: Attributes | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change and the things that took part in it.

    Args:
        claim: what there is to say about it.
        before: indices of the things involved, in the before scene.
        after: indices of the things involved, in the after scene.
        side: index of the picture that the referring part of the claim describes, 0 = before and 1 = after.
    """

    claim: ParsedChange
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    side: int = 0

    def plain(self) -> dict[str, Any]:
        """The change as nested dicts and lists of plain types."""
        claim = asdict(self.claim)
        for name in ("thing", "anchor", "replacement"):
            attributes = getattr(self.claim, name)
            claim[name] = None if attributes is None else attributes._asdict()
        return {**claim, "before": list(self.before), "after": list(self.after), "side": self.side}


def claim_of(plain: Mapping[str, Any]) -> ParsedChange:
    """The claim of a change that went through `Change.plain`."""
    known = {field.name: plain[field.name] for field in fields(ParsedChange)}
    for name in ("thing", "anchor", "replacement"):
        known[name] = None if known[name] is None else Attributes(**known[name])
    return ParsedChange(**known)

"""Structured content of a sentence about a change, shared by templates, grammar and ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from lightning_idc.data.synthetic.scene import SceneObject


class Attributes(NamedTuple):
    """Attributes of an object in a noun phrase; None for an attribute that is not mentioned.

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
        """All four attributes of an object."""
        return cls(thing.size, thing.color, thing.material, thing.shape)

    @property
    def complete(self) -> bool:
        """Whether all four attributes are specified."""
        return None not in self

    def phrase(self, plural: bool = False) -> str:
        """Noun phrase without a determiner, such as ``small red metal cube``."""
        return " ".join(word for word in self if word) + ("s" if plural else "")


@dataclass(frozen=True, slots=True)
class ParsedChange:
    """One change as described in a sentence; a field is None if the sentence does not mention it.

    Args:
        kind: type of change in the terms of the mode.
        thing: attributes of the changed object before the change, or after it for a new object.
        relation: position of the object relative to the anchor: left, right, front or behind.
        anchor: attributes of the object to which the relation refers.
        region: region of the image: left side, center or right side.
        old: value before the change: a letter or a number word.
        value: value after the change: a colour, a material, a letter, a number word, or a direction of change.
        replacement: attributes of the object that replaces the changed one.
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
    """A change and the objects involved in it.

    Args:
        claim: structured description of the change.
        before: indices of the involved objects in the before scene.
        after: indices of the involved objects in the after scene.
        side: image that the referring part of the claim describes: 0 = before, 1 = after.
    """

    claim: ParsedChange
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    side: int = 0

    def plain(self) -> dict[str, Any]:
        """Nested dictionaries and lists of plain types."""
        claim = asdict(self.claim)
        for name in ("thing", "anchor", "replacement"):
            attributes = getattr(self.claim, name)
            claim[name] = None if attributes is None else attributes._asdict()
        return {**claim, "before": list(self.before), "after": list(self.after), "side": self.side}


def claim_of(plain: Mapping[str, Any]) -> ParsedChange:
    """Restore the claim of a change from the output of `Change.plain`."""
    values = {field.name: plain[field.name] for field in fields(ParsedChange)}
    for name in ("thing", "anchor", "replacement"):
        values[name] = None if values[name] is None else Attributes(**values[name])
    return ParsedChange(**values)

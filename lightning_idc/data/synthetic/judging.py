"""Whether a claim states a difference of a rendered pair, by what both sentences say and not by their words."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_idc.data.synthetic.claims import ParsedChange
from lightning_idc.data.synthetic.grammar import parse, parse_report
from lightning_idc.metrics.difference_list import Matches, best_matches
from lightning_idc.utils.errors import DataError


def exact_judge(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
    """Matches of differences and claims that name the same kind of change, object and new value.

    Where something stands does not count.

    Args:
        pairs: differences and claims of each pair, in the sentences of the rendered worlds.

    Raises:
        DataError: a difference is not such a sentence.
    """
    for there, _ in pairs:
        for text in there:
            if not _facts(text):
                raise DataError(f"{text!r} is not a sentence of the rendered worlds, which the exact judge reads only")
    return [best_matches(there, claims, _same, 1.0) for there, claims in pairs]


def _same(difference: str, claim: str) -> float:
    return float(bool(_facts(difference) & _facts(claim)))


def _facts(text: str) -> set[tuple[object, ...]]:
    """What a sentence says, as the grammars of the worlds read it; empty where none does."""
    read: list[ParsedChange] = [parse(text), *parse_report(text)]
    return {
        (change.kind, change.thing, change.value, change.old, change.replacement)
        for change in read
        if change.kind is not None and (change.thing is not None or change.value is not None)
    }

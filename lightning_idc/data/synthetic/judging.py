"""Exact judge of claims about rendered pairs: compares parsed facts instead of words."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_idc.data.synthetic.claims import ParsedChange
from lightning_idc.data.synthetic.grammar import parse, parse_report
from lightning_idc.metrics.difference_list import Matches, best_matches
from lightning_idc.utils.errors import DataError


def exact_judge(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
    """Match differences and claims that have the same kind of change, object and new value.

    Positions are ignored.

    Args:
        pairs: differences and claims of each pair, as sentences in the style of the rendered worlds.

    Raises:
        DataError: a difference cannot be parsed.
    """
    for differences, _ in pairs:
        for text in differences:
            if not _facts(text):
                raise DataError(f"{text!r} cannot be parsed; the exact judge expects sentences of the rendered worlds")
    return [best_matches(differences, claims, _same, 1.0) for differences, claims in pairs]


def _same(difference: str, claim: str) -> float:
    return float(bool(_facts(difference) & _facts(claim)))


def _facts(text: str) -> set[tuple[object, ...]]:
    """Facts of a sentence according to both grammars; empty if neither can parse it."""
    changes: list[ParsedChange] = [parse(text), *parse_report(text)]
    return {
        (change.kind, change.thing, change.value, change.old, change.replacement)
        for change in changes
        if change.kind is not None and (change.thing is not None or change.value is not None)
    }

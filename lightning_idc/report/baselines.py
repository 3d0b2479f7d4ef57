"""check_baselines: whether a score shows that the captioner sees the change.

A captioner that predicts one caption for every pair can have a high score. The check compares its CIDEr-D with that of
a constant caption and with its own captions of pairs whose second image equals the first, and counts its distinct
captions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_idc.metrics.baselines import CONSTANT, IDENTICAL
from lightning_idc.metrics.bootstrap import Difference, compare
from lightning_idc.metrics.captions import References, Scores, score_captions
from lightning_idc.report.comparison import METRIC, interval
from lightning_idc.report.table import Table

MIN_DISTINCT = 0.05
"""Minimum number of distinct captions, as a fraction of the pairs, of a captioner that uses the images."""


@dataclass(frozen=True)
class BaselineCheck:
    """Comparison of a captioner with baselines that cannot see the change.

    Args:
        score: CIDEr-D of the captioner.
        pairs: number of pairs with references.
        distinct: number of distinct captions.
        constant: the constant caption; empty without training captions.
        over: score minus that of each baseline, by name; for `IDENTICAL` on the pairs that were captioned twice.
        identical_pairs: number of pairs that were captioned twice.
    """

    score: float
    pairs: int
    distinct: int
    constant: str
    over: dict[str, Difference]
    identical_pairs: int = 0

    @property
    def warning(self) -> str:
        """A sentence if the score does not show that the captioner sees the change, else empty."""
        # a captioner of few sentences uses the images if it scores less on identical ones
        is_seeing = IDENTICAL in self.over and self.over[IDENTICAL].low > 0
        if self.pairs > 1 and (self.distinct == 1 or (self.distinct < MIN_DISTINCT * self.pairs and not is_seeing)):
            captions = "1 caption" if self.distinct == 1 else f"{self.distinct} distinct captions"
            return f"{captions} for {self.pairs} pairs: this captioner does not use the images"
        for name, difference in self.over.items():
            if difference.low <= 0:
                return (
                    f"{METRIC} {difference.second:.1f} is not above the {difference.first:.1f} of the {name} "
                    f"(difference {interval(difference)}): nothing shows that this captioner sees the change"
                )
        return ""

    @property
    def counts(self) -> str:
        """Number of distinct captions and of pairs, in words."""
        return f"{self.distinct} distinct caption{'s' * (self.distinct != 1)} for {self.pairs} pairs"

    def table(self) -> Table:
        """Baselines with their scores."""
        rows = [[name, f"{over.first:.1f}", f"{over.second:.1f}", interval(over)] for name, over in self.over.items()]
        notes = [self.counts]
        if 0 < self.identical_pairs < self.pairs:
            notes.append(f"{IDENTICAL}: on {self.identical_pairs} of the {self.pairs} pairs")
        if self.constant:
            notes.append(f"constant caption: {self.constant}")
        if self.warning:
            notes.append(self.warning)
        columns = ["baseline", METRIC, "this captioner", "difference [95 %]"]
        return Table(columns, rows, "Baselines that do not see the change", notes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "warning": self.warning}


def check_baselines(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    constant: str | None = None,
    identical: Mapping[str, str] | None = None,
) -> BaselineCheck | None:
    """Compare captions with baselines that cannot see the change.

    Args:
        captions: caption by pair id.
        references: references by pair id; pairs without any are left out.
        constant: caption selected on training captions, see ``metrics.baselines.constant_caption``.
        identical: captions of some of the pairs with the first image in place of the second.

    Returns:
        The check; None if fewer than two pairs have references.

    Example:
        >>> references = {str(n): [f"the {color} cube moved"] for n, color in enumerate(["red", "blue", "green"])}
        >>> check = check_baselines(dict.fromkeys(references, "the red cube moved"), references, "the red cube moved")
        >>> check.warning
        '1 caption for 3 pairs: this captioner does not use the images'
    """
    scored = {id: caption for id, caption in captions.items() if references.get(id)}
    if len(scored) < 2:
        return None
    scores = _scores(scored, references)
    over: dict[str, Difference] = {}
    if constant is not None:
        over[CONSTANT] = compare(_scores(dict.fromkeys(scored, constant), references), scores)[METRIC]
    identical = {id: caption for id, caption in (identical or {}).items() if id in scored}
    if len(identical) > 1:
        same_pairs = {id: scored[id] for id in identical}
        over[IDENTICAL] = compare(_scores(identical, references), _scores(same_pairs, references))[METRIC]
    return BaselineCheck(
        score=scores.values[METRIC],
        pairs=len(scored),
        distinct=len(set(scored.values())),
        constant=constant or "",
        over=over,
        identical_pairs=len(identical),
    )


def _scores(captions: dict[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    return score_captions(captions, References({id: list(references[id]) for id in captions}), (METRIC,))

"""Thresholds of all filters, by name: the paper's four settings, those of its scripts, of data-juicer, and ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lightning_idc.synthesis.models.base import ImageTextMatcher
from lightning_idc.utils.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Filters:
    """Thresholds of the Difference Area Generator and the Difference Captions Generator (section 18.4).

    Args:
        pair_similarity: least and greatest cosine of the two pictures (IS), both excluded.
        confidence: of a region, at least.
        crop_similarity: cosine of a region's two crops below which they differ.
        region_match: least score of a crop and the name of its thing (BITM).
        sides_to_match: whether one of the two crops must match its name, or both.
        overlap: IoU from which on only one of two regions is kept.
        keep: which one that is.
        most_regions: kept per pair; None for all.
        area: least and greatest share of the picture that a box may have.
        caption_match: least score of a crop and its caption (CITM), both crops.
        caption_similarity: cosine of the two captions below which they differ (CS).
        described_regions: regions that are captioned, the most different first; None for all.
        match_margin: pixels around a box in the crops that are compared with captions.
        match_score: the matcher's score that the thresholds are for; None where the source does not say.
    """

    pair_similarity: tuple[float, float] = (0.9, 0.98)
    confidence: float = 0.05
    crop_similarity: float = 0.85
    region_match: float = 0.35
    sides_to_match: Literal["one", "both"] = "one"
    overlap: float = 0.5
    keep: Literal["most different", "first"] = "most different"
    most_regions: int | None = None
    area: tuple[float, float] = (0.0, 1.0)
    caption_match: float = 0.4
    caption_similarity: float = 0.85
    described_regions: int | None = None
    match_margin: int = 0
    match_score: Literal["cosine", "probability"] | None = None

    def plain(self) -> dict[str, Any]:
        """Plain values for a record's history."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


PAPER = Filters()
SCORES = Filters(
    pair_similarity=(-10.0, 10.0),
    confidence=-10.0,
    crop_similarity=10.0,
    region_match=-10.0,
    overlap=10.0,
    caption_match=-10.0,
    caption_similarity=10.0,
)
"""Everything is measured and nothing is left out: `filtering.Refilter` applies other thresholds afterwards."""
PRESETS: dict[str, Filters] = {
    "paper": PAPER,
    "scores": SCORES,
    # Table 17; (3) is what the paper uses
    "table17_1": replace(PAPER, region_match=0.3, caption_similarity=0.9, caption_match=0.3),
    "table17_2": replace(PAPER, caption_similarity=0.9, caption_match=0.3),
    "table17_3": PAPER,
    "table17_4": replace(PAPER, pair_similarity=(0.85, 0.98)),
    # the ImgDiff branch: cosines of the matcher, small boxes left out, ten boxes kept and five described
    "scripts": replace(
        PAPER,
        caption_match=0.35,
        most_regions=10,
        area=(1 / 400, 1.0),
        described_regions=5,
        match_margin=5,
        match_score="cosine",
    ),
    # the recipe of data-juicer's main branch: probabilities of the matcher, both sides, the list's own order
    "data_juicer": replace(
        PAPER,
        pair_similarity=(0.9, 0.99),
        region_match=0.4,
        sides_to_match="both",
        keep="first",
        area=(0.0, 1 / 10),
        caption_similarity=0.8,
        match_score="probability",
    ),
    # for the embedded slots, whose scores have scales of their own; measured in benchmarks/synthesis.py
    "embedded": replace(PAPER, pair_similarity=(0.6, 0.99999), crop_similarity=0.97),
}


def check_matcher(filters: Filters, matcher: ImageTextMatcher) -> Filters:
    """The thresholds, if the matcher's scores are of the kind that they are for.

    Raises:
        ConfigError: they are of another kind.
    """
    if None not in (filters.match_score, matcher.score) and filters.match_score != matcher.score:
        raise ConfigError(
            f"the thresholds of this preset are for a matcher's {filters.match_score}; it gives a {matcher.score}: "
            f"set the matcher's score to {filters.match_score}, or choose another preset"
        )
    return filters


def filters_named(name: str) -> Filters:
    """Thresholds by name.

    Raises:
        ConfigError: there are none of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"there are no filters {name!r}; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]

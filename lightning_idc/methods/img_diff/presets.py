"""Presets of the filters' thresholds: four of the paper, one each of its scripts and data-juicer, and two of this code.

``scores`` rejects nothing, and ``embedded`` is for the scores of the embedded models.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lightning_idc.synthesis.models.base import ImageTextMatcher
from lightning_idc.utils.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Filters:
    """Thresholds of the Difference Area Generator and the Difference Captions Generator (section 18.4).

    Args:
        pair_similarity: minimum and maximum cosine of the two images (IS), both excluded.
        confidence: minimum confidence of a region, excluded.
        crop_similarity: maximum cosine of a region's two crops, excluded.
        region_match: minimum score of a crop and the name of its object (BITM), excluded.
        sides_to_match: whether one of the two crops must match its name, or both.
        overlap: maximum IoU of two accepted regions.
        keep: which of two overlapping regions is accepted.
        max_regions: maximum number of accepted regions per pair; None for no limit.
        area: minimum and maximum area of a box, as a fraction of the image.
        caption_match: minimum score of a crop and its caption (CITM) in both images, excluded.
        caption_similarity: maximum cosine of the two captions (CS), excluded.
        described_regions: number of regions to caption, the most different first; None for all.
        match_margin: pixels around a box in the crops that are compared with captions.
        match_score: type of the matcher's score that the thresholds apply to; None if the source does not say.
    """

    pair_similarity: tuple[float, float] = (0.9, 0.98)
    confidence: float = 0.05
    crop_similarity: float = 0.85
    region_match: float = 0.35
    sides_to_match: Literal["one", "both"] = "one"
    overlap: float = 0.5
    keep: Literal["most different", "first"] = "most different"
    max_regions: int | None = None
    area: tuple[float, float] = (0.0, 1.0)
    caption_match: float = 0.4
    caption_similarity: float = 0.85
    described_regions: int | None = None
    match_margin: int = 0
    match_score: Literal["cosine", "probability"] | None = None

    def plain(self) -> dict[str, Any]:
        """Plain values, for a record's history."""
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
"""All scores are computed and nothing is rejected: `filtering.Refilter` applies other thresholds afterwards."""
PRESETS: dict[str, Filters] = {
    "paper": PAPER,
    "scores": SCORES,
    # Table 17; (3) is the paper's choice
    "table17_1": replace(PAPER, region_match=0.3, caption_similarity=0.9, caption_match=0.3),
    "table17_2": replace(PAPER, caption_similarity=0.9, caption_match=0.3),
    "table17_3": PAPER,
    "table17_4": replace(PAPER, pair_similarity=(0.85, 0.98)),
    # the ImgDiff branch: cosines of the matcher, no small boxes, at most ten boxes, five of them captioned
    "scripts": replace(
        PAPER,
        caption_match=0.35,
        max_regions=10,
        area=(1 / 400, 1.0),
        described_regions=5,
        match_margin=5,
        match_score="cosine",
    ),
    # the recipe of data-juicer's main branch: probabilities of the matcher, both images, regions in their own order
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
    # for the embedded models, whose scores have other scales; measured in benchmarks/synthesis.py
    "embedded": replace(PAPER, pair_similarity=(0.6, 0.99999), crop_similarity=0.97),
}


def check_matcher(filters: Filters, matcher: ImageTextMatcher) -> Filters:
    """Return the thresholds if they apply to the matcher's type of score.

    Raises:
        ConfigError: the matcher has another type of score.
    """
    if None not in (filters.match_score, matcher.score) and filters.match_score != matcher.score:
        raise ConfigError(
            f"the matcher's score is a {matcher.score}; expected a {filters.match_score}, for which the thresholds of "
            f"this preset are; set the matcher's score to {filters.match_score}, or choose another preset"
        )
    return filters


def load_filters(name: str) -> Filters:
    """Thresholds by name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in PRESETS:
        raise ConfigError(f"filters is {name!r}; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]

"""Similarity ratings of image pairs: parsed, counted, and requested again if they cannot be parsed."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.tiny import TinySource
from torch import Tensor

from benchmarks.studies.pair_similarity import rate
from lightning_idc.synthesis.models.base import VisionLanguageModel


class Rates(VisionLanguageModel):
    """Gives fixed answers: ambiguous for the first pair at first, and without a valid rating for the second pair."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        assert all("1 completely different" in prompt for prompt in prompts)
        self.calls.append(len(images))
        if len(self.calls) == 1:
            return ["Score: 4 or 5", "0", *["**Score: 4/5**"] * (len(images) - 3), "Rating: 5"]
        return ["Score: 5"] * (len(images) - 1) + ["hard to say"]


def test_ratings_are_counted_and_unread_ones_asked_again() -> None:
    model = Rates()
    result = rate(TinySource(20, 0), model, pairs=7)
    assert model.calls == [7, 2, 1]
    assert result == {
        "pairs": 7,
        "unparsed": 1,
        "counts": {"1": 0, "2": 0, "3": 0, "4": 4, "5": 2},
        "mean": 4.33,
        "percent_4_or_5": 100.0,
    }

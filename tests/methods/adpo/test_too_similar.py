"""Paraphrases of a reference are not used as negatives. Oracle: cosines computed by hand, pair by pair."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import fit, supervised
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lightning_idc.data.source import PairSource
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import NegativeSource, RandomCaption, SameScene, SelfSampled
from lightning_idc.methods.adpo.pool import CaptionPool
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.reward_mined import RewardMined
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.errors import ConfigError, DataError

ANGLES = {"red": 0.0, "crimson": 0.5, "green": 1.4, "blue": 3.0}
"""Meaning of a sentence as the angle of the colour that it mentions. cos 0.5 is .878, cos 0.9 is .622."""


class ByColor(TextEncoder):
    """Embeds each text as a unit vector at the angle of its colour, and records the texts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> Tensor:
        self.encoded += texts
        angles = torch.tensor(
            [next((a for color, a in ANGLES.items() if color in text.lower()), -1.5) for text in texts]
        )
        return torch.stack([angles.cos(), angles.sin()], 1)


CAPTIONS = ["the red one left", "the crimson one left", "now it is green", "a blue thing", "nothing changed"]


def angle(text: str) -> float:
    return next((angle for color, angle in ANGLES.items() if color in text.lower()), -1.5)


def test_paraphrases_of_references_are_not_negatives() -> None:
    encoder = ByColor()
    pool = CaptionPool(CAPTIONS, too_similar=encoder, threshold=0.8)
    assert encoder.encoded == CAPTIONS, "every entry is encoded once"
    references = [["The RED one left"], ["a blue thing", "it turned crimson"], ["nothing changed"]]
    wrong = pool.is_negative(torch.tensor([4, 3, 2, 1, 0, 0]), references)
    for b, row in enumerate(references):
        for n, index in enumerate([4, 3, 2, 1, 0, 0]):
            cosines = [torch.tensor(angle(text) - angle(CAPTIONS[index])).cos() for text in row]
            assert bool(wrong[b, n]) == (max(cosines) < 0.8), (row, CAPTIONS[index])
    assert encoder.encoded[len(CAPTIONS) :] == ["it turned crimson"], "and a caption of no entry when it is met"
    # similar: crimson in pair 0, crimson and twice red in pair 1; 14 of the 18 comparisons are of different words
    assert pool.read_similar_fraction() == pytest.approx(4 / 14)
    assert pool.read_similar_fraction() == 0.0
    texts = ["it is crimson now", "a green one", "", "the RED one left"]
    assert pool.is_negative_text(texts, references[0]) == [False, True, False, False]
    assert CaptionPool(CAPTIONS).is_negative_text(texts, references[0]) == [True, True, False, False]
    with pytest.raises(DataError, match=r"similar to one by 0.8 or more"):
        pool.is_negative(torch.tensor([0, 1]), [["the red one left"]])
    with pytest.raises(ConfigError, match="threshold"):
        CaptionPool(CAPTIONS, threshold=1.5)


class Synonyms(TinySource):
    """The tiny pairs, with "crimson" instead of "red" in every other pair."""

    def captions(self, index: int) -> list[str]:
        texts = super().captions(index)
        return [text.replace("red", "crimson") for text in texts] if index % 2 else texts


class SynonymPairs(TinyPairs):
    def source(self, split: str) -> PairSource:
        return Synonyms(self.pairs if split == "train" else 5, 0 if split == "train" else 500)


class Logged(Callback):
    """Records the logged fraction of too similar captions."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
        self.values.append(float(trainer.callback_metrics["train/negatives/too_similar"]))


SOURCES: dict[str, Any] = {
    "RandomCaption": lambda options: [PreferenceOptimization(RandomCaption(**options))],
    "SameScene": lambda options: [PreferenceOptimization(SameScene(r"^.(.)", **options))],
    "SelfSampled": lambda options: [PreferenceOptimization(SelfSampled(**options))],
    "RewardMined": lambda options: [
        PreferenceOptimization(RewardMined(LengthReward(2, 8), samples=4, max_reward=None, **options))
    ],
    "AdversarialRetriever": lambda options: [
        PreferenceOptimization(RandomCaption(**options)),
        AdversarialRetriever(candidates=8, fraction=0.5, **options),
    ],
}
WITHOUT = {
    "Counterfactual": "false by the ground truth",
    "FromData": "rejected by whoever made the data",
    "Mixture": "its sources compare",
    "SideBySide": "its sources compare",
    "Retriever": "the add-on of AdversarialRetriever",
}
"""Sources that do not compare sentences, each with the reason."""


def test_all_sources_exclude_paraphrases_or_state_a_reason() -> None:
    for module in ("methods.adpo.reward_mined", "methods.adpo.adversarial_retriever"):
        importlib.import_module(f"lightning_idc.{module}")
    known = [NegativeSource]
    for kind in known:
        known += kind.__subclasses__()
    names = {kind.__name__ for kind in known[1:] if kind.__module__.startswith("lightning_idc.")}
    assert {name for name in names if not name.startswith("_")} == (
        SOURCES.keys() - {"AdversarialRetriever"}
    ) | WITHOUT.keys()


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return supervised(tmp_path_factory.mktemp("sft"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_sources_exclude_paraphrases(name: str, sft: str, tmp_path: Path) -> None:
    def similar(options: dict[str, Any]) -> int:
        """Number of pairs whose last negative is a paraphrase."""
        callbacks = [*SOURCES[name](options), *([logged] if options else [])]
        fit(callbacks, tmp_path, TinyCaptioner(init_from=sft), data=SynonymPairs(48, batch_size=8, seed=2))
        drawn = json.loads((tmp_path / "negatives.json").read_text()).values()
        return sum(abs(angle(row["positive"]) - angle(row["negative"])) < 0.64 for row in drawn)

    logged = Logged()
    assert similar({}) > 0, "with words alone there are some"
    assert similar({"too_similar": ByColor(), "threshold": 0.8}) == 0
    assert 0 < max(logged.values) <= 1 and min(logged.values) >= 0

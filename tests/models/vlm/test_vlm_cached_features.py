"""CacheFeatures on vision-language models. Oracle: the same model without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import fit
from helpers.vlm_tiny import ARCHITECTURES, ColorPairs, captioner, samples

from lightning_idc.callbacks import CacheFeatures, LoRA, MDPAdapter
from lightning_idc.data.store.feature_store import FeatureCache
from lightning_idc.models.vlm.families.base import Family
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError

ON_LANGUAGE: dict[str, Any] = {"freeze": ["model", "lm_head"], "targets": r".*language_model.*(q_proj|v_proj)"}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of pairs in each call of the vision tower."""
    counts: list[int] = []
    stock = Family.image_features

    def counting(self: Family, model: Any, pixels: Any, rows: list[int]) -> Any:
        counts.append(len(rows))
        return stock(self, model, pixels, rows)

    monkeypatch.setattr(Family, "image_features", counting)
    return counts


@pytest.mark.parametrize("sizes", [(48, 48), (48, 64)], ids=["one size", "two sizes"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_features_and_scores_equal_those_of_the_tower(
    model_type: str, sizes: tuple[int, int], tmp_path: Path, encoded: list[int]
) -> None:
    model = captioner(model_type)
    pairs = [samples(2, size)[row] for row, size in enumerate(sizes)]
    batch = model.collate(pairs)
    with torch.no_grad():
        expected = model.encode(batch)
        log_probs = model.log_probs(expected, batch.tokens, batch.caption_mask)
    encoded.clear()
    model.net.feature_cache = FeatureCache(lambda images: images, tmp_path / "a", np.dtype(np.float32), always=True)
    for _ in range(2):
        features = model.encode(batch)
        torch.testing.assert_close(features.memory, expected.memory, rtol=1e-4, atol=1e-5)
        assert features.extras.keys() == expected.extras.keys()
        for name, value in expected.extras.items():
            torch.testing.assert_close(features.extras[name], value, rtol=1e-4, atol=1e-5)
        cached = model.log_probs(features, batch.tokens, batch.caption_mask)
        torch.testing.assert_close(cached, log_probs, rtol=1e-3, atol=1e-4)
    assert encoded == [2], "the second time nothing is computed"
    swapped = model.collate([pairs[0], samples(3, sizes[0])[2]])
    partly = model.encode(swapped)
    assert encoded == [2, 1], "the pair that is new"
    model.net.feature_cache = None
    torch.testing.assert_close(partly.memory, model.encode(swapped).memory, rtol=1e-4, atol=1e-5)


def tuned(folder: Path, *callbacks: Any) -> VLMCaptioner:
    return fit(list(callbacks), folder, captioner("qwen3_vl", scoring="packed"), data=ColorPairs(pairs=4, batch_size=2))


@pytest.mark.slow
def test_training_with_lora_is_equal_and_encodes_each_pair_once(tmp_path: Path, encoded: list[int]) -> None:
    plain = tuned(tmp_path, LoRA(rank=2, **ON_LANGUAGE))
    assert sum(encoded) == 2 * 4
    encoded.clear()
    cached = tuned(tmp_path, LoRA(rank=2, **ON_LANGUAGE), CacheFeatures(tmp_path / "features", always=True))
    assert sum(encoded) == 1 + 4, "one pair shows the form of the output"
    assert cached.net.feature_cache is None
    moved = 0
    for (name, ours), theirs in zip(cached.net.named_parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
        moved += "lora_B" in name and bool(ours.any())
    assert moved


def test_a_tower_that_varies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the vision tower with its projector is trained; freeze it"):
        tuned(tmp_path, CacheFeatures(tmp_path))
    with pytest.raises(ConfigError, match="an adapter changes features within the vision tower"):
        tuned(tmp_path, LoRA(rank=2, **ON_LANGUAGE), MDPAdapter(), CacheFeatures(tmp_path))

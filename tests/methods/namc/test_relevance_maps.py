"""Relevance maps. Oracle: cosines of the encoder's embeddings, computed one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import QUIET
from lightning.pytorch import Trainer
from torch.nn import functional as F

from lightning_idc.data.benchmarks.implicit_change import compose
from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.methods.namc.dual_encoder import SmallDualEncoder, vocabulary_with_mask
from lightning_idc.methods.namc.log_relevance import LogRelevance
from lightning_idc.methods.namc.noise_masking import NoiseMasking
from lightning_idc.methods.namc.relevance_maps import ImageRelevance, compute_relevance, draw_relevance_maps, normalised
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import ConfigError

CAPTION = compose("a small red cube", "a large sphere left of it")


@pytest.fixture(scope="module")
def encoder() -> SmallDualEncoder:
    torch.manual_seed(0)
    return SmallDualEncoder(vocabulary_with_mask(Vocabulary.build([CAPTION]).words), (8, 8), width=16).eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)


def test_relevance_equals_the_best_cosine(encoder: SmallDualEncoder, images: torch.Tensor) -> None:
    relevance = compute_relevance(encoder, images, CAPTION)
    for side, words in enumerate((["a", "small", "red", "cube"], ["a", "large", "sphere", "left", "of", "it"])):
        assert relevance[side].words == words
        patches, tokens = (
            encoder.encode_image(images[side : side + 1]).patches[0],
            encoder.encode_text([words]).tokens[0],
        )
        cosines = torch.stack(
            [torch.stack([F.cosine_similarity(p, tokens[1 + i], dim=0) for i in range(len(words))]) for p in patches]
        )
        torch.testing.assert_close(torch.tensor(relevance[side].of_words), cosines.amax(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(relevance[side].of_patches.flatten(), cosines.amax(1), rtol=1e-4, atol=1e-5)
    sentence = compute_relevance(encoder, images, "the red cube moved")
    assert sentence[0].words == sentence[1].words == ["the", "red", "cube", "moved"]
    assert normalised(torch.tensor([2.0, 2.0])).tolist() == [0.5, 0.5]


def test_most_relevant_patch_is_the_bluest(images: torch.Tensor) -> None:
    relevance = torch.zeros(8, 8)
    relevance[1, 6] = 1.0
    side = ImageRelevance(["red", "\x1b[31mcube"], [0.1, 0.9], relevance, wrong=[True, False])
    gray = torch.full_like(images, 128)
    sheet = np.asarray(draw_relevance_maps([(gray, [side, side])], height=160)).astype(int)
    image_area = sheet[20:180, 20:180]
    blueness = image_area[..., 2] - image_area[..., 0]
    y, x = np.unravel_index(blueness.argmax(), blueness.shape)
    assert (y // 20, x // 20) == (1, 6)
    below = sheet[180:]
    assert (np.abs(below - np.array([190, 40, 30])).sum(-1) == 0).any(), "noise is underlined"


@pytest.mark.slow
def test_log_relevance_writes_maps_after_each_validation(tmp_path: Path) -> None:
    from PIL import Image

    data = SyntheticDescriptions(
        train_pairs=8, val_pairs=4, render_size=16, image_size=64, batch_size=4, cache_dir=tmp_path, progress=False
    )
    words = vocabulary_with_mask(Vocabulary.build(data.train_captions()).words)
    callbacks = [NoiseMasking(SmallDualEncoder(words, (8, 8), width=16)), LogRelevance(pairs=2)]
    options: dict[str, Any] = dict(max_epochs=1, enable_checkpointing=False, default_root_dir=tmp_path, **QUIET)
    Trainer(callbacks=callbacks, limit_val_batches=1, **options).fit(PairTransformer(width=32, heads=2), data)
    assert Image.open(tmp_path / "relevance" / "step-00000002.png").height > 500
    with pytest.raises(ConfigError, match="add NoiseMasking to the callbacks"):
        trainer = Trainer(callbacks=[LogRelevance()], limit_val_batches=1, **options)
        trainer.fit(PairTransformer(width=32, heads=2), data)

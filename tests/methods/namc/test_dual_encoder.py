"""Dual encoders and their pre-training. Oracles: open_clip without masks, and the AUC computed by counting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.methods.namc.dual_encoder import (
    MASK_WORD,
    ClipDualEncoder,
    SmallDualEncoder,
    load_dual_encoder,
    vocabulary_with_mask,
)
from lightning_idc.methods.namc.losses import cosines, info_nce_of_similarity, late_interaction
from lightning_idc.methods.namc.relevance import RelevancePretraining, noise_auc, word_relevance
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import CheckpointError, DataError


@pytest.fixture(scope="module")
def clip() -> ClipDualEncoder:
    pytest.importorskip("open_clip")
    tiny: dict[str, Any] = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
        "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
    }
    torch.manual_seed(0)
    return ClipDualEncoder(tiny, pretrained=None).eval()


def test_clip_dual_encoder_equals_open_clip(clip: ClipDualEncoder) -> None:
    import open_clip

    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    normal = (images.float() - clip.mean) / clip.std
    image_embeddings = clip.encode_image(images)
    assert clip.grid == (4, 4) and image_embeddings.patches.shape == (3, 16, 24)
    torch.testing.assert_close(image_embeddings.pooled, clip.model.encode_image(normal), rtol=1e-4, atol=1e-5)
    texts = ["a red cube, left of it", "bald eagle"]
    text_embeddings = clip.encode_text([text.replace(",", " ,").split() for text in texts])
    ids = open_clip.tokenizer.SimpleTokenizer()(texts, context_length=20)
    torch.testing.assert_close(text_embeddings.pooled, clip.model.encode_text(ids), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_word_of_maps_clip_subwords_to_words(clip: ClipDualEncoder) -> None:
    from open_clip.tokenizer import SimpleTokenizer

    words = ["an", "unquestionableword", MASK_WORD, "eagle"]
    counts = [len(SimpleTokenizer().encode(word)) for word in words]
    assert counts[1] > 1 and counts[2] == 3, "the test needs words of several pieces"
    expected = [-1, *(i for i, count in enumerate(counts) for _ in range(count)), -1]
    word_of = clip.encode_text([words]).word_of[0].tolist()
    assert word_of == expected
    long = clip.encode_text([["eagle"] * 40]).word_of[0].tolist()
    assert long == [-1, *range(18), -1], "words beyond the context length have no token"


@pytest.fixture(scope="module")
def small() -> SmallDualEncoder:
    torch.manual_seed(0)
    words = vocabulary_with_mask(Vocabulary.build(["a small red cube and a large sphere"]).words)
    return SmallDualEncoder(words, (8, 8), width=32).eval()


def test_text_embeddings_do_not_depend_on_the_batch(small: SmallDualEncoder) -> None:
    alone = small.encode_text([["a", "red", "cube"]])
    among = small.encode_text([["a", "red", "cube"], ["a", "small", "red", "cube", "and", "a", "large", "sphere"]])
    torch.testing.assert_close(among.tokens[0, :5], alone.tokens[0])
    torch.testing.assert_close(among.pooled[0], alone.pooled[0])
    assert among.word_of[0].tolist() == [-1, 0, 1, 2, -1, -1, -1, -1, -1, -1]
    assert not torch.equal(
        small.encode_text([["a", MASK_WORD, "cube"]]).tokens, small.encode_text([["a", "gnu", "cube"]]).tokens
    )


@pytest.mark.parametrize("which", ["small", "clip"])
def test_masked_patches_are_ignored(which: str, request: pytest.FixtureRequest) -> None:
    encoder = request.getfixturevalue(which)
    torch.manual_seed(1)
    size = 64 if which == "small" else 32
    images, cells = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8), encoder.grid[0] * encoder.grid[1]
    masked = torch.ones(1, cells, dtype=torch.bool)
    inverted = 255 - images
    torch.testing.assert_close(
        encoder.encode_image(images, masked).patches, encoder.encode_image(inverted, masked).patches
    )
    no_mask = torch.zeros(1, cells, dtype=torch.bool)
    torch.testing.assert_close(encoder.encode_image(images, no_mask).patches, encoder.encode_image(images).patches)
    assert not torch.equal(encoder.encode_image(images).patches, encoder.encode_image(inverted).patches)


def test_noise_auc() -> None:
    torch.manual_seed(2)
    scores = torch.randint(0, 6, (40,)).float() / 5
    wrong = torch.rand(40) < 0.4
    pairs = [(a, b) for a in scores[wrong].tolist() for b in scores[~wrong].tolist()]
    expected = sum(1.0 if a < b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert noise_auc(scores.tolist(), wrong.tolist()) == pytest.approx(expected, abs=1e-6)


class WithoutGradient(Callback):
    """Records the names of parameters without a gradient."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        self.names |= {name for name, p in pl_module.named_parameters() if p.requires_grad and p.grad is None}


@pytest.mark.slow
def test_relevance_pretraining_saves_a_loadable_encoder(tmp_path: Path) -> None:
    data = SyntheticDescriptions(
        train_pairs=24,
        val_pairs=8,
        test_pairs=4,
        render_size=16,
        image_size=32,
        batch_size=8,
        cache_dir=tmp_path,
        progress=False,
    )
    model = RelevancePretraining(width=16, heads=2)
    recorder = WithoutGradient()
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[recorder], **QUIET)
    trainer.fit(model, data)
    assert 0 <= trainer.callback_metrics["val/noise_auc"] <= 100
    assert recorder.names == set()
    trainer.save_checkpoint(tmp_path / "relevance.ckpt")
    loaded = load_dual_encoder(tmp_path / "relevance.ckpt")
    assert loaded.grid == (4, 4)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    texts = [["a", "red", "cube"], ["a", "sphere"]]
    assert model.encoder is not None
    assert word_relevance(loaded, images, texts) == word_relevance(model.encoder.eval(), images, texts)
    assert [len(row) for row in word_relevance(loaded, images, texts)] == [3, 2]
    again = RelevancePretraining.load_from_checkpoint(tmp_path / "relevance.ckpt")
    assert again.encoder is not None and again.encoder.grid == (4, 4)


def test_captions_without_template_are_matched_with_both_images() -> None:
    """Oracle: the loss for a single image that consists of the patches of both images."""
    captions = ["the red square is blue now", "a dog is gone", "nothing changed"]
    data = TinyPairs(batch_size=4, image_size=32)
    model = RelevancePretraining(width=16, heads=2, backbone="cnn")
    Trainer(max_steps=1, limit_val_batches=0, enable_checkpointing=False, **QUIET).fit(model, data)
    model.eval()
    images = torch.randint(0, 256, (3, 2, 3, 32, 32), dtype=torch.uint8)
    batch = {"images": images, "captions": [[text] for text in captions], "ids": ["a", "b", "c"]}
    image = model.encoder.encode_image(images.flatten(0, 1))
    text = model.encoder.encode_text([caption.split() for caption in captions])
    pair = image.patches.unflatten(0, (3, 2)).flatten(1, 2)
    words = info_nce_of_similarity(late_interaction(pair, text.tokens, text.word_of >= 0), scale=20.0)
    pooled = image.pooled.unflatten(0, (3, 2))
    mean_cosines = (cosines(pooled[:, 0], text.pooled) + cosines(pooled[:, 1], text.pooled)) / 2
    expected = 2 * (words + info_nce_of_similarity(mean_cosines, scale=20.0))
    torch.testing.assert_close(model.training_loss(None, batch), expected)


def test_rejects_pairs_without_a_description() -> None:
    model = RelevancePretraining(width=16, heads=2)
    with pytest.raises(DataError, match="pair 'second' has no caption"):
        model._object_descriptions([[]], ["second"])


@pytest.mark.slow
def test_noise_auc_over_all_processes_counts_each_pair_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = dict(train_pairs=8, val_pairs=12, test_pairs=4, render_size=16, image_size=32)
    data = SyntheticDescriptions(**options, batch_size=4, cache_dir=tmp_path, progress=False)
    model = RelevancePretraining(width=16, heads=2)
    Trainer(max_steps=1, enable_checkpointing=False, limit_val_batches=0, **QUIET).fit(model, data)
    gathered: list[Any] = []

    def validate_auc(batches: int, others: list[Any]) -> float:
        def gather(local: Any) -> list[Any]:
            gathered.append(local)
            return [local, *others]

        monkeypatch.setattr("lightning_idc.models.distributed.all_gather_object", gather)
        trainer = Trainer(limit_val_batches=batches, enable_checkpointing=False, **QUIET)
        return trainer.validate(model, data, verbose=False)[0]["val/noise_auc_all"]

    complete, partial = validate_auc(3, []), validate_auc(1, [])
    assert complete != partial
    # simulate two processes: one with a third of the pairs, the other with all of them
    assert validate_auc(1, gathered[:1]) == pytest.approx(complete, abs=1e-4)


def test_rejects_other_checkpoints(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="holds no dual encoder"):
        load_dual_encoder(tmp_path / "other.ckpt")

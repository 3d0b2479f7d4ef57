"""Dual encoders: CLIP's own output where nothing is masked, words and sub-words, checkpoints, the AUC."""

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


def test_unmasked_clip_is_clip(clip: ClipDualEncoder) -> None:
    import open_clip

    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    normal = (images.float() - clip.mean) / clip.std
    seen = clip.encode_image(images)
    assert clip.grid == (4, 4) and seen.patches.shape == (3, 16, 24)
    torch.testing.assert_close(seen.pooled, clip.model.encode_image(normal), rtol=1e-4, atol=1e-5)
    texts = ["a red cube, left of it", "bald eagle"]
    read = clip.encode_text([text.replace(",", " ,").split() for text in texts])
    ids = open_clip.tokenizer.SimpleTokenizer()(texts, context_length=20)
    torch.testing.assert_close(read.pooled, clip.model.encode_text(ids), rtol=1e-4, atol=1e-5)


def test_clips_sub_words_belong_to_their_words(clip: ClipDualEncoder) -> None:
    from open_clip.tokenizer import SimpleTokenizer

    words = ["an", "unquestionableword", MASK_WORD, "eagle"]
    counts = [len(SimpleTokenizer().encode(word)) for word in words]
    assert counts[1] > 1 and counts[2] == 3, "the test needs words of several pieces"
    expected = [-1, *(i for i, count in enumerate(counts) for _ in range(count)), -1]
    found = clip.encode_text([words]).word_of[0].tolist()
    assert found == expected
    long = clip.encode_text([["eagle"] * 40]).word_of[0].tolist()
    assert long == [-1, *range(18), -1], "what does not fit belongs to no token"


@pytest.fixture(scope="module")
def small() -> SmallDualEncoder:
    torch.manual_seed(0)
    words = vocabulary_with_mask(Vocabulary.build(["a small red cube and a large sphere"]).words)
    return SmallDualEncoder(words, (8, 8), width=32).eval()


def test_padding_and_other_texts_change_nothing(small: SmallDualEncoder) -> None:
    alone = small.encode_text([["a", "red", "cube"]])
    among = small.encode_text([["a", "red", "cube"], ["a", "small", "red", "cube", "and", "a", "large", "sphere"]])
    torch.testing.assert_close(among.tokens[0, :5], alone.tokens[0])
    torch.testing.assert_close(among.pooled[0], alone.pooled[0])
    assert among.word_of[0].tolist() == [-1, 0, 1, 2, -1, -1, -1, -1, -1, -1]
    assert not torch.equal(
        small.encode_text([["a", MASK_WORD, "cube"]]).tokens, small.encode_text([["a", "gnu", "cube"]]).tokens
    )


@pytest.mark.parametrize("which", ["small", "clip"])
def test_a_masked_patch_is_not_seen(which: str, request: pytest.FixtureRequest) -> None:
    encoder = request.getfixturevalue(which)
    torch.manual_seed(1)
    size = 64 if which == "small" else 32
    one, cells = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8), encoder.grid[0] * encoder.grid[1]
    masked = torch.ones(1, cells, dtype=torch.bool)
    other = 255 - one
    torch.testing.assert_close(encoder.encode_image(one, masked).patches, encoder.encode_image(other, masked).patches)
    none = torch.zeros(1, cells, dtype=torch.bool)
    torch.testing.assert_close(encoder.encode_image(one, none).patches, encoder.encode_image(one).patches)
    assert not torch.equal(encoder.encode_image(one).patches, encoder.encode_image(other).patches)


def test_auc_counts_the_pairs_in_the_right_order() -> None:
    torch.manual_seed(2)
    scores = torch.randint(0, 6, (40,)).float() / 5
    wrong = torch.rand(40) < 0.4
    pairs = [(a, b) for a in scores[wrong].tolist() for b in scores[~wrong].tolist()]
    expected = sum(1.0 if a < b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert noise_auc(scores.tolist(), wrong.tolist()) == pytest.approx(expected, abs=1e-6)


class _Idle(Callback):
    """Names of the parameters that some step gave no gradient."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        self.names |= {name for name, p in pl_module.named_parameters() if p.requires_grad and p.grad is None}


def test_a_short_training_saves_encoders_that_load(tmp_path: Path) -> None:
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
    idle = _Idle()
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[idle], **QUIET)
    trainer.fit(model, data)
    assert 0 <= trainer.callback_metrics["val/noise_auc"] <= 100
    assert idle.names == set()
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


def test_captions_of_any_form_are_matched_with_both_images() -> None:
    """Oracle: the loss of the pair as one image of twice as many patches, for captions outside the template."""
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
    of_sides = (cosines(pooled[:, 0], text.pooled) + cosines(pooled[:, 1], text.pooled)) / 2
    expected = 2 * (words + info_nce_of_similarity(of_sides, scale=20.0))
    torch.testing.assert_close(model.training_loss(None, batch), expected)


def test_pairs_without_a_description_are_named() -> None:
    model = RelevancePretraining(width=16, heads=2)
    with pytest.raises(DataError, match="pair 'second' has no caption"):
        model._object_descriptions([[]], ["second"])


def test_noise_is_measured_over_all_processes_and_each_pair_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(train_pairs=8, val_pairs=12, test_pairs=4, render_size=16, image_size=32)
    data = SyntheticDescriptions(**options, batch_size=4, cache_dir=tmp_path, progress=False)
    model = RelevancePretraining(width=16, heads=2)
    Trainer(max_steps=1, enable_checkpointing=False, limit_val_batches=0, **QUIET).fit(model, data)
    gathered: list[Any] = []

    def measured(batches: int, others: list[Any]) -> float:
        def gather(own: Any) -> list[Any]:
            gathered.append(own)
            return [own, *others]

        monkeypatch.setattr("lightning_idc.models.distributed.all_gather_object", gather)
        trainer = Trainer(limit_val_batches=batches, enable_checkpointing=False, **QUIET)
        return trainer.validate(model, data, verbose=False)[0]["val/noise_auc_all"]

    whole, part = measured(3, []), measured(1, [])
    assert whole != part
    # a process that saw a third of the pairs, beside one that was dealt all of them
    assert measured(1, gathered[:1]) == pytest.approx(whole, abs=1e-4)


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="holds no dual encoder"):
        load_dual_encoder(tmp_path / "other.ckpt")

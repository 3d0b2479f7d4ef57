"""Cached features within a captioner. Oracle: the same training without the callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyPairs
from helpers.training import QUIET, fit
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from lightning_idc.callbacks.cache_features import CacheFeatures
from lightning_idc.data.store import feature_store
from lightning_idc.images.types import PairSample
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.backbones import SmallCNN
from lightning_idc.utils.errors import ConfigError


def captioner(**options: Any) -> PairTransformer:
    small = {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "dropout": 0.0, "grid": 1}
    return PairTransformer(**{**small, "freeze_backbone": True, **options})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of images in each call of the backbone."""
    counts: list[int] = []
    grid = SmallCNN.grid
    monkeypatch.setattr(SmallCNN, "grid", lambda self, images: (counts.append(len(images)), grid(self, images))[1])
    return counts


@pytest.mark.slow
def test_training_is_the_same_and_every_image_is_seen_once(tmp_path: Path, computed: list[int]) -> None:
    plain = fit([], tmp_path, captioner(), max_epochs=3)
    assert sum(computed) == 3 * 2 * 16
    computed.clear()
    cached = fit([CacheFeatures(tmp_path / "kept", always=True)], tmp_path, captioner(), max_epochs=3)
    assert sum(computed) == 2 * 16
    ours, theirs = cached.state_dict(), plain.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
    assert "forward" not in vars(cached.net.backbone), "it is taken off at the end"
    computed.clear()
    again = fit([CacheFeatures(tmp_path / "kept", always=True)], tmp_path, captioner(), max_epochs=1)
    assert computed == [] and again is not cached, "a later run with the same weights reads them"


@pytest.mark.slow
def test_the_test_reads_too_and_other_weights_share_nothing(tmp_path: Path, computed: list[int]) -> None:
    model = fit([], tmp_path, captioner(), max_epochs=1)
    trainer = Trainer(callbacks=[CacheFeatures(tmp_path / "kept", always=True)], default_root_dir=tmp_path, **QUIET)
    expected = trainer.test(model, TinyPairs(), verbose=False)
    computed.clear()
    assert trainer.test(model, TinyPairs(), verbose=False) == [pytest.approx(expected[0])]
    assert computed == []
    with torch.no_grad():
        next(model.net.backbone.parameters()).add_(1.0)
    trainer.test(model, TinyPairs(), verbose=False)
    assert sum(computed) == 14 and len(list((tmp_path / "kept").iterdir())) == 2


def test_it_tells_which_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr("lightning_idc.callbacks.cache_features.rank_zero_info", messages.append)
    ticks = iter([0.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(feature_store.time, "perf_counter", lambda: next(ticks))
    fit([CacheFeatures(tmp_path / "kept")], tmp_path, captioner(), max_epochs=2)
    assert messages == ["CacheFeatures: 8 images/s from the disk, 2 computed; reading them"]


def test_what_does_not_fit_is_computed_every_time(tmp_path: Path, computed: list[int]) -> None:
    features = 96 * 4  # bytes per image
    limit = CacheFeatures(tmp_path / "kept", always=True, max_gb=16.5 * features / 1e9)
    fit([limit], tmp_path, captioner(), max_epochs=2)
    assert sum(computed) == 32 + 16


def test_features_that_cannot_be_cached_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'net\.backbone' is trained; freeze it"):
        fit([CacheFeatures(tmp_path)], tmp_path, captioner(freeze_backbone=False))
    with pytest.raises(ConfigError, match=r"PairTransformer has no module 'net\.eye' for CacheFeatures; it has"):
        fit([CacheFeatures(tmp_path, module="net.eye")], tmp_path, captioner())

    class Hook(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.net.backbone.layers[0].register_forward_hook(lambda *_: None)

    model = captioner()
    with pytest.raises(ConfigError, match=r"has hooks on layers within 'net\.backbone'"):
        fit([Hook(), CacheFeatures(tmp_path)], tmp_path, model)

    class Thaw(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                pl_module.net.backbone.requires_grad_(True)

    model = captioner()
    with pytest.raises(ConfigError, match="is trained"):
        fit([Thaw(), CacheFeatures(tmp_path)], tmp_path, model)
    assert "forward" not in vars(model.net.backbone), "it is taken off after an error"


def test_a_changed_image_is_another_image(tmp_path: Path, computed: list[int]) -> None:
    def brighter(sample: PairSample, generator: torch.Generator) -> PairSample:
        sample.after = (sample.after.int() + int(torch.randint(1, 60, (), generator=generator))).clamp(max=255).byte()
        return sample

    callback = CacheFeatures(tmp_path, always=True)
    Trainer(callbacks=[callback], max_epochs=2, limit_val_batches=0, enable_checkpointing=False, **QUIET).fit(
        captioner(), TinyPairs(batch_size=4, transform=brighter)
    )
    assert sum(computed) == 16 + 2 * 16, "the first images once, the changed ones in every epoch"

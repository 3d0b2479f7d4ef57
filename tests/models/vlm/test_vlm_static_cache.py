"""Decoding with a static cache. Oracle: the same captioner with a growing cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import QUIET
from helpers.vlm_generic import save
from helpers.vlm_tiny import ARCHITECTURES, ColorPairs, captioner, samples
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lightning_idc.images.types import PairFeatures
from lightning_idc.methods.policy.policy import GroupRelative
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.models.vlm.lora import LoRA, LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError

LENGTH = 8


def features_of(model: VLMCaptioner, count: int) -> PairFeatures:
    """Encode pairs whose prompts differ in length."""
    pairs = samples(count)
    pairs[0].meta["part"] = "long"
    return model.encode(model.collate(pairs))


def generated(model: VLMCaptioner) -> list[Any]:
    """Results of greedy decoding, beam search and sampling, for a batch and for a smaller one."""
    results = []
    with torch.no_grad():
        for count in (3, 2):
            features = features_of(model, count)
            generator = torch.Generator().manual_seed(5)
            for decoded in (
                model.decoder.search(features, LENGTH),
                model.decoder.search(features, LENGTH, num_beams=3),
                model.decoder.sample(features, 4, temperature=1.5, generator=generator, max_length=LENGTH),
            ):
                results.append(decoded.ids)
                results.append([round(value, 3) for value in decoded.mean_log_probs])
    return results


KINDS = [kind if kind == "qwen2_5_vl" else pytest.param(kind, marks=pytest.mark.slow) for kind in ARCHITECTURES]


@pytest.mark.parametrize("kind", KINDS)
def test_a_static_cache_gives_the_same_tokens(kind: str) -> None:
    model = captioner(kind)
    expected = generated(model)
    model.hparams["cache_implementation"] = "static"
    assert generated(model) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava_onevision"])
def test_all_steps_share_one_graph(kind: str) -> None:
    model = captioner(kind)
    LoraAdapter(rank=2, alpha=4, freeze=["model", "lm_head"]).install(model.built_net)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    expected = generated(model)
    model.hparams.update(cache_implementation="static", compile_config={"backend": "eager"})
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        # the largest batch comes first, because buffers grow with the number of hypotheses
        model.decoder.sample(features_of(model, 3), 4, max_length=LENGTH)
        assert generated(model) == expected
    with torch.inference_mode():
        assert generated(model) == expected
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def trained(folder: Path, ckpt: Path | None = None, **options: Any) -> VLMCaptioner:
    """Train a captioner with LoRA for four steps of GRPO, with validation every second step."""
    seed_everything(1, verbose=False)
    model = captioner("qwen2_5_vl", **options).train()
    lora = LoRA(rank=2, alpha=4, freeze=["model", "lm_head"])
    checkpoint = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=2)
    trainer = Trainer(
        **{**QUIET, "callbacks": [lora, GroupRelative(LengthReward(1, 3), samples=3, temperature=2.0), checkpoint]},
        max_steps=4,
        val_check_interval=2,
        limit_val_batches=1,
        default_root_dir=folder,
    )
    trainer.fit(model, ColorPairs(batch_size=4), ckpt_path=ckpt, weights_only=False)
    assert model.predictions, "captions of the last validation"
    return model


@pytest.mark.slow
def test_training_between_rollouts_and_validation_is_unchanged(tmp_path: Path) -> None:
    def weights(model: VLMCaptioner) -> dict[str, Tensor]:
        return dict(model.named_parameters())

    initial = weights(captioner("qwen2_5_vl"))
    dynamic = weights(trained(tmp_path / "dynamic"))
    options: dict[str, Any] = {"cache_implementation": "static", "compile_config": {"backend": "eager"}}
    torch._dynamo.reset()
    counters.clear()
    static = weights(trained(tmp_path / "static", **options))
    assert counters["stats"]["unique_graphs"] == 1, "rollouts and validation share a graph"
    resumed = weights(trained(tmp_path / "resumed", ckpt=tmp_path / "static" / "step=2.ckpt", **options))
    assert any("lora_B" in name and bool(value.any()) for name, value in static.items())
    for name, value in static.items():
        assert torch.equal(value, dynamic[name]) and torch.equal(value, resumed[name])
        if "base_layer" in name:
            assert torch.equal(value, initial[name.replace(".base_layer", "")]), name


def test_rejects_models_without_a_static_cache(tmp_path: Path) -> None:
    for kind, layers in {"qwen3_5": "LinearAttention", "gemma3": "StaticSlidingWindowLayer"}.items():
        model = VLMCaptioner(model=str(save(kind, tmp_path / kind)), cache_implementation="static")
        with pytest.raises(ConfigError, match=f"cache_implementation is static, but {kind}.* has .*{layers}"):
            model.build()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_config": {}}, "set cache_implementation: static"),
        ({"cache_implementation": "static", "compile_config": {"mod": "default"}}, "unexpected keyword argument 'mod'"),
        ({"cache_implementation": "sliding_window"}, "cache_implementation"),
    ],
)
def test_rejects_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        captioner("qwen2_5_vl", **options)


def test_rejects_sharded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = captioner("qwen2_5_vl", cache_implementation="static")
    monkeypatch.setattr(model, "_device_mesh", object())
    with pytest.raises(ConfigError, match="the weights are sharded"):
        model.configure_model()

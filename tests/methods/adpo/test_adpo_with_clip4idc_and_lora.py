"""ADPO with a CLIP4IDC encoder as the retriever and with LoRA on a vision-language model. Oracle: FrozenCopy."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import Losses, fit, tiny_retriever

from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.retriever import EncoderHeads
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.methods.policy.references import AdapterCopy, AdaptersOff, FrozenCopy, MovingAverage
from lightning_idc.models.addon import addons_of
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.utils.errors import IDCError

CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 12, "width": 32, "heads": 2, "layers": 1},
}
TINY_VLM: dict[str, Any] = {
    "model_type": "llava_onevision",
    "vision_config": {
        "model_type": "siglip_vision_model",
        "vision_use_head": False,
        "image_size": 8,
        "patch_size": 4,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
    "text_config": {
        "model_type": "qwen2",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}
LANGUAGE = r".*language_model.*\.(q_proj|v_proj)"


@pytest.mark.slow
def test_clip4idc_as_retriever_encoder(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    encoder = tiny_retriever(CLIP, tmp_path)
    model = TinyCaptioner(learning_rates={"addons.retriever": 20.0})
    fit(
        [PreferenceOptimization(), AdversarialRetriever(str(tmp_path / "retriever.ckpt"))], tmp_path, model, max_steps=3
    )
    matcher: Any = addons_of(model)["retriever"].matcher
    assert isinstance(matcher, EncoderHeads)
    assert not torch.equal(matcher.pairs.weight, torch.eye(16))
    frozen: Any = matcher._frozen[0]
    for name, parameter in encoder.named_parameters():
        assert torch.equal(frozen.get_parameter(name), parameter), name
    assert not any("encoder" in name for name in model.state_dict()), "a frozen encoder is in no checkpoint"
    # the images have another size than the encoder's input; of the encoder only the image tower is trained
    trained = AdversarialRetriever(str(tmp_path / "retriever.ckpt"), train_encoder=True)
    again = TinyCaptioner(learning_rates={"addons.retriever": 20.0})
    fit([PreferenceOptimization(), trained], tmp_path, again, max_steps=2, data=LargerPairs(batch_size=4, seed=1))
    parameters = dict(addons_of(again)["retriever"].named_parameters())
    trained_names = {name for name, p in parameters.items() if p.requires_grad}
    assert any("visual" in name for name in trained_names) and not any("logit_scale" in name for name in trained_names)
    assert all(parameters[name].grad is not None for name in trained_names)


class LargerPairs(TinyPairs):
    """Pairs of 12 x 20 pixels."""

    def __init__(self, **options: Any) -> None:
        super().__init__(image_size=(12, 20), **options)


def vlm(**options: Any) -> Any:
    from lightning_idc.models.vlm.module import VLMCaptioner

    return VLMCaptioner(
        architecture=TINY_VLM, prompt="What?", tokenizer_size=320, captions_per_pair=1, image_size=(8, 8), **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("others", [[], [MDPAdapter(layers=[1, 2])]], ids=["lora", "lora and mdp"])
def test_adapters_off_scores_like_a_frozen_copy(tmp_path: Path, others: list[Any]) -> None:
    pytest.importorskip("peft")
    off, copied = Losses(), Losses()
    for reference, losses in ((AdaptersOff(), off), (FrozenCopy(), copied)):
        lora = LoRA(rank=2, alpha=8, targets=LANGUAGE, freeze=["model", "lm_head"])
        preference = PreferenceOptimization(reference=reference)
        rates = {"language": 10.0, **{f"adapters.{adapter.name}": 10.0 for adapter in others}}
        model = vlm(learning_rates=rates)
        fit([lora, *others, preference, losses], tmp_path, model, max_epochs=1)
        for adapter in others:
            assert any(bool(p.abs().sum()) for p in model.adapters[adapter.name].mdp.parameters())
    assert off.values == pytest.approx(copied.values, abs=1e-5)
    assert abs(off.values[-1] - off.values[0]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"], "use_dora": True}], ids=["lora", "more"])
def test_adapter_copy_keeps_the_sft_adapters_as_reference(options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("peft")

    def lora() -> LoRA:
        return LoRA(rank=2, alpha=8, targets=LANGUAGE, freeze=["model", "lm_head"], **options)

    first = fit([lora()], tmp_path, vlm(learning_rates={"language": 10.0}), max_epochs=2, enable_checkpointing=True)
    first.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    adapters, copied = Losses(), Losses()
    for reference, losses in ((AdapterCopy(), adapters), (FrozenCopy(), copied)):
        model = vlm(init_from=str(tmp_path / "sft.ckpt"), learning_rates={"language": 10.0})
        fit([lora(), PreferenceOptimization(reference=reference), losses], tmp_path, model, max_epochs=1)
        if isinstance(reference, AdapterCopy):
            trained = model
    assert adapters.values[0] == pytest.approx(math.log(2), abs=1e-5), (
        "the reference is the SFT policy, not the base model"
    )
    assert (
        adapters.values == pytest.approx(copied.values, abs=1e-5)
        and abs(adapters.values[-1] - adapters.values[0]) > 1e-4
    )
    weights, before = dict(trained.named_parameters()), dict(first.named_parameters())
    copies = {name: p for name, p in weights.items() if "reference" in name.split(".")}
    assert copies and not any(p.requires_grad for p in copies.values())
    num_changed = 0
    for name, parameter in copies.items():
        trained_name = name.replace(".reference", ".default")
        assert torch.equal(parameter, before[trained_name]), name
        num_changed += not torch.equal(parameter, weights[trained_name])
    assert num_changed
    # a model loaded without preference optimisation has no copy
    trained.trainer.save_checkpoint(tmp_path / "dpo.ckpt")
    again = type(trained).load_from_checkpoint(tmp_path / "dpo.ckpt")
    assert not any("reference" in name.split(".") for name, _ in again.named_parameters())
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    trained.save_adapters(tmp_path / "adapters")
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "adapters" / "lora" / "adapter_model.safetensors")
    assert saved and not any("reference" in name for name in saved)


def test_adapter_copy_requires_adapters(tmp_path: Path) -> None:
    with pytest.raises(IDCError, match="has no adapters to copy"):
        fit([PreferenceOptimization(reference=AdapterCopy())], tmp_path, max_steps=1)
    with pytest.raises(IDCError, match="cannot store a frozen copy"):
        model = vlm()
        fit([MDPAdapter(layers=[1, 2]), PreferenceOptimization(reference=AdapterCopy())], tmp_path, model, max_steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed"])
def test_bf16_mixed_training_is_finite(tmp_path: Path, precision: str) -> None:
    losses = Losses()
    callbacks = [PreferenceOptimization(), AdversarialRetriever(alignment=0.5), losses]
    model = vlm(learning_rates={"language": 10.0, "addons.retriever": 10.0})
    fit(callbacks, tmp_path, model, max_epochs=1, precision=precision)
    assert all(math.isfinite(value) for value in losses.values)
    addons: Any = addons_of(model)
    assert addons["preference"].mean_chosen_logratio != 0 and addons["retriever"].baseline.mean != 0
    dtypes = {parameter.dtype for parameter in addons["retriever"].parameters()}
    assert dtypes == {torch.float32}


def test_moving_average_rejects_bfloat16_weights() -> None:
    average = MovingAverage()
    captioner = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "red"], max_length=4)
    captioner.build()
    average.setup(captioner)
    captioner._trainer = SimpleNamespace(global_step=1)  # type: ignore[assignment]
    for module in (captioner, average.twin):
        module.to(torch.bfloat16)
    with pytest.raises(IDCError, match="would not move"):
        average.update(captioner)


def test_adapters_off_rejects_trained_base_weights(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(IDCError, match=r"outside of the adapters are trained, such as model\.model"):
        fit([LoRA(rank=2), PreferenceOptimization(reference=AdaptersOff())], tmp_path, vlm(), max_steps=1)

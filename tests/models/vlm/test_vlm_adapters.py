"""LoRA and MDP on a vision-language model: trained weights, saved weights, and the effect of switching them off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import ARCHITECTURES, architecture, captioner, samples, tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.vlm.lora import LoRA, LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import CheckpointError, ConfigError

PROJECTOR = "model.multi_modal_projector"


def scores(model: VLMCaptioner) -> Tensor:
    batch = model.collate(samples())
    with torch.no_grad():
        return model.eval().score(model.encode(batch), batch.tokens, batch.caption_mask)


def adapted(kind: str = "llava_onevision", first: str = "lora", **options: Any) -> VLMCaptioner:
    model = captioner(kind)
    for name in (first, "mdp" if first == "lora" else "lora"):
        if name == "lora":
            model.add_adapter("lora", LoraAdapter, **{"rank": 4, "alpha": 8, **options})
        else:
            model.add_adapter("mdp", MDP)
    return model


def stir(model: VLMCaptioner) -> None:
    """Change every trainable parameter, as training would."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name in ARCHITECTURES if name != "smolvlm"])
def test_lora_trains_the_language_model_only_and_leaves_the_rest_to_full_training(kind: str) -> None:
    model = captioner(kind)
    before = scores(model)
    trained = {name for name, p in model.net.model.named_parameters() if p.requires_grad}  # type: ignore[union-attr]
    model.add_adapter("lora", LoraAdapter, rank=4, alpha=8)
    assert torch.equal(scores(model), before)
    inner: Any = model.net.model  # type: ignore[union-attr]
    language = tuple(f"{path}." for path in model.net.language_modules)  # type: ignore[union-attr]
    updated = 0
    for name, parameter in inner.named_parameters():
        if "lora_" in name:
            assert name.startswith(language) and parameter.requires_grad
            updated += 1
        else:
            assert parameter.requires_grad == (name in trained and not name.startswith(language)), name
    assert updated == 2 * 7 * 2  # two matrices for each of seven linear modules in two layers
    batch = model.collate(samples())
    model.caption_loss(model.encode(batch), batch).backward()
    # distributed training fails if a parameter has no gradient
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize("targets", [r".*\.q_proj|.*\.v_proj", r".*\.(q_proj|v_proj)"])
def test_targets_that_are_one_of_several_stay_within_the_frozen_part(targets: str) -> None:
    """The vision tower of this family has the same layer names as the language model."""
    model = captioner("llava_onevision")
    model.add_adapter("lora", LoraAdapter, rank=4, alpha=8, targets=targets)
    updated = [name for name, _ in model.built_net.named_parameters() if "lora_" in name]
    assert len(updated) == 2 * 2 * 2 and all(".language_model." in name for name in updated)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lora", "mdp"])
def test_one_switch_gives_back_the_model_before_both(first: str) -> None:
    model = captioner("llava_onevision")
    before = scores(model)
    model = adapted(first=first, modules_to_save=[PROJECTOR])
    model.net.model.model.vision_tower.requires_grad_(False)  # type: ignore[union-attr]
    model.net.model.model.image_newline.requires_grad_(False)  # type: ignore[union-attr]
    assert torch.equal(scores(model), before)
    assert model.trainable_non_adapter_parameters() == []
    flags = [p.requires_grad for p in model.parameters()]
    stir(model)
    assert not torch.allclose(scores(model), before, atol=1e-2)
    with model.disable_adapters():
        assert torch.equal(scores(model), before)
    assert [p.requires_grad for p in model.parameters()] == flags


def test_a_reference_pass_between_forward_and_backward_does_not_disturb_gradients() -> None:
    model = adapted()
    stir(model)
    batch = model.collate(samples())

    def gradients(reference: bool) -> list[Tensor]:
        model.zero_grad()
        loss = model.caption_loss(model.encode(batch), batch)
        if reference:
            with torch.no_grad(), model.disable_adapters():
                model.score(model.encode(batch), batch.tokens, batch.caption_mask)
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for a, b in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"modules_to_save": [PROJECTOR]}])
@pytest.mark.parametrize("first", ["lora", "mdp"])
def test_adapters_alone_are_saved_and_loaded(first: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = adapted(first=first, **options)
    for part in (model.net.model.model.vision_tower, model.net.model.model.image_newline):  # type: ignore[union-attr]
        part.requires_grad_(False)
    if not options:
        model.net.model.get_submodule(PROJECTOR).requires_grad_(False)  # type: ignore[union-attr]
    stir(model)
    model.save_adapters(tmp_path)
    again = captioner("llava_onevision")
    again.load_adapters(tmp_path)
    torch.testing.assert_close(scores(again), scores(model), rtol=0, atol=0)
    assert list(again.adapters) == list(model.adapters)


def test_a_lora_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    adapted().save_adapters(tmp_path)
    file = tmp_path / "lora" / "adapter_model.safetensors"
    weights = load_file(file)
    name = next(key for key in weights if "lora_B" in key)
    save_file({key: value for key, value in weights.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lora' lacks 1 of the 28 weights of the LoRA .*lora_B"):
        captioner("llava_onevision").load_adapters(tmp_path)


@pytest.mark.slow
def test_peft_itself_reads_the_saved_lora(tmp_path: Path) -> None:
    from peft import PeftModel

    model = captioner("llava_onevision")
    model.add_adapter("lora", LoraAdapter, rank=4, alpha=8, modules_to_save=[PROJECTOR])
    for part in (model.net.model.model.vision_tower, model.net.model.model.image_newline):  # type: ignore[union-attr]
        part.requires_grad_(False)
    stir(model)
    expected = scores(model)
    model.save_adapters(tmp_path)
    again = captioner("llava_onevision")
    PeftModel.from_pretrained(again.net.model, tmp_path / "lora")  # type: ignore[union-attr]
    torch.testing.assert_close(scores(again), expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lora", "mdp"])
def test_settling_makes_sft_the_model_that_the_next_lora_can_be_switched_back_to(first: str) -> None:
    model = adapted(first=first, modules_to_save=[PROJECTOR])
    stir(model)
    before = scores(model)
    model.merge_adapters()
    settled = scores(model)
    torch.testing.assert_close(settled, before, rtol=1e-5, atol=1e-4)
    assert list(model.adapters) == ["mdp"] == list(model.hparams["adapters"])
    model.net.model.model.vision_tower.requires_grad_(False)  # type: ignore[union-attr]
    model.net.model.model.image_newline.requires_grad_(False)  # type: ignore[union-attr]
    model.add_adapter("dpo", LoraAdapter, rank=2, alpha=4, modules_to_save=[PROJECTOR])
    assert torch.equal(scores(model), settled)
    assert model.trainable_non_adapter_parameters() == []
    stir(model)
    assert not torch.allclose(scores(model), settled, atol=1e-2)
    with model.disable_adapters():
        assert torch.equal(scores(model), settled)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"targets": r".*\.q_proj|lm_head"},
        {"targets": r".*\.embed_tokens"},
        {"modules_to_save": ["lm_head"]},
    ],
)
def test_what_is_merged_into_one_of_two_tied_weights_leaves_the_other(options: dict[str, Any], tmp_path: Path) -> None:
    """As in Qwen2.5-VL-3B, whose head shares the weights of its embeddings."""
    base = VLMCaptioner(
        architecture={**architecture("qwen2_5_vl"), "tie_word_embeddings": True}, tokenizer=tokenizer("qwen2_5_vl")
    )
    base.build()
    base.save_model(tmp_path / "base")
    model = VLMCaptioner(model=str(tmp_path / "base"), max_length=6)
    model.add_adapter("lora", LoraAdapter, **{"rank": 4, "alpha": 8, **options})
    model.build()
    stir(model)
    expected = scores(model)
    model.merge_adapters()
    torch.testing.assert_close(scores(model), expected, rtol=1e-4, atol=1e-3)
    model.save_pretrained(tmp_path / "all")
    model.save_model(tmp_path / "model")
    again = VLMCaptioner(model=str(tmp_path / "model"), max_length=6)
    again.build()
    assert not again.built_net.model.config.tie_word_embeddings
    for other in (again, VLMCaptioner.from_pretrained(tmp_path / "all")):
        torch.testing.assert_close(scores(other), expected, rtol=1e-4, atol=1e-3)
    again = VLMCaptioner(model=str(tmp_path / "base"), max_length=6)
    again.build()
    again.load_state_dict(model.state_dict())
    assert not again.built_net.model.config.tie_word_embeddings
    torch.testing.assert_close(scores(again), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_checkpoints_hold_both_and_rebuild_them(tmp_path: Path) -> None:
    model = adapted(modules_to_save=[PROJECTOR])
    stir(model)
    model.save_pretrained(tmp_path)
    again = VLMCaptioner.from_pretrained(tmp_path)
    assert torch.equal(scores(again), scores(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": ["model.brain"]}, "has no module 'model.brain'"),
        ({"targets": "nothing"}, "cannot be added to"),
        ({"targets": ".*(q_proj"}, r"targets is '\.\*\(q_proj', which is not a regular expression"),
        ({"rank": 0}, "rank is 0"),
        ({"alpha": 0}, "alpha is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"modules_to_save": ["model.nose"]}, "has no module 'model.nose'"),
    ],
)
def test_invalid_combinations_raise_an_error(options: dict[str, Any], message: str) -> None:
    model = captioner("llava_onevision")
    with pytest.raises(ConfigError, match=message):
        model.add_adapter("lora", LoraAdapter, **options)


def test_a_second_lora_is_refused() -> None:
    model = adapted()
    with pytest.raises(ConfigError, match="merge_adapters"):
        model.add_adapter("again", LoraAdapter)


def test_callbacks_carry_the_paper_s_numbers() -> None:
    lora, mdp = LoRA(), MDPAdapter()
    assert (lora.options["rank"], lora.options["alpha"]) == (128, 256)
    assert LoraAdapter(**lora.options).options["lora_alpha"] == 256 and MDP(**mdp.options).options["stacked"] == 2

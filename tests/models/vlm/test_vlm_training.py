"""VLMCaptioner with a Trainer, its checkpoints, and the sources of its models."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import QUIET
from helpers.vlm_tiny import ARCHITECTURES, ColorPairs, ColorSource, architecture, captioner, samples
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import CheckpointError, ConfigError


def small(**options: Any) -> VLMCaptioner:
    defaults: dict[str, Any] = dict(
        architecture=architecture("llava_onevision"), optimizer=lambda groups: torch.optim.AdamW(groups, lr=5e-3)
    )
    return VLMCaptioner(**{**defaults, **options})


def fit(model: VLMCaptioner, callbacks: list[Callback], folder: Path, **options: Any) -> VLMCaptioner:
    seed_everything(3, workers=True, verbose=False)
    ckpt_path = options.pop("ckpt_path", None)
    defaults: dict[str, Any] = dict(limit_val_batches=0, enable_checkpointing=False, default_root_dir=folder)
    trainer = Trainer(callbacks=callbacks, **{**QUIET, **defaults, **options})
    trainer.fit(model, ColorPairs(batch_size=6, seed=1), ckpt_path=ckpt_path)
    return model


def adapters() -> list[Callback]:
    return [LoRA(rank=4, alpha=8), MDPAdapter()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vlm")
    model = fit(small(), [MDPAdapter()], folder, max_epochs=1)
    model.trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt"


@pytest.mark.slow
def test_it_learns_its_tokens_and_to_describe(tmp_path: Path) -> None:
    fit(small(), [MDPAdapter()], tmp_path, max_epochs=20).trainer.save_checkpoint(tmp_path / "a.ckpt")
    model = load_captioner(tmp_path / "a.ckpt")
    Trainer(**QUIET).test(model, ColorPairs(), verbose=False)
    assert model.scores is not None and model.scores.as_dict()["CIDEr-D"] > 50
    assert isinstance(model, VLMCaptioner) and list(model.adapters) == ["mdp"]
    source = ColorSource(6, 900)
    sentences = {text for index in range(6) for text in source.captions(index)}
    for index in range(6):
        sample = source.load(index)
        caption = model.describe(sample.before, sample.after)
        assert caption.text in sentences and caption.log_prob <= 0


@pytest.mark.slow
def test_a_test_without_callbacks_brings_tokens_and_adapters(trained: Path) -> None:
    class Chatty(ColorPairs):
        def train_captions(self) -> list[str]:
            return ["other words give other tokens", *super().train_captions()]

    fresh = small()
    Trainer(**QUIET).test(fresh, Chatty(), ckpt_path=trained, verbose=False)
    assert fresh.hparams["tokenizer"] == load_captioner(trained).hparams["tokenizer"]
    assert list(fresh.adapters) == ["mdp"]
    assert fresh.scores is not None and len(fresh.predictions) == len(ColorPairs().pairs_of("test"))


@pytest.mark.slow
def test_a_warm_start_keeps_the_tokens_of_its_weights(trained: Path, tmp_path: Path) -> None:
    warm = fit(small(init_from=str(trained), tokenizer_size=300), [LoRA(rank=2, alpha=4)], tmp_path, max_steps=0)
    start = load_captioner(trained)
    assert warm.hparams["tokenizer"] == start.hparams["tokenizer"] and list(warm.adapters) == ["mdp", "lora"]
    batch = start.collate([ColorSource(2, 0).load(i) for i in range(2)])
    with torch.no_grad():
        scores = [m.eval().score(m.encode(batch), batch.tokens, batch.caption_mask) for m in (start, warm)]
    assert torch.equal(*scores)


@pytest.mark.slow
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole = fit(small(), adapters(), tmp_path, max_epochs=2)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit(small(), [*adapters(), saver], tmp_path, max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    resumed = fit(small(), adapters(), tmp_path, max_epochs=2, ckpt_path=tmp_path / "half.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_groups_have_the_paper_s_learning_rates(tmp_path: Path) -> None:
    model = small(learning_rates={"vision": 0.2}, optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-5))
    fit(model, adapters(), tmp_path, max_steps=1)
    groups = {group["name"]: group for group in model.trainer.optimizers[0].param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == pytest.approx(
        {"vision": 2e-6, "language": 1e-5, "adapters.mdp": 1e-5}
    )
    tower = {id(p) for p in model.net.model.model.vision_tower.parameters() if p.requires_grad}  # type: ignore[union-attr]
    assert {id(p) for p in groups["vision"]["params"]} == tower
    lora = [id(p) for name, p in model.named_parameters() if "lora_" in name]
    assert set(lora) <= {id(p) for p in groups["language"]["params"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llava_onevision", "qwen2_5_vl", "internvl", "idefics3"])
def test_activation_checkpointing_changes_no_gradient(kind: str) -> None:
    from lightning_idc.methods.m3diff.mdp import MDP

    def gradients(checkpointing: bool) -> list[Tensor]:
        model = captioner(kind, activation_checkpointing=checkpointing)
        model.add_adapter("mdp", MDP)
        generator = torch.Generator().manual_seed(2)
        for parameter in model.adapters.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        model.train()
        batch = model.collate(samples())
        model.caption_loss(model.encode(batch), batch).backward()
        assert model.adapters["mdp"].mdp.recomputes == checkpointing  # type: ignore[union-attr]
        assert model.net.rewriters[0].hidden_states == {}  # type: ignore[union-attr]
        return [p.grad for p in model.parameters() if p.grad is not None]

    plain, checkpointed = gradients(False), gradients(True)
    assert len(plain) == len(checkpointed)
    for a, b in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ---- where models come from ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name in ARCHITECTURES if name != "smolvlm"])
def test_a_folder_gives_the_same_model_again(kind: str, tmp_path: Path) -> None:
    model = captioner(kind)
    model.save_model(tmp_path)
    again = VLMCaptioner(model=str(tmp_path), prompt="what changed?", captions_per_pair=3, max_length=6)
    again.build()
    again.eval()
    batch = model.collate(samples())
    other = again.collate(samples())
    assert torch.equal(batch.tokens, other.tokens)
    assert torch.equal(batch.model_inputs["prompt_ids"], other.model_inputs["prompt_ids"])
    with torch.no_grad():
        expected = model.log_probs(model.encode(batch), batch.tokens)
        assert torch.equal(again.log_probs(again.encode(other), other.tokens), expected)


@pytest.mark.slow
def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    captioner("llava_onevision").save_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = [name for name in weights if "lm_head" in name]
    save_file({k: v for k, v in weights.items() if k not in lost}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights .* lm_head"):
        VLMCaptioner(model=str(tmp_path)).build()


def test_a_hub_id_that_cannot_be_had_fails_at_once() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    start = time.monotonic()
    with pytest.raises(ConfigError, match="hf download nobody/no-such-model"):
        VLMCaptioner(model="nobody/no-such-model").build()
    assert time.monotonic() - start < 10


def from_folder(folder: Path, **options: Any) -> VLMCaptioner:
    return small(architecture=None, model=str(folder), **options)


@pytest.mark.slow
def test_checkpoints_leave_frozen_weights_to_the_model_they_came_from(tmp_path: Path) -> None:
    captioner("llava_onevision").save_model(tmp_path / "stock")
    model = fit(from_folder(tmp_path / "stock"), adapters(), tmp_path, max_steps=2)
    model.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    saved = torch.load(tmp_path / "sft.ckpt", weights_only=True)["state_dict"]
    left = model.state_dict().keys() - saved.keys()
    assert left == {name for name, p in model.named_parameters() if not p.requires_grad}
    assert any("language_model" in name for name in left) and not any("lora" in name for name in left)
    again = load_captioner(tmp_path / "sft.ckpt")
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name

    # if a later stage freezes or merges trained weights, its checkpoint must contain them, because `model` does not
    later = from_folder(tmp_path / "stock", init_from=str(tmp_path / "sft.ckpt"), merge_adapters=True)
    fit(later, [LoRA(rank=2, alpha=4, name="dpo")], tmp_path, max_steps=0)
    later.net.requires_grad_(False)  # type: ignore[union-attr]
    later.trainer.save_checkpoint(tmp_path / "dpo.ckpt")
    end = load_captioner(tmp_path / "dpo.ckpt")
    for name, value in later.state_dict().items():
        assert torch.equal(end.state_dict()[name], value), name


@pytest.mark.slow
def test_weights_that_a_checkpoint_must_bring_are_missed(tmp_path: Path) -> None:
    captioner("llava_onevision").save_model(tmp_path / "stock")
    model = fit(from_folder(tmp_path / "stock"), adapters(), tmp_path, max_steps=1)
    state = {name: value for name, value in model.state_dict().items() if "lora_A" not in name}
    with pytest.raises(RuntimeError, match="lora_A"):
        model.load_state_dict(state)


def test_weights_that_a_sharded_checkpoint_must_bring_are_missed(tmp_path: Path) -> None:
    captioner("llava_onevision").save_model(tmp_path)
    model = VLMCaptioner(model=str(tmp_path), max_length=6)
    model.build()
    kept = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    # under a mesh, Lightning has already loaded the weights at this point and skipped missing ones
    model._device_mesh = object()  # type: ignore[assignment]
    assert not model.strict_loading
    model.on_load_checkpoint({"weights": kept})
    with pytest.raises(CheckpointError, match="lacks 1 weights that this model trains"):
        model.on_load_checkpoint({"weights": kept[1:]})


@pytest.mark.slow
def test_resume_of_a_loaded_model_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    captioner("llava_onevision").save_model(tmp_path / "stock")
    whole = fit(from_folder(tmp_path / "stock"), adapters(), tmp_path, max_steps=6)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=3, save_top_k=-1)
    fit(from_folder(tmp_path / "stock"), [*adapters(), saver], tmp_path, max_steps=3, enable_checkpointing=True)
    half = tmp_path / "half.ckpt"
    resumed = fit(from_folder(tmp_path / "stock"), adapters(), tmp_path, max_steps=6, ckpt_path=half)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set either"),
        ({"model": "x", "architecture": {}}, "set either"),
        ({"model": "x", "scoring": "quick"}, "packed, cached, plain"),
        ({"model": "x", "scoring": "cached", "activation_checkpointing": True}, "use `packed`"),
    ],
)
def test_invalid_combinations_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VLMCaptioner(**options)


def test_an_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known: llava_onevision"):
        VLMCaptioner(architecture={"model_type": "bert"}, tokenizer="{}").build()


def test_parts_of_a_mixture_have_prompts_of_their_own() -> None:
    model = captioner("llava_onevision")
    plain, asked = samples()
    asked.meta["part"] = "long"
    tokenizer = model.net.processor.tokenizer  # type: ignore[union-attr]
    inputs = model.collate([plain, asked]).model_inputs
    texts = [tokenizer.decode(row[mask]) for row, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)]
    assert "what changed?" in texts[0] and "how do the two pictures differ" in texts[1]


def test_a_chat_template_frames_the_question() -> None:
    model = captioner("llava_onevision")
    model.net.processor.chat_template = (  # type: ignore[union-attr]
        "{% for m in messages %}{{ m['role'] }}:{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %} answer:"
    )
    ids = model.prompt_ids("why?", 48, 48)
    assert ids.count(model.net.model.config.image_token_id) == 34  # type: ignore[union-attr]
    text = model.net.processor.tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[union-attr]
    assert text.startswith("user:") and text.endswith("why? answer:")

"""Costs of a training step: operators, reads from the device, and floating-point operations counted by torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import QUIET
from helpers.vlm_tiny import ColorPairs, architecture, captioner, samples, tokenizer
from lightning.pytorch import Callback, Trainer, seed_everything
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.policy.references import AdaptersOff
from lightning_idc.models.loss_check import LossCheck
from lightning_idc.models.vlm.costs import cost_of_pair
from lightning_idc.models.vlm.folding import folded
from lightning_idc.models.vlm.lora import LoRA, LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.precision import set_precision
from lightning_idc.models.vlm.static_cache import StaticDecoding

LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")
METHODS = (Tensor.tolist, Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.numpy)


# ---- reads from the device -------------------------------------------------------------------------------


class Reads(Callback):
    """Records reads from tensors between the start of a batch and the optimizer's step.

    On a CPU the method `tolist` bypasses the dispatcher, so method calls are recorded, too. Reads in
    `get_image_features` are ignored: there, transformers reads image sizes from a tensor that stays on the CPU.
    """

    def __init__(self) -> None:
        self.reads: list[str] = []

    def on_train_batch_start(self, *unused: Any) -> None:
        reads = self.reads

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = func.name().removeprefix("aten::").partition(".")[0]
                is_masked = name in ("index", "index_put", "index_put_") and any(
                    isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
                )
                if name.startswith(READS) or is_masked:
                    _note(reads, name)
                return func(*args, **(kwargs or {}))

        class Methods(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func in METHODS:
                    _note(reads, func.__name__)
                return func(*args, **(kwargs or {}))

        self.modes = [Operators(), Methods()]
        for mode in self.modes:
            mode.__enter__()

    def on_before_optimizer_step(self, *unused: Any) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(None, None, None)


def _note(reads: list[str], name: str) -> None:
    frame = sys._getframe(2)
    while frame.f_back and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    # methods sample captions on the host
    if function != "get_image_features" and "/lightning_idc/methods/" not in path:
        reads.append(f"{name} in {Path(path).name}:{frame.f_lineno} {function}")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("kind", ["one caption", "two captions", "preferences"])
def test_a_step_reads_nothing_from_the_device(
    model_type: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a CPU, the loss is checked at once; on an accelerator, one step later
    monkeypatch.setattr(LossCheck, "update", lambda *unused: None)
    seed_everything(1, verbose=False)
    model = captioner(model_type, captions_per_pair=2 if kind == "two captions" else 1, scoring="packed")
    reads = Reads()
    # as the last callback, Reads starts after the other callbacks at a batch start and stops after them before the step
    callbacks: list[Callback] = [LoRA(rank=2, alpha=4, targets=LANGUAGE, freeze=["model", "lm_head"])]
    if kind == "preferences":
        callbacks.append(PreferenceOptimization(reference=AdaptersOff()))
    trainer = Trainer(
        **{**QUIET, "callbacks": [*callbacks, reads], "max_steps": 2, "limit_val_batches": 0},
        precision="bf16-mixed",
        default_root_dir=tmp_path,
    )
    trainer.fit(model.train(), ColorPairs(batch_size=4))
    assert reads.reads == []


# ---- operators -------------------------------------------------------------------------------------------


class Operators(TorchDispatchMode):
    """Counts operators except views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func.name() != "aten::detach"
        return func(*args, **(kwargs or {}))


def small_qwen(depth: int = 2, layers: int = 2) -> VLMCaptioner:
    """Create a narrow Qwen2.5-VL with the published patch and window sizes."""
    config = architecture("qwen2_5_vl")
    tower = {"depth": depth, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
    config["vision_config"] = {**tower, "fullatt_block_indexes": [depth - 1]}
    config["text_config"] = {**config["text_config"], "num_hidden_layers": layers, "max_position_embeddings": 4096}
    torch.manual_seed(0)
    model = VLMCaptioner(architecture=config, tokenizer=tokenizer("qwen2_5_vl"), max_length=6, captions_per_pair=1)
    model.build()
    return model


def operators_of_the_tower(depth: int, pairs: int) -> int:
    model = small_qwen(depth)
    batch = model.collate(samples(pairs, 448))
    with torch.no_grad(), Operators() as mode:
        model.encode(batch)
    return mode.count


@pytest.mark.slow
def test_a_block_of_the_tower_takes_few_operators_however_many_pairs() -> None:
    one, two = operators_of_the_tower(2, 1), operators_of_the_tower(2, 2)
    assert two == one
    assert operators_of_the_tower(4, 1) - one <= 2 * 32


def operators_of_a_step(layers: int) -> int:
    """Count the operators of a forward and backward pass with LoRA under autocast."""
    model = small_qwen(layers=layers)
    LoraAdapter(rank=2, alpha=4, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
    set_precision(model.built_net, torch.bfloat16)
    batch = model.collate(samples(2, 56))
    with torch.autocast("cpu", torch.bfloat16), Operators() as mode:
        features = model.encode(batch)
        model.score(features, batch.tokens, batch.caption_mask).sum().backward()
    return mode.count


def test_a_layer_with_lora_takes_few_operators() -> None:
    small, large = operators_of_a_step(2), operators_of_a_step(4)
    assert (large - small) / 2 <= 212
    assert small - (large - small) <= 162, "operators outside of the layers"


def operators_of_decoding(layers: int, is_static: bool) -> int:
    """Count the operators of one decoding step with a merged LoRA."""
    model = small_qwen(layers=layers).eval()
    LoraAdapter(rank=2, alpha=4, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
    tokens = torch.ones(2, dtype=torch.long)
    with torch.no_grad(), folded(model.built_net):
        net = StaticDecoding(model.built_net, rows_per_pair=1, max_length=4) if is_static else model.built_net
        state: Any = net.start(model.encode(model.collate(samples(2, 56))))
        net.step(state, tokens)
        with Operators() as mode:
            net.step(state, tokens)
    return mode.count


@pytest.mark.slow
@pytest.mark.parametrize(("is_static", "in_a_layer", "outside"), [(False, 43, 20), (True, 49, 33)])
def test_a_token_takes_few_operators(is_static: bool, in_a_layer: int, outside: int) -> None:
    small, large = operators_of_decoding(2, is_static), operators_of_decoding(4, is_static)
    assert (large - small) / 2 <= in_a_layer
    assert small - (large - small) <= outside


def saved_bytes_of_a_token(layers: int) -> float:
    """Bytes per token that the forward pass with LoRA saves for the backward pass, without the weights."""
    model = small_qwen(layers=layers)
    LoraAdapter(rank=2, alpha=4, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
    set_precision(model.built_net, torch.bfloat16)
    batch = model.collate(samples(2, 56))
    saved: dict[int, torch.UntypedStorage] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with torch.autocast("cpu", torch.bfloat16), hooks:
        features = model.encode(batch)
        model.score(features, batch.tokens, batch.caption_mask)
        num_tokens = len(batch) * (features.extras["prompt_ids"].shape[1] + batch.tokens.shape[-1] - 1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(storage.nbytes() for address, storage in saved.items() if address not in weights) / num_tokens


@pytest.mark.slow
def test_a_layer_with_lora_saves_few_bytes_per_token() -> None:
    assert (saved_bytes_of_a_token(4) - saved_bytes_of_a_token(2)) / 2 <= 1011


def test_lora_without_casts_of_its_input_computes_the_same() -> None:
    results = []
    for casts in (False, True):
        model = small_qwen()
        torch.manual_seed(1)
        LoraAdapter(rank=2, alpha=4, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
        set_precision(model.built_net, torch.bfloat16)
        for part in model.modules():
            if hasattr(part, "cast_input_dtype_enabled"):
                part.cast_input_dtype_enabled = casts  # type: ignore[assignment]
        batch = model.collate(samples(2, 56))
        with torch.autocast("cpu", torch.bfloat16):
            scores = model.score(model.encode(batch), batch.tokens, batch.caption_mask)
        scores.sum().backward()
        gradients = [p.grad for name, p in model.named_parameters() if "lora_" in name]
        results.append((scores.detach(), gradients))
    (scores, gradients), (others, other_gradients) = results
    assert torch.equal(scores, others)
    assert gradients and all(torch.equal(*both) for both in zip(gradients, other_gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "low", "tolerance"), [(4, torch.bfloat16, 0.0), (3, None, 1e-5)])
def test_lora_in_one_sum_computes_what_peft_does(alpha: float, low: torch.dtype | None, tolerance: float) -> None:
    results = []
    for is_plain in (False, True):
        model = small_qwen()
        torch.manual_seed(1)
        LoraAdapter(rank=2, alpha=alpha, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
        layers = [part for part in model.modules() if hasattr(part, "lora_variant")]
        assert all(layer.lora_variant for layer in layers)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
        if is_plain:
            for layer in layers:
                layer.lora_variant.clear()  # type: ignore[operator]
        set_precision(model.built_net, low)
        batch = model.collate(samples(2, 56))
        with torch.autocast("cpu", low, enabled=low is not None):
            scores = model.score(model.encode(batch), batch.tokens, batch.caption_mask)
        scores.sum().backward()
        results.append([scores.detach(), *(p.grad for name, p in model.named_parameters() if "lora_" in name)])
    for value, expected in zip(*results, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(value, expected, rtol=0, atol=tolerance * scale)


# ---- floating-point operations ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [True, False])
def test_planned_operations_are_those_that_torch_counts(adapted: bool) -> None:
    config = architecture("qwen2_5_vl")
    tower = {"depth": 3, "hidden_size": 128, "num_heads": 2, "intermediate_size": 256, "out_hidden_size": 256}
    config["vision_config"] = {**tower, "fullatt_block_indexes": [2]}
    text = {**config["text_config"], "hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 4096}
    text |= {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 8, 8], "rope_theta": 1e4}}
    config["text_config"] = text
    torch.manual_seed(0)
    model = VLMCaptioner(architecture=config, tokenizer=tokenizer("qwen2_5_vl"), max_length=6, captions_per_pair=1)
    model.build()
    if adapted:
        LoraAdapter(rank=4, alpha=8, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
    batch = model.collate(samples(1, 224))
    with FlopCounterMode(display=False) as counter:
        model.score(model.encode(batch), batch.tokens, batch.caption_mask).sum().backward()
    answers = batch.tokens.shape[-1] - 1
    prompt = str(model.hparams["prompt"])
    cost = cost_of_pair(
        model.built_net, [], (224, 224), prompt, answers, is_mixed_precision=False, activation_checkpointing=False
    )
    assert cost.step_flops == pytest.approx(counter.get_total_flops(), rel=0.03)

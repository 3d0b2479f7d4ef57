"""Vision-language models on a GPU: exact scores, precisions, memory. Some tests also run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.devices import BOTH, exact_products
from helpers.training import quiet_trainer
from helpers.vlm_tiny import MROPE, PROMPTS, ColorPairs, architecture, captioner, samples, tokenizer
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lightning_idc.models.vlm import chunked
from lightning_idc.models.vlm.checking import pick_scoring, stock_log_probs
from lightning_idc.models.vlm.chunked import chunked_log_probs, log_probs_by_chunks
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.plan import GIB, plan_of_stage
from lightning_idc.models.vlm.scoring import SCORING_METHODS

KINDS = ["qwen2_5_vl", "qwen3_vl", "llava_onevision", "internvl"]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with exact_products():
        yield


def stirred(kind: str, std: float) -> VLMCaptioner:
    """Random captioner whose answers depend on the pair, with differences larger than 16-bit rounding."""
    model = captioner(kind)
    for name, parameter in model.built_net.named_parameters():
        if parameter.ndim > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=std)
    return model


# ---- scores and captions ---------------------------------------------------------------------------------


@torch.no_grad()
def scores_of(model: VLMCaptioner, device: str) -> dict[str, Tensor]:
    """Log-probabilities of all words, in sequence, by the stock model and by each scoring method."""
    pairs = samples(2)
    pairs[1].meta["part"] = "long"  # a prompt of another length, so that there is padding
    batch = model.collate(pairs).to(device)
    rows = [(b, k, caption) for b, pair in enumerate(pairs) for k, caption in enumerate(pair.captions)]
    lengths = [len(model.tokenize([caption])[0]) for _, _, caption in rows]
    result: dict[str, list[Tensor]] = {"stock": []}
    for b, _, caption in rows:
        pair, asked = torch.stack([pairs[b].before, pairs[b].after]), PROMPTS["long"] if b else "what changed?"
        answer = model.tokenize([caption])[0][1:]
        result["stock"].append(stock_log_probs(model.built_net, asked, pair, [answer])[0])
    for way in SCORING_METHODS:
        model.built_net.scoring = way
        scored = model.log_probs(model.encode(batch), batch.tokens)
        result[way] = [scored[b, k, 1:length] for (b, k, _), length in zip(rows, lengths, strict=True)]
    return {name: torch.cat(parts).float().cpu() for name, parts in result.items()}


@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_of_scoring_equal_the_stock_model(kind: str, device: str) -> None:
    model = stirred(kind, 0.1).to(device)
    whole = scores_of(model, device)
    assert whole["stock"].std() > 0.05
    for way in SCORING_METHODS:
        torch.testing.assert_close(whole[way], whole["stock"], rtol=1e-5, atol=1e-4, msg=way)
    low = scores_of(model.to(torch.bfloat16), device)
    rounding = (low["stock"] - whole["stock"]).abs().max()
    assert 0 < rounding < 0.2
    for way in SCORING_METHODS:
        # the error is at most twice that of the stock model in 16 bits
        assert (low[way] - whole["stock"]).abs().max() <= 2 * rounding, way
    model.built_net.scoring = "auto"
    assert pick_scoring(model.built_net) == "packed"


@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_batched_greedy_equals_generate(kind: str, device: str) -> None:
    model = captioner(kind).to(device)
    net, special = model.built_net, model.built_vocabulary.special
    pairs = samples(3)
    pairs[2].meta["part"] = "long"
    expected = []
    with torch.no_grad():
        for pair in pairs:
            asked = PROMPTS["long"] if pair.meta else "what changed?"
            inputs = net.family.inputs(net.processor, [asked], [torch.stack([pair.before, pair.after])])
            inputs = {name: value.to(device) for name, value in inputs.items()}
            out: Tensor = net.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=6,
                eos_token_id=list(special.ends),
                pad_token_id=special.pad,
                suppress_tokens=list(special.suppress_tokens),
            )
            expected.append(model.built_vocabulary.decode(out[0, inputs["input_ids"].shape[1] :].tolist()))
        said = model.generate(model.encode(model.collate(pairs).to(device)), max_length=6)
    assert [caption.text for caption in said] == expected and len(set(expected)) > 1


# ---- training in 16 bits ---------------------------------------------------------------------------------


class Keep(Callback):
    """Records the initial trainable weights and the gradients of the first step."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters() if p.requires_grad}
        self.gradients: dict[str, Tensor] = {}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        if not self.gradients:
            named = pl_module.named_parameters()
            self.gradients = {name: p.grad.detach().cpu().clone() for name, p in named if p.grad is not None}


def trained(stock: Path, folder: Path, device: str, precision: Any, steps: int = 6) -> tuple[VLMCaptioner, Keep]:
    seed_everything(3, workers=True, verbose=False)
    model = VLMCaptioner(
        model=str(stock),
        prompt="what changed?",
        max_length=6,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-5),
    )
    keep = Keep()
    callbacks = [LoRA(rank=4, alpha=8), keep]
    trainer = quiet_trainer(device, folder, precision=precision, max_steps=steps, callbacks=callbacks)
    trainer.fit(model, ColorPairs(batch_size=6, seed=1))
    return model, keep


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stirred("qwen2_5_vl", 0.1).save_model(tmp_path_factory.mktemp("stock"))


@pytest.mark.slow
@pytest.mark.parametrize("device", BOTH)
def test_what_trains_in_16_bits_is_whole_moves_and_has_the_same_gradients(
    device: str, stock: Path, tmp_path: Path
) -> None:
    model, keep = trained(stock, tmp_path, device, "bf16-mixed")
    now = {name: p.detach() for name, p in model.named_parameters()}
    trains = {name: p for name, p in now.items() if name in keep.before}
    assert {p.dtype for p in trains.values()} == {torch.float32}
    assert {p.dtype for name, p in now.items() if name not in trains} == {torch.bfloat16}
    moved = {name: float((p.to(device) != keep.before[name]).float().mean()) for name, p in trains.items()}
    # lora_A changes only after lora_B, which is 0 at first
    assert min(share for name, share in moved.items() if "lora_A" not in name) > 0.9 and min(moved.values()) > 0
    _, right = trained(stock, tmp_path, device, "32-true", 1)
    assert keep.gradients.keys() == right.gradients.keys()
    cosines = {}
    for part in ("blocks", "merger", "lora_B"):
        mine, other = (
            torch.cat([grad.flatten() for name, grad in kept.gradients.items() if part in name])
            for kept in (keep, right)
        )
        cosines[part] = float(torch.nn.functional.cosine_similarity(mine, other, dim=0))
    assert min(cosines.values()) > 0.99, cosines


# ---- memory ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")
@pytest.mark.parametrize("way", ["default", "loop"])
def test_log_probs_by_chunks_take_less_memory(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(256, 60_000, bias=False, device="cuda")
    start, targets = torch.randn(1280, 256, device="cuda"), torch.arange(1280, device="cuda")

    def outcome(by: str) -> tuple[list[Tensor], int]:
        states = start.clone().requires_grad_()
        head.zero_grad()
        monkeypatch.setattr(chunked, "MAX_UNCHUNKED_LOGITS", 1 << 40 if by == "once" else 0)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        if by == "loop":
            result = log_probs_by_chunks(states, head.weight, None, targets)
        else:
            result = chunked_log_probs(states, head, targets)
        result.sum().backward()
        peak = torch.cuda.max_memory_allocated() - held
        assert states.grad is not None and head.weight.grad is not None
        return [result.detach(), states.grad, head.weight.grad.clone()], peak

    outcome("once")  # cuBLAS allocates its workspaces in the first run
    (expected, once), (result, little) = outcome("once"), outcome(way)
    for mine, right in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)
    assert little < 0.6 * once, (little, once)


WIDE: dict[str, Any] = {
    "vision_config": dict(
        depth=8,
        hidden_size=640,
        num_heads=8,
        intermediate_size=1712,
        out_hidden_size=768,
        patch_size=14,
        window_size=112,
        fullatt_block_indexes=[3, 7],
    ),
    "text_config": dict(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=32_000,
        tie_word_embeddings=False,
        rope_parameters={**MROPE, "mrope_section": [8, 12, 12]},
    ),
}
SIDE = 448


class Peak(Callback):
    """Records the memory after a step and the peak within it."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.held, self.most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")
@pytest.mark.parametrize("recomputes", [False, True])
def test_the_plan_is_what_a_gpu_holds(recomputes: bool, tmp_path: Path) -> None:
    made = VLMCaptioner(
        architecture={**architecture("qwen2_5_vl"), **WIDE}, tokenizer=tokenizer("qwen2_5_vl"), max_length=6
    )
    made.build()
    made.save_model(tmp_path / "stock")
    options: dict[str, Any] = {
        "model": str(tmp_path / "stock"),
        "max_length": 16,
        "captions_per_pair": 2,
        "min_pixels": SIDE**2,
        "max_pixels": SIDE**2,
        "activation_checkpointing": recomputes,
    }
    lora = {"class_path": "lightning_idc.callbacks.LoRA", "init_args": {"rank": 16, "alpha": 32}}
    plan = plan_of_stage(
        {
            "trainer": {"precision": "bf16-mixed", "callbacks": [lora]},
            "model": {"class_path": "lightning_idc.models.VLMCaptioner", "init_args": options},
            "data": {"init_args": {"batch_size": 4}},
        }
    )
    peak, before = Peak(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    callbacks = [LoRA(rank=16, alpha=32), peak]
    trainer = quiet_trainer("cuda", tmp_path, precision="bf16-mixed", max_steps=3, callbacks=callbacks)
    trainer.fit(VLMCaptioner(**options), ColorPairs(batch_size=4, seed=1))
    held, most = peak.held - before, peak.most - before
    planned = plan.states + plan.activations
    print(f"held {held / GIB:.2f} GiB, planned {plan.states / GIB:.2f}; most {most / GIB:.2f}, {planned / GIB:.2f}")
    # cuBLAS keeps workspaces of 32 MiB, one for each kind of product
    assert abs(held - plan.states) < 0.1 * plan.states + 128 * 2**20
    assert 0.6 < most / planned < 1.5

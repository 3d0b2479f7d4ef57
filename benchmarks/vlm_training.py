"""How fast do SFT, DPO, ADPO and GRPO train a two-image vision-language model, compared with TRL and the hardware?

    python -m benchmarks.vlm_training --size small_qwen --steps 3  # smoke test on a CPU
    python -m benchmarks.vlm_training --size qwen2_5_vl_3b --batch 8 --steps 12 --seconds 440  # a GPU of 80 GB
    python -m benchmarks.vlm_training --rows "trl sft" sft [--out FILE]

Random weights in bf16, two images a pair (448 pixels at full shapes), answers of 48 words, LoRA of rank 16 on the
language model; the reference of DPO is the model without LoRA. No gradient checkpointing, clipped gradients, fused
AdamW. ``trl sft`` and ``trl dpo`` are TRL's trainers with the same model, pairs and settings; with four captions per
pair, TRL gets four rows for each pair. TRL's vision tower attends to all windows at once, as ours does, in all rows but
``stock``, where transformers calls attention once per window. ``compiled`` is ``compile: layers`` for ours and
``torch_compile`` for TRL. All rows run one after the other in one process; rows that would begin after ``--seconds``
are skipped.

``limit`` measures the machine first: products of large matrices, copies, and how long the host takes to launch a
kernel. ``of_limit`` is the fraction of that rate of products that a step reaches, by the operations that torch counts
in a step. ``seconds_per_step`` is the median of the steps after the third, ``spread`` the 10th and 90th percentile; it
excludes the loading of batches, which ``with_loading`` includes. ``first_loss`` is the loss of the first step, the same
batch on both sides. A step of GRPO includes sampling four captions per pair.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback  # noqa: E402

from benchmarks.captioner_training import CLIP_SMALL  # noqa: E402
from benchmarks.harness import report  # noqa: E402
from benchmarks.preference_trl import (  # noqa: E402
    LANGUAGE,
    PROMPT,
    SIZES,
    Size,
    answers,
    assistant_message,
    make,
    prompt_columns,
    trl_clock,
    trl_options,
)
from benchmarks.steps import MadeUp, MadeUpPairs, Stopwatch, forget_peak, line, now, peak, steps_of, time_steps  # noqa: E402

LONGEST, PLANNED = 64, 49
"""Most tokens of a caption, and those that the answers have with their end."""


def captions_of(pairs: int, count: int) -> list[list[str]]:
    """``count`` distinct captions of each pair."""
    texts = [text for pair in answers(pairs * (count + 1) // 2) for text in pair]
    return [texts[i * count : (i + 1) * count] for i in range(pairs)]


def limits(device: str) -> dict[str, Any]:
    """Rates of products and copies on this device, medians of ten."""
    side = 8192 if device == "cuda" else 1024
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    big = torch.randn(2**28 if device == "cuda" else 2**24, device=device)
    into = torch.empty_like(big)

    def median(work: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(13):
            began = now(device)
            work()
            seconds.append(now(device) - began)
        return steps_of(seconds[2:])["seconds_per_step"]

    small = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(10_000):
            small.add_(1)

    return {
        "products_tflop_s": 2 * side**3 / median(lambda: left @ right) / 1e12,
        "copies_tb_s": 2 * big.nbytes / median(lambda: into.copy_(big)) / 1e12,
        "launch_us": median(launch) / 10_000 * 1e6,
        "cores": len(os.sched_getaffinity(0)),
    }


def lora() -> Any:
    from lightning_idc.models.vlm.lora import LoRA

    return LoRA(rank=16, alpha=32, targets=LANGUAGE, freeze=["model", "lm_head"])


def retriever_of(folder: Path, device: str) -> str:
    """Checkpoint of a random CLIP4IDC, ViT-B/32 on a GPU and smaller elsewhere."""
    from lightning.pytorch import Trainer

    from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

    model = Clip4IdcRetrieval() if device == "cuda" else Clip4IdcRetrieval(CLIP_SMALL, intra_layers=1)
    model.build()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "retriever.ckpt")
    return str(folder / "retriever.ckpt")


def callbacks_of(row: str, folder: Path, device: str) -> list[Any]:
    from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
    from lightning_idc.methods.adpo.preference import PreferenceOptimization
    from lightning_idc.methods.policy.policy import GroupRelative
    from lightning_idc.methods.policy.references import AdaptersOff
    from lightning_idc.methods.policy.rewards import LengthReward

    if row == "grpo":
        return [GroupRelative(LengthReward(8, 64), samples=4)]
    if row.startswith("sft"):
        return []
    callbacks: list[Any] = [PreferenceOptimization(reference=AdaptersOff())]
    if row == "adpo":
        callbacks.append(AdversarialRetriever())
    elif row == "adpo, CLIP":
        callbacks.append(AdversarialRetriever(encoder=retriever_of(folder, device)))
    return callbacks


def of_ours(row: str, folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """Row of this library: seconds, memory, operations and, without compilation, planned bytes."""
    from lightning_idc.models.vlm.module import VLMCaptioner

    row, compiled, _ = row.partition(", compiled")
    loading = row == "sft with loading"
    count = 4 if row == "sft x4" else 1
    pairs = 8 * batch if loading else batch
    data = MadeUpPairs(size.side, captions_of(pairs, count), batch_size=batch, num_workers=8 if loading else 0)
    captioner = VLMCaptioner(
        model=str(folder),
        prompt=PROMPT,
        captions_per_pair=count,
        max_length=LONGEST,
        dtype=size.dtype,
        compile="layers" if compiled or loading else None,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-6, weight_decay=0.0, fused=size.device == "cuda"),
    )
    callbacks = [lora(), *callbacks_of(row, folder, size.device)]
    options: dict[str, Any] = {"gradient_clip_val": 1.0, "counts": not (compiled or loading), "recounts": False}
    clock = Pace(size.device)
    figures = time_steps(captioner, data, steps, size.device, "bf16-mixed", [*callbacks, clock], folder, **options)
    if loading:
        figures["with_loading"] = clock.seconds_per_step
    if row in SCORED and not compiled:
        figures["planned"] = planned(str(folder), size.side, SCORED[row], batch)
    return figures


SCORED = {"sft": 1, "sft x4": 4, "dpo": 2, "grpo": 4}
"""Captions of a pair that a step scores."""


class Pace(Callback):
    """Seconds per step including loading, over the second half of a training."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.times: list[float] = []

    def on_train_batch_end(self, *unused: Any) -> None:
        now(self.device)
        self.times.append(time.perf_counter())

    @property
    def seconds_per_step(self) -> float:
        times = self.times[len(self.times) // 2 :]
        return (times[-1] - times[0]) / max(1, len(times) - 1)


def planned(folder: str, side: int, scored: int, batch: int) -> dict[str, float]:
    """Bytes and operations computed by ``lightning-idc plan``."""
    from lightning_idc.models.vlm.plan import StepShape, plan_of

    adapter = lora()
    step_shape = StepShape(
        image_size=(side, side),
        prompt=PROMPT,
        captions_per_pair=scored,
        max_caption_tokens=PLANNED,
        batch_size=batch,
    )
    adapters = {"lora": adapter.adapter_class(**adapter.options)}
    plan = plan_of(folder, adapters, "bf16-mixed", step_shape=step_shape)
    flops = 0.0 if plan.cost is None else plan.cost.step_flops * batch
    return {"states": plan.states, "activations": plan.activations, "flops": flops}


def of_trl(row: str, folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """Row of TRL's SFTTrainer or DPOTrainer."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from lightning_idc.models.vlm.windows import attend_segments_at_once

    preferences, compiled = row.startswith("trl dpo"), row.endswith("compiled")
    count = 4 if row.startswith("trl sft x4") else 1
    texts = captions_of(batch, 2 if preferences else count)
    images = MadeUp(size.side, texts).images
    if preferences:
        rows = [
            {"chosen": assistant_message(chosen), "rejected": assistant_message(rejected), **prompt_columns(pair)}
            for pair, (chosen, rejected) in zip(images, texts, strict=True)
        ]
    else:
        rows = [
            {"completion": assistant_message(text), **prompt_columns(pair)}
            for pair, captions in zip(images, texts, strict=True)
            for text in captions
        ]
    # compiled code does not allow that operations are counted
    watch = Stopwatch(partial(now, size.device), counts=not compiled)
    options = {**trl_options(folder, size, steps, batch * count), "bf16": True, "torch_compile": compiled}
    options |= {"logging_strategy": "steps", "logging_steps": 10**6, "logging_first_step": True}
    common: dict[str, Any] = {
        "train_dataset": Dataset.from_list(rows),
        "callbacks": [trl_clock(watch)],
        "peft_config": LoraConfig(r=16, lora_alpha=32, target_modules=LANGUAGE),
    }
    trainer: Any
    if preferences:
        trainer = DPOTrainer(str(folder), args=DPOConfig(**options), **common)
    else:
        trainer = SFTTrainer(str(folder), args=SFTConfig(**options), **common)
    if not row.endswith("stock"):
        assert attend_segments_at_once(trainer.model) > 0
    before = forget_peak(size.device)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        **watch.measurements(),
        "bytes": peak(size.device),
        "growth": peak(size.device) - before,
        "first_loss": losses[0] if losses else None,
    }


ROWS = (
    "sft",
    "trl sft",
    "sft, compiled",
    "dpo, compiled",
    "trl dpo",
    "dpo",
    "sft x4, compiled",
    "trl sft x4",
    "adpo, compiled",
    "grpo",
    "trl sft, stock",
    "trl dpo, stock",
    "sft x4",
    "trl sft x4, stock",
    "trl sft, compiled",
    "adpo",
    "adpo, CLIP, compiled",
    "sft with loading",
)
"""In order of importance, as the last ones may be left out for want of time."""


def summary(rows: dict[str, dict[str, Any]], limit: dict[str, Any], batch: int) -> dict[str, Any]:
    """Ratios within this run; also adds values to the rows that depend on other rows."""
    ratios: dict[str, Any] = {}
    for row, figures in rows.items():
        eager = rows.get(row.removesuffix(", compiled").removesuffix(", stock"), {})
        planned_flops = eager.get("planned", {}).get("flops") if row in ("sft", "sft x4", "sft, compiled") else None
        flops = figures.get("flops") or eager.get("flops") or planned_flops
        figures["pairs_per_s"] = figures.get("batch", batch) / figures["seconds_per_step"]
        if flops:
            figures["tflop_per_step"] = flops / 1e12
            figures["of_limit"] = flops / 1e12 / figures["seconds_per_step"] / limit["products_tflop_s"]
        if row.startswith("trl"):
            continue
        name, compiled, _ = row.partition(", compiled")
        for kind in ("", ", stock", ", compiled"):
            other = rows.get(f"trl {name}{kind}")
            if other is not None:
                ratios[f"{row} beside trl {name}{kind}"] = {
                    "times_faster": other["seconds_per_step"] / figures["seconds_per_step"],
                    "memory": figures["bytes"] / other["bytes"],
                    "losses_apart": losses_apart(figures, other),
                }
        plain = rows.get(f"dpo{compiled}")
        if name.startswith("adpo") and plain is not None:
            ratios[f"{row} over dpo{compiled}"] = {
                "time": figures["seconds_per_step"] / plain["seconds_per_step"],
                "memory": figures["bytes"] / plain["bytes"],
            }
        if compiled and name in rows:
            ratios[f"{row} over eager"] = {
                "times_faster": rows[name]["seconds_per_step"] / figures["seconds_per_step"],
                "losses_apart": losses_apart(figures, rows[name]),
            }
    return ratios


def losses_apart(row: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Relative difference of the losses of the first step."""
    first, second = row.get("first_loss"), other.get("first_loss")
    if first is None or second is None:
        return None
    return abs(first - second) / max(abs(second), 1e-9)


def measured(row: str, folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """Measure a row after emptying the device's memory."""
    gc.collect()
    if size.device == "cuda":
        torch.cuda.empty_cache()
    torch.manual_seed(0)
    began = time.perf_counter()
    figures = (of_trl if row.startswith("trl") else of_ours)(row, folder, size, steps, batch)
    return {"batch": batch, **figures, "seconds_in_all": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="small_qwen")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row begins after so many seconds")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    size = SIZES[arguments.size]
    rows: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    left_out: list[str] = []
    settings = {name: getattr(arguments, name) for name in ("size", "steps", "batch")}
    limit = limits(size.device)
    print(json.dumps(limit), flush=True)
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), size)
        print(f"model made in {time.perf_counter() - began:.0f} s", flush=True)
        for row in arguments.rows:
            if time.perf_counter() - began > arguments.seconds:
                left_out.append(row)
                continue
            try:
                rows[row] = measured(row, Path(name), size, arguments.steps, arguments.batch)
            except Exception as error:  # one row is not worth the others
                failed[row] = f"{type(error).__name__}: {error}"[:500]
                print(f"{row:<24} failed: {traceback.format_exc()[-3000:]}", flush=True)
                error.__traceback__ = None  # it holds the tensors of the row
                gc.collect()
                torch.cuda.empty_cache()
                continue
            ratios = summary(rows, limit, arguments.batch)
            print(line(row, rows[row], arguments.batch), f"{rows[row]['seconds_in_all']:.0f} s in all", flush=True)
            result = {"settings": settings, "limit": limit, "rows": rows, "failed": failed, "ratios": ratios}
            packages = ("lightning", "transformers", "peft", "trl", "triton")
            report(result, arguments.out, *packages, seeds=[0, 1], quiet=True)
    print(json.dumps(summary(rows, limit, arguments.batch), indent=1))
    print(f"left out for want of time: {', '.join(left_out) or 'nothing'}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

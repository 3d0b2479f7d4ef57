"""How fast do SFT, DPO, ADPO and GRPO train a two-image vision-language model, how near to the limit, beside TRL?

    python benchmarks/vlm_training.py --size small_qwen --steps 3              # tries the script on a CPU
    python benchmarks/vlm_training.py --size qwen2_5_vl_3b --batch 4 --steps 8 # needs a GPU of 80 GB
    python benchmarks/vlm_training.py --rows "trl sft" sft [--out results/gpu/vlm_training.json]

Random weights in bf16, two images a pair (448 pixels at full shapes), answers of 48 words, LoRA of rank 16 on the
language model, whose absence is the reference of DPO; nothing is recomputed. ``trl sft`` and ``trl dpo`` are TRL's
trainers on the same model, pairs and settings; with four captions a pair it gets four rows of each. ``limit`` measures
what the device does at best: products of large matrices and copies. ``of_limit`` is the share of that rate of products
that a step reaches, by the operations that ``lightning-idc plan`` counts; ``planned`` its bytes beside the measured.
GRPO draws four captions a pair by sampling, and that is in its step. Each row is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from _harness import RowFailed, give_back, measure_apart, report  # noqa: E402
from _steps import MadeUp, MadeUpPairs, Stopwatch, forget_peak, line, now, peak, steps_of, time_steps  # noqa: E402
from captioner_training import CLIP_SMALL  # noqa: E402
from preference_trl import (  # noqa: E402
    LANGUAGE,
    PROMPT,
    SIZES,
    Size,
    answers,
    asked,
    make,
    of_trl,
    said,
    trl_clock,
    trl_options,
)

LONGEST, PLANNED = 64, 49
"""Most tokens of a caption, and those that the answers have with their end."""


def captions_of(pairs: int, count: int) -> list[list[str]]:
    """``count`` different captions of each pair."""
    texts = [text for pair in answers(pairs * (count + 1) // 2) for text in pair]
    return [texts[i * count : (i + 1) * count] for i in range(pairs)]


def limits(device: str) -> dict[str, Any]:
    """Best rates of products and copies on this device, medians of ten."""
    side = 8192 if device == "cuda" else 1024
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    big = torch.randn(2**28 if device == "cuda" else 2**24, device=device)
    into = torch.empty_like(big)

    def median(work: Callable[[], Any]) -> float:
        found = []
        for _ in range(13):
            began = now(device)
            work()
            found.append(now(device) - began)
        return steps_of(found[2:])["seconds_per_step"]

    return {
        "products_tflop_s": 2 * side**3 / median(lambda: left @ right) / 1e12,
        "copies_tb_s": 2 * big.nbytes / median(lambda: into.copy_(big)) / 1e12,
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
    if not row.endswith("dpo") and not row.startswith("adpo"):
        return []
    found: list[Any] = [PreferenceOptimization(reference=AdaptersOff())]
    if row == "adpo":
        found.append(AdversarialRetriever())
    elif row == "adpo, CLIP":
        found.append(AdversarialRetriever(encoder=retriever_of(folder, device)))
    return found


def of_ours(row: str, folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """A row of this library, with its operations and planned bytes."""
    from lightning_idc.models.vlm.module import VLMCaptioner
    from lightning_idc.models.vlm.plan import Images, plan_of

    count = 4 if row == "sft x4" else 1
    data = MadeUpPairs(size.side, captions_of(max(16, 2 * batch), count), batch_size=batch)
    captioner = VLMCaptioner(
        model=str(folder),
        prompt=PROMPT,
        captions_per_pair=count,
        max_length=LONGEST,
        dtype=size.dtype,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-6),
    )
    callbacks = callbacks_of(row, folder, size.device)
    found = time_steps(captioner, data, steps, size.device, "bf16-mixed", [lora(), *callbacks], folder)
    scored = {"sft": 1, "sft x4": 4, "grpo": 4}.get(row, 2)
    adapter = lora()
    images = Images((size.side, size.side), PROMPT, scored, PLANNED, batch)
    plan = plan_of(str(folder), {"lora": adapter.kind(**adapter.options)}, "bf16-mixed", images=images)
    assert plan.cost is not None
    forward = sum(plan.cost.flops.values())
    # the reference of DPO reads the prompt and both answers once more; the tower's features are shared
    more = forward - plan.cost.flops["tower"] if scored == 2 else 0.0
    found["tflop_per_step"] = batch * (plan.cost.step + more) / 1e12
    found["planned"] = {"states": plan.states, "activations": plan.activations}
    return found


def of_trl_sft(folder: Path, size: Size, steps: int, batch: int, count: int) -> dict[str, Any]:
    """TRL's supervised trainer; ``count`` rows for each pair."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    texts = captions_of(2 * batch, count)
    rows = [
        {"completion": said(text), **asked(pair)}
        for pair, own in zip(MadeUp(size.side, texts).images, texts, strict=True)
        for text in own
    ]
    watch = Stopwatch(partial(now, size.device))
    config = SFTConfig(**trl_options(folder, size, steps, batch * count), bf16=True)
    trainer = SFTTrainer(
        str(folder),
        args=config,
        train_dataset=Dataset.from_list(rows),
        callbacks=[trl_clock(watch)],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=LANGUAGE),
    )
    before = forget_peak(size.device)
    trainer.train()
    return {**watch.found(), "bytes": peak(size.device), "growth": peak(size.device) - before}


ROWS: dict[str, Callable[[Path, Size, int, int], dict[str, Any]]] = {
    "trl sft": lambda *common: of_trl_sft(*common, count=1),
    "trl sft x4": lambda *common: of_trl_sft(*common, count=4),
    "trl dpo": of_trl,
    **{
        row: lambda *common, row=row: of_ours(row, *common)  # type: ignore[misc]
        for row in ("sft", "sft x4", "dpo", "adpo", "adpo, CLIP", "grpo")
    },
}


def summary(found: dict[str, dict[str, Any]], limit: dict[str, Any]) -> dict[str, Any]:
    """Ratios within this run."""
    ratios: dict[str, Any] = {}
    for row, own in found.items():
        if "tflop_per_step" in own:
            own["of_limit"] = own["tflop_per_step"] / own["seconds_per_step"] / limit["products_tflop_s"]
        other = found.get(f"trl {row}")
        if other is not None:
            ratios[f"{row} beside trl"] = {
                "times_faster": other["seconds_per_step"] / own["seconds_per_step"],
                "memory": own["bytes"] / other["bytes"],
            }
    for row in ("adpo", "adpo, CLIP"):
        if row in found and "dpo" in found:
            ratios[f"{row} over dpo"] = {
                "time": found[row]["seconds_per_step"] / found["dpo"]["seconds_per_step"],
                "memory": found[row]["bytes"] / found["dpo"]["bytes"],
            }
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="small_qwen")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = SIZES[given.size]
    if given.row:
        give_back(ROWS[given.row](given.folder, size, given.steps, given.batch))
        return
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    settings = {name: getattr(given, name) for name in ("size", "steps", "batch")}
    limit = limits(size.device)
    print(f"limit: {limit['products_tflop_s']:.2f} TFLOP/s of products, {limit['copies_tb_s']:.2f} TB/s of copies")
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        make(Path(name), size)
        torch.cuda.empty_cache()
        print(f"model made in {time.perf_counter() - began:.0f} s", flush=True)
        for row in given.rows:
            common = ("--folder", name, "--size", given.size, "--steps", given.steps, "--batch", given.batch)
            try:
                found[row] = measure_apart("--row", row, *common)
            except RowFailed as error:
                failed[row] = error.line
                print(f"{row:<24} failed: {str(error)[-1500:]}", flush=True)
                continue
            print(line(row, found[row], given.batch), flush=True)
            ratios = summary(found, limit)
            result = {"settings": settings, "limit": limit, "rows": found, "failed": failed, "ratios": ratios}
            report(result, given.out, "lightning", "transformers", "peft", "trl", seeds=[0, 1], quiet=True)
    print(json.dumps(summary(found, limit), indent=1))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

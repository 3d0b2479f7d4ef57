"""What does MDP cost, and what does it bring?

    python benchmarks/mdp.py cost [--device cpu] [--out results/mdp_cost.json]
    python benchmarks/mdp.py gain [--seeds 0 1 2] [--train 4000] [--epochs 3] [--out results/mdp_gain.json]

`cost`: parameters at the shapes of LLaVA-OneVision-7B (SigLIP: 1,152 channels, 729 places, four depths) beside those of
the whole model, counted without memory, and seconds and memory of one pair through MDP, forward and backward.

`gain`: table 6's question in small. A tiny vision-language model is trained on synthetic pairs with several changes and
long descriptions, from scratch, once with MDP and once without, with the same seeds, data, order and number of steps.
MDP adds parameters and time, which `cost` and the seconds here tell.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from environment import describe

from lightning_idc.nn.mdp import MultiScaleDifferentialPerception

WIDTH, PLACES, DEPTHS = 1152, 729, 4
TINY: dict[str, Any] = dict(
    model_type="llava_onevision",
    vision_config=dict(
        model_type="siglip_vision_model",
        vision_use_head=False,
        image_size=64,
        patch_size=16,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
    ),
    text_config=dict(
        model_type="qwen2",
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
)


def whole_model() -> dict[str, int]:
    """Parameters of LLaVA-OneVision-7B's shapes, by part."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(
        "llava_onevision",
        vision_config=dict(
            model_type="siglip_vision_model",
            vision_use_head=False,
            image_size=384,
            patch_size=14,
            hidden_size=WIDTH,
            intermediate_size=4304,
            num_hidden_layers=26,
            num_attention_heads=16,
        ),
        text_config=dict(
            model_type="qwen2",
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152000,
            tie_word_embeddings=False,
        ),
    )
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    parts = {"vision": "model.vision_tower", "projector": "model.multi_modal_projector", "language": ""}
    found = {name: sum(p.numel() for p in model.get_submodule(path).parameters()) for name, path in parts.items()}
    found["language"] -= found["vision"] + found["projector"]
    return found


def cost(given: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"model": whole_model()}
    total = sum(result["model"].values())
    print(f"{'LLaVA-OneVision-7B':<28}{total / 1e6:9.1f} M parameters")
    for name, options in {"shared": {}, "not shared": {"shared": False}}.items():
        with torch.device("meta"):
            mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS, **options)
        count = sum(p.numel() for p in mdp.parameters())
        result[f"mdp {name}"] = count
        print(f"{'MDP, ' + name:<28}{count / 1e6:9.1f} M parameters, {100 * count / total:.2f} %")
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS).to(given.device, dtype)
    torch.nn.init.normal_(mdp.out.weight, std=0.02)
    features = [torch.randn(1, 2, PLACES, WIDTH, device=given.device, dtype=dtype) for _ in range(DEPTHS)]
    seconds = []
    for _ in range(given.runs + 1):
        start = time.perf_counter()
        mdp(features).sum().backward()
        if given.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    result["seconds"] = seconds[1:]
    print(f"{'one pair, both ways':<28}{statistics.median(seconds[1:]):9.3f} s on {given.device}")
    if given.device == "cuda":
        result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(f"{'peak memory':<28}{result['peak_mib']:9.0f} MiB")
    return result


def train(seed: int, mdp: bool, given: argparse.Namespace) -> dict[str, float]:
    """Train once, test once."""
    from lightning.pytorch import Trainer, seed_everything

    from lightning_idc.callbacks.mdp_adapter import MDPAdapter
    from lightning_idc.data.synthetic import SyntheticPairs
    from lightning_idc.methods.vlm.module import VLMCaptioner
    from lightning_idc.schedules import WarmupCosine

    seed_everything(seed, workers=True, verbose=False)
    data = SyntheticPairs(
        mode="omnidiff", train_pairs=given.train, val_pairs=8, test_pairs=given.test, batch_size=32, seed=seed
    )
    model = VLMCaptioner(
        architecture=TINY,
        prompt="What changed?",
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        schedule=WarmupCosine(warmup=0.03),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=given.epochs,
            gradient_clip_val=1.0,
            limit_val_batches=0,
            callbacks=[MDPAdapter()] if mdp else [],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
        )
        start = time.perf_counter()
        trainer.fit(model, data)
        seconds = time.perf_counter() - start
        scores = trainer.test(model, data, verbose=False)[0]
    return {**{name.removeprefix("test/"): float(value) for name, value in scores.items()}, "train_seconds": seconds}


def gain(given: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for seed in given.seeds:
        for name in rows:
            rows[name].append(train(seed, name == "with", given))
            shown = "  ".join(f"{key} {value:.2f}" for key, value in rows[name][-1].items())
            print(f"seed {seed} {name:<8} {shown}", flush=True)
    for key in rows["with"][0]:
        differences = [b[key] - a[key] for a, b in zip(rows["without"], rows["with"], strict=True)]
        print(f"{key:<14} with minus without: {', '.join(f'{d:+.2f}' for d in differences)}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "gain"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    result = {"cost": cost, "gain": gain}[given.what](given)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(given).items() if name != "out"}
        facts = describe("transformers", "lightning")
        given.out.write_text(json.dumps({"settings": settings, "environment": facts, "result": result}, indent=2))


if __name__ == "__main__":
    main()

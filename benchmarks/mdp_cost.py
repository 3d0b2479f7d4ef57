"""What does MDP cost in parameters, time and memory?

    python -m benchmarks.mdp_cost [--device cpu] [--runs 3] [--out FILE]

Parameters at the shapes of LLaVA-OneVision-7B (SigLIP: 1,152 channels, 729 patches, four depths), compared with
the full model's (counted on the meta device), and seconds and memory of one pair through MDP, forward and backward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.harness import report
from lightning_idc.methods.m3diff.mdp import MultiScaleDifferentialPerception

WIDTH, PATCHES, DEPTHS = 1152, 729, 4


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
    results = {name: sum(p.numel() for p in model.get_submodule(path).parameters()) for name, path in parts.items()}
    results["language"] -= results["vision"] + results["projector"]
    return results


def cost(args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"model": whole_model()}
    total = sum(result["model"].values())
    print(f"{'LLaVA-OneVision-7B':<28}{total / 1e6:9.1f} M parameters")
    for name, options in {"shared": {}, "not shared": {"shared": False}}.items():
        with torch.device("meta"):
            mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS, **options)
        count = sum(p.numel() for p in mdp.parameters())
        result[f"mdp {name}"] = count
        print(f"{'MDP, ' + name:<28}{count / 1e6:9.1f} M parameters, {100 * count / total:.2f} %")
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS).to(args.device, dtype)
    torch.nn.init.normal_(mdp.out.weight, std=0.02)
    features = [torch.randn(1, 2, PATCHES, WIDTH, device=args.device, dtype=dtype) for _ in range(DEPTHS)]
    seconds = []
    for _ in range(args.runs + 1):
        start = time.perf_counter()
        mdp(features).sum().backward()
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    result["seconds"] = seconds[1:]
    print(f"{'one pair, forward and backward':<28}{statistics.median(seconds[1:]):9.3f} s on {args.device}")
    if args.device == "cuda":
        result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(f"{'peak memory':<28}{result['peak_mib']:9.0f} MiB")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    settings = {"device": args.device, "runs": args.runs}
    results = {"settings": settings, "result": cost(args)}
    report(results, args.out, "transformers", "lightning", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

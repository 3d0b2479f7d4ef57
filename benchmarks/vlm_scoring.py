"""How much time and memory do one encoding of the pair and one prompt for K answers save, forward and backward?

    python -m benchmarks.vlm_scoring [--size small] [--device cpu] [--pairs 2] [--answers 2] [--length 20] [--runs 5]
                                     [--out FILE]
    python -m benchmarks.vlm_scoring --size qwen2_5_vl_3b --device cuda --pairs 4 --answers 2 --length 60

Ways: `stock` is the stock forward pass over pixels for each of the K answers, with logits everywhere, as in
trainers without support for pairs; `plain`, `packed` and `cached` are those of models/vlm/scoring.py. Each runs in a
separate process, so that peak memory is measured separately; weights are random. The summed log-probabilities of all
ways are compared as well.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from benchmarks.harness import give_back, measure_apart, report
from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.loading import train_tokenizer
from lightning_idc.models.vlm.module import VLMCaptioner

WAYS = ("stock", "plain", "packed", "cached")
SMALL_TEXT = dict(
    model_type="qwen2",
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=2,
)
SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "tiny": (
        56,
        dict(
            model_type="llava_onevision",
            vision_config=dict(
                model_type="siglip_vision_model",
                vision_use_head=False,
                image_size=56,
                patch_size=14,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
            ),
            text_config={**SMALL_TEXT, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        ),
    ),
    "small": (
        224,
        dict(
            model_type="llava_onevision",
            vision_config=dict(
                model_type="siglip_vision_model",
                vision_use_head=False,
                image_size=224,
                patch_size=14,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=6,
                num_attention_heads=4,
            ),
            text_config={**SMALL_TEXT, "vocab_size": 8000},
        ),
    ),
    "qwen2_5_vl_3b": (
        448,
        dict(
            model_type="qwen2_5_vl",
            vision_config=dict(
                depth=32, hidden_size=1280, num_heads=16, intermediate_size=3420, out_hidden_size=2048, window_size=112
            ),
            text_config=dict(
                hidden_size=2048,
                intermediate_size=11008,
                num_hidden_layers=36,
                num_attention_heads=16,
                num_key_value_heads=2,
                vocab_size=151936,
                tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
            ),
        ),
    ),
}


def tokenizer_of(size: str) -> str:
    """Tokenizer with a few words and the special tokens of a size."""
    words = ["the small red cube moved to the left of the large sphere", "nothing changed in this scene"]
    return train_tokenizer(words, 400, family_of(SIZES[size][1]["model_type"]).special_tokens.values())


def model_of(size: str, device: str) -> tuple[VLMCaptioner, int]:
    """Random captioner of a size, and the image size."""
    side, architecture = SIZES[size]
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.set_default_dtype(dtype)
    model = VLMCaptioner(architecture=architecture, tokenizer=tokenizer_of(size))
    with torch.device(device):
        model.build()
    torch.set_default_dtype(torch.float32)
    return model.to(device), side


def batch_of(model: VLMCaptioner, side: int, pairs: int, answers: int, length: int) -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (pairs, 2, 3, side, side), generator=generator, dtype=torch.uint8)
    batch = model.collate([PairSample(f"{i}", images[i, 0], images[i, 1], ["the cube moved"]) for i in range(pairs)])
    batch.tokens = torch.randint(10, 250, (pairs, answers, length + 1), generator=generator)
    batch.caption_mask = torch.ones_like(batch.tokens, dtype=torch.bool)
    batch.caption_mask[..., 0] = False
    return batch.to(model.device)


def stock(model: VLMCaptioner, batch: PairBatch) -> Tensor:
    """Stock forward passes over pixels, one per answer: ``(B, K)``."""
    net: Any = model.net
    pixels = {
        k: v.to(batch.images.device) for k, v in net.family.pixels(net.model, net.processor, list(batch.images)).items()
    }
    prompt = batch.model_inputs["prompt_ids"]
    scores = []
    for k in range(batch.tokens.shape[1]):
        ids = torch.cat([prompt, batch.tokens[:, k, 1:]], 1)
        inputs = dict(pixels, input_ids=ids, attention_mask=torch.ones_like(ids))
        if "image_grid_thw" in pixels:
            inputs["mm_token_type_ids"] = (ids == net.model.config.image_token_id).int()
        logits = net.model(**inputs).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        scores.append(-losses[:, prompt.shape[1] - 1 :].sum(-1))
    return torch.stack(scores, 1)


def scores_of(way: str, model: VLMCaptioner, batch: PairBatch) -> Tensor:
    if way == "stock":
        return stock(model, batch)
    model.built_net.scoring = way
    return model.score(model.encode(batch), batch.tokens, batch.caption_mask)


def timed(run: Callable[[], Any], runs: int, device: str) -> list[float]:
    seconds = []
    for _ in range(runs + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]  # the first one warms up


def measure(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one way in this process."""
    model, side = model_of(args.size, args.device)
    batch = batch_of(model, side, args.pairs, args.answers, args.length)
    empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    scores: list[Tensor] = []

    def step() -> None:
        model.zero_grad()
        scores[:] = [scores_of(way, model, batch)]
        scores[0].sum().backward()

    seconds = timed(step, args.runs, args.device)
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": seconds,
        "peak_mib": peak,
        "mib_before": empty if args.device == "cpu" else None,
        "scores": scores[0].tolist(),
        "prompt_tokens": batch.model_inputs["prompt_ids"].shape[1],
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--answers", type=int, default=2)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.way:
        give_back(measure(args.way, args))
        return
    results = {}
    for way in WAYS:
        results[way] = measure_apart(*sys.argv[1:], "--way", way)
    base = results["stock"]
    for way, row in results.items():
        row["median_s"] = statistics.median(row["seconds"])
        row["times_faster"] = statistics.median(base["seconds"]) / row["median_s"]
        row["largest_difference"] = float((torch.tensor(row["scores"]) - torch.tensor(base["scores"])).abs().max())
        print(
            f"{way:<8}{row['median_s']:9.3f} s  {row['times_faster']:5.2f} x  {row['peak_mib']:9.0f} MiB  "
            f"off by {row['largest_difference']:.1e}"
        )
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "way")}
    report({"settings": settings, "ways": results}, args.out, "transformers", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

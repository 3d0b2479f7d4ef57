"""How many tokens per second does a vision-language model generate for pairs, compared with ``generate``?

    python -m benchmarks.vlm_decode [--size small] [--device cpu] [--pairs 4] [--length 32] [--runs 3]
    python -m benchmarks.vlm_decode --size qwen2_5_vl_3b --device cuda --pairs 16 --length 64 [--out FILE]

Greedy decoding from prepared pixels, random weights (bf16 on a GPU), captions of exactly ``--length`` tokens (end
tokens are suppressed). ``stock`` is ``generate`` of transformers with the same model and prompts; the fraction of equal
tokens is reported, since 16-bit products in another order break ties differently. Then four samples per pair: ours
encodes images and prompt once, ``generate`` processes every pair four times.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import report
from benchmarks.steps import forget_peak, now, peak
from benchmarks.vlm_scoring import SIZES, batch_of, model_of
from lightning_idc.nn.decoding.decoding import greedy
from lightning_idc.nn.decoding.sampling import sample

SAMPLES = 4


def stock(model: Any, batch: Any, ends: list[int], length: int, samples: int) -> Tensor:
    """New tokens of transformers' ``generate``."""
    net = model.net
    images = list(batch.images.repeat_interleave(samples, 0))
    pixels = {k: v.to(batch.images.device) for k, v in net.family.pixels(net.model, net.processor, images).items()}
    ids = batch.model_inputs["prompt_ids"].repeat_interleave(samples, 0)
    inputs = dict(pixels, input_ids=ids, attention_mask=torch.ones_like(ids))
    if "image_grid_thw" in pixels:
        inputs["mm_token_type_ids"] = (ids == net.model.config.image_token_id).int()
    said = net.model.generate(
        **inputs,
        max_new_tokens=length,
        min_new_tokens=length,
        suppress_tokens=ends,
        do_sample=samples > 1,
        top_k=0,
        pad_token_id=0,
    )
    return said[:, ids.shape[1] :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, side = model_of(args.size, args.device)
    batch = batch_of(model.eval(), side, args.pairs, 1, 4)
    net: Any = model.built_net
    special = model.built_vocabulary.special
    # what may end a caption, or is not a word of it
    ends = sorted({*special.ends, *special.suppress_tokens})
    unending = special._replace(suppress_tokens=tuple(ends), stops=(-1,))
    results: dict[str, dict[str, Any]] = {}

    def ours(samples: int) -> list[list[int]]:
        features = model.encode(batch)
        if samples == 1:
            return greedy(net, features, args.length, unending).ids
        return sample(net, features, args.length, samples, special=unending).ids

    def measured(name: str, write: Callable[[], Any], samples: int) -> Any:
        seconds, said, before = [], None, forget_peak(args.device)
        for _ in range(args.runs + 1):
            began = now(args.device)
            with torch.no_grad():
                said = write()
            seconds.append(now(args.device) - began)
        spent = statistics.median(seconds[1:])
        tokens = args.pairs * samples * args.length
        results[name] = {"seconds": seconds, "tokens_per_s": tokens / spent, "growth": peak(args.device) - before}
        print(f"{name:<16} {tokens / spent:9.0f} tokens/s", flush=True)
        return said

    said = measured("ours", lambda: ours(1), 1)
    other = measured("stock", lambda: stock(model, batch, ends, args.length, 1), 1)
    measured("ours x4", lambda: ours(SAMPLES), SAMPLES)
    measured("stock x4", lambda: stock(model, batch, ends, args.length, SAMPLES), SAMPLES)
    assert all(len(row) == args.length for row in said), "a caption ended early"
    same = (torch.tensor(said) == other.cpu()).float().mean().item()
    ratios = {
        "greedy": results["ours"]["tokens_per_s"] / results["stock"]["tokens_per_s"],
        "samples": results["ours x4"]["tokens_per_s"] / results["stock x4"]["tokens_per_s"],
    }
    print(f"relative to stock: {ratios}, tokens equal: {same:.3f}")
    settings = {name: getattr(args, name) for name in ("size", "device", "pairs", "length", "runs")}
    result = {"settings": settings, "rows": results, "equal_tokens": same, "times_faster": ratios}
    report(result, args.out, "transformers", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

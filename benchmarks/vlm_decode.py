"""How many tokens a second does a vision-language model write about pairs, beside transformers' own ``generate``?

    python -m benchmarks.vlm_decode [--size small] [--device cpu] [--pairs 4] [--length 32] [--runs 3]
    python -m benchmarks.vlm_decode --size qwen2_5_vl_3b --device cuda --pairs 16 --length 64 [--out FILE]

Greedy, from prepared pixels on, random weights (bf16 on a GPU), captions of exactly ``--length`` tokens: the tokens
that end one cannot be said. ``stock`` is ``generate`` of the same model on the same prompts; the share of equal tokens
stands beside it, since products of 16 bits in another order break ties otherwise. Then four samples a pair: ours reads
images and prompt once, ``generate`` is given every pair four times.
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, side = model_of(given.size, given.device)
    batch = batch_of(model.eval(), side, given.pairs, 1, 4)
    net: Any = model.built_net
    special = model.built_vocabulary.special
    # what may end a caption, or is not a word of it
    ends = sorted({*special.ends, *special.suppress_tokens})
    unending = special._replace(suppress_tokens=tuple(ends), stops=(-1,))
    found: dict[str, dict[str, Any]] = {}

    def ours(samples: int) -> list[list[int]]:
        features = model.encode(batch)
        if samples == 1:
            return greedy(net, features, given.length, unending).ids
        return sample(net, features, given.length, samples, special=unending).ids

    def measured(name: str, write: Callable[[], Any], samples: int) -> Any:
        seconds, said, before = [], None, forget_peak(given.device)
        for _ in range(given.runs + 1):
            began = now(given.device)
            with torch.no_grad():
                said = write()
            seconds.append(now(given.device) - began)
        spent = statistics.median(seconds[1:])
        tokens = given.pairs * samples * given.length
        found[name] = {"seconds": seconds, "tokens_per_s": tokens / spent, "growth": peak(given.device) - before}
        print(f"{name:<16} {tokens / spent:9.0f} tokens/s", flush=True)
        return said

    said = measured("ours", lambda: ours(1), 1)
    other = measured("stock", lambda: stock(model, batch, ends, given.length, 1), 1)
    measured("ours x4", lambda: ours(SAMPLES), SAMPLES)
    measured("stock x4", lambda: stock(model, batch, ends, given.length, SAMPLES), SAMPLES)
    assert all(len(row) == given.length for row in said), "a caption ended early"
    same = (torch.tensor(said) == other.cpu()).float().mean().item()
    ratios = {
        "greedy": found["ours"]["tokens_per_s"] / found["stock"]["tokens_per_s"],
        "samples": found["ours x4"]["tokens_per_s"] / found["stock x4"]["tokens_per_s"],
    }
    print(f"beside stock: {ratios}, tokens equal: {same:.3f}")
    settings = {name: getattr(given, name) for name in ("size", "device", "pairs", "length", "runs")}
    result = {"settings": settings, "rows": found, "equal_tokens": same, "times_faster": ratios}
    report(result, given.out, "transformers", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

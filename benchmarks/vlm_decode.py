"""How many tokens per second does a vision-language model generate for pairs, by cache and compilation?

    python -m benchmarks.vlm_decode [--size small] [--device cpu] [--pairs 4] [--length 32] [--runs 3]
    python -m benchmarks.vlm_decode --size qwen2_5_vl_3b --device cuda --pairs 4 16 --seconds 330 [--out FILE]

Prepared pixels, random weights (bf16 on a GPU), captions of exactly ``--length`` tokens (end tokens are suppressed).
Rows of this library are named by ``cache_implementation``; ``compiled`` is its ``compile_config`` without CUDA graphs,
``CUDA graphs`` transformers' default. ``generate`` is transformers' own with the same model and prompts, which compiles
a static cache by itself. ``x4`` samples four captions per pair: ours encodes images and prompt once, ``generate``
processes every pair four times. ``LoRA`` has adapters of rank 16 on all layers of the language model, which are merged
while captions are generated, and ``not merged`` calls them at each token.

``seconds`` includes the images, and its first value the compilation; ``ms_per_token`` is the median of the others less
that of ``prompt``, the row without decoding. ``limit`` has the time to read the weights of the language model once,
which bounds a token. The fraction of tokens equal to those of ``dynamic`` is reported, since 16-bit products in another
order break ties differently.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.harness import report
from benchmarks.preference_trl import LANGUAGE
from benchmarks.steps import forget_peak, now, peak
from benchmarks.vlm_scoring import SIZES, batch_of, model_of
from benchmarks.vlm_training import limits
from lightning_idc.images.types import PairBatch
from lightning_idc.models.vlm.decoding import VLMDecoder
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.static_cache import StaticDecoding
from lightning_idc.nn.decoding.decoding import CaptionNet


@dataclass(frozen=True)
class Row:
    """How captions are generated.

    Args:
        cache: ``cache_implementation``.
        compile_config: arguments of transformers' ``CompileConfig``.
        samples: captions per pair; 1 decodes greedily.
        generate: whether transformers' ``generate`` is measured.
        lora: ``merged`` or ``not merged``; None for no adapters.
    """

    cache: str = "dynamic"
    compile_config: dict[str, Any] | None = None
    samples: int = 1
    generate: bool = False
    lora: str | None = None


GRAPHS: dict[str, Any] = {"mode": "reduce-overhead"}
ROWS = {
    "dynamic": Row(),
    "static, CUDA graphs": Row("static", GRAPHS),
    "generate": Row(generate=True),
    "dynamic x4": Row(samples=4),
    "static, CUDA graphs x4": Row("static", GRAPHS, samples=4),
    "generate x4": Row(samples=4, generate=True),
    "static": Row("static"),
    "generate, static": Row("static", generate=True),
    "static, compiled": Row("static", {"mode": "default"}),
    "dynamic, LoRA": Row(lora="merged"),
    "static, CUDA graphs, LoRA": Row("static", GRAPHS, lora="merged"),
    "dynamic, LoRA not merged": Row(lora="not merged"),
}
"""In order of importance, as the last ones may be left out for want of time; once installed, adapters remain."""


def stock(model: Any, batch: Any, ends: list[int], length: int, row: Row) -> Tensor:
    """New tokens of transformers' ``generate``."""
    net = model.net
    images = list(batch.images.repeat_interleave(row.samples, 0))
    pixels = {k: v.to(batch.images.device) for k, v in net.family.pixels(net.model, net.processor, images).items()}
    ids = batch.model_inputs["prompt_ids"].repeat_interleave(row.samples, 0)
    inputs = dict(pixels, input_ids=ids, attention_mask=torch.ones_like(ids))
    if "image_grid_thw" in pixels:
        inputs["mm_token_type_ids"] = (ids == net.model.config.image_token_id).int()
    generated = net.model.generate(
        **inputs,
        max_new_tokens=length,
        min_new_tokens=length,
        suppress_tokens=ends,
        do_sample=row.samples > 1,
        top_k=0,
        pad_token_id=0,
        cache_implementation=row.cache,
    )
    return generated[:, ids.shape[1] :]


def ours(model: VLMCaptioner, batch: PairBatch, length: int, row: Row) -> Tensor:
    """Tokens of this library."""
    model.hparams.update(cache_implementation=row.cache, compile_config=row.compile_config)
    decoder = model.decoder
    if row.cache == "static" and row.compile_config is None:
        # on a GPU the step is otherwise compiled by default
        decoder = UncompiledDecoder(model.built_net, model.built_vocabulary.special, model.hparams)
    features = model.encode(batch)
    if row.samples == 1:
        ids = decoder.search(features, length, num_beams=1).ids
    else:
        generator = torch.Generator().manual_seed(0)
        ids = decoder.sample(features, row.samples, generator=generator, max_length=length).ids
    assert all(len(row_ids) == length for row_ids in ids), "a caption ended early"
    return torch.tensor(ids)


class UncompiledDecoder(VLMDecoder):
    """Decodes with a static cache and without compilation."""

    def decoding_net(self, rows_per_pair: int, max_length: int) -> CaptionNet:
        return StaticDecoding(self.net, rows_per_pair, max_length)


def language_bytes(model: VLMCaptioner) -> int:
    """Bytes of the weights that each token reads."""
    net = model.built_net
    parts = [net.model.get_submodule(path) for path in net.language_modules]
    weights = {id(weight): weight.nbytes for part in parts for weight in part.parameters()}
    if net.lm_head.weight is not net.model.get_input_embeddings().weight:
        weights.pop(id(net.model.get_input_embeddings().weight), None)
    return sum(weights.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, nargs="+", default=[4])
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row begins after so many seconds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    model, side = model_of(args.size, args.device)
    model.eval()
    special = model.built_vocabulary.special
    # everything that may end a caption, or is not a word of it
    ends = sorted({*special.ends, *special.suppress_tokens})
    model.built_vocabulary.special = special._replace(suppress_tokens=tuple(ends), stops=(-1,))
    limit = limits(args.device)
    limit["weights_ms"] = 2 * language_bytes(model) / limit["copies_tb_s"] / 1e9
    rows: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    left_out: list[str] = []

    def seconds_of(work: Callable[[], Any]) -> tuple[list[float], Any]:
        seconds, result = [], None
        for _ in range(args.runs + 1):
            start = now(args.device)
            with torch.no_grad():
                result = work()
            seconds.append(now(args.device) - start)
        return seconds, result

    def measured(row: Row, batch: PairBatch, pairs: int) -> tuple[dict[str, Any], Tensor]:
        before = forget_peak(args.device)
        with ExitStack() as stack:
            if row.lora == "not merged":
                stack.enter_context(patch("lightning_idc.models.vlm.folding._foldable", lambda layer: None))
            if row.generate:
                seconds, tokens = seconds_of(lambda: stock(model, batch, ends, args.length, row))
            else:
                seconds, tokens = seconds_of(lambda: ours(model, batch, args.length, row))
        count, spent = pairs * row.samples * args.length, statistics.median(seconds[1:])
        growth = peak(args.device) - before
        return {"seconds": seconds, "tokens_per_s": count / spent, "growth": growth}, tokens.cpu()

    def write() -> None:
        settings = {name: getattr(args, name) for name in ("size", "device", "pairs", "length", "runs")}
        result = {"settings": settings, "limit": limit, "rows": rows, "failed": failed, "left_out": left_out}
        report(result, args.out, "transformers", seeds=[0], quiet=True)

    adapted = [name for name in args.rows if ROWS[name].lora]
    for names in ([name for name in args.rows if name not in adapted], adapted):
        if names and names is adapted:
            LoraAdapter(rank=16, alpha=32, targets=LANGUAGE, freeze=["model", "lm_head"]).install(model.built_net)
            model.to(args.device).eval()
        for pairs in args.pairs:
            batch = batch_of(model, side, pairs, 1, 4)
            seconds, _ = seconds_of(lambda batch=batch: model.built_net.start(model.encode(batch)))  # type: ignore[misc]
            prompt = statistics.median(seconds[1:])
            rows.setdefault(f"prompt, {pairs} pairs", {"seconds": seconds})
            expected: dict[int, Tensor] = {}
            for name in names:
                title = f"{name}, {pairs} pairs"
                if time.perf_counter() - began > args.seconds:
                    left_out.append(title)
                    continue
                try:
                    figures, tokens = measured(ROWS[name], batch, pairs)
                except Exception as error:  # one row is not worth the others
                    failed[title] = f"{type(error).__name__}: {error}"[:500]
                    print(f"{title:<40} failed: {failed[title]}", flush=True)
                    continue
                figures["ms_per_token"] = (statistics.median(figures["seconds"][1:]) - prompt) / (args.length - 1) * 1e3
                reference = expected.setdefault(ROWS[name].samples, tokens)
                figures["equal_tokens"] = (tokens == reference).float().mean().item()
                rows[title] = figures
                print(
                    f"{title:<40} {figures['tokens_per_s']:9.0f} tokens/s, {figures['ms_per_token']:7.2f} ms a token, "
                    f"equal tokens {figures['equal_tokens']:.3f}, first run {figures['seconds'][0]:.1f} s",
                    flush=True,
                )
                write()
    write()
    print(f"reading the weights takes {limit['weights_ms']:.2f} ms")
    print(f"left out for want of time: {', '.join(left_out) or 'nothing'}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""How many captions per second does cached decoding generate, and are they those of the uncached path?

    python -m benchmarks.decode [--pairs 256] [--batch 64] [--lengths 14 73] [--runs 5] [--larger 512]
                                [--out FILE]

The default PairTransformer with random weights, from precomputed features, since encoding costs both paths the same.
The bias of the end token sets the mean length of the captions. Lengths are those of the synthetic modes: 14 words in
clevr_change, 73 in omnidiff. Figures are CPU seconds of one thread; the paths run alternately. A step of few captions
takes nearly as long as one of many, so greedy decoding of the first length is also measured in larger batches
(``--larger``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from torch import Tensor  # noqa: E402

from lightning_idc.images.types import PairFeatures  # noqa: E402
from lightning_idc.models.pair_transformer.net import PairTransformerNet  # noqa: E402
from lightning_idc.nn.backbones import SmallCNN  # noqa: E402
from lightning_idc.nn.decoding.beam_search import beam_search, beam_search_uncached  # noqa: E402
from lightning_idc.nn.decoding.decoding import Decoded, greedy, greedy_uncached  # noqa: E402
from lightning_idc.nn.vocabulary import EOS  # noqa: E402

TARGET, WORDS, CELLS, WIDTH = {"greedy": 15.0, "beam_search": 7.0}, 80, 64, 128
Search = Callable[[PairTransformerNet, PairFeatures, int], Decoded]


def sharpened(seed: int = 0) -> PairTransformerNet:
    """Untrained network whose captions differ between pairs and between words."""
    torch.manual_seed(seed)
    net = PairTransformerNet(SmallCNN(), (8, 8), WORDS).eval()
    torch.nn.init.normal_(net.decoder.position)
    net.decoder.norm.weight.data *= 3
    return net


def set_mean_length(net: PairTransformerNet, features: PairFeatures, wanted: int) -> None:
    """Adjust the bias of the end token until captions, limited to twice the wanted length, have it on average."""
    low, high = -40.0, 40.0
    for _ in range(10):
        net.decoder.bias.data[EOS] = middle = (low + high) / 2
        ids = greedy(net, features, 2 * wanted).ids
        low, high = (middle, high) if sum(map(len, ids)) > wanted * len(ids) else (low, middle)


def timed(search: Search, net: PairTransformerNet, batches: list[PairFeatures], longest: int) -> tuple[float, Decoded]:
    """CPU seconds and all captions."""
    began = time.process_time()
    parts = [search(net, batch, longest) for batch in batches]
    seconds = time.process_time() - began
    ids = [row for part in parts for row in part.ids]
    return seconds, Decoded(ids, [mean for part in parts for mean in part.mean_log_probs])


def compare(
    cached: Search, uncached: Search, net: PairTransformerNet, batches: list[PairFeatures], longest: int, runs: int
) -> dict[str, Any]:
    """Captions per second of both paths, and whether they agree."""
    seconds: dict[str, list[float]] = {"cached": [], "uncached": []}
    results = {}
    for path, search in (("cached", cached), ("uncached", uncached)):  # once unmeasured
        search(net, batches[0], longest)
        _, results[path] = timed(search, net, batches, longest)
    for _ in range(runs):
        for path, search in (("cached", cached), ("uncached", uncached)):
            seconds[path].append(timed(search, net, batches, longest)[0])
    captions = len(results["cached"].ids)
    differences = zip(results["cached"].mean_log_probs, results["uncached"].mean_log_probs, strict=True)
    lengths = [len(ids) for ids in results["cached"].ids]
    return {
        "captions_per_s": {path: captions / min(values) for path, values in seconds.items()},
        "median_captions_per_s": {path: captions / statistics.median(values) for path, values in seconds.items()},
        "times_faster": min(seconds["uncached"]) / min(seconds["cached"]),
        "median_times_faster": statistics.median(
            slow / fast for slow, fast in zip(seconds["uncached"], seconds["cached"], strict=True)
        ),
        "same_ids": results["cached"].ids == results["uncached"].ids,
        "log_prob_differs_at_most": max(abs(a - b) for a, b in differences),
        "tokens_mean": statistics.fmean(lengths),
        "tokens_range": [min(lengths), max(lengths)],
        "distinct": len({tuple(ids) for ids in results["cached"].ids}),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[14, 73])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--larger", type=int, nargs="*", default=[256, 512], help="larger batches, each of as many pairs"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    torch.set_num_threads(1)
    net = sharpened()
    generator = torch.Generator().manual_seed(1)

    def pairs(count: int) -> Tensor:
        return (
            4 * torch.rand(count, 1, WIDTH, generator=generator) * torch.randn(count, CELLS, WIDTH, generator=generator)
        )

    batches = [PairFeatures(part) for part in pairs(options.pairs).split(options.batch)]

    def beams(net: PairTransformerNet, features: PairFeatures, longest: int) -> Decoded:
        return beam_search(net, features, longest, options.beams)

    def beams_uncached(net: PairTransformerNet, features: PairFeatures, longest: int) -> Decoded:
        return beam_search_uncached(net, features, longest, options.beams)

    result: dict[str, Any] = {
        "question": "captions per CPU second of one thread, features given: cached decoding against every prefix anew",
        "pairs": options.pairs,
        "batch": options.batch,
        "beams": options.beams,
        "parameters": sum(p.numel() for p in net.parameters()),
        "runs": options.runs,
        "target_times_faster": TARGET,
    }
    for length in options.lengths:
        set_mean_length(net, batches[0], length)
        few = batches[: max(1, len(batches) // 4)]
        result[f"{length}_tokens"] = {
            "greedy": compare(greedy, greedy_uncached, net, batches, 2 * length, options.runs),
            # the uncached search takes long, of long captions minutes: a quarter of the pairs
            "beam_search": compare(beams, beams_uncached, net, few, 2 * length, options.runs if length < 30 else 1),
        }
    set_mean_length(net, batches[0], options.lengths[0])
    longest = 2 * options.lengths[0]
    result["greedy_by_batch"] = {
        size: compare(greedy, greedy_uncached, net, [PairFeatures(pairs(size))], longest, options.runs)
        for size in options.larger
    }
    report(result, options.out, seeds=[0, 1])


if __name__ == "__main__":
    main()

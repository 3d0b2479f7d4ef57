"""How many tokens per second does ProCap's second stage generate, compared with the loop of the authors' code?

    python -m benchmarks.procap_decode [--pairs 8] [--queries 1 2 4 7] [--runs 3] [--small] [--out FILE]

Both paths have the same weights, the official variant at the paper's sizes (12 layers of 768, decoder 2 of 512, images
of 224), random but sharpened so that captions differ. The loop of the code is reimplemented only here: all 24 positions
of the decoder at each of 23 steps, with the keys and values of all (k + 2) * 196 memory tokens computed again in every
step. Ours caches keys and values and stops at the end token. Ids must agree up to that token.

From pixels, three more variants of ours are measured: with cached features of the tokenizer, as with `CacheFeatures`
(reading is included); with the before image encoded once for two pairs, as in CLEVR-Change; and with features cached in
bfloat16, with the fraction of equal captions. Captions of untrained networks hardly depend on the images, so that
fraction does not justify a default.

Tokens are counted in two ways: generated ones (words and the end token) and, like the authors' TPS, 24 per caption
including padding. Times are CPU seconds of one thread; the paths alternate, once for decoding from precomputed memory
and once from pixels. ``--queries`` then times ours for other k, as in the paper's Table 3.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the number of threads is set
import torch  # noqa: E402 - after the number of threads is set
from torch import Tensor  # noqa: E402

from lightning_idc.images.types import PairFeatures  # noqa: E402
from lightning_idc.methods.procap.official.encoder import OfficialDecoder, OfficialEncoder, OfficialNet  # noqa: E402
from lightning_idc.nn.decoding.decoding import greedy  # noqa: E402
from lightning_idc.nn.image_tokenizer import ImageTokenizer  # noqa: E402
from lightning_idc.nn.vocabulary import BOS, EOS, PAD, UNK  # noqa: E402

SLOTS, WORDS, TARGET = 24, 79, 8.0


def made(queries: int, small: bool, seed: int = 0) -> OfficialNet:
    """An untrained network whose captions differ from pair to pair."""
    torch.manual_seed(seed)
    width, layers, own = (64, 2, 64) if small else (768, 12, 512)
    tokenizer = ImageTokenizer(width=32 if small else 128)
    encoder = OfficialEncoder(256, (14, 14), queries + 2, width, layers, max(1, width // 64))
    net = OfficialNet(tokenizer, encoder, OfficialDecoder(WORDS, own, 2, 8, 4 * own, 0.1), own).eval()
    for parameter in net.decoder.layers.parameters():
        if parameter.dim() == 2:  # its embeddings are tied: with small layers it would only repeat the last word
            parameter.data *= 4
    return net


@torch.no_grad()
def official_loop(net: OfficialNet, memory: Tensor) -> list[list[int]]:
    """Greedy decoding of the authors' code: the whole decoder over all positions at every step."""
    said = torch.full((len(memory), SLOTS), PAD)
    said[:, 0] = BOS
    for place in range(SLOTS - 1):
        logits = net.decoder(memory, None, said[:, None])[:, 0, place]
        logits[:, [PAD, BOS, UNK]] = float("-inf")
        said[:, place + 1] = logits.argmax(-1)
    return [_until_end(row) for row in said[:, 1:].tolist()]


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(EOS) + 1] if EOS in row else row


def ours(net: OfficialNet, memory: Tensor) -> list[list[int]]:
    """Cached decoding of this library."""
    return greedy(net, PairFeatures(memory), SLOTS - 1).ids


@torch.no_grad()
def encoded(net: OfficialNet, features: Tensor) -> Tensor:
    """Memory of pairs from tokenizer features ``(B, 2, latent, h, w)``."""
    return net.projector(net.encoder(net.encoder.queries(net.encoder.embed(features))))


@torch.no_grad()
def with_features(net: OfficialNet, images: Tensor, runs: int) -> dict[str, Any]:
    """Seconds of each part of encoding, and whether bfloat16 changes captions."""
    features = net.features(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features.numpy())
        reading = seconds(lambda: torch.from_numpy(np.load(path)), runs)
    results: dict[str, Any] = {
        "tokenizer_s": seconds(lambda: net.features(images), 1),
        "reading_s": reading,
        "transformer_s": seconds(lambda: encoded(net, features), 1),
    }
    exact = ours(net, encoded(net, features))
    with torch.autocast("cpu", torch.bfloat16):
        results["transformer_bf16_s"] = seconds(lambda: encoded(net, features), 1)
        rounded = encoded(net, features)
    same = sum(a == b for a, b in zip(exact, ours(net, rounded.float()), strict=True))
    results["same_captions_in_bf16"] = same / len(images)
    results["distinct_captions"] = len({tuple(ids) for ids in exact})
    return results


def set_mean_length(net: OfficialNet, memory: Tensor, wanted: float) -> None:
    """Set the bias of the end token so that the mean caption length is as close as possible to the wanted one."""
    low, high = -60.0, 60.0
    tried: dict[float, float] = {}
    for _ in range(14):
        net.decoder.words.bias.data[EOS] = middle = (low + high) / 2
        mean = sum(map(len, ours(net, memory))) / len(memory)
        tried[middle] = abs(mean - wanted)
        low, high = (middle, high) if mean > wanted else (low, middle)
    net.decoder.words.bias.data[EOS] = min(tried, key=tried.__getitem__)


def seconds(work: Any, runs: int) -> float:
    """Minimum CPU seconds of several runs."""
    results = []
    for _ in range(runs):
        began = time.process_time()
        work()
        results.append(time.process_time() - began)
    return min(results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--length", type=float, default=12.0, help="mean number of tokens of a caption")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 2, 4, 7])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="tiny networks, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (options.pairs, 2, 3, 224, 224), generator=generator, dtype=torch.uint8)
    net = made(2, options.small)
    parts = with_features(net, images, options.runs)
    encoding = parts["tokenizer_s"] + parts["transformer_s"]
    # captions of untrained networks hardly depend on the image; a memory of its own for each pair does it
    memory = 4 * torch.randn(options.pairs, 4 * 196, net.projector[-1].normalized_shape[0], generator=generator)
    set_mean_length(net, memory, options.length)
    cached, uncached = ours(net, memory), official_loop(net, memory)
    said, padded = sum(map(len, cached)), SLOTS * options.pairs
    times = {
        "ours": seconds(lambda: ours(net, memory), options.runs),
        "official_loop": seconds(lambda: official_loop(net, memory), options.runs),
    }
    result: dict[str, Any] = {
        "question": "tokens per CPU second of one thread, ProCap's second stage, k = 2, against the official loop",
        "pairs": options.pairs,
        "same_ids": cached == uncached,
        "distinct_captions": len({tuple(ids) for ids in cached}),
        "tokens_said": said,
        "tokens_padded": padded,
        "parameters": sum(p.numel() for p in net.parameters()),
        "small": options.small,
        "writing_alone": {
            "tokens_said_per_s": {path: said / spent for path, spent in times.items()},
            "tokens_padded_per_s": {path: padded / spent for path, spent in times.items()},
            "times_faster": times["official_loop"] / times["ours"],
        },
        "from_pixels": {
            "encoding_s": encoding,
            "tokens_said_per_s": {path: said / (spent + encoding) for path, spent in times.items()},
            "tokens_padded_per_s": {path: padded / (spent + encoding) for path, spent in times.items()},
            "times_faster": (times["official_loop"] + encoding) / (times["ours"] + encoding),
            "parts": parts,
            "times_faster_by_way": {
                way: (times["official_loop"] + encoding) / (times["ours"] + spent)
                for way, spent in {
                    "features kept": parts["reading_s"] + parts["transformer_s"],
                    "image before once": 0.75 * parts["tokenizer_s"] + parts["transformer_s"],
                    "features kept, bf16": parts["reading_s"] + parts["transformer_bf16_s"],
                }.items()
            },
        },
        "target_times_faster": TARGET,
        "by_k": {},
    }
    for queries in options.queries:
        other = made(queries, options.small)
        other.decoder.load_state_dict(net.decoder.state_dict())
        size = (options.pairs, (queries + 2) * 196, memory.shape[-1])
        args = 4 * torch.randn(size, generator=generator)
        with torch.no_grad():
            spent = seconds(lambda net=other: net.encode(images), 1)
        tokens = sum(map(len, ours(other, args)))
        spent += seconds(lambda net=other, args=args: ours(net, args), options.runs)
        result["by_k"][queries] = {"tokens_said_per_s": tokens / spent, "pairs_per_s": options.pairs / spent}
    report(result, options.out, seeds=[0, 1])


if __name__ == "__main__":
    main()

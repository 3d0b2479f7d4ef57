"""How many tokens per second do full-size captioners generate, with random weights and the same greedy decoding?

    python -m benchmarks.namc_inference [--batches 1 8] [--tokens 32] [--runs 3] [--device cpu] [--columns ...]
                                        [--out FILE]

NAMC's Table 5 gives 1789 tokens per second for CLIP4IDC and 2249 for NAMC, without a protocol. Here every caption has
exactly ``--tokens`` tokens (the end token is suppressed), so that all columns do the same work, and encoding is
timed separately from decoding. Columns:

- ``clip4idc``: our decoding, with cached keys and values.
- ``clip4idc_official``: the official greedy loop with the same weights: it also encodes an (empty) text, attends to the
  image tokens again for every word, and runs the decoder over the whole prefix each time. Its words must equal ours.
- ``namc``: our decoding, its ResNet-101 included.
- ``namc_stored``: the same from ResNet features on disk, as in the paper; reading them is included.

Wall seconds; the columns run alternately, and the best of all runs counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.methods.namc.net import NamcNet
from lightning_idc.nn.decoding.decoding import greedy
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.vocabulary import SpecialIds, load_vocabulary

NEVER = -1e4
BERT_WORDS = 30522


@dataclass
class Column:
    """A captioner and its decoding function.

    Args:
        net: full-size network with random weights and a suppressed end token.
        special: ids of its vocabulary.
        decode: ids ``(B, tokens)`` from its features.
        size: height and width of its images.
    """

    net: nn.Module
    special: SpecialIds
    decode: Callable[[Any, PairFeatures, int, SpecialIds], list[list[int]]]
    size: int = 224


def cached(net: Any, features: PairFeatures, tokens: int, special: SpecialIds) -> list[list[int]]:
    """Our greedy decoding."""
    return greedy(net, features, tokens, special).ids


@torch.no_grad()
def clip4idc_official(net: Any, features: PairFeatures, tokens: int, special: SpecialIds) -> list[list[int]]:
    """The official loop, which caches nothing between words."""
    count, device = len(features), features.memory.device
    net.encoder.embed_tokens(torch.tensor([[special.bos, special.eos]], device=device).expand(count, -1))
    said = torch.full((count, 1), special.bos, device=device)
    for _ in range(tokens):
        logits = net.logits(features, said[:, None])[:, 0, -1]
        said = torch.cat([said, logits.argmax(-1, keepdim=True)], 1)
    return said[:, 1:].tolist()


def clip4idc() -> tuple[nn.Module, SpecialIds]:
    """CLIP4IDC as its recipe trains it: ViT-B/32, 3 + 3 layers."""
    from lightning_idc.methods.clip4idc.module import Clip4Idc

    torch.manual_seed(0)
    model = Clip4Idc()
    model.build()
    net, special = model.net, load_vocabulary("clip").special
    assert net is not None
    net.eval()
    net.bias.data[list({special.eos, *special.suppress_tokens})] = NEVER  # type: ignore[index,union-attr]
    return net, special


def namc() -> tuple[NamcNet, SpecialIds]:
    """NAMC as in its paper, with the vocabulary size of BERT."""
    from lightning_idc.nn.backbones import TimmGrid

    torch.manual_seed(0)
    net, special = NamcNet(TimmGrid("resnet101", stage=-2), (14, 14), BERT_WORDS).eval(), SpecialIds()
    net.decoder.bias.data[list({special.eos, *special.suppress_tokens})] = NEVER
    return net, special


class Kept(GridBackbone):
    """Features of another backbone, read from disk; computed in the first call of each batch size.

    Args:
        inner: the other backbone.
        folder: folder of the files.
    """

    def __init__(self, inner: GridBackbone, folder: Path) -> None:
        super().__init__(inner.width)
        self.inner, self.folder = [inner], folder  # in a list, or it would be part of this module

    def grid(self, images: Tensor) -> Tensor:
        return self.inner[0].grid(images)

    def forward(self, images: Tensor) -> Tensor:
        path = self.folder / f"{len(images)}.npy"
        if not path.exists():
            np.save(path, self.inner[0](images).cpu().numpy())
        return torch.from_numpy(np.load(path)).to(images.device)


def columns(device: str, folder: Path) -> dict[str, Column]:
    """All captioners; columns of one network share it, and the folder contains its features."""
    clip_net, clip_ids = clip4idc()
    namc_net, namc_ids = namc()
    stored = NamcNet(Kept(namc_net.backbone, folder), (14, 14), BERT_WORDS).eval()
    own = {name: value for name, value in namc_net.state_dict().items() if not name.startswith("backbone.")}
    stored.load_state_dict(own, strict=False)
    for net in (clip_net, namc_net, stored):
        net.to(device)
    return {
        "clip4idc": Column(clip_net, clip_ids, cached),
        "clip4idc_official": Column(clip_net, clip_ids, clip4idc_official),
        "namc": Column(namc_net, namc_ids, cached),
        "namc_stored": Column(stored, namc_ids, cached),
    }


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Wall seconds and the result, synchronised with the accelerator."""
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    with torch.no_grad():
        result = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began, result


def compare(wanted: dict[str, Column], batch: int, tokens: int, runs: int, device: str) -> dict[str, Any]:
    """Seconds and tokens per second of all columns for one batch size."""
    generator = torch.Generator().manual_seed(1)
    pictures: dict[int, Tensor] = {
        size: torch.randint(0, 256, (batch, 2, 3, size, size), dtype=torch.uint8, generator=generator).to(device)
        for size in {column.size for column in wanted.values()}
    }
    look: dict[str, list[float]] = {name: [] for name in wanted}
    write: dict[str, list[float]] = {name: [] for name in wanted}
    said: dict[str, list[list[int]]] = {}
    for run in range(runs + 1):
        for name, column in wanted.items():
            images, net = pictures[column.size], column.net
            seconds, features = timed(lambda net=net, images=images: net.encode(images), device)  # type: ignore[misc]
            more, said[name] = timed(
                lambda column=column, features=features: column.decode(  # type: ignore[misc]
                    column.net, features, tokens, column.special
                ),
                device,
            )
            if run:  # the first one is not measured
                look[name].append(seconds)
                write[name].append(more)
    for name, ids in said.items():
        assert all(len(row) == tokens for row in ids), f"{name} ended a caption"
        pair = name.removesuffix("_official").removesuffix("_stored")
        assert ids == said.get(pair, ids), f"{name} and {pair} write different words"
    return {
        name: {
            "parameters_million": round(sum(p.numel() for p in column.net.parameters()) / 1e6, 2),
            "look_s": min(look[name]),
            "write_s": min(write[name]),
            "tokens_per_s": batch * tokens / (min(look[name]) + min(write[name])),
            "tokens_per_s_writing": batch * tokens / min(write[name]),
        }
        for name, column in wanted.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--columns", nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    with tempfile.TemporaryDirectory() as folder:
        known = columns(options.device, Path(folder))
        wanted = {name: known[name] for name in options.columns or known}
        batches = {
            batch: compare(wanted, batch, options.tokens, options.runs, options.device) for batch in options.batches
        }
    result: dict[str, Any] = {
        "question": "tokens per second of full-size captioners with random weights, greedy, all captions equally long",
        "tokens": options.tokens,
        "runs": options.runs,
        "paper_tokens_per_s": {"clip4idc": 1789.44, "namc": 2248.53},
        "batches": batches,
        "stored_features_over_clip4idc": {
            batch: rows["namc_stored"]["tokens_per_s"] / rows["clip4idc"]["tokens_per_s"]
            for batch, rows in batches.items()
            if {"namc_stored", "clip4idc"} <= rows.keys()
        },
    }
    report(result, options.out, "open_clip_torch", seeds=[0, 1])


if __name__ == "__main__":
    main()

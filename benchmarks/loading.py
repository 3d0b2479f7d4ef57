"""How many pairs per second does one core read: from PNG and JPEG files, from a shard, and through the loader?

Writes noise-free synthetic images as files of CLEVR-Change's size (480 x 320) once, then times reading them.

    python -m benchmarks.loading --pairs 256 --out FILE
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.harness import report
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.source import PairSource
from lightning_idc.data.store.decoded import DecodedSource, decode_to_store
from lightning_idc.data.synthetic import SyntheticPairs

HEIGHT, WIDTH = 320, 480


def write(root: Path, pairs: int, ending: str, cache: Path) -> FolderPairs:
    """Write the rendered pairs as files of one format."""
    rendered = SyntheticPairs(
        train_pairs=pairs, val_pairs=1, test_pairs=1, render_size=(HEIGHT, WIDTH), cache_dir=cache
    ).pairs_of("train")
    root.mkdir()
    rows = ["id,before,after,caption,split"]
    for index in range(pairs):
        sample = rendered.load(index)
        for side, image in (("a", sample.before), ("b", sample.after)):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / f"{index}{side}.{ending}", quality=93)
        rows.append(f"{sample.id},{index}a.{ending},{index}b.{ending},a caption,train")
    (root / "pairs.csv").write_text("\n".join(rows))
    return FolderPairs(root)


def rate(source: PairSource, rounds: int = 3) -> dict[str, float]:
    """Pairs per second: median, minimum and maximum of several rounds over all pairs."""
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        for index in range(len(source)):
            source.load(index)
        rates.append(len(source) / (time.perf_counter() - began))
    return {"median": float(np.median(rates)), "least": min(rates), "greatest": max(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = (args.size, args.size)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for ending in ("png", "jpg"):
            data = write(base / ending, args.pairs, ending, base / "rendered")
            results[f"{ending} files, {WIDTH}x{HEIGHT}"] = rate(data.pairs_of("train"))
            for interpolation in ("bilinear", "bicubic"):
                files = FolderPairs(base / ending, image_size=size, interpolation=interpolation)
                source = files.pairs_of("train")
                results[f"{ending} files, {interpolation} to {args.size}"] = rate(source)
        began = time.perf_counter()
        shard = DecodedSource(source, decode_to_store(source, base / "shards", size, "bicubic"))
        seconds = time.perf_counter() - began
        results[f"shard of {args.size}"] = rate(shard)
        once = FolderPairs(base / "jpg", image_size=size, cache_images=base / "shards", batch_size=32)
        loader = once.loader("train")
        began = time.perf_counter()
        count = sum(len(batch["ids"]) for batch in loader)
        results["loader over the shard, batches of 32"] = {"median": count / (time.perf_counter() - began)}
    for name, rates in results.items():
        print(f"{name:<45} {rates['median']:8,.0f} pairs/s")
    print(f"writing the shard took {seconds:.1f} s for {args.pairs} pairs")
    result = {"pairs": args.pairs, "shard_seconds": seconds, "pairs_per_second": results}
    report(result, args.out, seeds=[], quiet=True)


if __name__ == "__main__":
    main()

"""Is reading the features of a frozen backbone faster than computing them, and how much shorter is training?

Trains a PairTransformer on rendered pairs for some epochs, with and without CacheFeatures, on a backbone with
random weights, which costs as much as a trained one. Both see the same pairs in the same order, so losses must agree.

    python -m benchmarks.features --out FILE
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback

from benchmarks.harness import quiet_trainer, report
from lightning_idc.callbacks.cache_features import CacheFeatures
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.models.pair_transformer.module import PairTransformer


class Clock(Callback):
    """Seconds of every epoch, loss of the last step, and measurements of the cache."""

    def __init__(self, cache: CacheFeatures | None) -> None:
        self.cache = cache
        self.seconds: list[float] = []
        self.loss = float("nan")
        self.timed: dict[str, float] = {}

    def on_train_epoch_start(self, *unused: Any) -> None:
        self.began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, *unused: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)
        self.loss = float(trainer.callback_metrics["train/loss"])
        if self.cache is not None and self.cache.cache is not None:
            self.timed = self.cache.cache.seconds


def train(backbone: str, size: int, pairs: int, epochs: int, cache: CacheFeatures | None) -> Clock:
    """Train once."""
    seed_everything(1, verbose=False)
    data = SyntheticPairs(
        mode="clevr_change", train_pairs=pairs, val_pairs=8, test_pairs=8, render_size=size, batch_size=32
    )
    model = PairTransformer(backbone=backbone, freeze_backbone=True, dropout=0.0, captions_per_pair=3)
    clock = Clock(cache)
    callbacks = [*([cache] if cache else []), clock]
    quiet_trainer(max_epochs=epochs, limit_val_batches=0, callbacks=callbacks).fit(model, data)
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backbones", nargs="+", default=["cnn:64", "resnet18:128"], metavar="NAME:SIZE")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in args.backbones:
        backbone, _, size = name.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            plain = train(backbone, int(size), args.pairs, args.epochs, None)
            cached = train(backbone, int(size), args.pairs, args.epochs, CacheFeatures(folder))
            kept = sum(path.stat().st_size for path in Path(folder).rglob("*.arrow"))
        results[name] = {
            "images_per_second": {name: 1 / seconds for name, seconds in cached.timed.items()},
            "seconds_per_epoch": {"computed": plain.seconds, "cached": cached.seconds},
            "last_loss": {"computed": plain.loss, "cached": cached.loss},
            "bytes_per_image": kept / (2 * args.pairs),
        }
    report({"backbones": results}, args.out, "timm", seeds=[1])


if __name__ == "__main__":
    main()

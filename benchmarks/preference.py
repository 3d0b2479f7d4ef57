"""What do DPO and ADPO cost beside supervised training? Same captioner, same data, same batches.

    python benchmarks/preference.py [--runs 5] [--steps 30] [--batch 32] [--out results/preference.json]

The default PairTransformer on rendered CLEVR-Change pairs of 64 pixels, two captions per pair, random weights, as in
recipes/adpo.yaml. Every measurement is a process of its own, the ways of training by turns, so that a busy machine
slows all of them alike; figures are CPU seconds of one thread per step (median of the steps after the first five), the
peak memory of the process and how far it grew from before the first step. The paper (A6000, Qwen2.5-VL-3B): SFT 1.56,
DPO 1.14, ADPO 1.06 samples a second; 28.6, 39.0, 41.3 GB.

``two looks`` is DPO as it is usually done: every chosen and rejected caption with a look of its own at the pair, by
policy and reference. ``scores kept`` fills a CachedScores: what keeping costs before anything comes back.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback, Trainer, seed_everything  # noqa: E402
from training import quiet_trainer  # noqa: E402

from lightning_idc.data.synthetic import SyntheticPairs  # noqa: E402
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever  # noqa: E402
from lightning_idc.methods.adpo.cached_scores import CachedScores  # noqa: E402
from lightning_idc.methods.adpo.preference import PreferenceOptimization  # noqa: E402
from lightning_idc.methods.adpo.references import FrozenCopy  # noqa: E402
from lightning_idc.methods.pair_transformer.module import PairTransformer  # noqa: E402

ADPO_TIME, ADPO_MEMORY = 1.03, 1.02
"""What ADPO may cost, as a factor of DPO."""


class TwoLooks(PairTransformer):
    """Scores every caption with a look of its own."""

    def score(self, features: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        looks = []
        for k, (ids, kept) in enumerate(zip(tokens.split(1, 1), mask.split(1, 1), strict=True)):
            seen = features if k == 0 else self.encode(self.__dict__["_seen"])
            looks.append(super().score(seen, ids, kept))
        return torch.cat(looks, 1)

    def encode(self, batch: Any) -> Any:
        self.__dict__["_seen"] = batch
        return super().encode(batch)


def ways() -> dict[str, tuple[type[PairTransformer], list[Callback]]]:
    """Captioner and callbacks of each way of training."""
    return {
        "SFT": (PairTransformer, []),
        "DPO": (PairTransformer, [PreferenceOptimization()]),
        "ADPO": (PairTransformer, [PreferenceOptimization(), AdversarialRetriever()]),
        "DPO, scores kept": (PairTransformer, [PreferenceOptimization(reference=CachedScores(FrozenCopy()))]),
        "DPO, two looks": (TwoLooks, [PreferenceOptimization()]),
    }


class Clock(Callback):
    """CPU seconds of each step and the peak memory before the first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.before = 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.before = peak()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._began = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        self.seconds.append(time.process_time() - self._began)


def peak() -> int:
    """Most memory that this process ever held, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(way: str, steps: int, batch: int, cache: str | None) -> dict[str, float]:
    """One way of training, in this process."""
    seed_everything(0, workers=True, verbose=False)
    kind, callbacks = ways()[way]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = quiet_trainer(
            max_steps=steps,
            max_epochs=-1,
            limit_val_batches=0,
            callbacks=[*callbacks, clock],
            default_root_dir=folder,
        )
        data = SyntheticPairs(
            train_pairs=640, val_pairs=8, test_pairs=8, batch_size=batch, cache_dir=cache, progress=False
        )
        trainer.fit(kind(captions_per_pair=2, dropout=0.0), data)
    return {"seconds": statistics.median(clock.seconds[5:]), "bytes": peak(), "growth": peak() - clock.before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cache", help="folder for rendered pairs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=list(ways()), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print("RESULT " + json.dumps(measure(given.way, given.steps, given.batch, given.cache)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways()}
    shared = ["--steps", str(given.steps), "--batch", str(given.batch)]
    shared += ["--cache", given.cache] if given.cache else []
    for _ in range(given.runs):
        for way, results in found.items():
            command = [sys.executable, __file__, "--way", way, *shared]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr[-3000:])
            results.append(json.loads(done.stdout.rpartition("RESULT ")[2]))
    table = {
        way: {
            "pairs_per_second": given.batch / statistics.median(r["seconds"] for r in results),
            "seconds": statistics.median(r["seconds"] for r in results),
            "peak_megabytes": statistics.median(r["bytes"] for r in results) / 2**20,
            "training_megabytes": statistics.median(r["growth"] for r in results) / 2**20,
        }
        for way, results in found.items()
    }
    # by turns: a ratio of neighbours in time is what a busy machine changes least
    pairs = list(zip(found["ADPO"], found["DPO"], strict=True))
    ratios = {
        "time": statistics.median(a["seconds"] / d["seconds"] for a, d in pairs),
        "memory": statistics.median(a["bytes"] / d["bytes"] for a, d in pairs),
    }
    for way, row in table.items():
        print(f"{way:<18} {row['pairs_per_second']:7.1f} pairs/s  peak {row['peak_megabytes']:7.0f} MB")
    print(
        f"ADPO / DPO: time {ratios['time']:.3f} (at most {ADPO_TIME}), "
        f"memory {ratios['memory']:.3f} (at most {ADPO_MEMORY})"
    )
    from _harness import report

    report({"ways": table, "adpo_over_dpo": ratios}, given.out, "lightning", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

"""Do explicit procedure modelling (EPM) and implicit procedure captioning (IPC) help, alone and together (Table 2)?

    python benchmarks/procap_learning.py [--pairs 2000] [--epochs 4 8] [--seeds 1 2 3] [--device cpu] [--out FILE]

One tokenizer and one set of procedures (DIS flow, l = 7) for all runs; per seed one first stage, and four captioners
that share everything but what is asked about: none (k = 0, fresh), EPM (k = 0, from the first stage), IPC (k queries,
fresh), and both. The same number of steps, batches and pairs for each. Every score is on the test pairs after the last
epoch.
``--pairs 24 --epochs 1 1 --seeds 1`` tries the script.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything

from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.methods.procap.keyframes import TokenizerSimilarity
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.methods.procap.tokenizer import TokenizerTraining
from lightning_idc.schedules import WarmupCosine
from lightning_idc.synthesis.flow import DISMidpoint
from lightning_idc.synthesis.interpolation import EveryPair, FrameInterpolator

ARMS = {"none": (False, False), "EPM": (True, False), "IPC": (False, True), "EPM+IPC": (True, True)}
SIZES: dict[str, Any] = {"width": 96, "layers": 3, "heads": 4, "image_size": (64, 64)}
DECODER: dict[str, Any] = {"decoder_width": 96, "decoder_heads": 4, "dropout": 0.0, "captions_per_pair": 3}
METRICS = ("CIDEr-D", "BLEU-4", "ROUGE-L")


def trainer(epochs: int, device: str) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accelerator=device,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )


def fitted(model: LightningModule, data: LightningDataModule, epochs: int, device: str, target: Path) -> str:
    """Train and return the path of the checkpoint."""
    run = trainer(epochs, device)
    run.fit(model, data)
    run.save_checkpoint(target)
    return str(target)


def learning(rate: float) -> dict[str, Any]:
    return {"optimizer": lambda groups: torch.optim.AdamW(groups, lr=rate), "schedule": WarmupCosine(0.1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--test_pairs", type=int, default=200)
    parser.add_argument("--epochs", type=int, nargs=2, default=[4, 8], metavar=("FIRST", "SECOND"))
    parser.add_argument("--queries", type=int, default=2, help="k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from environment import describe, report

    warnings.filterwarnings("ignore")
    began = time.monotonic()
    first_epochs, second_epochs = options.epochs
    settings = {"train_pairs": options.pairs, "val_pairs": 8, "test_pairs": options.test_pairs, "render_size": 64}
    data = SyntheticPairs(**settings, things=(2, 3), camera_jitter=0.0, progress=False, batch_size=32)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        seed_everything(0, verbose=False)
        sizes = {"codebook_size": 256, "latent": 32, "width": 48, "multipliers": [1, 2, 2], "blocks": 1, "fold": 4}
        coder = TokenizerTraining(**sizes, **learning(2e-3))
        tokenizer = fitted(coder, data, first_epochs, options.device, folder / "tokenizer.ckpt")
        interpolator = FrameInterpolator(
            str(folder / "procedures"), 7, DISMidpoint(), similarity=TokenizerSimilarity(tokenizer)
        )
        trainer(1, options.device).predict(interpolator, EveryPair(data, ["train"]), return_predictions=False)
        for seed in options.seeds:
            seed_everything(seed, verbose=False)
            data.seed = seed
            model = ProcedureModel(str(folder / "procedures"), tokenizer, options.queries, **SIZES, **learning(1e-3))
            first = fitted(model, data, first_epochs, options.device, folder / f"first-{seed}.ckpt")
            for name, (modelled, queried) in ARMS.items():
                seed_everything(seed, verbose=False)
                captioner = ProCap(
                    tokenizer,
                    first if modelled else None,
                    options.queries if queried else 0,
                    encoder_schedule=WarmupCosine(0.1),
                    **SIZES,
                    **DECODER,
                    **learning(1e-3),
                )
                run = trainer(second_epochs, options.device)
                run.fit(captioner, data)
                run.test(captioner, data, verbose=False)
                scores = {metric: float(run.callback_metrics[f"test/{metric}"]) for metric in METRICS}
                found[name].append(scores)
                print(f"seed {seed}, {name}: {scores}", flush=True)
    result: dict[str, Any] = {
        "question": "Table 2 of ProCap on rendered pairs: explicit procedure modelling and procedure queries",
        "pairs": options.pairs,
        "epochs": options.epochs,
        "queries": options.queries,
        "seeds": options.seeds,
        "scores": found,
        "mean": {
            name: {metric: statistics.fmean(run[metric] for run in runs) for metric in METRICS}
            for name, runs in found.items()
        },
        "minutes": (time.monotonic() - began) / 60,
        "environment": describe("lightning"),
    }
    report(result, options.out)


if __name__ == "__main__":
    main()

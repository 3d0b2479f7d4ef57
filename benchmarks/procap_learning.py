"""Do explicit procedure modelling (EPM) and implicit procedure captioning (IPC) help, alone and together (Table 2)?

    python benchmarks/procap_learning.py [--pairs 2000] [--epochs 8 4 8] [--seeds 1 2 3] [--work FOLDER] [--out FILE]

One tokenizer, which also learned to name objects, and one set of procedures (DIS flow, l = 7) for all runs; per seed
one first stage, and four captioners that share everything but what is asked about: none (k = 0, fresh), EPM (k = 0,
from the first stage), IPC (k queries, fresh), and both, with k = 1 as in the table. The same number of steps, batches
and pairs for each; as in the paper, the arms with EPM have seen the pairs and captions of the first stage besides.
Every score is on the test pairs after the last epoch.

A run with the same ``--work`` goes on with what is missing there: seeds can be run one by one, in any order.
``--pairs 24 --test_pairs 8 --epochs 1 1 1 --seeds 1`` tries the script.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from training import quiet_trainer

from lightning_idc.core.schedules import WarmupCosine
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs
from lightning_idc.methods.procap.flow import DISMidpoint
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator
from lightning_idc.methods.procap.keyframes import TokenizerSimilarity
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.methods.procap.tokenizer import NamingTokenizer

ARMS = {"none": (False, False), "EPM": (True, False), "IPC": (False, True), "EPM+IPC": (True, True)}
TOKENIZER: dict[str, Any] = {
    "codebook_size": 256,
    "latent": 32,
    "width": 32,
    "multipliers": [1, 2, 2],
    "blocks": 1,
    "fold": 4,
    "squared": 20.0,
    "naming": 10.0,
}
SIZES: dict[str, Any] = {"width": 96, "layers": 3, "heads": 4, "image_size": (64, 64)}
DECODER: dict[str, Any] = {"decoder_width": 96, "decoder_heads": 4, "dropout": 0.0, "captions_per_pair": 3}
METRICS = ("CIDEr-D", "BLEU-4", "ROUGE-L")


def trainer(epochs: int, device: str) -> Trainer:
    return quiet_trainer(max_epochs=epochs, accelerator=device, devices=1, gradient_clip_val=1.0, limit_val_batches=0)


def fitted(model: LightningModule, data: LightningDataModule, epochs: int, device: str, target: Path) -> str:
    """Train and return the path of the checkpoint."""
    run = trainer(epochs, device)
    run.fit(model, data)
    run.save_checkpoint(target)
    return str(target)


def learning(rate: float) -> dict[str, Any]:
    return {"optimizer": lambda groups: torch.optim.AdamW(groups, lr=rate), "schedule": WarmupCosine(0.1)}


class Runs:
    """All stages of one comparison in one folder, each made once.

    Args:
        options: of the command line.
        folder: where they are kept.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        settings: dict[str, Any] = {
            "train_pairs": options.pairs,
            "val_pairs": 8,
            "test_pairs": options.test_pairs,
            "render_size": 64,
            "things": (2, 3),
            "camera_jitter": 0.0,
            "progress": False,
        }
        self.pairs = SyntheticPairs(**settings, batch_size=32)
        self.cells = SyntheticCells(**settings, grid=4, batch_size=16)
        self.tokenizer = str(folder / "tokenizer.ckpt")
        self.procedures = str(folder / "procedures")

    def make_procedures(self) -> None:
        """The tokenizer, and the frames of all training pairs."""
        if not Path(self.tokenizer).is_file():
            seed_everything(0, verbose=False)
            model = NamingTokenizer(**TOKENIZER, **learning(6e-3))
            fitted(model, self.cells, self.options.epochs[0], self.options.device, Path(self.tokenizer))
        similarity = TokenizerSimilarity(self.tokenizer)
        interpolator = FrameInterpolator(self.procedures, 7, DISMidpoint(), similarity)
        run = trainer(1, self.options.device)
        run.predict(interpolator, EveryPair(self.pairs, ["train"]), return_predictions=False)

    def first_stage(self, seed: int) -> str:
        """Checkpoint of the procedure encoder of a seed."""
        target = self.folder / f"first-{seed}.ckpt"
        if not target.is_file():
            seed_everything(seed, verbose=False)
            self.pairs.seed = seed
            model = ProcedureModel(self.procedures, self.tokenizer, self.options.queries, **SIZES, **learning(1e-3))
            fitted(model, self.pairs, self.options.epochs[1], self.options.device, target)
        return str(target)

    def arm(self, seed: int, name: str) -> dict[str, float]:
        """Scores of one captioner."""
        modelled, queried = ARMS[name]
        first = self.first_stage(seed) if modelled else None
        seed_everything(seed, verbose=False)
        self.pairs.seed = seed
        captioner = ProCap(
            self.tokenizer,
            first,
            self.options.queries if queried else 0,
            encoder_schedule=WarmupCosine(0.1),
            **SIZES,
            **DECODER,
            **learning(1e-3),
        )
        run = trainer(self.options.epochs[2], self.options.device)
        run.fit(captioner, self.pairs)
        run.test(captioner, self.pairs, verbose=False)
        return {metric: float(run.callback_metrics[f"test/{metric}"]) for metric in METRICS}


def summary(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Mean and spread of every arm, and in how many seeds both together beat each other arm in CIDEr-D."""
    means = {
        name: {metric: statistics.fmean(run[metric] for run in runs.values()) for metric in METRICS}
        for name, runs in found.items()
        if runs
    }
    both = found["EPM+IPC"]
    beaten = {
        name: sum(both[seed]["CIDEr-D"] > runs[seed]["CIDEr-D"] for seed in runs if seed in both)
        for name, runs in found.items()
        if name != "EPM+IPC"
    }
    return {"mean": means, "seeds_in_which_both_beat": beaten}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument(
        "--epochs", type=int, nargs=3, default=[8, 4, 8], metavar=("TOKENIZER", "FIRST", "SECOND"), help="of each stage"
    )
    parser.add_argument("--queries", type=int, default=1, help="k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, help="folder that keeps what was made; a temporary one when left out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from _harness import report

    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as made:
        folder: Path = options.work or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        scores = folder / "scores.json"
        kept: dict[str, Any] = json.loads(scores.read_text()) if scores.is_file() else {"seconds": 0.0, "scores": {}}
        began, before = time.process_time(), kept["seconds"]
        runs = Runs(options, folder)
        runs.make_procedures()
        for seed in options.seeds:
            for name in ARMS:
                found = kept["scores"].setdefault(name, {})
                if str(seed) not in found:
                    found[str(seed)] = runs.arm(seed, name)
                    kept["seconds"] = before + time.process_time() - began
                    scores.write_text(json.dumps(kept))
                    print(f"seed {seed}, {name}: {found[str(seed)]}", flush=True)
    result: dict[str, Any] = {
        "question": "Table 2 of ProCap on rendered pairs: explicit procedure modelling and procedure queries",
        "pairs": options.pairs,
        "test_pairs": options.test_pairs,
        "epochs": options.epochs,
        "queries": options.queries,
        "scores": kept["scores"],
        **summary(kept["scores"]),
        "cpu_minutes": kept["seconds"] / 60,
    }
    report(result, options.out, "lightning", seeds=options.seeds)


if __name__ == "__main__":
    main()

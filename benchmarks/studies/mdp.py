"""Does MDP improve captions?

    python -m benchmarks.studies.mdp [--seeds 1 2 3 4 5] [--world large small] [--out FILE]
    python -m benchmarks.studies.mdp --order start --seeds 1 --world large [--out FILE]
    python -m benchmarks.studies.mdp --seeds 2 --world small --work bases --only_base  # half of the next line
    python -m benchmarks.studies.mdp --seeds 2 --world small --work bases --part parts/mdp-small-2.json

As in M3Diff's table 6, in its order of training: a tiny vision-language model, whose vision tower has learned to name
objects and their locations, learns to caption; from that checkpoint the language model is tuned by LoRA and the rest
fully for one epoch, once without and once with MDP on all four depths of the tower, with the same seed, data and steps.
Worlds: ``large``, two or three objects and a fixed camera; ``small``, six to eight objects at a higher resolution and a
moving camera, so that the change is small and among many differences. With ``--order start`` MDP is in the model from
the start, without LoRA, compared with the same training without it: in the paper's order, a base that has not learned
to compare two images leaves MDP little to refine. MDP adds parameters and time: ``benchmarks/mdp_cost.py``.
``harness.py`` describes the baselines and intervals of every score.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import yaml
from lightning.pytorch import seed_everything

from benchmarks.harness import quiet_trainer
from benchmarks.studies.harness import (
    Study,
    arguments,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
    work_folder,
)
from lightning_idc.callbacks.compare_results import captions_of
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.cells import SyntheticCells
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.metrics.captions import score_captions
from lightning_idc.models.schedules import WarmupCosine, WarmupLinear
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.tower import TowerNaming
from lightning_idc.report.comparison import Captioned

DEPTHS = 4
LAYERS = [1, 2, 3, 4]
PATCH = 8  # pixels
ROWS = {"paper": ("LoRA", "LoRA + MDP"), "start": ("full", "full + MDP")}
"""Rows by the order in which MDP comes; the first one is the control."""
WORLDS: dict[str, dict[str, Any]] = {
    "large": {"things": (2, 3), "camera_jitter": 0.0, "render_size": 64},
    "small": {"things": (6, 8), "render_size": 72},
}
RECIPE = Path(__file__).parents[2] / "recipes" / "m3diff.yaml"


def trainer_of(epochs: int, folder: Path, **options: Any) -> Any:
    return quiet_trainer(
        max_epochs=epochs, gradient_clip_val=1.0, limit_val_batches=0, default_root_dir=folder, **options
    )


def pairs_of(world: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rendered pairs of all training runs in a world."""
    pairs = {"train_pairs": args.train, "val_pairs": 8, "test_pairs": args.test}
    return {**WORLDS[world], **pairs, "no_change": 1 / 6, "cache_dir": args.cache, "progress": False}


def architecture_of(world: str) -> dict[str, Any]:
    """Model of recipes/m3diff.yaml with a tower of four layers, for the image size of the world."""
    made = yaml.safe_load(RECIPE.read_text())["base"]["model"]["init_args"]["architecture"]
    tower = {**made["vision_config"], "num_hidden_layers": DEPTHS, "image_size": WORLDS[world]["render_size"]}
    return {**made, "vision_config": tower}


def adamw(rate: float) -> Any:
    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


def look(seed: int, world: str, args: argparse.Namespace, folder: Path) -> Path:
    """Train the tower to name objects and their locations, unless a checkpoint exists; return its path."""
    if (folder / "tower.ckpt").is_file():
        return folder / "tower.ckpt"
    folder.mkdir(parents=True, exist_ok=True)
    seed_everything(seed, workers=True, verbose=False)
    grid = WORLDS[world]["render_size"] // PATCH
    data = SyntheticCells(**pairs_of(world, args), grid=grid, batch_size=64, seed=seed)
    naming = TowerNaming(architecture_of(world), optimizer=adamw(2e-3), schedule=WarmupLinear(warmup=0.1))
    trainer = trainer_of(args.look_epochs, folder)
    trainer.fit(naming, data)
    trainer.save_checkpoint(folder / "tower.ckpt")
    return folder / "tower.ckpt"


def captioner(seed: int, world: str, rate: float, **options: Any) -> VLMCaptioner:
    seed_everything(seed, workers=True, verbose=False)
    return VLMCaptioner(
        architecture=architecture_of(world),
        prompt="What changed?",
        captions_per_pair=3,
        optimizer=adamw(rate),
        schedule=WarmupCosine(warmup=0.05),
        **options,
    )


def learn(seed: int, world: str, args: argparse.Namespace, folder: Path) -> Path:
    """Train the whole model to caption, unless a checkpoint exists; return its path."""
    if (folder / "base.ckpt").is_file():
        return folder / "base.ckpt"
    model = captioner(seed, world, args.rate, tower_weights=str(look(seed, world, args, folder)))
    trainer = trainer_of(args.epochs, folder)
    trainer.fit(model, SyntheticPairs(**pairs_of(world, args), batch_size=32, seed=seed))
    trainer.save_checkpoint(folder / "base.ckpt")
    return folder / "base.ckpt"


def tune(seed: int, world: str, row: str, base: Path, args: argparse.Namespace) -> tuple[Captioned, dict[str, float]]:
    """Fine-tune and test the base, or the whole model from its tower; return captions and scores."""
    data = SyntheticPairs(**pairs_of(world, args), batch_size=32, seed=seed)
    adapters: list[Any] = [MDPAdapter(LAYERS)] if "MDP" in row else []
    if args.order == "paper":
        model = captioner(seed, world, args.tune_rate, init_from=str(base), learning_rates={"vision": 0.2})
        trainer = trainer_of(args.tune_epochs, base.parent, callbacks=[LoRA(rank=16, alpha=32), *adapters])
    else:
        model = captioner(seed, world, args.rate, tower_weights=str(base))
        trainer = trainer_of(args.epochs, base.parent, callbacks=adapters)
    start = time.process_time()
    trainer.fit(model, data)
    seconds = time.process_time() - start
    data.batch_size = 100  # for the test, where a step is one token
    said, scores = test_captions(trainer, model, data)
    references = dict(zip(data.pairs_of("test").ids, captions_of(data.pairs_of("test")), strict=True))
    scores["CIDEr"] = score_captions(said.captions, references, ["CIDEr"]).values["CIDEr"]
    scores.pop("CIDEr-D")  # stands in the row already
    return said, {**scores, "tune_cpu_seconds": seconds}


def gain(args: argparse.Namespace) -> None:
    rows = ROWS[args.order]
    worlds = {world: Study.of(SyntheticPairs(**pairs_of(world, args)), rows, control=rows[0]) for world in args.world}
    with work_folder(args) as kept:
        for world, study in worlds.items():
            for seed in args.seeds:
                begin = time.process_time()
                folder = kept / f"{world}-{seed}"
                base = (learn if args.order == "paper" else look)(seed, world, args, folder)
                before = time.process_time() - begin
                results = {row: tune(seed, world, row, base, args) for row in selected_rows(args, rows)}
                study.add(seed, results, base_cpu_seconds=before, cpu_seconds=time.process_time() - begin)
                save_results(
                    args, {name: one for name, one in worlds.items() if one.seeds}, "transformers", "lightning"
                )
    print_summaries(worlds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only_base", action="store_true", help="train what the rows start from, into --work")
    parser.add_argument("--world", choices=WORLDS, nargs="+", default=list(WORLDS))
    parser.add_argument("--order", choices=ROWS, default="paper", help="when MDP comes")
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--look_epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--tune_epochs", type=int, default=1)
    parser.add_argument("--tune_rate", type=float, default=1e-3)
    arguments(parser, (1, 2, 3, 4, 5))
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if args.only_base:
        if args.work is None:
            raise SystemExit("--only_base keeps its checkpoints in --work; name a folder")
        with work_folder(args) as kept:
            for world in args.world:
                for seed in args.seeds:
                    learn(seed, world, args, kept / f"{world}-{seed}")
        return
    gain(args)


if __name__ == "__main__":
    main()

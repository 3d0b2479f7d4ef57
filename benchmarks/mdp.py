"""What does MDP cost, and what does it bring?

    python benchmarks/mdp.py cost [--device cpu] [--out results/mdp_cost.json]
    python benchmarks/mdp.py gain [--seeds 1 2 3 4 5] [--world large small] [--out results/mdp_gain.json]
    python benchmarks/mdp.py gain --order start --seeds 1 --world large [--out results/mdp_start.json]
    python benchmarks/mdp.py base --seeds 2 --world small --work bases   # the first half of the next line, on its own
    python benchmarks/mdp.py gain --seeds 2 --world small --work bases --part parts/mdp-small-2.json  # merge_study.py

`cost`: parameters at the shapes of LLaVA-OneVision-7B (SigLIP: 1,152 channels, 729 places, four depths) beside those of
the whole model, counted without memory, and seconds and memory of one pair through MDP, forward and backward.

`gain`: the question of M3Diff's table 6, in its order. A tiny vision-language model, with a vision tower that has
learned to name what stands where, learns to caption; from that checkpoint the language model is tuned by LoRA and the
rest fully for one epoch, once without and once with MDP on all four depths of the tower, with the same seed, data and
steps. Worlds: ``large``, two or three things seen by a camera that stands still; ``small``, six to eight things at a
higher resolution by a camera that moves, so that what changes is small and much else changes, too. With
``--order start`` MDP is in the model from the first caption on, without LoRA, beside the same training without it: a
base that has not learned to compare two images gives MDP in the paper's order little to refine. MDP adds parameters and
time, which `cost` and the seconds here tell. ``_study.py`` says what stands beside every score.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import yaml
from _harness import report
from _study import Study, arguments, asked, keep, kept_in, show, wanted
from lightning.pytorch import seed_everything
from training import quiet_trainer

from lightning_idc.callbacks.compare_results import captions_of
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.cells import SyntheticCells
from lightning_idc.methods.m3diff.mdp import MultiScaleDifferentialPerception
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.metrics.captions import score_captions
from lightning_idc.models.schedules import WarmupCosine, WarmupLinear
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.tower import TowerNaming
from lightning_idc.report.comparison import Captioned

WIDTH, PLACES, DEPTHS = 1152, 729, 4
LAYERS = [1, 2, 3, 4]
PATCH = 8  # pixels
ROWS = {"paper": ("LoRA", "LoRA + MDP"), "start": ("full", "full + MDP")}
"""Rows by the order in which MDP comes; the first one is the control."""
WORLDS: dict[str, dict[str, Any]] = {
    "large": {"things": (2, 3), "camera_jitter": 0.0, "render_size": 64},
    "small": {"things": (6, 8), "render_size": 72},
}
RECIPE = Path(__file__).parents[1] / "recipes" / "m3diff.yaml"


def whole_model() -> dict[str, int]:
    """Parameters of LLaVA-OneVision-7B's shapes, by part."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(
        "llava_onevision",
        vision_config=dict(
            model_type="siglip_vision_model",
            vision_use_head=False,
            image_size=384,
            patch_size=14,
            hidden_size=WIDTH,
            intermediate_size=4304,
            num_hidden_layers=26,
            num_attention_heads=16,
        ),
        text_config=dict(
            model_type="qwen2",
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152000,
            tie_word_embeddings=False,
        ),
    )
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    parts = {"vision": "model.vision_tower", "projector": "model.multi_modal_projector", "language": ""}
    found = {name: sum(p.numel() for p in model.get_submodule(path).parameters()) for name, path in parts.items()}
    found["language"] -= found["vision"] + found["projector"]
    return found


def cost(given: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"model": whole_model()}
    total = sum(result["model"].values())
    print(f"{'LLaVA-OneVision-7B':<28}{total / 1e6:9.1f} M parameters")
    for name, options in {"shared": {}, "not shared": {"shared": False}}.items():
        with torch.device("meta"):
            mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS, **options)
        count = sum(p.numel() for p in mdp.parameters())
        result[f"mdp {name}"] = count
        print(f"{'MDP, ' + name:<28}{count / 1e6:9.1f} M parameters, {100 * count / total:.2f} %")
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    mdp = MultiScaleDifferentialPerception(WIDTH, DEPTHS).to(given.device, dtype)
    torch.nn.init.normal_(mdp.out.weight, std=0.02)
    features = [torch.randn(1, 2, PLACES, WIDTH, device=given.device, dtype=dtype) for _ in range(DEPTHS)]
    seconds = []
    for _ in range(given.runs + 1):
        start = time.perf_counter()
        mdp(features).sum().backward()
        if given.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    result["seconds"] = seconds[1:]
    print(f"{'one pair, both ways':<28}{statistics.median(seconds[1:]):9.3f} s on {given.device}")
    if given.device == "cuda":
        result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(f"{'peak memory':<28}{result['peak_mib']:9.0f} MiB")
    return result


def trainer_of(epochs: int, folder: Path, **options: Any) -> Any:
    return quiet_trainer(
        max_epochs=epochs, gradient_clip_val=1.0, limit_val_batches=0, default_root_dir=folder, **options
    )


def pairs_of(world: str, given: argparse.Namespace) -> dict[str, Any]:
    """The rendered pairs of all trainings in a world."""
    pairs = {"train_pairs": given.train, "val_pairs": 8, "test_pairs": given.test}
    return {**WORLDS[world], **pairs, "no_change": 1 / 6, "cache_dir": given.cache, "progress": False}


def architecture_of(world: str) -> dict[str, Any]:
    """The model of recipes/m3diff.yaml with a tower of four layers, for the world's pictures."""
    made = yaml.safe_load(RECIPE.read_text())["base"]["model"]["init_args"]["architecture"]
    tower = {**made["vision_config"], "num_hidden_layers": DEPTHS, "image_size": WORLDS[world]["render_size"]}
    return {**made, "vision_config": tower}


def adamw(rate: float) -> Any:
    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


def look(seed: int, world: str, given: argparse.Namespace, folder: Path) -> Path:
    """Teach the tower to name what stands where, unless that was done before; where its checkpoint lies."""
    if (folder / "tower.ckpt").is_file():
        return folder / "tower.ckpt"
    folder.mkdir(parents=True, exist_ok=True)
    seed_everything(seed, workers=True, verbose=False)
    grid = WORLDS[world]["render_size"] // PATCH
    data = SyntheticCells(**pairs_of(world, given), grid=grid, batch_size=64, seed=seed)
    naming = TowerNaming(architecture_of(world), optimizer=adamw(2e-3), schedule=WarmupLinear(warmup=0.1))
    trainer = trainer_of(given.look_epochs, folder)
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


def learn(seed: int, world: str, given: argparse.Namespace, folder: Path) -> Path:
    """Teach the whole model to caption, unless that was done before; where its checkpoint lies."""
    if (folder / "base.ckpt").is_file():
        return folder / "base.ckpt"
    model = captioner(seed, world, given.rate, tower_weights=str(look(seed, world, given, folder)))
    trainer = trainer_of(given.epochs, folder)
    trainer.fit(model, SyntheticPairs(**pairs_of(world, given), batch_size=32, seed=seed))
    trainer.save_checkpoint(folder / "base.ckpt")
    return folder / "base.ckpt"


def tune(seed: int, world: str, row: str, base: Path, given: argparse.Namespace) -> tuple[Captioned, dict[str, float]]:
    """Tune the base and test it, or the whole model from its tower on: what is said, and scores."""
    data = SyntheticPairs(**pairs_of(world, given), batch_size=32, seed=seed)
    adapters: list[Any] = [MDPAdapter(LAYERS)] if "MDP" in row else []
    if given.order == "paper":
        model = captioner(seed, world, given.tune_rate, init_from=str(base), learning_rates={"vision": 0.2})
        trainer = trainer_of(given.tune_epochs, base.parent, callbacks=[LoRA(rank=16, alpha=32), *adapters])
    else:
        model = captioner(seed, world, given.rate, tower_weights=str(base))
        trainer = trainer_of(given.epochs, base.parent, callbacks=adapters)
    start = time.process_time()
    trainer.fit(model, data)
    seconds = time.process_time() - start
    data.batch_size = 100  # for the test, where a step is one token
    said, scores = asked(trainer, model, data)
    references = dict(zip(data.pairs_of("test").ids, captions_of(data.pairs_of("test")), strict=True))
    scores["CIDEr"] = score_captions(said.captions, references, ["CIDEr"]).values["CIDEr"]
    scores.pop("CIDEr-D")  # stands in the row already
    return said, {**scores, "tune_cpu_seconds": seconds}


def gain(given: argparse.Namespace) -> None:
    rows = ROWS[given.order]
    worlds = {world: Study.of(SyntheticPairs(**pairs_of(world, given)), rows, control=rows[0]) for world in given.world}
    with kept_in(given) as kept:
        for world, study in worlds.items():
            for seed in given.seeds:
                begin = time.process_time()
                folder = kept / f"{world}-{seed}"
                base = (learn if given.order == "paper" else look)(seed, world, given, folder)
                before = time.process_time() - begin
                found = {row: tune(seed, world, row, base, given) for row in wanted(given, rows)}
                study.add(seed, found, base_cpu_seconds=before, cpu_seconds=time.process_time() - begin)
                keep(given, {name: one for name, one in worlds.items() if one.seeds}, "transformers", "lightning")
    show(worlds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "base", "gain"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
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
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if given.what == "base":
        if given.work is None:
            raise SystemExit("base keeps its checkpoints in --work; name a folder")
        with kept_in(given) as kept:
            for world in given.world:
                for seed in given.seeds:
                    learn(seed, world, given, kept / f"{world}-{seed}")
        return
    if given.what == "gain":
        gain(given)
        return
    settings = {"what": "cost", "device": given.device, "runs": given.runs}
    found = {"settings": settings, "result": cost(given)}
    report(found, given.out, "transformers", "lightning", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

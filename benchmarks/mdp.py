"""What does MDP cost, and what does it bring?

    python benchmarks/mdp.py cost [--device cpu] [--out results/mdp_cost.json]
    python benchmarks/mdp.py gain [--seeds 0 1 2] [--train 2400] [--epochs 2] [--out results/mdp_gain.json]
    python benchmarks/mdp.py gain --seeds 2 --part parts/mdp-2.json   # and merge_study.py

`cost`: parameters at the shapes of LLaVA-OneVision-7B (SigLIP: 1,152 channels, 729 places, four depths) beside those of
the whole model, counted without memory, and seconds and memory of one pair through MDP, forward and backward.

`gain`: table 6's question in small. The tiny vision-language model of recipes/m3diff.yaml gets a vision tower that has
learned to name what stands where, once for all runs, and is then trained on synthetic pairs with several changes and
long descriptions, once with MDP and once without, with the same seeds, data, order and number of steps. MDP adds
parameters and time, which `cost` and the seconds here tell. ``_study.py`` says what stands beside every score.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _harness import report
from _study import Study, arguments, asked, keep, show, wanted
from training import quiet_trainer

from lightning_idc.methods.m3diff.mdp import MultiScaleDifferentialPerception
from lightning_idc.report.comparison import Captioned

WIDTH, PLACES, DEPTHS = 1152, 729, 4
ROWS = ("without", "with")
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


def sizes(given: argparse.Namespace) -> dict[str, Any]:
    """The rendered pairs of all trainings."""
    pairs = {"train_pairs": given.train, "val_pairs": 8, "test_pairs": given.test}
    return {"mode": "omnidiff", **pairs, "cache_dir": given.cache, "progress": False}


def look(architecture: dict[str, Any], given: argparse.Namespace, folder: Path) -> Path:
    """Teach the tower to name what stands where; where its checkpoint lies."""
    from lightning.pytorch import seed_everything

    from lightning_idc.core.schedules import WarmupLinear
    from lightning_idc.data.synthetic.cells import SyntheticCells
    from lightning_idc.methods.vlm.tower import TowerNaming

    seed_everything(0, verbose=False)
    data = SyntheticCells(**sizes(given), batch_size=64)
    naming = TowerNaming(
        architecture,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        schedule=WarmupLinear(warmup=0.1),
    )
    trainer = trainer_of(given.look_epochs, folder)
    trainer.fit(naming, data)
    trainer.save_checkpoint(folder / "tower.ckpt")
    return folder / "tower.ckpt"


def train(
    seed: int, mdp: bool, architecture: dict[str, Any], tower: Path, given: argparse.Namespace
) -> tuple[Captioned, dict[str, float]]:
    """Train once, test once: what is said, and scores."""
    from lightning.pytorch import seed_everything

    from lightning_idc.core.schedules import WarmupCosine
    from lightning_idc.data.synthetic import SyntheticPairs
    from lightning_idc.data.synthetic.facts import fact_scores
    from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
    from lightning_idc.methods.vlm.module import VLMCaptioner

    seed_everything(seed, workers=True, verbose=False)
    data = SyntheticPairs(**sizes(given), batch_size=16, seed=seed)
    model = VLMCaptioner(
        architecture=architecture,
        tower_weights=str(tower),
        prompt="What changed?",
        captions_per_pair=1,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=given.rate),
        schedule=WarmupCosine(warmup=0.05),
    )
    trainer = trainer_of(given.epochs, tower.parent, callbacks=[MDPAdapter()] if mdp else [])
    start = time.process_time()
    trainer.fit(model, data)
    seconds = time.process_time() - start
    said, scores = asked(trainer, model, data)
    source = data.source("test")
    truths = {id: source.truth(index) for index, id in enumerate(source.ids)}
    facts = fact_scores((text, truths[id]) for id, text in said.captions.items())
    scores.pop("CIDEr-D")  # stands in the row already
    return said, {**scores, **facts, "train_cpu_seconds": seconds}


def gain(given: argparse.Namespace) -> None:
    import yaml

    from lightning_idc.data.synthetic import SyntheticPairs

    architecture = yaml.safe_load(RECIPE.read_text())["base"]["model"]["init_args"]["architecture"]
    worlds = {"omnidiff": Study.of(SyntheticPairs(**sizes(given)), ROWS)}
    with tempfile.TemporaryDirectory() as made:
        folder: Path = given.work or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        begin = time.process_time()
        tower = look(architecture, given, folder)
        for seed in given.seeds:
            found = {row: train(seed, row == "with", architecture, tower, given) for row in wanted(given, ROWS)}
            worlds["omnidiff"].add(
                seed,
                {row: said for row, (said, _) in found.items()},
                {row: scores for row, (_, scores) in found.items()},
                seconds=time.process_time() - begin,
            )
            begin = time.process_time()
            keep(given, worlds, "transformers", "lightning")
    show(worlds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "gain"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--train", type=int, default=2400)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--look_epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2e-3)
    arguments(parser, (0, 1, 2))
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if given.what == "gain":
        gain(given)
        return
    settings = {"what": "cost", "device": given.device, "runs": given.runs}
    found = {"settings": settings, "result": cost(given)}
    report(found, given.out, "transformers", "lightning", seeds=[0], quiet=True)


if __name__ == "__main__":
    main()

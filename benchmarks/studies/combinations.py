"""Which combinations of methods and captioners work best at equal cost? No paper reports them.

    python -m benchmarks.studies.combinations [--seeds 1 2 3] [--world baseline namc procap clip4idc] [--out FILE]
    python -m benchmarks.studies.combinations --world namc --seeds 3 --only SFT SFT+ GRPO --part parts/namc-3.json
    python -m benchmarks.studies.combinations --pairs 24 --test_pairs 8 --smallest  # smoke test

Each world is a captioner: ``baseline`` (PairTransformer), ``namc``, ``procap`` and ``clip4idc``, all trained in one
rendered world of two or three objects and tested on the same pairs. For each seed a captioner is trained by likelihood
(SFT); from its checkpoint, training continues for the same CPU seconds (``--seconds``): by likelihood (SFT+, the
control), by likelihood on equal parts of real and produced pairs (SFT+ produced), by ADPO and by GRPO (all but
clip4idc), with MDP (baseline), with noise masking (clip4idc). The budget includes preparation: producing pairs,
encoders that detect noise, rewards. In all rows of ``clip4idc`` a fraction of the caption words is replaced; the others
use unmodified captions. Pre-trained parts (a backbone that names objects, an adapted tower, ProCap's tokenizer) are
trained once for all seeds in place of those of the papers.
``harness.py`` describes the baselines and intervals of every score.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set
from lightning.pytorch import Callback, seed_everything  # noqa: E402

from benchmarks.harness import quiet_trainer  # noqa: E402
from benchmarks.studies.budget import Budget, ByClock, fitted  # noqa: E402
from benchmarks.studies.captioners import CLASSES, FROZEN, RATES, SIDE, CaptionRelevance, World, adamw  # noqa: E402
from benchmarks.studies.harness import (  # noqa: E402
    Study,
    Tested,
    arguments,
    each_run,
    load_or_test,
    print_summaries,
    save_results,
    selected_rows,
    test_captions,
)
from lightning_idc.callbacks import CacheFeatures  # noqa: E402
from lightning_idc.data.datamodule import PairDataModule  # noqa: E402
from lightning_idc.data.mixture import Mixture  # noqa: E402
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever  # noqa: E402
from lightning_idc.methods.adpo.preference import PreferenceOptimization  # noqa: E402
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter  # noqa: E402
from lightning_idc.methods.namc.noise_masking import NoiseMasking  # noqa: E402
from lightning_idc.methods.policy.policy import GroupRelative  # noqa: E402
from lightning_idc.methods.policy.rewards import CiderReward, FactsReward, WeightedRewards  # noqa: E402

CONTROL, PRODUCED, MASKED = "SFT+", "SFT+ produced", "noise masking"
REWARDED = ("SFT", CONTROL, PRODUCED, "ADPO", "GRPO")
ROWS = {
    "baseline": (*REWARDED, "MDP"),
    "namc": REWARDED,
    "procap": REWARDED,
    "clip4idc": ("SFT", CONTROL, PRODUCED, MASKED),
}
SMALLEST = {
    "seconds": 0.1,
    "first_seconds": [0.1] * len(ROWS),
    "produced": 6,
    "scenes": 6,
    "batch": 4,
} | dict.fromkeys(("look_epochs", "tower_epochs", "adapt_epochs", "token_epochs"), 1)
TEST_BATCH = 250
LOOK_FOR_NOISE = 0.3
"""Share of its seconds that noise masking spends on an encoder that finds noise."""


class Run:
    """All training runs of one captioner with one seed.

    Args:
        args: command line.
        world: pairs and pre-trained parts of all captioners.
        folder: folder of checkpoints and captions; existing files are reused.
        seed: seed of training.
        name: name of the captioner.
    """

    def __init__(self, args: argparse.Namespace, world: World, folder: Path, seed: int, name: str) -> None:
        self.args, self.world, self.folder, self.seed, self.name = args, world, folder, seed, name
        self.noise = args.noise if name == "clip4idc" else 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def pairs(self) -> PairDataModule:
        return self.world.pairs(self.seed, self.noise)

    def kept(self) -> list[Callback]:
        """What reads features of frozen parts from disk."""
        known = FROZEN.get(self.name)
        return [CacheFeatures(self.world.folder / "features", known, always=True)] if known else []

    def first(self) -> Path:
        """Checkpoint of the captioner that all trainings of the seed go on from."""
        path = self.folder / f"first-{self.name}.ckpt"
        if not path.is_file():
            seed_everything(self.seed, workers=True, verbose=False)
            budget = Budget.begin(dict(zip(ROWS, self.args.first_seconds, strict=True))[self.name])
            captioner = self.world.captioner(self.name, budget, None, RATES[self.name])
            trainer, _ = fitted(captioner, self.pairs(), budget, self.folder, self.kept())
            trainer.save_checkpoint(path)
        return path

    def measured(self, captioner: Any) -> Tested:
        data = self.world.pairs()
        data.batch_size = TEST_BATCH
        said, _ = test_captions(quiet_trainer(default_root_dir=self.folder), captioner, data)
        return said, {}

    def start(self) -> Tested:
        return self.measured(CLASSES[self.name].load_from_checkpoint(self.first()))

    def continued(self, row: str) -> Tested:
        """What the captioner says after more seconds of training in one way, and how many steps these were."""
        start = str(self.first())
        seed_everything(self.seed, workers=True, verbose=False)
        data = self.pairs()
        charged = 0.0
        if row == PRODUCED:
            produced, charged = self.world.produced()
            parts = {"real": data, "produced": produced}
            data = Mixture(
                parts, dict.fromkeys(parts, 1.0), self.args.pairs, batch_size=self.args.batch, image_size=SIDE
            )
        budget = Budget.begin(self.args.seconds, charged)
        callbacks = self.callbacks(row, data, budget)
        addon = {"ADPO": {"addons.retriever": 10.0}, MASKED: {"addons.noise_masking": 0.1}}.get(row)
        rate = self.args.adpo_rate if row == "ADPO" else self.args.rate
        captioner = self.world.captioner(self.name, budget, start, rate, learning_rates=addon)
        before = budget.spent
        _, steps = fitted(captioner, data, budget, self.folder, [*callbacks, *self.kept()])
        figures = {"steps": float(steps), "seconds": budget.spent, "seconds before": before}
        said, _ = self.measured(captioner)
        return said, figures

    def callbacks(self, row: str, data: PairDataModule, budget: Budget) -> list[Callback]:
        """Of a way of training."""
        if row == "ADPO":
            return [PreferenceOptimization(), AdversarialRetriever(candidates=128, scale=10.0, temperature=1.0)]
        if row == "GRPO":
            reward = WeightedRewards([FactsReward({"relation": 3.0}), CiderReward()], [1.0, 0.05])
            return [GroupRelative(reward, samples=self.args.samples)]
        if row == "MDP":
            return [MDPAdapter()]
        return [NoiseMasking(self.relevance(data, budget))] if row == MASKED else []

    def relevance(self, data: PairDataModule, budget: Budget) -> str:
        """Checkpoint of encoders that find the noise, for a share of the budget."""
        path = self.folder / f"relevance-{self.name}.ckpt"
        own = Budget.begin(LOOK_FOR_NOISE * budget.seconds)
        model = CaptionRelevance(
            backbone_weights=self.world.look(),
            freeze_backbone=True,
            optimizer=adamw(3e-3),
            schedule=ByClock.over_the_rest(own),
        )
        fitted(model, data, own, self.folder)[0].save_checkpoint(path)
        return str(path)

    def rows(self, names: list[str]) -> dict[str, Tested]:
        """What every row says, and its figures."""
        results = {}
        for name in names:
            make: Callable[[], Tested] = self.start if name == "SFT" else partial(self.continued, name)
            results[name] = load_or_test(self.folder / f"{name}-{self.name}.json", make)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=list(ROWS), nargs="+", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=40.0, help="of each training that goes on")
    parser.add_argument(
        "--first_seconds",
        type=float,
        nargs=len(ROWS),
        default=[60.0, 120.0, 120.0, 240.0],
        metavar=tuple(name.upper() for name in ROWS),
        help="of the training that they go on from",
    )
    parser.add_argument("--pairs", type=int, default=2500)
    parser.add_argument("--test_pairs", type=int, default=2000)
    parser.add_argument("--no_change", type=float, default=1 / 6)
    parser.add_argument("--noise", type=float, default=0.2, help="share of words replaced in captions of clip4idc")
    parser.add_argument("--produced", type=int, default=300)
    parser.add_argument("--scenes", type=int, default=300, help="pictures that are pasted into")
    parser.add_argument("--look_epochs", type=int, default=5)
    parser.add_argument("--tower_epochs", type=int, default=5)
    parser.add_argument("--adapt_epochs", type=int, default=3)
    parser.add_argument("--token_epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=6e-4, help="of all that goes on but ADPO")
    parser.add_argument("--adpo_rate", type=float, default=3e-4)
    parser.add_argument("--samples", type=int, default=8, help="captions of a pair in GRPO")
    parser.add_argument("--smallest", action="store_true", help="only to see that it runs")
    parser.add_argument("--prepare", action="store_true", help="make what all seeds share, in --work, and no row")
    arguments(parser, (1, 2, 3))
    args = parser.parse_args()
    if args.smallest:
        vars(args).update(SMALLEST)
    torch.set_num_threads(1)
    worlds: dict[str, Study] = {}
    for name, seed, folder in each_run(args):
        print(f"{name}, seed {seed}", flush=True)
        begin = time.process_time()
        world = World(args, folder.parent / "shared")
        if args.prepare:
            world.prepare()
            return
        order = [row for row in ROWS[name] if row in selected_rows(args, list(dict.fromkeys(sum(ROWS.values(), ()))))]
        run = Run(args, world, folder, seed, name)
        results = run.rows(order)
        study = worlds.setdefault(name, Study.of(world.pairs(), ROWS[name], CONTROL))
        study.add(seed, results, seconds=time.process_time() - begin)
        save_results(args, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()

"""Do rewards improve a captioner more than further supervised training? Several seeds, one SFT each.

    python -m benchmarks.studies.reward_learning [--seeds 1 2 3 4 5] [--world careful vague] [--out FILE]
    python -m benchmarks.studies.reward_learning --rows rewards  # facts alone, facts with CIDEr-D, CIDEr-D alone
    python -m benchmarks.studies.reward_learning --rows methods  # GRPO, Dr. GRPO, DAPO, GSPO, RLOO, same reward
    python -m benchmarks.studies.reward_learning --seeds 3 --only SFT+ GRPO --part parts/rewards-3.json  # and merge.py

Rendered CLEVR-Change pairs of 64 pixels in the worlds of preference_learning.py and the settings of recipes/grpo.yaml.
A supervised captioner is trained further by likelihood (SFT+), by self-critical training (SCST, CIDEr-D) or by
group-relative policy optimisation (GRPO, exact facts of the scene and CIDEr-D); SFT+ has more epochs, and the CPU
seconds of each training run are reported. Measured on held-out pairs with careful references: CIDEr-D, and the percent
of captions whose type of change, attributes, new value and relation are right by the scene itself, the relation on the
pairs whose references have one. Baselines: a constant caption selected on the training references, shuffled captions,
and captions of identical images. Differences from SFT+ have Student's interval over seeds and the paired bootstrap over
pairs of the mean over seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.studies.harness import Study, Tested, arguments, each_run, print_summaries, save_results, selected_rows
from benchmarks.studies.preference_runs import WORLDS, Run
from lightning_idc.methods.policy.policy import GroupRelative, SelfCritical
from lightning_idc.methods.policy.rewards import CiderReward, FactsReward, WeightedRewards
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.report.comparison import Captioned, Facts

CONTROL = "SFT+"
Callbacks = Callable[[], list[Callback]]


class RewardRun(Run):
    """All training runs of one seed in one world."""

    def measured(self, captioner: PairCaptioner) -> Tested:
        tested, figures = super().measured(captioner)
        judged = self.related(tested.facts), self.related(tested.identical_facts)
        return Captioned(tested.captions, tested.identical, *judged), figures

    def related(self, facts: Facts) -> Facts:
        """Facts with a relation only where the references have one, which makes them those of the same pairs."""
        source = self.pairs().source("test")
        has_relation = {}
        for index, id in enumerate(source.ids):
            changes = source.ground_truth(index)["changes"]
            has_relation[id] = bool(changes) and changes[0]["relation"] is not None
        return {
            id: {name: right if name != "relation" or has_relation[id] else None for name, right in of_pair.items()}
            for id, of_pair in facts.items()
        }

    def rewarded(self, sft: str, callbacks: Callbacks, epochs: int) -> Tested:
        """Captions and figures after more training from the SFT policy, and its seconds of the processor."""
        captioner = self.captioner(self.args.rate, init_from=sft, captions_per_pair=3)
        begin = time.process_time()
        self.fit(captioner, self.pairs(), epochs, callbacks())
        seconds = time.process_time() - begin
        said, figures = self.measured(captioner)
        return said, {**figures, "seconds": seconds}

    def rows(self, rows: dict[str, tuple[Callbacks, int]]) -> dict[str, Tested]:
        """What every row says, and its figures."""
        sft = self.supervised()

        def start() -> Tested:
            said, figures = self.policy(sft)
            return said, {**figures, "seconds": 0.0}

        results = {"SFT": self.row("SFT", start)}
        for name, how in rows.items():
            results[name] = self.row(name, partial(self.rewarded, sft, *how))
        return results


def rows_of(args: argparse.Namespace) -> dict[str, tuple[Callbacks, int]]:
    """Functions that create the callbacks of a training run, and its epochs, by row."""

    def both() -> WeightedRewards:
        return WeightedRewards([FactsReward({"relation": args.relation}), CiderReward()], [1.0, args.cider])

    def grpo(**options: Any) -> tuple[Callbacks, int]:
        settings = {"samples": args.samples, "beta": args.kl, "caption_weight": args.caption_weight, **options}
        return lambda: [GroupRelative(both(), **settings)], args.epochs

    control: dict[str, tuple[Callbacks, int]] = {CONTROL: (list, args.more_epochs)}
    if args.rows == "methods":
        return control | {
            "GRPO": grpo(),
            "Dr. GRPO": grpo(scale="none", averaging="constant"),
            "DAPO": grpo(clip_high=0.28, averaging="token", filter_groups=True, iterations=2),
            "GSPO": grpo(level="sequence", iterations=2),
            "RLOO": grpo(scale="leave_one_out"),
        }
    scst: tuple[Callbacks, int] = (lambda: [SelfCritical(samples=4)], args.scst_epochs)
    if args.rows == "rewards":
        facts: tuple[Callbacks, int] = (
            lambda: [GroupRelative(FactsReward({"relation": args.relation}), samples=args.samples)],
            args.epochs,
        )
        cider: tuple[Callbacks, int] = (lambda: [GroupRelative(samples=args.samples)], args.epochs)
        return control | {"SCST": scst, "GRPO, CIDEr-D": cider, "GRPO, facts": facts, "GRPO, facts and CIDEr-D": grpo()}
    return control | {"SCST": scst, "GRPO": grpo()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=list(WORLDS), nargs="+", default=["careful"])
    parser.add_argument("--rows", choices=("main", "rewards", "methods"), default="main")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--test_pairs", type=int, default=300)
    parser.add_argument("--look_epochs", type=int, default=5)
    parser.add_argument("--sft_epochs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3, help="of GRPO")
    parser.add_argument("--more_epochs", type=int, default=9, help="of SFT+")
    parser.add_argument("--scst_epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8, help="captions of a pair in GRPO")
    parser.add_argument("--kl", type=float, default=0.0, help="beta of GRPO")
    parser.add_argument("--caption_weight", type=float, default=0.0, help="of the references beside GRPO")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--relation", type=float, default=3.0, help="weight of the relation among the facts")
    parser.add_argument("--cider", type=float, default=0.05, help="weight of CIDEr-D beside the facts")
    arguments(parser, (1, 2, 3, 4, 5))
    args = parser.parse_args()
    torch.set_num_threads(1)
    order = ["SFT", *rows_of(args)]
    chosen = {name: made for name, made in rows_of(args).items() if name in selected_rows(args, order)}
    worlds: dict[str, Study] = {}
    for world, seed, folder in each_run(args):
        print(f"world {world}, seed {seed}", flush=True)
        run = RewardRun(args, folder, seed, world)
        results = run.rows(chosen)
        worlds.setdefault(world, Study.of(run.pairs(), order, CONTROL, run.unchanged)).add(seed, results)
        save_results(args, worlds, "lightning")
    print_summaries(worlds)


if __name__ == "__main__":
    main()

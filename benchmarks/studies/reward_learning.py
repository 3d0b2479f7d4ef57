"""Do rewards teach a captioner what more supervised training does not? Several seeds, one SFT each.

    python -m benchmarks.studies.reward_learning [--seeds 1 2 3 4 5] [--world careful vague] [--out FILE]
    python -m benchmarks.studies.reward_learning --rows rewards  # facts alone, facts with CIDEr-D, CIDEr-D alone
    python -m benchmarks.studies.reward_learning --rows methods  # GRPO, Dr. GRPO, DAPO, GSPO, RLOO, same reward
    python -m benchmarks.studies.reward_learning --seeds 3 --only SFT+ GRPO --part parts/rewards-3.json  # and merge.py

Rendered CLEVR-Change pairs of 64 pixels in the worlds of preference_learning.py and the settings of
recipes/grpo.yaml. From one supervised captioner likelihood goes on (SFT+), or self-critical training (SCST, CIDEr-D)
or group-relative policy optimisation (GRPO, exact facts of the scene and CIDEr-D) take over; SFT+ has more epochs,
and the processor's seconds of each training stand beside its scores. Measured on held-out pairs with careful
references: CIDEr-D, and the percent of captions whose type of change, attributes, new value and relation are right by
the scene itself, the relation on the pairs whose references have one. Floors: a caption chosen on the training
references, captions dealt to other pairs, and captions where the second image is the first. Differences to SFT+ come
with Student's interval over seeds and the paired bootstrap over pairs of the mean over seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.studies.harness import Said, Study, arguments, each_run, keep, show, wanted
from benchmarks.studies.preference_learning import WORLDS, Run, adamw
from lightning_idc.methods.policy.policy import GroupRelative, SelfCritical
from lightning_idc.methods.policy.rewards import CiderReward, FactsReward, WeightedRewards
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.models.schedules import WarmupCosine
from lightning_idc.report.comparison import Captioned, Facts

CONTROL = "SFT+"
Callbacks = Callable[[], list[Callback]]


class RewardRun(Run):
    """All trainings of one seed in one world."""

    def measured(self, captioner: PairTransformer) -> Said:
        said, figures = super().measured(captioner)
        return Captioned(said.captions, said.unchanged, self.related(said.facts)), figures

    def related(self, facts: Facts) -> Facts:
        """Facts with a relation only where the references have one, which makes them those of the same pairs."""
        source = self.pairs().source("test")
        asked = {}
        for place, id in enumerate(source.ids):
            changes = source.ground_truth(place)["changes"]
            asked[id] = bool(changes) and changes[0]["relation"] is not None
        return {
            id: {name: verdict if name != "relation" or asked[id] else None for name, verdict in known.items()}
            for id, known in facts.items()
        }

    def rewarded(self, sft: str, callbacks: Callbacks, epochs: int) -> Said:
        """Captions and figures after more training from the SFT policy, and its seconds of the processor."""
        captioner = PairTransformer(
            init_from=sft,
            freeze_backbone=True,
            captions_per_pair=3,
            dropout=0.0,
            optimizer=adamw(self.given.rate),
            schedule=WarmupCosine(0.1),
        )
        begin = time.process_time()
        self.trainer(epochs, [*callbacks(), self.saver("more")]).fit(captioner, self.pairs())
        seconds = time.process_time() - begin
        said, figures = self.measured(captioner)
        return said, {**figures, "seconds": seconds}

    def rows(self, rows: dict[str, tuple[Callbacks, int]]) -> dict[str, Said]:
        """What every row says, and its figures."""
        sft = self.supervised()

        def start() -> Said:
            said, figures = self.measured(PairTransformer.load_from_checkpoint(sft))
            return said, {**figures, "seconds": 0.0}

        found = {"SFT": self.row("SFT", start)}
        for name, how in rows.items():
            found[name] = self.row(name, partial(self.rewarded, sft, *how))
        return found


def rows_of(given: argparse.Namespace) -> dict[str, tuple[Callbacks, int]]:
    """Callbacks by name of the row, made anew for each training, and its epochs."""

    def both() -> WeightedRewards:
        return WeightedRewards([FactsReward({"relation": given.relation}), CiderReward()], [1.0, given.cider])

    def grpo(**options: Any) -> tuple[Callbacks, int]:
        settings = {"samples": given.samples, "beta": given.kl, "caption_weight": given.caption_weight, **options}
        return lambda: [GroupRelative(both(), **settings)], given.epochs

    control: dict[str, tuple[Callbacks, int]] = {CONTROL: (list, given.more_epochs)}
    if given.rows == "methods":
        return control | {
            "GRPO": grpo(),
            "Dr. GRPO": grpo(scale="none", averaging="constant"),
            "DAPO": grpo(clip_high=0.28, averaging="token", filter_groups=True),
            "GSPO": grpo(level="sequence"),
            "RLOO": grpo(scale="leave_one_out"),
        }
    scst: tuple[Callbacks, int] = (lambda: [SelfCritical(samples=4)], given.scst_epochs)
    if given.rows == "rewards":
        facts: tuple[Callbacks, int] = (
            lambda: [GroupRelative(FactsReward({"relation": given.relation}), samples=given.samples)],
            given.epochs,
        )
        cider: tuple[Callbacks, int] = (lambda: [GroupRelative(samples=given.samples)], given.epochs)
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    order = ["SFT", *rows_of(given)]
    chosen = {name: made for name, made in rows_of(given).items() if name in wanted(given, order)}
    worlds: dict[str, Study] = {}
    for world, seed, folder in each_run(given):
        print(f"world {world}, seed {seed}", flush=True)
        run = RewardRun(given, folder, seed, world)
        found = run.rows(chosen)
        worlds.setdefault(world, Study.of(run.pairs(), order, CONTROL)).add(seed, found)
        keep(given, worlds, "lightning")
    show(worlds)


if __name__ == "__main__":
    main()

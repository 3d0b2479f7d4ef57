"""Run by test_preference_distributed.py: train DPO, GRPO and ADPO on one or two gloo processes and save the weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from helpers.processes import gloo, run_script
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightning_idc.callbacks.unchanged_control import UnchangedControl
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.negatives import NegativeSource, RejectedCaptions
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.policy.policy import GroupRelative
from lightning_idc.methods.policy.references import AdapterCopy
from lightning_idc.methods.policy.rewards import Reward, Texts
from lightning_idc.models.addon import TrainingStep
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.models.vlm.lora import LoRA


class TwoColors(TinySource):
    """Pairs that turn red or green, with one caption each, so that each pair has exactly one wrong caption."""

    def color(self, index: int) -> str:
        return ("red", "green")[int(self.ids[index]) % 2]

    def captions(self, index: int) -> list[str]:
        return super().captions(index)[:1]


class TwoColorPairs(TinyPairs):
    def source(self, split: str) -> TwoColors:
        return TwoColors(self.pairs if split == "train" else 7, 0 if split == "train" else 500)


class Fixed(NegativeSource):
    """Draws a negative that depends only on the pair, so that all processes draw the same one."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        wrong = {"red": "it turned green", "green": "it turned blue", "blue": "it turned red"}
        return RejectedCaptions([[wrong[str(kind)]] * count for kind in step.batch.change_types])


class Mentions(Reward):
    """Number of times that a caption mentions the colour of its pair."""

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        kinds = [str(kind) for kind in pairs.change_types]
        return torch.tensor([[float(t.split().count(k)) for t in row] for k, row in zip(kinds, texts, strict=True)])


def lora() -> LoRA:
    return LoRA(rank=2, alpha=8, freeze=["backbone", "look", "embed", "cell", "head"])


def train(kind: str, out: Path, callbacks: list[Any], **options: Any) -> tuple[Trainer, TinyCaptioner]:
    seed_everything(3, workers=True, verbose=False)
    processes = 1 if kind == "one" else 2
    trainer = Trainer(
        strategy=gloo(kind),
        devices=processes,
        max_epochs=3,
        limit_val_batches=0,
        callbacks=callbacks,
        default_root_dir=out,
        enable_checkpointing=False,
        **QUIET,
    )
    # large steps, so that a changed reference or a lost gradient is visible in the weights
    model = TinyCaptioner(dropout=0.0, learning_rates={"language": 3.0}, **options)
    trainer.fit(model, TinyPairs(batch_size=4 // processes, seed=1))
    return trainer, model


def replica(model: TinyCaptioner) -> list[float]:
    """Return the absolute sum of each parameter on this process; sharded parameters are gathered first."""
    values = (p.detach().full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters())
    return [float(value.double().abs().sum()) for value in values]


def main(kind: str, out: Path) -> None:
    torch.set_num_threads(1)
    trainer, model = train(kind, out, [PreferenceOptimization(negatives=Fixed()), UnchangedControl()])
    trainer.save_checkpoint(out / f"{kind}.ckpt")
    trainer.test(model, TinyPairs(batch_size=4, seed=1), verbose=False)
    if not (out / "sft.ckpt").is_file():
        train(kind, out, [lora()])[0].save_checkpoint(out / "sft.ckpt")
    copied = PreferenceOptimization(negatives=Fixed(), reference=AdapterCopy())
    trainer, _ = train(kind, out, [lora(), copied], init_from=str(out / "sft.ckpt"))
    trainer.save_checkpoint(out / f"{kind}-adapters.ckpt")
    # token means and the standard deviation of a step are computed over all processes
    rewarded = GroupRelative(Mentions(), samples=8, beta=0.05, scale="batch", averaging="token", filter_groups=True)
    trainer, _ = train(kind, out, [rewarded])
    trainer.save_checkpoint(out / f"{kind}-rewarded.ckpt")
    trainer, model = train(kind, out, [PreferenceOptimization(), AdversarialRetriever(candidates=6, alignment=0.5)])
    replicas = all_gather_object(replica(model))
    if trainer.is_global_zero:
        torch.save(replicas, out / f"{kind}.pt")


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]))

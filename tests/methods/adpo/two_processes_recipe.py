"""Run by test_preference_distributed.py: the strategy block of a recipe on two gloo processes, with tiny data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from helpers.processes import run_script
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import Strategy
from torch.distributed.tensor import DTensor
from two_processes_preference import Fixed, replica

from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.policy.references import MovingAverage
from lightning_idc.models.distributed import all_gather_object


def strategy_of(block: str) -> Strategy:
    """Instantiate the strategy of a recipe with the gloo backend."""
    parser = ArgumentParser()
    parser.add_subclass_arguments(Strategy, "strategy")
    config = json.loads(block)
    config.setdefault("init_args", {})["process_group_backend"] = "gloo"
    strategy: Strategy = parser.instantiate(parser.parse_object({"strategy": config}))["strategy"]
    return strategy


def main(block: str, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, workers=True, verbose=False)
    trainer = Trainer(
        strategy=strategy_of(block),
        devices=2,
        max_epochs=2,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        callbacks=[
            # the order of the two callbacks does not matter, so the adversary comes first here
            AdversarialRetriever(candidates=6, alignment=0.5, fraction=0.5),
            PreferenceOptimization(negatives=Fixed(), reference=MovingAverage(0.5)),
        ],
        default_root_dir=out,
        enable_checkpointing=False,
        **QUIET,
    )
    model = TinyCaptioner(dropout=0.0, learning_rates={"language": 3.0})
    trainer.fit(model, TinyPairs(batch_size=2, seed=1))
    num_local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
    num_total = sum(p.numel() for p in model.parameters())
    twin = model.aux_addons["preference"].reference.twin.net.head.weight.detach()
    policy = model.net.head.weight.detach()
    distance = float((twin.full_tensor() - policy.full_tensor()).abs().max())
    results = all_gather_object({"own": num_local, "every": num_total, "replica": replica(model), "moved": distance})
    if trainer.is_global_zero:
        (out / "found.json").write_text(json.dumps(results))


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]))

"""Run by test_preference_distributed.py: stages of a recipe, with their trainer block, on tiny data.

Arguments: a JSON list of trainer blocks, the number of processes, a folder. Saves the size of each shard and the full
weights. Precision is float32 and the learning rate high, so that a lost or doubled gradient is visible.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from helpers.processes import run_script
from helpers.tiny import TinyCaptioner
from helpers.training import QUIET
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.distributed.tensor import DTensor
from two_processes_preference import TwoColorPairs, replica
from two_processes_recipe import strategy_of

from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.names import with_full_names


def callbacks_of(block: dict[str, Any], out: Path) -> list[Callback]:
    """Instantiate the callbacks of preference optimisation, with the retriever's encoder loaded from ``out``."""
    parser = ArgumentParser()
    parser.add_argument("--callbacks", type=list[Callback])
    configs = with_full_names(block["callbacks"])
    for config in configs:
        if "encoder" in config.get("init_args", {}):
            config["init_args"]["encoder"] = str(out / "retriever.ckpt")
    callbacks = parser.instantiate(parser.parse_object({"callbacks": configs}))["callbacks"]
    return [callback for callback in callbacks if isinstance(callback, (PreferenceOptimization, AdversarialRetriever))]


def main(blocks: list[dict[str, Any]], processes: int, out: Path) -> None:
    torch.set_num_threads(1)
    for index, block in enumerate(blocks):
        seed_everything(3, workers=True, verbose=False)
        callbacks = callbacks_of(block, out)
        trainer = Trainer(
            strategy=strategy_of(json.dumps(block["strategy"])) if processes > 1 else "auto",
            devices=processes,
            gradient_clip_val=block.get("gradient_clip_val"),
            max_epochs=3,
            limit_val_batches=0,
            callbacks=callbacks,
            default_root_dir=out,
            enable_checkpointing=False,
            **QUIET,
        )
        rates = {"language": 3.0}
        model = TinyCaptioner(dropout=0.0, captions_per_pair=1, learning_rates=rates)
        trainer.fit(model, TwoColorPairs(batch_size=4 // processes, seed=1))
        num_local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
        num_total = sum(p.numel() for p in model.parameters())
        held = all_gather_object(
            {"own": num_local, "every": num_total, "replica": replica(model), "callbacks": len(callbacks)}
        )
        weights = {
            name: p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()
            for name, p in model.net.named_parameters()
        }
        start = {
            name: p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()
            for name, p in model.aux_addons["preference"].reference.twin.net.named_parameters()
        }
        if trainer.is_global_zero:
            torch.save({"held": held, "weights": weights, "start": start}, out / f"{index}_{processes}.pt")


if __name__ == "__main__":
    run_script(main, json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

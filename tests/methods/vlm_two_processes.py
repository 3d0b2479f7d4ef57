"""Run by test_vlm_distributed.py: train M3Diff on one or two gloo processes, write what came out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from processes import gloo
from vlm_tiny import ColorPairs, architecture

from lightning_idc.callbacks.lora import LoRA
from lightning_idc.callbacks.mdp_adapter import MDPAdapter
from lightning_idc.methods.vlm.module import VLMCaptioner


class Stir(Callback):
    """Give every trainable weight a value of its own place, so that a lost or swapped shard shows."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with torch.no_grad():
            for index, (_, parameter) in enumerate(sorted(pl_module.named_parameters())):
                if not parameter.requires_grad:
                    continue
                whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)) * 0.1
                shard = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                first = sum(piece.shape[0] for piece in whole.chunk(trainer.world_size)[: trainer.global_rank])
                mine = whole if shard is parameter else whole[first : first + shard.shape[0]]
                shard += mine


def main(kind: str, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, workers=True, verbose=False)
    processes = 1 if kind == "one" else 2
    model = VLMCaptioner(
        architecture=architecture("llava_onevision"),
        captions_per_pair=2,
        max_length=12,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.05),
    )
    adapters = [LoRA(rank=4, alpha=8, modules_to_save=["model.multi_modal_projector"]), MDPAdapter()]
    trainer = Trainer(
        strategy=gloo(kind),
        accelerator="cpu",
        devices=processes,
        max_steps=4,
        callbacks=[*adapters, Stir()],
        default_root_dir=out,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    data = ColorPairs(batch_size=4 // processes, seed=1)
    trainer.fit(model, data)
    trainer.save_checkpoint(out / f"{kind}.ckpt")
    trainer.test(model, data, verbose=False)
    if trainer.is_global_zero:
        torch.save({"predictions": model.predictions, "sharded": _sharded(model)}, out / f"{kind}.pt")


def _sharded(model: VLMCaptioner) -> int:
    """Number of modules that hold only their share of the weights."""
    from torch.distributed.fsdp import FSDPModule

    return sum(isinstance(part, FSDPModule) for part in model.modules())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""Run by test_vlm_distributed.py: train M3Diff on one or more processes, resume it, and save the results."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from helpers.processes import gloo, run_script
from helpers.vlm_tiny import ColorPairs, architecture
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.models.strategies import ShardedStrategy
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner


class Stir(Callback):
    """Changes every trainable weight by its own random values, so that a lost or swapped shard is visible."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            for index, (_, parameter) in enumerate(sorted(pl_module.named_parameters())):
                if parameter.requires_grad and not parameter.is_meta:
                    parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))


class Start(Callback):
    """Records the weights at the start of training."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weights = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}


def trainer_of(kind: str, precision: Any, out: Path, *callbacks: Callback, **options: Any) -> Trainer:
    where: dict[str, Any]
    if kind == "fsdp1":
        from lightning.pytorch.strategies import FSDPStrategy

        strategy = FSDPStrategy(state_dict_type="full")
        where = dict(strategy=strategy, accelerator="gpu", devices=torch.cuda.device_count())
    elif kind == "fsdp2-cuda":
        where = dict(strategy=ShardedStrategy(), accelerator="gpu", devices=torch.cuda.device_count())
    elif kind == "fsdp2-alone":
        where = dict(strategy=ShardedStrategy(process_group_backend="gloo"), accelerator="cpu", devices=1)
    else:
        where = dict(strategy=gloo(kind), accelerator="cpu", devices=1 if kind == "one" else 2)
    adapters = [LoRA(rank=4, alpha=8, modules_to_save=["model.multi_modal_projector"]), MDPAdapter()]
    return Trainer(
        **where,
        precision=precision,
        max_steps=4,
        callbacks=[*adapters, *callbacks],
        default_root_dir=out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        **options,
    )


def model_and_data(processes: int, stock: Path) -> tuple[VLMCaptioner, ColorPairs]:
    seed_everything(3, workers=True, verbose=False)
    start: dict[str, Any] = (
        {"model": str(stock)} if stock.is_dir() else {"architecture": architecture("llava_onevision")}
    )
    model = VLMCaptioner(
        **start,
        captions_per_pair=2,
        max_length=12,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
    )
    return model, ColorPairs(batch_size=4 // processes, seed=1)


READ: list[Any] = []
"""Arguments of the calls with which this process has read weights from files."""


@dataclass(frozen=True)
class Job:
    """A training, its test and its resumption.

    Args:
        kind: strategy, as in :func:`trainer_of`.
        out: output folder; training starts from the model in its folder ``stock``, if there is one.
        saved: outputs besides checkpoints: ``adapters``, ``pretrained``.
    """

    kind: str
    out: Path
    precision: str = "32-true"
    saved: tuple[str, ...] = ()

    def __str__(self) -> str:
        return json.dumps([self.kind, str(self.out), self.precision, self.saved])

    @classmethod
    def of(cls, line: str) -> Job:
        kind, out, precision, saved = json.loads(line)
        return cls(kind, Path(out), precision, tuple(saved))


def main(jobs: list[Job]) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    count_reads()
    for job in jobs:
        READ.clear()
        run(job.kind, job.precision, job.out, job.saved)


def count_reads() -> None:
    from transformers import modeling_utils

    read = modeling_utils.PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def counted(kind: type, *arguments: Any, **options: Any) -> Any:
        READ.append(arguments)
        return read(kind, *arguments, **options)

    modeling_utils.PreTrainedModel.from_pretrained = classmethod(counted)  # type: ignore[assignment]


def run(kind: str, precision: Any, out: Path, saved: tuple[str, ...]) -> None:
    # every checkpoint gathers all shards, which takes longer than a step, so only two are saved
    saver = ModelCheckpoint(out, filename=f"{kind}-{{step}}", every_n_train_steps=2, save_top_k=-1)
    start = Start()
    trainer = trainer_of(kind, precision, out, Stir(), saver, *([start] if kind == "one" else []))
    model, data = model_and_data(trainer.world_size, out / "stock")
    trainer.fit(model, data)
    if trainer.is_global_zero:
        (out / f"{kind}-step=4.ckpt").rename(out / f"{kind}.ckpt")
    trainer.test(model, data, verbose=False)
    reads = all_gather_object(len(READ))
    if trainer.is_global_zero:
        result = {"predictions": model.predictions, "sharded": _sharded(model), "reads": reads, "start": start.weights}
        torch.save(result, out / f"{kind}.pt")
    if kind != "fsdp1":  # FSDP1 returns flattened shards except when it saves a checkpoint itself
        if "adapters" in saved:
            model.save_adapters(out / f"{kind}-adapters")
        if "pretrained" in saved:
            model.save_pretrained(out / f"{kind}-pretrained")
    resumed = trainer_of(kind, precision, out, enable_checkpointing=False)
    model, data = model_and_data(trainer.world_size, out / "stock")
    resumed.fit(model, data, ckpt_path=out / f"{kind}-step=2.ckpt", weights_only=True)
    resumed.save_checkpoint(out / f"{kind}-resumed.ckpt")


def _sharded(model: VLMCaptioner) -> int:
    """Number of modules that hold only their own shard of the weights."""
    from torch.distributed.fsdp import FSDPModule

    return sum(isinstance(part, FSDPModule) for part in model.modules())


if __name__ == "__main__":
    run_script(main, [Job.of(line) for line in sys.argv[1:]])

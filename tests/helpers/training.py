"""Quiet, seeded training runs of the tiny captioner, and comparisons of their outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from helpers.tiny import TinyCaptioner, TinyPairs

QUIET: dict[str, Any] = dict(
    accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0
)
"""Options of a Trainer that prints nothing."""
SILENT: dict[str, Any] = {**QUIET, "devices": 1, "enable_checkpointing": False}
"""Options of a Trainer that prints nothing and writes no files."""


def quiet_trainer(device: str, folder: Path, **options: Any) -> Trainer:
    """A trainer for some steps on one CPU or GPU that prints nothing and writes no files."""
    own: dict[str, Any] = dict(devices=1, limit_val_batches=0, enable_checkpointing=False, default_root_dir=folder)
    return Trainer(**{**QUIET, "accelerator": "gpu" if device == "cuda" else "cpu", **own, **options})


def fit(callbacks: list[Callback], folder: Path, model: LightningModule | None = None, **options: Any) -> Any:
    """Train a module, the tiny captioner by default, from the same seed; returns it."""
    seed_everything(3, workers=True, verbose=False)
    model = model or TinyCaptioner()
    ckpt_path, batch_size = options.pop("ckpt_path", None), options.pop("batch_size", 4)
    data = options.pop("data", None) or TinyPairs(batch_size=batch_size, seed=1)
    defaults: dict[str, Any] = dict(
        max_epochs=2, limit_val_batches=0, enable_checkpointing=False, default_root_dir=folder
    )
    Trainer(callbacks=callbacks, **{**QUIET, **defaults, **options}).fit(model, data, ckpt_path=ckpt_path)
    return model


def supervised(folder: Path) -> str:
    """Checkpoint, in a folder, of a captioner that generates sentences, some of which are right."""
    model = fit([], folder, TinyCaptioner(captions_per_pair=3), max_epochs=25)
    model.trainer.save_checkpoint(folder / "sft.ckpt")
    return str(folder / "sft.ckpt")


def tiny_retriever(clip: dict[str, Any], folder: Path) -> LightningModule:
    """A CLIP4IDC with the shape of a tiny CLIP, trained for one step and saved as retriever.ckpt in the folder."""
    from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

    encoder = Clip4IdcRetrieval(clip, intra_layers=1, vocabulary=None)
    trainer = Trainer(max_steps=1, limit_val_batches=0, enable_checkpointing=False, default_root_dir=folder, **QUIET)
    trainer.fit(encoder, TinyPairs(batch_size=6))
    trainer.save_checkpoint(folder / "retriever.ckpt")
    return encoder


def host_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights without those of add-ons."""
    return {k: v for k, v in model.state_dict().items() if not k.startswith("aux_addons.")}


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Assert that both dictionaries are equal, tensors bit for bit."""
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert torch.equal(value, b[key]) if isinstance(value, Tensor) else value == b[key], key


class Losses(Callback):
    """Records the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.values.append(float(outputs["loss"]))

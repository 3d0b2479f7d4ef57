"""UnchangedControl: captions every test pair again with the first image in place of the second, as a control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.images.types import PairBatch
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import save_json

CONTROL = "unchanged.json"


class UnchangedControl(Callback):
    """Captions every test pair a second time, with the first image in place of the second.

    These captions cannot depend on the change, so a score that does not exceed theirs is no evidence that the captioner
    sees changes. Writes captions by id to ``unchanged.json`` in the trainer's ``default_root_dir``, for
    `CompareResults`. Doubles the time of the test. Captioners with inputs that depend on the images override
    ``with_images``.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"UnchangedControl needs a PairCaptioner, not a {type(pl_module).__name__}")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.captions: dict[str, str] = {}

    @torch.no_grad()
    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: PairBatch, *unused: Any
    ) -> None:
        assert isinstance(pl_module, PairCaptioner)
        self.captions |= captions_of_identical_images(pl_module, batch)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        captions = all_gather_dict(self.captions)
        if trainer.is_global_zero:
            save_json(Path(trainer.default_root_dir) / CONTROL, dict(sorted(captions.items())))


@torch.no_grad()
def captions_of_identical_images(captioner: PairCaptioner, batch: PairBatch) -> dict[str, str]:
    """Captions, by pair id, of a batch whose second images are replaced by the first."""
    identical = captioner.with_images(batch, batch.images[:, :1].expand_as(batch.images).contiguous())
    captions = captioner.generate(captioner.encode(identical))
    return {id: caption.text for id, caption in zip(batch.ids, captions, strict=True)}

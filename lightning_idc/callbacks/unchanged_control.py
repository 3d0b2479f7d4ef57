"""UnchangedControl: what does a captioner say of a test pair whose second image is its first?"""

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
    """At the test also describes every pair with the image after the change replaced by the one before it.

    Such captions cannot know what changed; a score that is not above theirs says nothing about seeing changes. Writes
    ``unchanged.json``, captions by id, into the trainer's ``default_root_dir``, for `CompareResults`. Takes as long as
    the test. A captioner that reads more than the images of a batch says in ``with_images`` what it reads of these.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"UnchangedControl asks a PairCaptioner; found a {type(pl_module).__name__}")

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
    same = captioner.with_images(batch, batch.images[:, :1].expand_as(batch.images).contiguous())
    captions = captioner.generate(captioner.encode(same))
    return {id: caption.text for id, caption in zip(batch.ids, captions, strict=True)}

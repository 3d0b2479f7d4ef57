"""Teach an image tower that was never trained to name what stands in each patch, in its own image and in the other one.

CLIP4IDC lives from CLIP's pre-training. Where there are no weights of CLIP for a world, labels of its objects (a
renderer's, or a detector's) are the stand-in: naming the objects of one image teaches the tower to see, naming those
of the other image at the same place teaches its joint blocks to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lightning_idc.core.schedules import Schedule, WarmupCosine, scheduled
from lightning_idc.core.types import PairError
from lightning_idc.core.vocabulary import SPECIALS, Vocabulary
from lightning_idc.methods.clip4idc.net import PairClip
from lightning_idc.methods.pretraining.cell_classification import cells_named, naming_loss
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.nn.clip import build_clip


class PairNaming(LightningModule):
    """Trains the image tower of a `PairClip`; `Clip4IdcRetrieval` starts from it with ``tower_weights``.

    Batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, 2, A, g, g))``, as of `SyntheticCells` with ``pairs``.
    Validation says in how many cells that hold something all attributes of both images are right.

    Args:
        clip: one configuration of open_clip, written out; as many patches as there are cells.
        intra_layers: blocks of the image tower that see one image alone.
        stem: as of `PairClip`.
        stem_weights: checkpoint of ObjectNaming whose backbone the stem starts from.
        classes: number of classes of each of the A attributes, "nothing here" included.
        optimizer: makes the optimizer.
        schedule: multiplier of the learning rate over the run.
    """

    def __init__(
        self,
        clip: dict[str, Any],
        intra_layers: int,
        stem: bool = False,
        stem_weights: str | None = None,
        classes: Sequence[int] = (3, 9, 3, 4),
        optimizer: OptimizerCallable = torch.optim.AdamW,
        schedule: Schedule = WarmupCosine(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer", "schedule", "stem_weights"])
        self.optimizer, self.schedule = optimizer, schedule
        self.classes = [*classes, *classes]
        vocabulary = Vocabulary(SPECIALS)
        self.tower = PairClip(build_clip(clip, vocabulary), vocabulary, intra_layers, stem)
        if stem_weights is not None:
            if not stem:
                raise PairError("stem_weights are for a tower with a stem; set `stem: true`")
            load_backbone(self.tower.clip.visual.conv1.cnn, stem_weights)
        self.tower.clip.requires_grad_(False).visual.requires_grad_(True)
        self.head = nn.Linear(self.tower.clip.visual.proj.shape[1], sum(self.classes))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Logits per attribute of its own and of the other image, each ``(2 B, classes, g, g)``."""
        tokens = self.tower.look(self.tower.normalized(images)).unflatten(1, (2, -1))[:, :, 1:].flatten(0, 1)
        logits = self.head(tokens).mT.unflatten(-1, self.tower.clip.visual.grid_size)
        return list(logits.split(self.classes, 1))

    def _judged(self, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Tensor]:
        images, cells = batch
        logits = self(images)
        of_both = torch.cat([cells, cells.flip(1)], 2).flatten(0, 1)
        found, expected = tuple(of_both.shape[1:]), (len(logits), *logits[0].shape[-2:])
        if found != expected:
            raise PairError(
                f"the labels of both images are {found[0]} attributes on a {found[1]}x{found[2]} grid, the tower names "
                f"{expected[0]} on {expected[1]}x{expected[2]}; set the data module's `grid`, or `classes`"
            )
        return logits, of_both

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = naming_loss(*self._judged(batch))
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits, cells = self._judged(batch)
        right, count = cells_named(logits, cells)
        self.log("val/loss", naming_loss(logits, cells), sync_dist=True, batch_size=len(cells))
        self.log("val/cells_named", right, prog_bar=True, sync_dist=True, batch_size=count)

    def configure_optimizers(self) -> Any:
        return scheduled(self.optimizer([p for p in self.parameters() if p.requires_grad]), self.schedule, self.trainer)

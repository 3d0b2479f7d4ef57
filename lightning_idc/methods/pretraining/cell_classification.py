"""Teach a backbone to name what stands, or what has changed, in each cell of the grid, before any caption is read.

Recognising objects through the caption loss alone is slow; with labels of the objects (a renderer's, or a
detector's) it takes seconds, and the captioner then only has to learn what changed and how to say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lightning_idc.core.schedules import Schedule, WarmupLinear, scheduled
from lightning_idc.core.types import PairError
from lightning_idc.nn.backbones import GridBackbone, build_backbone

IGNORED = -100


def naming_loss(logits: Sequence[Tensor], cells: Tensor) -> Tensor:
    """Sum over attributes of the cross entropies.

    Args:
        logits: of each of the A attributes, ``(N, classes, h, w)``.
        cells: labels, int64 ``(N, A, h, w)``; -100 is left out.
    """
    parts = [nn.functional.cross_entropy(part, cells[:, a], ignore_index=IGNORED) for a, part in enumerate(logits)]
    return torch.stack(parts).sum()


def cells_named(logits: Sequence[Tensor], cells: Tensor) -> tuple[Tensor, int]:
    """Share in % of the cells with a label above 0 of which every attribute is named right, and their number.

    A mean over cells, not over batches: a batch may hold no object at all.

    Args:
        logits: of each of the A attributes, ``(N, classes, h, w)``.
        cells: labels, int64 ``(N, A, h, w)``.
    """
    guesses = torch.stack([part.argmax(1) for part in logits], 1)
    named = ((guesses == cells) | (cells == IGNORED)).all(1)[cells[:, 0] > 0]
    return 100 * named.float().sum() / max(1, len(named)), len(named)


class ObjectNaming(LightningModule):
    """Names attributes per cell; batches are ``(images uint8 (N, 3, H, W), cells int64 (N, A, g, g))``.

    Label 0 says that nothing stands in the cell, -100 that nobody knows.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        backbone: ``cnn`` for the small one, or the name of a timm model.
        pretrained_backbone: load timm's weights.
        optimizer: makes the optimizer.
        schedule: multiplier of the learning rate over the run.
    """

    def __init__(
        self,
        classes: Sequence[int] = (3, 9, 3, 4),
        backbone: str = "cnn",
        pretrained_backbone: bool = False,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        schedule: Schedule = WarmupLinear(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer", "schedule"])
        self.optimizer, self.schedule = optimizer, schedule
        self.classes = list(classes)
        self.backbone = self.make_backbone()
        self.head = self.build_head()

    def make_backbone(self) -> GridBackbone:
        """What turns an image into a grid of features with ``width`` channels; subclasses may take another."""
        return build_backbone(self.hparams["backbone"], self.hparams["pretrained_backbone"])

    def build_head(self) -> nn.Module:
        """What turns the grid into logits; subclasses may look at more than one image."""
        return nn.Conv2d(self.backbone.width, sum(self.classes), 1)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Logits per attribute, ``(N, classes, g, g)``."""
        return list(self.head(self.backbone(images)).split(self.classes, 1))

    def _logits(self, images: Tensor, cells: Tensor) -> list[Tensor]:
        logits = self(images)
        found, expected = tuple(cells.shape[-2:]), tuple(logits[0].shape[-2:])
        if cells.shape[1] != len(logits):
            raise PairError(f"the labels name {cells.shape[1]} attributes; `classes` names {len(logits)}")
        if found != expected:
            raise PairError(
                f"the labels of a {found[0]}x{found[1]} grid meet a backbone that gives {expected[0]}x{expected[1]} "
                f"for images of {images.shape[-2]}x{images.shape[-1]}; set the data module's `grid`"
            )
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, cells = batch
        loss = naming_loss(self._logits(images, cells), cells)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(images))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, cells = batch
        logits = self._logits(images, cells)
        right, count = cells_named(logits, cells)
        self.log("val/loss", naming_loss(logits, cells), sync_dist=True, batch_size=len(images))
        self.log("val/cells_named", right, prog_bar=True, sync_dist=True, batch_size=count)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        return scheduled(optimizer, self.schedule, self.trainer)


class ChangeNaming(ObjectNaming):
    """Names what changed per cell; batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, A, g, g))``.

    One linear layer reads before, after and their difference, as the captioner's fusion will: what it can name lies
    open in the backbone's features. Label 0 says that nothing changed in the cell, -100 that nobody knows.
    """

    def build_head(self) -> nn.Module:
        return nn.Conv2d(3 * self.backbone.width, sum(self.classes), 1)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Logits per attribute, ``(B, classes, g, g)``."""
        before, after = self.backbone(images.flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)
        return list(self.head(torch.cat([before, after, after - before], 1)).split(self.classes, 1))

"""Pre-training of an encoder by classifying the object, or the change, in each cell of its grid.

Learning to recognise objects from the caption loss alone is slow. With labels of the objects, from a renderer or a
detector, it takes seconds, and the captioner then only has to learn what changed and how to describe it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.models.module import PairModule
from lightning_idc.models.pretraining.variation import mirrored, relit
from lightning_idc.models.schedules import Schedule, WarmupLinear
from lightning_idc.nn.backbones import build_backbone
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.utils.bounds import ShareBelowOne, TwoOrMore, check_arguments
from lightning_idc.utils.errors import DataError

IGNORED = -100


def naming_loss(logits: Sequence[Tensor], cells: Tensor) -> Tensor:
    """Sum over attributes of the mean cross entropy; an attribute that is unknown in all cells adds 0.

    Args:
        logits: logits of each of the A attributes, ``(N, classes, h, w)``.
        cells: labels, int64 ``(N, A, h, w)``; -100 is ignored.

    Example:
        >>> naming_loss([torch.zeros(1, 3, 1, 2)], torch.tensor([[[[0, 2]]]]))  # log 3
        tensor(1.0986)
    """
    entropies = [
        nn.functional.cross_entropy(part, cells[:, a], ignore_index=IGNORED, reduction="sum")
        / (cells[:, a] != IGNORED).sum().clamp(min=1)
        for a, part in enumerate(logits)
    ]
    return torch.stack(entropies).sum()


def check_labels(cells: Tensor, classes: Sequence[int]) -> None:
    """Check that all labels are classes; called with a batch on the CPU, since on an accelerator it would synchronise.

    Args:
        cells: labels, int64 ``(N, A, h, w)``.
        classes: number of classes of each attribute.

    Raises:
        DataError: a label is not a class of its attribute.
    """
    # the number of attributes is checked together with the grid
    for number, (labels, count) in enumerate(zip(cells.unbind(1), classes, strict=False)):
        invalid = labels[(labels != IGNORED) & ((labels < 0) | (labels >= count))]
        if len(invalid):
            raise DataError(
                f"attribute {number} has the label {int(invalid[0])}; expected 0 to {count - 1}, or {IGNORED} where it "
                f"is unknown; `classes` is {list(classes)}, set it to the numbers of classes of the labels"
            )


def cell_accuracy(logits: Sequence[Tensor], cells: Tensor) -> tuple[Tensor, int]:
    """Percentage of the cells with a label above 0 whose attributes are all predicted correctly, and their number.

    A mean over cells, not over batches, since a batch may contain no object.

    Args:
        logits: logits of each of the A attributes, ``(N, classes, h, w)``.
        cells: labels, int64 ``(N, A, h, w)``.
    """
    predictions = torch.stack([part.argmax(1) for part in logits], 1)  # (N, A, h, w)
    correct = ((predictions == cells) | (cells == IGNORED)).all(1)[cells[:, 0] > 0]
    return 100 * correct.float().sum() / max(1, len(correct)), len(correct)


class CellNet(nn.Module):
    """A backbone with one linear classifier for the cells of its grid.

    Args:
        backbone: maps images to a grid of features ``(M, width, h, w)``.
        width: channels of the features.
        outputs: number of logits per cell.
        compares: classify the concatenation of before, after and their difference, the inputs of a captioner's fusion;
            not for backbones that read pairs.
    """

    def __init__(self, backbone: nn.Module, width: int, outputs: int, compares: bool = False) -> None:
        super().__init__()
        self.backbone, self.compares = backbone, compares
        self.head = nn.Conv2d(3 * width if compares else width, outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(M, outputs, h, w)``."""
        if not self.compares:
            return self.head(self.backbone(images))
        before, after = self.backbone(images.flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([before, after, after - before], 1))


class CellNaming(PairModule):
    """Trains an encoder by classifying attributes of the cells of its grid; subclasses define the encoder.

    Label 0 means an empty cell, -100 an unknown one. Validation reports the percentage of the cells with a label above
    0 whose attributes are all correct.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        options: of :class:`~lightning_idc.models.module.PairModule`.
    """

    vision_modules = ("net",)

    def __init__(self, classes: Sequence[TwoOrMore], **options: Any) -> None:
        check_arguments(CellNaming.__init__, locals())
        super().__init__(**options)
        self.classes = list(classes)
        self.build()

    @abstractmethod
    def make_net(self) -> CellNet:
        """The encoder, with a head for ``sum(self.classes)`` logits."""

    def targets(self, cells: Tensor) -> Tensor:
        """Labels ``(M, A, h, w)`` of the encoder's grids."""
        return cells

    @property
    def backbone(self) -> Any:
        """The encoder."""
        return self.built_net.backbone

    def forward(self, images: Tensor) -> list[Tensor]:
        """Logits per attribute, ``(M, classes, h, w)``."""
        return list(self.built_net(images).split(self.classes, 1))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        check_labels(self.targets(batch[1]), self.classes)
        return batch

    def logits_and_labels(self, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Logits per attribute, ``(M, classes, h, w)`` each, and labels ``(M, A, h, w)`` of a batch.

        Raises:
            DataError: the labels are of another grid or of other attributes.
        """
        images, cells = batch
        logits, labels = self(images), self.targets(cells)
        actual, expected = tuple(labels.shape[1:]), (len(logits), *logits[0].shape[-2:])
        if actual != expected:
            raise DataError(
                f"the labels are {actual[0]} attributes on a {actual[1]}x{actual[2]} grid; {type(self).__name__} "
                f"predicts {expected[0]} on {expected[1]}x{expected[2]} for images of "
                f"{images.shape[-2]}x{images.shape[-1]}; set the data module's `grid`, or `classes`"
            )
        return logits, labels

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        return naming_loss(*self.logits_and_labels(batch))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits, cells = self.logits_and_labels(batch)
        accuracy, count = cell_accuracy(logits, cells)
        self.log("val/loss", naming_loss(logits, cells), sync_dist=True, batch_size=len(cells))
        self.log("val/cells_named", accuracy, prog_bar=True, sync_dist=True, batch_size=count)


class ObjectNaming(CellNaming):
    """Classifies the object in each cell; batches are ``(images uint8 (N, 3, H, W), cells int64 (N, A, g, g))``.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        backbone: ``cnn`` (small), ``residual`` (a larger receptive field), or the name of a timm model.
        pretrained_backbone: load timm's weights.
        schedule: multiplier of the learning rate over the run.
        mirror: mirror images and labels left to right with probability 0.5 in training.
        relight: strength of the random brightness, contrast, saturation and sharpness in training; 0 turns it off. See
            :func:`~lightning_idc.models.pretraining.variation.relit`.
        options: of :class:`~lightning_idc.models.module.PairModule`.

    Raises:
        ConfigError: ``relight`` is negative or at least 1.
    """

    compares: ClassVar[bool] = False

    def __init__(
        self,
        classes: Sequence[TwoOrMore] = (3, 9, 3, 4),
        backbone: str = "cnn",
        pretrained_backbone: bool = False,
        schedule: Schedule = WarmupLinear(),  # noqa: B008 - frozen
        mirror: bool = False,
        relight: ShareBelowOne = 0.0,
        **options: Any,
    ) -> None:
        check_arguments(ObjectNaming.__init__, locals())
        super().__init__(classes, schedule=schedule, **options)

    def make_backbone(self) -> GridBackbone:
        """Build the backbone, whose grids have ``width`` channels; subclasses may override it."""
        options = self.hparams
        return build_backbone(options["backbone"], options["pretrained_backbone"], pairs=self.compares)

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        images, cells = batch
        if self.hparams["mirror"]:
            images, cells = mirrored(images, cells)
        if self.hparams["relight"]:
            images = relit(images, self.hparams["relight"])
        return super().training_loss(features, (images, cells))

    def make_net(self) -> CellNet:
        backbone = self.make_backbone()
        return CellNet(backbone, backbone.width, sum(self.classes), self.compares and not backbone.reads_pairs)


class ChangeNaming(ObjectNaming):
    """Classifies the change in each cell; batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, A, g, g))``.

    One linear layer reads the features of both images and their difference, or those of a backbone that reads pairs
    (``difference``); a captioner reads the same features. Label 0 means that nothing changed in the cell, -100 that
    the label is unknown.
    """

    compares = True

"""Pre-train an encoder by naming what is, or what has changed, in each cell of its grid.

Recognising objects through the caption loss alone is slow; with labels of the objects (a renderer's, or a
detector's) it takes seconds, and the captioner then only has to learn what changed and how to say it.
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
from lightning_idc.utils.errors import DataError, check_number

IGNORED = -100


def naming_loss(logits: Sequence[Tensor], cells: Tensor) -> Tensor:
    """Sum over attributes of the cross entropies; 0 of an attribute that is unknown in all cells.

    Args:
        logits: of each of the A attributes, ``(N, classes, h, w)``.
        cells: labels, int64 ``(N, A, h, w)``; -100 is left out.

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


def refuse_other_labels(cells: Tensor, classes: Sequence[int]) -> None:
    """Refuse labels of no class; of a batch that is still on the processor, since an accelerator would be waited for.

    Args:
        cells: labels, int64 ``(N, A, h, w)``.
        classes: number of classes of each attribute.

    Raises:
        DataError: a label is none of its attribute's classes.
    """
    # how many attributes there are is checked together with the grid
    for number, (labels, count) in enumerate(zip(cells.unbind(1), classes, strict=False)):
        others = labels[(labels != IGNORED) & ((labels < 0) | (labels >= count))]
        if len(others):
            raise DataError(
                f"attribute {number} has the label {int(others[0])}; expected 0 to {count - 1}, or {IGNORED} where it "
                f"is unknown; `classes` is {list(classes)}, set it to the numbers of classes of the labels"
            )


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


class CellNet(nn.Module):
    """A grid of features with one linear layer that names what is in each cell.

    Args:
        backbone: maps images to a grid of features ``(M, width, h, w)``.
        width: channels of the features.
        outputs: number of logits per cell.
        compares: read before, after and their difference of the grids of pairs, as a captioner's fusion does; not for
            backbones that read pairs.
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
    """Trains an encoder by naming attributes of the cells of its grid; subclasses say which encoder.

    Label 0 means an empty cell, -100 an unknown one. Validation reports in which share of the cells with a label above
    0 all attributes are right.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        options: of :class:`~lightning_idc.models.module.PairModule`.
    """

    vision_modules = ("net",)

    def __init__(self, classes: Sequence[int], **options: Any) -> None:
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
        refuse_other_labels(self.targets(batch[1]), self.classes)
        return batch

    def judged(self, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Logits and labels of a batch.

        Raises:
            DataError: the labels are of another grid or of other attributes.
        """
        images, cells = batch
        logits, labels = self(images), self.targets(cells)
        found, expected = tuple(labels.shape[1:]), (len(logits), *logits[0].shape[-2:])
        if found != expected:
            raise DataError(
                f"the labels are {found[0]} attributes on a {found[1]}x{found[2]} grid; {type(self).__name__} names "
                f"{expected[0]} on {expected[1]}x{expected[2]} for images of {images.shape[-2]}x{images.shape[-1]}; "
                "set the data module's `grid`, or `classes`"
            )
        return logits, labels

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        return naming_loss(*self.judged(batch))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        logits, cells = self.judged(batch)
        right, count = cells_named(logits, cells)
        self.log("val/loss", naming_loss(logits, cells), sync_dist=True, batch_size=len(cells))
        self.log("val/cells_named", right, prog_bar=True, sync_dist=True, batch_size=count)


class ObjectNaming(CellNaming):
    """Names objects per cell; batches are ``(images uint8 (N, 3, H, W), cells int64 (N, A, g, g))``.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        backbone: ``cnn`` for the small one, ``residual`` for one that sees more around each cell, or the name of a timm
            model.
        pretrained_backbone: load timm's weights.
        schedule: multiplier of the learning rate over the run.
        mirror: mirror every other image left to right in training, with its labels.
        relight: how much brightness, contrast, saturation and sharpness of each image vary in training; 0 for not at
            all. See :func:`~lightning_idc.models.pretraining.variation.relit`.
        options: of :class:`~lightning_idc.models.module.PairModule`.

    Raises:
        ConfigError: `relight` is negative, or 1 and more.
    """

    compares: ClassVar[bool] = False

    def __init__(
        self,
        classes: Sequence[int] = (3, 9, 3, 4),
        backbone: str = "cnn",
        pretrained_backbone: bool = False,
        schedule: Schedule = WarmupLinear(),  # noqa: B008 - frozen
        mirror: bool = False,
        relight: float = 0.0,
        **options: Any,
    ) -> None:
        check_number("relight", relight, minimum=0, below=1)
        super().__init__(classes, schedule=schedule, **options)

    def make_backbone(self) -> GridBackbone:
        """What turns an image into a grid of features with ``width`` channels; subclasses may take another."""
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
    """Names what changed per cell; batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, A, g, g))``.

    One linear layer reads before, after and their difference, or the features of the pair of a backbone that reads
    pairs (``difference``): what it can name, a captioner can read from the backbone's features. Label 0 means that
    nothing changed in the cell, -100 an unknown one.
    """

    compares = True

"""PairNaming: pre-trains an image tower without CLIP's weights, by classifying the object in each patch of both images.

CLIP4IDC depends on CLIP's pre-training. Labels of objects (from a renderer or a detector) can replace it: each patch is
classified in its own image, which trains the tower, and in the other image, which trains the joint blocks to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.methods.clip4idc.net import PairClip, tower_computation
from lightning_idc.models.pretraining.cell_classification import CellNaming, CellNet
from lightning_idc.models.schedules import Schedule, WarmupCosine
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.vocabulary import SPECIALS, Vocabulary
from lightning_idc.utils.bounds import NonNegativeInt, TwoOrMore, check_arguments
from lightning_idc.utils.errors import ConfigError


class TowerGrid(nn.Module):
    """Runs the image tower of a `PairClip` and returns the features of both images as grids.

    Args:
        tower: encoder whose image tower is trained.
    """

    def __init__(self, tower: PairClip) -> None:
        super().__init__()
        self.tower = tower
        self.tower.clip.requires_grad_(False).visual.requires_grad_(True)

    def forward(self, images: Tensor) -> Tensor:
        """Features ``(2 B, D, g, g)`` of pairs ``(B, 2, 3, H, W)``, before and after images alternating."""
        tokens = self.tower.encode_pair(self.tower.normalized(images))  # (B, 2 n, D)
        patches = tokens.unflatten(1, (2, -1))[:, :, 1:].flatten(0, 1)  # (2 B, n - 1, D), without class tokens
        return patches.mT.unflatten(-1, self.tower.clip.visual.grid_size)


class PairNaming(CellNaming):
    """Trains the image tower of a `PairClip`; `Clip4IdcRetrieval` starts from it with ``tower_weights``.

    Batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, 2, A, g, g))``, such as those of `SyntheticCells` with
    ``pairs``. Each cell is classified in its own image and in the other image.

    Args:
        clip: configuration of open_clip with g x g patches.
        intra_layers: number of blocks of the image tower that encode each image separately.
        stem: as in `PairClip`.
        stem_weights: checkpoint of ObjectNaming with initial weights of the stem.
        classes: number of classes of each of the A attributes, the class "empty" included.
        schedule: multiplier of the learning rate over the run.
        options: further arguments of :class:`~lightning_idc.models.module.PairModule`.
    """

    not_stored = ("stem_weights",)

    def __init__(
        self,
        clip: dict[str, Any],
        intra_layers: NonNegativeInt,
        stem: bool = False,
        stem_weights: str | None = None,
        classes: Sequence[TwoOrMore] = (3, 9, 3, 4),
        schedule: Schedule = WarmupCosine(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        check_arguments(PairNaming.__init__, locals())
        if stem_weights is not None and not stem:
            raise ConfigError("stem_weights need a tower with a stem; set `stem: true`")
        super().__init__([*classes, *classes], schedule=schedule, **options)
        if stem_weights is not None:
            load_backbone(self.tower.clip.visual.conv1.cnn, stem_weights)

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        return tower_computation(hparams)

    def make_net(self) -> CellNet:
        options, vocabulary = self.hparams, Vocabulary(SPECIALS)
        clip = build_clip(options["clip"], vocabulary)
        tower = PairClip(clip, vocabulary, intra_layers=options["intra_layers"], stem=options["stem"])
        return CellNet(TowerGrid(tower), tower.clip.visual.proj.shape[1], sum(self.classes))

    @property
    def tower(self) -> Any:
        """The `PairClip` in training."""
        return self.backbone.tower

    def targets(self, cells: Tensor) -> Tensor:
        """Classes ``(2 B, 2 A, g, g)`` of each cell in its own and in the other image, from ``(B, 2, A, g, g)``."""
        return torch.cat([cells, cells.flip(1)], 2).flatten(0, 1)

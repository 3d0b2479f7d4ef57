"""Pre-train an image tower from scratch by naming the object in each patch, of its own image and of the other one.

CLIP4IDC lives from CLIP's pre-training. Where there are no weights of CLIP for a world, labels of its objects (a
renderer's, or a detector's) are the stand-in: naming the objects of one image teaches the tower to see, naming those
of the other image at the same place teaches its joint blocks to compare.
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
from lightning_idc.utils.errors import ConfigError


class TowerGrid(nn.Module):
    """The image tower of a `PairClip` as a grid of features of both images of a pair.

    Args:
        tower: of which the image tower is trained.
    """

    def __init__(self, tower: PairClip) -> None:
        super().__init__()
        self.tower = tower
        self.tower.clip.requires_grad_(False).visual.requires_grad_(True)

    def forward(self, images: Tensor) -> Tensor:
        """``(2 B, D, g, g)`` of pairs ``(B, 2, 3, H, W)``, before and after in turn."""
        tokens = self.tower.encode_pair(self.tower.normalized(images)).unflatten(1, (2, -1))[:, :, 1:].flatten(0, 1)
        return tokens.mT.unflatten(-1, self.tower.clip.visual.grid_size)


class PairNaming(CellNaming):
    """Trains the image tower of a `PairClip`; `Clip4IdcRetrieval` starts from it with ``tower_weights``.

    Batches are ``(images uint8 (B, 2, 3, H, W), cells int64 (B, 2, A, g, g))``, as of `SyntheticCells` with ``pairs``;
    each cell is named in its own and in the other image.

    Args:
        clip: one configuration of open_clip, written out; as many patches as there are cells.
        intra_layers: blocks of the image tower that see one image alone.
        stem: as of `PairClip`.
        stem_weights: checkpoint of ObjectNaming whose backbone the stem starts from.
        classes: number of classes of each of the A attributes, "nothing here" included.
        schedule: multiplier of the learning rate over the run.
        options: of :class:`~lightning_idc.models.module.PairModule`.
    """

    def __init__(
        self,
        clip: dict[str, Any],
        intra_layers: int,
        stem: bool = False,
        stem_weights: str | None = None,
        classes: Sequence[int] = (3, 9, 3, 4),
        schedule: Schedule = WarmupCosine(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        if stem_weights is not None and not stem:
            raise ConfigError("stem_weights are for a tower with a stem; set `stem: true`")
        super().__init__([*classes, *classes], schedule=schedule, **options)
        # a checkpoint brings all weights, so it must not ask for the file again
        self.hparams.pop("stem_weights")
        if stem_weights is not None:
            load_backbone(self.tower.clip.visual.conv1.cnn, stem_weights)

    @classmethod
    def computation(cls, hparams: Mapping[str, Any]) -> dict[str, Any]:
        return tower_computation(hparams)

    def make_net(self) -> CellNet:
        options, vocabulary = self.hparams, Vocabulary(SPECIALS)
        clip = build_clip(options["clip"], vocabulary)
        tower = PairClip(clip, vocabulary, options["intra_layers"], options["stem"])
        return CellNet(TowerGrid(tower), tower.clip.visual.proj.shape[1], sum(self.classes))

    @property
    def tower(self) -> Any:
        """The `PairClip`."""
        return self.backbone.tower

    def targets(self, cells: Tensor) -> Tensor:
        return torch.cat([cells, cells.flip(1)], 2).flatten(0, 1)

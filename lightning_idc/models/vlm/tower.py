"""Pretraining of the vision tower of a random vision-language model, by classification of grid cells.

A random tower and a language model that has never seen images learn slowly from captions alone. Published models have
pretrained towers; here the tower of a small random model is pretrained with labels of the cells of synthetic images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightning_idc.models.pretraining.cell_classification import ObjectNaming
from lightning_idc.models.schedules import Schedule, WarmupLinear
from lightning_idc.models.vlm.loading import configured, train_tokenizer
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.utils.bounds import TwoOrMore, check_arguments
from lightning_idc.utils.errors import ConfigError


class VisionTower(GridBackbone):
    """Vision tower of a random vision-language model as a grid of features.

    Args:
        architecture: transformers configuration of the full model, of which only the tower is built.

    Raises:
        ConfigError: the tower of that family does not return a grid.
    """

    def __init__(self, architecture: dict[str, Any]) -> None:
        from transformers import AutoModel

        # the tower does not depend on the tokenizer, and the size of a language model loaded later is unknown
        config, processor, family = configured({**architecture, "text_config": {}}, train_tokenizer([], 1, []))
        if not family.is_row_major:
            raise ConfigError(
                f"the tower of {architecture['model_type']} orders its patches by windows; expected a tower that "
                "returns them row by row"
            )
        images = processor.image_processor
        super().__init__(config.vision_config.hidden_size, tuple(images.image_mean), tuple(images.image_std))
        self.size = config.vision_config.image_size
        self.tower = AutoModel.from_config(config.vision_config)

    def grid(self, images: Tensor) -> Tensor:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        if tuple(images.shape[-2:]) != size:
            raise ConfigError(
                f"the images are {images.shape[-2]}x{images.shape[-1]}, the tower expects {size[0]}x{size[1]}; "
                "set the data module's render_size, or image_size in vision_config"
            )
        patches = self.tower(pixel_values=images).last_hidden_state  # (N, [1 +] side * side, D)
        side = math.isqrt(patches.shape[1])
        return patches[:, -(side**2) :].mT.unflatten(-1, (side, side))  # (N, D, side, side)


class TowerNaming(ObjectNaming):
    """Classifies the attributes of grid cells; its weights are the initial weights of a random model's vision tower.

    Args:
        architecture: see :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        classes: number of classes of each attribute, including "nothing here".
        schedule: multiplier of the learning rate over the run.
        options: arguments of :class:`~lightning_idc.models.module.PairModule`.
    """

    def __init__(
        self,
        architecture: dict[str, Any],
        classes: Sequence[TwoOrMore] = (3, 9, 3, 4),
        schedule: Schedule = WarmupLinear(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        check_arguments(TowerNaming.__init__, locals())
        super().__init__(classes, schedule=schedule, **options)

    def make_backbone(self) -> GridBackbone:
        return VisionTower(self.hparams["architecture"])

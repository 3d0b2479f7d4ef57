"""Masked Image Reconstruction (MIR), the second of NAMC's three modules (section 3.2.2).

One training step, in the paper's order:

1. :meth:`MaskedReconstructionAddon.batch` masks cells at random, unless noise masking (NIM) has set ``batch.noise``,
   the :class:`~lightning_idc.images.types.NoiseMask` that passes masks, descriptions and original images to MIR,
2. :meth:`MaskedReconstructionAddon.encode_masked` replaces masked cells by the mask embedding and encodes them with the
   denoised description of their image (or with the other image, without NIM),
3. :class:`ImageTokens` predicts the ids of an image tokenizer (Eq. 17), and
4. :meth:`MaskedReconstructionAddon.losses` averages their cross entropy over masked cells (L_MIR, Eq. 18).

Shapes: B pairs, N = 2B images, P cells of the feature grid, C channels of features, D channels of encoded tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.images.types import NoiseMask, PairBatch, PairFeatures, PairSample
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.noise import resize_mask
from lightning_idc.methods.namc.noise_masking import NoiseMaskingAddon
from lightning_idc.models.addon import Addon, TrainingStep, addons_of
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.random_state import uniform_of_pairs
from lightning_idc.models.trial import trial_features
from lightning_idc.nn.image_tokenizer import ImageTokenizer, load_image_tokenizer
from lightning_idc.utils.bounds import PositiveInt, PositiveShare, check_fields
from lightning_idc.utils.errors import ConfigError, DataError

Distance = Callable[..., Tensor]
"""Elementwise loss of two tensors under ``reduction="none"``, such as ``torch.nn.functional.l1_loss``."""


MASK_RATIO = 0.2
WIDTH, LAYERS, HEADS = 128, 2, 4
"""Defaults of the separate encoder."""


class ImageTokens(nn.Module):
    """Predicts the ids of a frozen image tokenizer, several per cell if the tokenizer's grid is finer.

    NAMC Eq. 17

    Args:
        tokenizer: image tokenizer whose ids are the targets.
        width: D, width of the encoded tokens.
        per_side: number of ids along each side of a cell.
    """

    def __init__(self, tokenizer: ImageTokenizer, width: int, per_side: int) -> None:
        super().__init__()
        # in a list, so that the frozen network is not stored in checkpoints
        self._tokenizer = [tokenizer.eval().requires_grad_(False)]
        self.per_side = per_side
        self.head = nn.Linear(width, per_side**2 * tokenizer.codebook_size)

    def forward(self, tokens: Tensor, images: Tensor, features: Tensor) -> Tensor:
        """Cross entropy per cell, ``(N, P)``, of encoded ``tokens (N, P, D)`` of ``images (N, 3, H, W)``."""
        ids = self.true_ids(images)  # (N, h, w)
        side = self.per_side
        # (N, P, side * side): the ids of each cell
        cell_ids = ids.unflatten(1, (-1, side)).unflatten(3, (-1, side)).transpose(2, 3).flatten(3).flatten(1, 2)
        if cell_ids.shape[1] != tokens.shape[1]:
            raise DataError(
                f"the image tokenizer divides images of {images.shape[-2]}x{images.shape[-1]} into "
                f"{tuple(ids.shape[1:])} tokens, which do not fit a grid of {tokens.shape[1]} cells; use one image size"
            )
        logits = self.head(tokens).unflatten(-1, (side**2, -1))  # (N, P, side * side, V)
        return F.cross_entropy(logits.movedim(-1, 1), cell_ids, reduction="none").mean(-1)

    @torch.no_grad()
    def true_ids(self, images: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of images: z_i of the paper."""
        ids: Tensor = self._tokenizer[0].to(images.device).encode(images)
        return ids

    def predicted_ids(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Most likely ids ``(N, h, w)`` of encoded tokens ``(N, P, D)``.

        Args:
            tokens: encoded tokens of the cells, row by row.
            grid: height and width of the grid of cells.
        """
        side = self.per_side
        cell_ids = self.head(tokens).unflatten(-1, (side**2, -1)).argmax(-1)  # (N, P, side * side)
        return cell_ids.unflatten(1, grid).unflatten(-1, (side, side)).transpose(2, 3).flatten(3).flatten(1, 2)

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Images ``(N, 3, H, W)`` with values from 0 to 1, decoded from ids ``(N, h, w)``."""
        images: Tensor = self._tokenizer[0].decode(ids)
        return images


class RawFeatures(nn.Module):
    """Predicts the image features: the ablation of Table 7.

    Args:
        distance: elementwise loss.
        width: D, width of the encoded tokens.
        channels: C, channels of the features.
    """

    def __init__(self, distance: Distance, width: int, channels: int) -> None:
        super().__init__()
        self.distance = distance
        self.head = nn.Linear(width, channels)

    def forward(self, tokens: Tensor, images: Tensor, features: Tensor) -> Tensor:
        """Distance per cell, ``(N, P)``, of encoded ``tokens (N, P, D)`` from ``features (N, P, C)``."""
        # targets are constants; otherwise a trainable backbone would collapse to equal features
        return self.distance(self.head(tokens), features.detach(), reduction="none").mean(-1)


@dataclass(frozen=True, slots=True)
class MaskedReconstructionOptions:
    """Options of :class:`MaskedReconstruction`.

    Args:
        encoder: path of the captioner's `MaskedImageEncoder`, ``net.encoder`` in NAMC. When None, a separate encoder is
            trained and, through it, the captioner's backbone.
        mask_ratio: without noise masking, the fraction of cells that are masked at random, above 0 and up to 1; 0.2
            when None.
        width: width of the separate encoder; 128 when None.
        layers: number of layers of the separate encoder; 2 when None.
        heads: number of attention heads of the separate encoder; 4 when None.
        extras: keys of the features of the before and the after image in ``PairFeatures.extras``, each ``(B, P, C)``.

    Raises:
        ConfigError: a number is out of range, or one is about a separate encoder and ``encoder`` names another.
    """

    encoder: str | None = None
    mask_ratio: PositiveShare | None = None
    width: PositiveInt | None = None
    layers: PositiveInt | None = None
    heads: PositiveInt | None = None
    extras: tuple[str, str] = ("before", "after")

    def __post_init__(self) -> None:
        check_fields(self)
        unread = [name for name in ("width", "layers", "heads") if getattr(self, name) is not None]
        if self.encoder is not None and unread:
            raise ConfigError(
                f"MaskedReconstruction: {', '.join(unread)} belong to a separate encoder, and `encoder` is "
                f"{self.encoder!r}; leave one of them out"
            )


class MaskedReconstructionAddon(Addon):
    """See :class:`MaskedReconstruction`.

    Args:
        target: reconstruction target, `ImageTokens` or `RawFeatures`.
        separate_encoder: encoder of the add-on; None if the captioner's encoder is trained.
        width: D, width of the encoder.
        text_width: width of embedded descriptions; None without `NoiseMasking`.
        grid: height and width of the grid of features.
        options: mask ratio and names of the features.
    """

    def __init__(
        self,
        target: ImageTokens | RawFeatures,
        separate_encoder: MaskedImageEncoder | None,
        width: int,
        text_width: int | None,
        grid: tuple[int, int],
        options: MaskedReconstructionOptions,
    ) -> None:
        super().__init__()
        self.target, self.separate_encoder, self.width = target, separate_encoder, width
        self.text = nn.Linear(text_width, width) if text_width is not None else None
        self.grid, self.options = grid, options
        # set while the add-on is built, under a seed made from the run's seed and the add-on's name
        self._seed = torch.initial_seed()

    def batch(self, step: TrainingStep) -> PairBatch:
        batch: PairBatch = step.batch
        if batch.noise is not None:
            return batch
        key = f"{self._seed}/{step.module.trainer.current_epoch}"
        uniform = uniform_of_pairs(batch, key, (2, *self.grid)).to(batch.images.device)
        return replace(batch, noise=NoiseMask(uniform < (self.options.mask_ratio or MASK_RATIO)))

    def losses(self, step: TrainingStep[PairCaptioner]) -> dict[str, Tensor]:
        """L_MIR: mean over pairs of the mean over masked cells.

        NAMC Eq. 18

        The paper's sum over cells would grow with their number. With a mean of means, accumulated and distributed
        steps equal one large step.
        """
        if not self.weight:
            return {}
        tokens, features, masked = self.encode_masked(step)
        batch, captioner = step.batch, step.module
        # the paper reconstructs I_i, the image before noise masking fills its patches
        images = batch.images if batch.noise.unpainted is None else batch.noise.unpainted
        if images is not batch.images and isinstance(self.target, RawFeatures):
            features = self._grid_features(trial_features(captioner, captioner.with_images(batch, images)))
        cell_losses = self.target(tokens, images.flatten(0, 1), features)  # (N, P)
        # (N, P) -> (B, 2P): all cells of a pair
        pair_losses, pair_mask = (tensor.unflatten(0, (-1, 2)).flatten(1) for tensor in (cell_losses, masked))
        return {"rebuild": ((pair_losses * pair_mask).sum(1) / pair_mask.sum(1).clamp(min=1)).mean()}

    def encode_masked(self, step: TrainingStep[PairCaptioner]) -> tuple[Tensor, Tensor, Tensor]:
        """Encode both images of each pair with their masked cells replaced.

        Returns:
            encoded tokens ``(N, P, D)``, raw features ``(N, P, C)``, and bool ``(N, P)``, True at masked cells.
        """
        noise: NoiseMask = step.batch.noise
        features = self._grid_features(step.features)
        masked = resize_mask(noise.patches, self.grid).flatten(0, 1).flatten(1)
        encoder = self._encoder(step.module)
        if self.separate_encoder is not None and not features.requires_grad and torch.is_grad_enabled():
            raise ConfigError(
                "MaskedReconstruction would train no weight of the captioner, whose image features are frozen; train "
                "the backbone, or name a MaskedImageEncoder of the captioner in `encoder`"
            )
        tokens = encoder.embed(features, masked)
        if self.text is not None:
            assert noise.descriptions is not None and noise.description_mask is not None
            partner, valid = self.text(noise.descriptions.flatten(0, 1)), noise.description_mask.flatten(0, 1)
        else:
            # without a description, masked cells can be inferred from the other image
            partner, valid = tokens.unflatten(0, (-1, 2)).flip(1).flatten(0, 1), None
        return encoder(tokens, partner, valid), features, masked

    def _grid_features(self, features: PairFeatures) -> Tensor:
        """Grid features of both images of each pair, ``(N, P, C)``."""
        before, after = (features.extras[name] for name in self.options.extras)
        return torch.stack([before, after], 1).flatten(0, 1)

    def _encoder(self, module: LightningModule) -> MaskedImageEncoder:
        if self.separate_encoder is not None:
            return self.separate_encoder
        assert self.options.encoder is not None
        encoder = module.get_submodule(self.options.encoder)
        assert isinstance(encoder, MaskedImageEncoder)
        return encoder


class MaskedReconstruction(AddonCallback):
    """Reconstructs masked cells of both images (NAMC's MIR).

    Together with `NoiseMasking`, its masks and descriptions are used, and the target is the original image even if
    masked patches are filled. Without `NoiseMasking`, cells are masked at random, and each image is reconstructed with
    the help of the other one. The captioner must return the grid features of both images in ``PairFeatures.extras``.

    Args:
        tokenizer: a trained image tokenizer or its path; its ids are the targets of a cross entropy.
        distance: instead of ``tokenizer``, for the ablation of Table 7: ``torch.nn.functional.l1_loss`` or
            ``mse_loss``, with the image features as the targets.
        name: as in `AddonCallback`.
        weight: weight of L_MIR.
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
        **options: Any,
    ) -> None:
        super().__init__(name, weight)
        if (tokenizer is None) == (distance is None):
            raise ConfigError("MaskedReconstruction rebuilds either tokens or features; set `tokenizer` or `distance`")
        self.tokenizer, self.distance = tokenizer, distance
        self.options = MaskedReconstructionOptions(**options)

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            raise ConfigError(
                f"MaskedReconstruction needs the features of a PairCaptioner; this is a {type(module).__name__}"
            )
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
        separate_encoder, options = None, self.options
        if options.encoder is None:
            width_of_encoder = options.width or WIDTH
            separate_encoder = MaskedImageEncoder(
                channels=channels,
                width=width_of_encoder,
                cells=cells,
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
        return MaskedReconstructionAddon(
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

    def _encoder_width(self, captioner: PairCaptioner) -> int:
        if self.options.encoder is None:
            return self.options.width or WIDTH
        encoder = dict(captioner.named_modules()).get(self.options.encoder)
        if not isinstance(encoder, MaskedImageEncoder):
            encoders = [path for path, module in captioner.named_modules() if isinstance(module, MaskedImageEncoder)]
            raise ConfigError(
                f"MaskedReconstruction: {self.options.encoder!r} is not a MaskedImageEncoder of "
                f"{type(captioner).__name__}, which has {', '.join(encoders) or 'none; leave `encoder` out'}"
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

"""MaskedReconstruction: rebuild what was masked in the images, guided by their descriptions (NAMC's MIR)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import NoiseMask, PairBatch, PairFeatures
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.noise import bernoulli, resize_mask
from lightning_idc.methods.namc.noise_masking import NoiseMaskingAddon
from lightning_idc.models.addon import Addon, TrainingStep, addons_of
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.trial import trial_features
from lightning_idc.nn.image_tokenizer import ImageTokenizer, load_image_tokenizer
from lightning_idc.utils.bounds import PositiveInt, PositiveShare, check_fields
from lightning_idc.utils.errors import ConfigError, DataError

Distance = Callable[..., Tensor]
"""Elementwise loss of two tensors under ``reduction="none"``, such as ``torch.nn.functional.l1_loss``."""


class ImageTokens(nn.Module):
    """Predicts the ids of a frozen image tokenizer: several per cell where its grid is the finer one.

    NAMC Eq. 17

    Args:
        tokenizer: gives the ids.
        width: of the encoded tokens.
        per_side: ids per cell along each side.
    """

    def __init__(self, tokenizer: ImageTokenizer, width: int, per_side: int) -> None:
        super().__init__()
        # in a list, so that a frozen network is not written into every checkpoint
        self._tokenizer = [tokenizer.eval().requires_grad_(False)]
        self.per_side = per_side
        self.head = nn.Linear(width, per_side**2 * tokenizer.codebook_size)

    def forward(self, tokens: Tensor, images: Tensor, features: Tensor) -> Tensor:
        """Cross entropy per cell, ``(N, P)``, of encoded ``tokens (N, P, D)`` of ``images (N, 3, H, W)``."""
        ids = self.true_ids(images)
        side = self.per_side
        cells = ids.unflatten(1, (-1, side)).unflatten(3, (-1, side)).transpose(2, 3).flatten(3).flatten(1, 2)
        if cells.shape[1] != tokens.shape[1]:
            raise DataError(
                f"the image tokenizer cuts images of {images.shape[-2]}x{images.shape[-1]} into {tuple(ids.shape[1:])} "
                f"tokens, which {tokens.shape[1]} cells of features cannot share; keep to one image size"
            )
        logits = self.head(tokens).unflatten(-1, (side**2, -1))
        return F.cross_entropy(logits.movedim(-1, 1), cells, reduction="none").mean(-1)

    @torch.no_grad()
    def true_ids(self, images: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of images."""
        found: Tensor = self._tokenizer[0].to(images.device).encode(images)
        return found

    def predicted_ids(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Most likely ids ``(N, h, w)`` of encoded tokens ``(N, P, D)``, whose cells stand in a grid."""
        side = self.per_side
        cells = self.head(tokens).unflatten(-1, (side**2, -1)).argmax(-1)
        return cells.unflatten(1, grid).unflatten(-1, (side, side)).transpose(2, 3).flatten(3).flatten(1, 2)

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Images ``(N, 3, H, W)``, values 0 to 1, of ids."""
        found: Tensor = self._tokenizer[0].decode(ids)
        return found


class RawFeatures(nn.Module):
    """Predicts the raw image features themselves: the ablation of Table 7.

    Args:
        distance: elementwise.
        width: of the encoded tokens.
        channels: of the features.
    """

    def __init__(self, distance: Distance, width: int, channels: int) -> None:
        super().__init__()
        self.distance = distance
        self.head = nn.Linear(width, channels)

    def forward(self, tokens: Tensor, images: Tensor, features: Tensor) -> Tensor:
        """Distance per cell, ``(N, P)``, of encoded ``tokens (N, P, D)`` from ``features (N, P, C)``."""
        # as targets the features are constants; otherwise a trainable backbone would make them all alike
        return self.distance(self.head(tokens), features.detach(), reduction="none").mean(-1)


@dataclass(frozen=True, slots=True)
class MaskedReconstructionOptions:
    """Options of :class:`MaskedReconstruction`.

    Args:
        encoder: path of the captioner's `MaskedImageEncoder`, ``net.encoder`` in NAMC; None trains one of the add-on's
            own, and through it the captioner's backbone.
        share: of cells masked when alone, above 0 and up to 1.
        width: of an encoder of its own.
        layers: of an encoder of its own.
        heads: of an encoder of its own.
        extras: names of the features of the before and the after image in ``PairFeatures.extras``, each ``(B, P, C)``.

    Raises:
        ConfigError: ``share`` is out of range.
    """

    encoder: str | None = None
    share: PositiveShare = 0.2
    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    extras: tuple[str, str] = ("before", "after")

    def __post_init__(self) -> None:
        check_fields(self)


class MaskedReconstructionAddon(Addon):
    """See :class:`MaskedReconstruction`.

    Args:
        target: what is rebuilt, `ImageTokens` or `RawFeatures`.
        own: encoder of the add-on's own; None where the captioner's is trained.
        width: of the encoder.
        text_width: of encoded descriptions; None where no `NoiseMasking` gives any.
        grid: of the features.
        options: share of masked cells and names of the features.
    """

    def __init__(
        self,
        target: ImageTokens | RawFeatures,
        own: MaskedImageEncoder | None,
        width: int,
        text_width: int | None,
        grid: tuple[int, int],
        options: MaskedReconstructionOptions,
    ) -> None:
        super().__init__()
        self.target, self.own, self.width = target, own, width
        self.text = nn.Linear(text_width, width) if text_width is not None else None
        self.grid, self.options = grid, options

    def batch(self, step: TrainingStep) -> PairBatch:
        batch: PairBatch = step.batch
        if batch.noise is not None:
            return batch
        chances = torch.full((len(batch), 2, *self.grid), self.options.share, device=batch.images.device)
        return replace(batch, noise=NoiseMask(bernoulli(chances)))

    def losses(self, step: TrainingStep[PairCaptioner]) -> dict[str, Tensor]:
        """L_MIR, as a mean over pairs of the mean over masked cells: its size must not follow their number.

        NAMC Eq. 18

        A mean of means, so that accumulated and distributed steps equal one big step.
        """
        if not self.weight:
            return {}
        tokens, grids, masked = self.encoded(step)
        batch, captioner = step.batch, step.module
        # of the paper's I_i, and not of what NoiseMasking paints over it
        images = batch.images if batch.noise.unpainted is None else batch.noise.unpainted
        if images is not batch.images and isinstance(self.target, RawFeatures):
            grids = self._grids(trial_features(captioner, captioner.with_images(batch, images)))
        per_cell = self.target(tokens, images.flatten(0, 1), grids)
        of_pairs, counted = (part.unflatten(0, (-1, 2)).flatten(1) for part in (per_cell, masked))
        return {"rebuild": ((of_pairs * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()}

    def encoded(self, step: TrainingStep[PairCaptioner]) -> tuple[Tensor, Tensor, Tensor]:
        """Encoded cells of both images ``(2B, P, D)``, their raw features, and which are masked, bool ``(2B, P)``."""
        noise: NoiseMask = step.batch.noise
        grids = self._grids(step.features)
        masked = resize_mask(noise.patches, self.grid).flatten(0, 1).flatten(1)
        encoder = self._encoder(step.module)
        if self.own is not None and not grids.requires_grad and torch.is_grad_enabled():
            raise ConfigError(
                "MaskedReconstruction would train nothing of its captioner, whose image features are frozen: train the "
                "backbone, or name a MaskedImageEncoder of the captioner in `encoder`"
            )
        tokens = encoder.embed(grids, masked)
        if self.text is not None:
            assert noise.descriptions is not None and noise.description_mask is not None
            partner, valid = self.text(noise.descriptions.flatten(0, 1)), noise.description_mask.flatten(0, 1)
        else:
            # without a description, the other image of the pair is what can tell of masked cells
            partner, valid = tokens.unflatten(0, (-1, 2)).flip(1).flatten(0, 1), None
        return encoder(tokens, partner, valid), grids, masked

    def _grids(self, features: PairFeatures) -> Tensor:
        before, after = (features.extras[name] for name in self.options.extras)
        return torch.stack([before, after], 1).flatten(0, 1)

    def _encoder(self, module: LightningModule) -> MaskedImageEncoder:
        if self.own is not None:
            return self.own
        assert self.options.encoder is not None
        encoder = module.get_submodule(self.options.encoder)
        assert isinstance(encoder, MaskedImageEncoder)
        return encoder


class MaskedReconstruction(AddonCallback):
    """Rebuilds masked cells of both images, so that an encoder learns what it may not see (NAMC's MIR).

    Where `NoiseMasking` stands before this callback, it says which cells are masked and gives the descriptions that
    guide the reconstruction; what is rebuilt is the image, also where its masked patches are painted. Alone, cells are
    masked at random and each image is guided by the other one. The captioner must keep the grid features of both images
    in ``PairFeatures.extras``.

    Args:
        tokenizer: path of a trained image tokenizer, or the tokenizer: its ids are rebuilt, under cross entropy.
        distance: for the ablation of Table 7, in place of ``tokenizer``: ``torch.nn.functional.l1_loss`` or
            ``mse_loss``, under which the raw features are rebuilt.
        name: as of `AddonCallback`.
        weight: of L_MIR.
        options: of :class:`MaskedReconstructionOptions`.
    """

    options_class = MaskedReconstructionOptions

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
            raise ConfigError("MaskedReconstruction rebuilds either tokens or features: give `tokenizer` or `distance`")
        self.tokenizer, self.distance = tokenizer, distance
        self.options = MaskedReconstructionOptions(**options)

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            raise ConfigError(
                f"MaskedReconstruction reads a PairCaptioner's features; this is a {type(module).__name__}"
            )
        height, width = module.hparams["image_size"] or (64, 64)
        channels, cells = self._features_of(module, height, width)
        rows = round((cells * height / width) ** 0.5)
        grid = (rows, cells // rows)
        if grid[0] * grid[1] != cells:
            raise ConfigError(
                f"{cells} cells of features are not a grid over images of {height}x{width}; set `image_size`"
            )
        own, options = None, self.options
        if options.encoder is None:
            own = MaskedImageEncoder(
                channels, options.width, cells, options.layers, options.heads, hidden=2 * options.width, dropout=0.0
            )
        inner = self._width_of(module)
        text_width = _text_width(module)
        target: ImageTokens | RawFeatures
        if self.tokenizer is None:
            assert self.distance is not None
            target = RawFeatures(self.distance, inner, channels)
        else:
            tokenizer = self.tokenizer
            if isinstance(tokenizer, str):
                tokenizer = load_image_tokenizer(tokenizer)
            per_side, rest = divmod(height // tokenizer.stride, grid[0])
            if rest or per_side * grid[1] != width // tokenizer.stride:
                raise ConfigError(
                    f"a tokenizer of stride {tokenizer.stride} cuts images of {height}x{width} into "
                    f"{height // tokenizer.stride}x{width // tokenizer.stride} tokens, which do not line up with "
                    f"{grid[0]}x{grid[1]} cells of features; take a stride or a backbone that divides evenly"
                )
            target = ImageTokens(tokenizer, inner, per_side)
        return MaskedReconstructionAddon(target, own, inner, text_width, grid, options)

    def adopt(self, module: LightningModule, addon: Addon) -> None:
        """Take descriptions in where a `NoiseMasking` gives them now, and leave them out where none does any longer."""
        assert isinstance(addon, MaskedReconstructionAddon)
        text_width = _text_width(module)
        if (addon.text is None) != (text_width is None):
            addon.text = None if text_width is None else nn.Linear(text_width, addon.width).to(module.device)

    def _width_of(self, captioner: PairCaptioner) -> int:
        if self.options.encoder is None:
            return self.options.width
        encoder = dict(captioner.named_modules()).get(self.options.encoder)
        if not isinstance(encoder, MaskedImageEncoder):
            known = [path for path, module in captioner.named_modules() if isinstance(module, MaskedImageEncoder)]
            raise ConfigError(
                f"MaskedReconstruction: {self.options.encoder!r} is not a MaskedImageEncoder of "
                f"{type(captioner).__name__}, which has {', '.join(known) or 'none; leave `encoder` out'}"
            )
        return encoder.width

    def _features_of(self, captioner: PairCaptioner, height: int, width: int) -> tuple[int, int]:
        """Channels and cells of the features that the captioner keeps, learned from one gray pair."""
        gray = torch.full((1, 2, 3, height, width), 128, dtype=torch.uint8)
        nothing = torch.zeros(1, 1, 2, dtype=torch.long)
        features = trial_features(captioner, PairBatch(gray, nothing, nothing.bool(), ["gray"], [[]], [None]))
        missing = [name for name in self.options.extras if name not in features.extras]
        if missing:
            raise ConfigError(
                f"{type(captioner).__name__} keeps no features {missing} in PairFeatures.extras (it has "
                f"{sorted(features.extras)}); MaskedReconstruction needs those of both images, (B, cells, channels)"
            )
        _, cells, channels = features.extras[self.options.extras[0]].shape
        return channels, cells


def _text_width(module: LightningModule) -> int | None:
    """Width of encoded descriptions; None where no `NoiseMasking` gives any, and one of weight 0 is absent."""
    noise = [addon for addon in addons_of(module).values() if isinstance(addon, NoiseMaskingAddon) and addon.weight]
    return noise[0].encoder.width if noise else None

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
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import NoiseMask, PairBatch, PairFeatures
from lightning_idc.methods.namc.masked_encoder import MaskedImageEncoder
from lightning_idc.methods.namc.noise import resize_mask
from lightning_idc.models.addon import Addon, TrainingStep
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.random_state import uniform_of_pairs
from lightning_idc.models.trial import trial_features
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.utils.bounds import PositiveInt, PositiveShare, check_fields
from lightning_idc.utils.errors import ConfigError, DataError

Distance = Callable[..., Tensor]
"""Elementwise loss of two tensors under ``reduction="none"``, such as ``torch.nn.functional.l1_loss``."""


MASK_RATIO = 0.2


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


class ReconstructionAt(MaskedReconstructionAddon):
    """Reconstruction on a LightningModule that is not a PairCaptioner.

    ``step.features`` are the grid features ``(B, 2, C, rows, columns)`` that the sub-module at ``at`` returned, and
    ``step.batch`` is a batch of a PairDataModule: a dict with ``images (B, 2, 3, H, W)`` and ``ids``.
    """

    def batch(self, step: TrainingStep[Any]) -> Any:
        return step.batch

    def losses(self, step: TrainingStep[Any]) -> dict[str, Tensor]:
        if not self.weight:
            return {}
        pairs, features = _pair_batch(step.batch), step.features
        shape = tuple(features.shape) if isinstance(features, Tensor) and features.ndim == 5 else ()
        if shape[:2] != (len(pairs), 2) or shape[3:] != self.grid:
            raise DataError(
                f"MaskedReconstruction: the sub-module at `at` returned {shape or repr(features)[:200]} in a training "
                f"step of {len(pairs)} pairs; expected features ({len(pairs)}, 2, C, {self.grid[0]}, {self.grid[1]})"
            )
        before, after = features.flatten(3).transpose(2, 3).unbind(1)  # (B, P, C) each
        extras = {"before": before, "after": after}
        pair_step = replace(step, batch=pairs, features=PairFeatures(before, extras=extras))
        return super().losses(replace(pair_step, batch=super().batch(pair_step)))


def _pair_batch(batch: dict[str, Any]) -> PairBatch:
    """A batch of images without tokens."""
    images: Tensor = batch["images"]
    no_tokens = torch.zeros(len(images), 0, 0, dtype=torch.int64)
    return PairBatch(
        images=images,
        tokens=no_tokens,
        caption_mask=no_tokens.bool(),
        ids=batch["ids"],
        references=batch["captions"],
        change_types=[None] * len(images),
    )

"""VQGAN's image tokenizer (Esser et al. 2021): images to grids of codebook ids, and back.

1. `ConvEncoder`: pixels ``(N, 3, H, W)`` in [-1, 1] to features ``(N, latent, h, w)``.
2. Quantisation: each feature is replaced by the nearest entry of the codebook ``(codebook_size, latent)``, with a
   straight-through gradient, a codebook loss and a commitment loss (`Quantized`).
3. `ConvDecoder`: entries ``(N, latent, h, w)`` to pixels ``(N, 3, H, W)``.

The layers equal those of the public model of stride 16, so that its weights can be loaded
(``methods/procap/official/convert.py``). In addition, to train on small machines, patches of pixels may be merged into
channels before the first convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError, reads_file

CONFIG_KEY = "image_tokenizer"
WEIGHTS_PREFIX = "net.tokenizer."


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, width), width, eps=1e-6)


class ResidualBlock(nn.Module):
    """Two normalised 3 x 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = _norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(hidden)))


class CellAttention(nn.Module):
    """Self-attention with one head over the cells of the coarsest grid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.query, self.key, self.value, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).mT for layer in (self.query, self.key, self.value))  # (N, h w, width)
        attended = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.mT.unflatten(2, x.shape[2:]))


class Downsample(nn.Module):
    """Halves the resolution; padded on the right and below only, as the public weights expect."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _middle(width: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(width, width), CellAttention(width), ResidualBlock(width, width))


def _block(inputs: int, outputs: int, attention: bool) -> list[nn.Module]:
    """A residual block, followed by attention if the level has it."""
    block = ResidualBlock(inputs, outputs)
    return [block, CellAttention(outputs)] if attention else [block]


class ConvEncoder(nn.Sequential):
    """Pixels ``(N, C, H, W)`` to features ``(N, latent, h, w)``."""

    def __init__(self, channels: int, latent: int, widths: Sequence[int], blocks: int, attention: bool = False) -> None:
        levels: list[nn.Module] = []
        width = widths[0]
        for level, outputs in enumerate(widths):
            layers: list[nn.Module] = []
            for _ in range(blocks):
                layers += _block(width, outputs, attention and level + 1 == len(widths))
                width = outputs
            if level + 1 < len(widths):
                layers.append(Downsample(width))
            levels.append(nn.Sequential(*layers))
        super().__init__(
            nn.Conv2d(channels, widths[0], 3, padding=1),
            nn.Sequential(*levels),
            _middle(width),
            _norm(width),
            nn.SiLU(),
            nn.Conv2d(width, latent, 3, padding=1),
        )


class ConvDecoder(nn.Sequential):
    """Features ``(N, latent, h, w)`` to pixels ``(N, C, H, W)``; levels run from coarse to fine."""

    def __init__(self, channels: int, latent: int, widths: Sequence[int], blocks: int, attention: bool = False) -> None:
        levels: list[nn.Module] = []
        width = widths[-1]
        for level, outputs in reversed(list(enumerate(widths))):
            layers: list[nn.Module] = []
            for _ in range(blocks + 1):
                layers += _block(width, outputs, attention and level + 1 == len(widths))
                width = outputs
            if level:
                layers.append(Upsample(width))
            levels.append(nn.Sequential(*layers))
        super().__init__(
            nn.Conv2d(latent, widths[-1], 3, padding=1),
            _middle(widths[-1]),
            nn.Sequential(*levels),
            _norm(width),
            nn.SiLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )


@dataclass
class Quantized:
    """Quantised features.

    Args:
        ids: ids of the nearest entries of the codebook, int64 ``(N, h, w)``.
        vectors: these entries, ``(N, latent, h, w)``, with a straight-through gradient to the features.
        codebook_loss: mean squared distance, with a gradient to the entries.
        commitment_loss: mean squared distance, with a gradient to the features.
    """

    ids: Tensor
    vectors: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor


class ImageTokenizer(nn.Module):
    """Images to grids of ids and back.

    Args:
        codebook_size: number of entries of the codebook.
        latent: width of an entry, and of the encoder's features.
        width: channels of the finest level.
        multipliers: channels of each level as multiples of ``width``; each further level halves the resolution.
        blocks: number of residual blocks per level of the encoder; the decoder has one more.
        attention: whether the coarsest level has self-attention, as in the public model of stride 16.
        patch_size: side of the patches of pixels that are merged into channels before the first convolution; 1 in the
            paper. With 4, an image of 64 x 64 pixels needs about a twentieth of the computation.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        codebook_size: PositiveInt = 1024,
        latent: PositiveInt = 256,
        width: PositiveInt = 128,
        multipliers: Sequence[PositiveInt] = (1, 1, 2, 2, 4),
        blocks: PositiveInt = 2,
        patch_size: PositiveInt = 1,
        attention: bool = False,
    ) -> None:
        check_arguments(ImageTokenizer.__init__, locals())
        super().__init__()
        sizes = {"codebook_size": codebook_size, "latent": latent, "width": width, "blocks": blocks}
        if not multipliers:
            raise ConfigError("multipliers is empty; expected one number per level")
        self.config: dict[str, Any] = {
            **sizes,
            "patch_size": patch_size,
            "multipliers": list(multipliers),
            "attention": attention,
        }
        self.codebook_size, self.latent, self.patch_size = codebook_size, latent, patch_size
        self.stride = patch_size * 2 ** (len(multipliers) - 1)
        widths = [width * factor for factor in multipliers]
        self.encoder = ConvEncoder(3 * patch_size**2, latent, widths=widths, blocks=blocks, attention=attention)
        self.quant_conv = nn.Conv2d(latent, latent, 1)
        self.codebook = nn.Embedding(codebook_size, latent)
        self.post_quant_conv = nn.Conv2d(latent, latent, 1)
        self.decoder = ConvDecoder(3 * patch_size**2, latent, widths=widths, blocks=blocks, attention=attention)
        nn.init.uniform_(self.codebook.weight, -1.0 / codebook_size, 1.0 / codebook_size)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the grid of an image.

        Raises:
            DataError: height or width is not a multiple of the stride.
        """
        if height % self.stride or width % self.stride or not height or not width:
            raise DataError(
                f"an image is {height}x{width}; expected multiples of {self.stride}, the tokenizer's stride; set the "
                f"data module's `image_size`"
            )
        return height // self.stride, width // self.stride

    def features(self, pixels: Tensor) -> Tensor:
        """Encode float pixels ``(N, 3, H, W)`` in [-1, 1] to features ``(N, latent, h, w)``, before quantisation."""
        self.grid(*pixels.shape[-2:])
        return self.encoder(F.pixel_unshuffle(pixels, self.patch_size))

    def code(self, features: Tensor) -> Quantized:
        """Quantise features ``(N, latent, h, w)``, with the losses of both codebook and encoder."""
        z = self.quant_conv(features)
        ids = self.nearest(z)  # (N, h, w)
        entries = self.codebook(ids).movedim(-1, 1)  # (N, latent, h, w)
        return Quantized(
            ids=ids,
            vectors=z + (entries - z).detach(),
            codebook_loss=F.mse_loss(entries, z.detach()),
            commitment_loss=F.mse_loss(z, entries.detach()),
        )

    def nearest(self, z: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of the entries nearest to ``z (N, latent, h, w)`` in Euclidean distance.

        Without autocast, as in :meth:`ids_of` and :meth:`encode`: in bfloat16 one id in twelve would differ.
        """
        entries = self.codebook.weight
        cells = z.movedim(1, -1).to(entries.dtype)  # (N, h, w, latent)
        with torch.autocast(z.device.type, enabled=False):
            # |z - e|^2 without |z|^2, which is equal for all entries
            return (entries.square().sum(1) - 2 * cells @ entries.T).argmin(-1)

    def ids_of(self, features: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of encoder features ``(N, latent, h, w)``."""
        with torch.autocast(features.device.type, enabled=False):
            return self.nearest(self.quant_conv(features.to(self.codebook.weight.dtype)))

    def pixels_of(self, vectors: Tensor) -> Tensor:
        """Decode codebook entries ``(N, latent, h, w)`` to pixels ``(N, 3, H, W)``, approximately in [-1, 1]."""
        return F.pixel_shuffle(self.decoder(self.post_quant_conv(vectors)), self.patch_size)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of uint8 images ``(N, 3, H, W)``."""
        with torch.autocast(images.device.type, enabled=False):
            return self.ids_of(self.features(as_pixels(images, self.codebook.weight.dtype)))

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Decode ids ``(N, h, w)`` to images ``(N, 3, H, W)`` in [0, 1]."""
        return (self.pixels_of(self.codebook(ids).movedim(-1, 1)) / 2 + 0.5).clamp(0, 1)


def as_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert uint8 images to floats in [-1, 1].

    Raises:
        DataError: the images are not uint8.
    """
    if images.dtype != torch.uint8:
        raise DataError(f"images are {images.dtype}; expected uint8 with values 0 to 255")
    return images.to(dtype) / 127.5 - 1.0


@reads_file("path")
def load_image_tokenizer(path: str | Path) -> ImageTokenizer:
    """Load the trained tokenizer of a checkpoint, frozen and in evaluation mode.

    Args:
        path: checkpoint of ``TokenizerTraining``, or of a model with a tokenizer.

    Raises:
        CheckpointError: the checkpoint is missing or has no tokenizer.
    """
    from lightning_idc.checkpoints.reading import read_checkpoint

    checkpoint = read_checkpoint(path)
    if CONFIG_KEY not in checkpoint:
        raise CheckpointError(f"{str(path)!r} holds no image tokenizer; expected a checkpoint of TokenizerTraining")
    tokenizer = ImageTokenizer(**checkpoint[CONFIG_KEY])
    weights = {
        key.removeprefix(WEIGHTS_PREFIX): value
        for key, value in checkpoint["state_dict"].items()
        if key.startswith(WEIGHTS_PREFIX)
    }
    try:
        tokenizer.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"the image tokenizer in {str(path)!r} does not fit its configuration: {error}"
        ) from error
    return tokenizer.requires_grad_(False).eval()

"""VQGAN's image tokenizer: a grid of codebook ids per image, and an image per grid (Esser et al. 2021).

The layers are those of the public 16-fold model, so its weights load (``methods/procap/official/convert.py``). Two
additions for small machines: patches of pixels may be merged into channels before the first convolution, and unused
entries of the codebook may be moved to features.
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
    """One head of attention among the cells of the coarsest grid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.query, self.key, self.value, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (part(normed).flatten(2).mT for part in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.mT.unflatten(2, x.shape[2:]))


class Downsample(nn.Module):
    """Half the resolution; padded on the right and below only, as the public weights expect."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Twice the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def _middle(width: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(width, width), CellAttention(width), ResidualBlock(width, width))


def _block(inputs: int, outputs: int, attention: bool) -> list[nn.Module]:
    """One step of a level: a residual block, and attention among its cells where the level has it."""
    block = ResidualBlock(inputs, outputs)
    return [block, CellAttention(outputs)] if attention else [block]


class ConvEncoder(nn.Sequential):
    """Pixels ``(N, C, H, W)`` to features ``(N, latent, h, w)``."""

    def __init__(self, channels: int, latent: int, widths: Sequence[int], blocks: int, attention: bool = False) -> None:
        levels: list[nn.Module] = []
        width = widths[0]
        for level, outputs in enumerate(widths):
            steps: list[nn.Module] = []
            for _ in range(blocks):
                steps += _block(width, outputs, attention and level + 1 == len(widths))
                width = outputs
            if level + 1 < len(widths):
                steps.append(Downsample(width))
            levels.append(nn.Sequential(*steps))
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
            steps: list[nn.Module] = []
            for _ in range(blocks + 1):
                steps += _block(width, outputs, attention and level + 1 == len(widths))
                width = outputs
            if level:
                steps.append(Upsample(width))
            levels.append(nn.Sequential(*steps))
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
        ids: ids of the nearest entries, int64 ``(N, h, w)``.
        vectors: these entries ``(N, latent, h, w)``, with a straight-through gradient to the features.
        codebook_loss: squared distance that moves entries to their features.
        commitment_loss: squared distance that moves features to their entries.
    """

    ids: Tensor
    vectors: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor


class ImageTokenizer(nn.Module):
    """Images to grids of ids and back.

    Args:
        codebook_size: number of entries.
        latent: width of an entry, and of the encoder's features.
        width: channels of the finest level.
        multipliers: channels of each level as multiples of ``width``; each further level halves the resolution.
        blocks: residual blocks per level of the encoder; the decoder has one more.
        attention: whether the coarsest level has attention among its cells, as in the public 16-fold model of 256
            pixels.
        patch_size: side of the patches of pixels that are merged into channels before the first convolution; 1 in the
            paper. With 4, an image of 64 x 64 is about twenty times cheaper.

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
            DataError: the image is not a whole number of cells.
        """
        if height % self.stride or width % self.stride or not height or not width:
            raise DataError(
                f"an image of {height}x{width} is not a whole number of cells of {self.stride}x{self.stride}; set the "
                f"data module's `image_size` to multiples of {self.stride}"
            )
        return height // self.stride, width // self.stride

    def features(self, pixels: Tensor) -> Tensor:
        """Encoder output ``(N, latent, h, w)``, before the codebook, of float pixels ``(N, 3, H, W)`` in [-1, 1]."""
        self.grid(*pixels.shape[-2:])
        return self.encoder(F.pixel_unshuffle(pixels, self.patch_size))

    def code(self, features: Tensor) -> Quantized:
        """Replace each cell of ``(N, latent, h, w)`` by its nearest entry, with the losses that train both."""
        z = self.quant_conv(features)
        ids = self.nearest(z)
        entries = self.codebook(ids).movedim(-1, 1)
        return Quantized(
            ids=ids,
            vectors=z + (entries - z).detach(),
            codebook_loss=F.mse_loss(entries, z.detach()),
            commitment_loss=F.mse_loss(z, entries.detach()),
        )

    def nearest(self, z: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of the entries nearest to ``(N, latent, h, w)`` in Euclidean distance.

        Without autocast, as in :meth:`ids_of` and :meth:`encode`: rounded to bfloat16, one id in twelve would differ.
        """
        entries = self.codebook.weight
        cells = z.movedim(1, -1).to(entries.dtype)
        with torch.autocast(z.device.type, enabled=False):
            # |z|^2 is the same for all entries
            return (entries.square().sum(1) - 2 * cells @ entries.T).argmin(-1)

    def ids_of(self, features: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of encoder features ``(N, latent, h, w)``."""
        with torch.autocast(features.device.type, enabled=False):
            return self.nearest(self.quant_conv(features.to(self.codebook.weight.dtype)))

    def pixels_of(self, vectors: Tensor) -> Tensor:
        """Pixels ``(N, 3, H, W)``, around [-1, 1], of codebook entries ``(N, latent, h, w)``."""
        return F.pixel_shuffle(self.decoder(self.post_quant_conv(vectors)), self.patch_size)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Ids ``(N, h, w)`` of uint8 images ``(N, 3, H, W)``."""
        with torch.autocast(images.device.type, enabled=False):
            return self.ids_of(self.features(as_pixels(images, self.codebook.weight.dtype)))

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Images ``(N, 3, H, W)`` in [0, 1] of ids ``(N, h, w)``."""
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
    """Trained tokenizer of a checkpoint, frozen and in evaluation mode.

    Args:
        path: checkpoint of ``TokenizerTraining``, or of a model that carries a tokenizer with it.

    Raises:
        CheckpointError: there is no such checkpoint, or it holds something else.
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

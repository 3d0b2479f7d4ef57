"""ProCap's networks: the procedure encoder that both stages share, and the captioner of the second (section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.image_tokenizer import ImageTokenizer, as_pixels
from lightning_idc.nn.relative_position import RelativePositionBias
from lightning_idc.nn.transformer import DecoderState, EncoderLayer
from lightning_idc.utils.errors import DataError

PLACE_SCALE = 0.3
"""Standard deviation of each of the three parts of a place: together they are as large as embedded features."""


class ProcedureEncoder(nn.Module):
    """Embeds the frames of a procedure and looks across all of them.

    Args:
        latent: channels of the tokenizer's features.
        grid: height and width of the grid of a frame.
        frames: k + 2, the frames of a procedure with its two ends.
        width: of all tokens.
        layers: encoder layers.
        heads: attention heads.
        hidden: width of the feed-forward layers; four times ``width`` when None.
        dropout: share of activations dropped in training.
        relative_places: add to the attention what is learned for how two patches stand to each other, in which frames.
    """

    def __init__(
        self,
        latent: int,
        grid: tuple[int, int],
        frames: int,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        hidden: int | None = None,
        dropout: float = 0.0,
        relative_places: bool = False,
    ) -> None:
        super().__init__()
        self.grid, self.frames, self.width = grid, frames, width
        self.norm, self.project = nn.LayerNorm(latent), nn.Linear(latent, width)
        self.mask_embedding = nn.Parameter(torch.zeros(width))
        # a place is the sum of its frame, row and column
        self.frame_place = nn.Parameter(PLACE_SCALE * torch.randn(frames, 1, 1, width))
        self.row_place = nn.Parameter(PLACE_SCALE * torch.randn(grid[0], 1, width))
        self.column_place = nn.Parameter(PLACE_SCALE * torch.randn(grid[1], width))
        # not in the paper, whose encoder starts from CLIP's: one from scratch is slow to find a cell in another frame
        self.relative = RelativePositionBias(heads, grid, frames) if relative_places else None
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, 4 * width if hidden is None else hidden, dropout) for _ in range(layers)
        )

    @property
    def cells(self) -> int:
        """Tokens per frame, n_I in the paper."""
        return self.grid[0] * self.grid[1]

    def embed(self, features: Tensor) -> Tensor:
        """Tokens ``(B, F, n, D)``, without their places, of the tokenizer's features ``(B, F, latent, h, w)``."""
        return self.project(self.norm(features.flatten(3).mT))

    def places(self) -> Tensor:
        """Where each token stands, ``(F * n, D)``."""
        return (self.frame_place + self.row_place + self.column_place).flatten(0, 2)

    def queries(self, ends: Tensor) -> Tensor:
        """Procedure queries between two embedded images.

        ProCap Eq. 9

        Args:
            ends: ``(B, 2, n, D)``.

        Returns:
            ``(B, F * n, D)``; each query is the mask embedding of the first stage, told apart by its place.
        """
        between = self.mask_embedding.expand(len(ends), (self.frames - 2) * self.cells, -1)
        return torch.cat([ends[:, 0], between, ends[:, 1]], 1) + self.places()

    def relative_bias(self, before: int = 0) -> Tensor | None:
        """What ``relative_places`` adds to the attention, ``(heads, N, N)``; None without.

        Args:
            before: tokens that stand before the patches, to and from which nothing is added.
        """
        return None if self.relative is None else F.pad(self.relative(), (before, 0, before, 0))

    def run(self, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        """All layers over tokens ``(B, N, D)``; ``bias`` is added to the attention, or says where it may look."""
        for layer in self.layers:
            tokens = layer(tokens, bias)
        return tokens

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states ``(B, F * n, D)`` of the tokens of a procedure, their places included."""
        return self.run(tokens, self.relative_bias())


def bridge(inputs: int, outputs: int) -> nn.Sequential:
    """From the encoder's width to the decoder's; the paper gives 768 and 512 and no word on what lies between."""
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs), nn.LayerNorm(outputs))


class ProCapNet(nn.Module):
    """Captions a pair from the procedure that it implies.

    Args:
        tokenizer: gives the features of an image; it stays frozen.
        encoder: looks across the procedure.
        decoder: writes.
        width: of the decoder's memory.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, decoder: nn.Module, width: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer.requires_grad_(False).eval()
        self.encoder, self.decoder = encoder, decoder
        self.bridge = bridge(encoder.width, width)

    def train(self, mode: bool = True) -> ProCapNet:
        super().train(mode)
        self.tokenizer.eval()
        return self

    def tokenizer_features(self, images: Tensor) -> Tensor:
        """Features ``(N, latent, h, w)`` of uint8 images ``(N, 3, H, W)``."""
        return self.tokenizer.features(as_pixels(images, self.encoder.mask_embedding.dtype))

    def features(self, images: Tensor) -> Tensor:
        """Features ``(B, F, latent, h, w)`` of uint8 frames ``(B, F, 3, H, W)``.

        Raises:
            DataError: the frames are not of the size that the encoder has places for.
        """
        found, expected = self.tokenizer.grid(*images.shape[-2:]), self.encoder.grid
        if found != expected:
            stride = self.tokenizer.stride
            raise DataError(
                f"images of {images.shape[-2]}x{images.shape[-1]} meet a ProCap for {expected[0] * stride}x"
                f"{expected[1] * stride}; set the data module's `image_size`"
            )
        with torch.no_grad():
            return self.tokenizer_features(images.flatten(0, 1)).unflatten(0, images.shape[:2])

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``: the implicit procedure (eq. 9)."""
        ends = self.encoder.embed(self.features(images))
        return PairFeatures(self.bridge(self.encoder(self.encoder.queries(ends))))

    def encode_frames(self, frames: Tensor) -> PairFeatures:
        """Features of uint8 procedures ``(B, k + 2, 3, H, W)``: explicit captioning, Table 14's ablation."""
        tokens = self.encoder.embed(self.features(frames)).flatten(1, 2) + self.encoder.places()
        return PairFeatures(self.bridge(self.encoder(tokens)))

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Logits ``(B, K, T, V)`` of the token after each of ``tokens (B, K, T)``."""
        return self.decoder(features.memory, features.mask, tokens)

    def start(self, features: PairFeatures) -> DecoderState:
        """State before the first token."""
        return self.decoder.start(features.memory, features.mask)  # type: ignore[operator]

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Logits ``(N, V)`` after tokens ``(N,)``; advances the state."""
        return self.decoder.step(state, tokens)  # type: ignore[operator]


def sinusoids(start: int, count: int, like: Tensor) -> Tensor:
    """Places ``(count, D)`` from ``start``: sine in even channels, cosine in odd ones (Vaswani et al. 2017)."""
    width = like.shape[-1]
    places = torch.arange(start, start + count, device=like.device, dtype=torch.float32)
    rates = 10000 ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
    angles = places[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)

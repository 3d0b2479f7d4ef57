"""ProCap's networks: the procedure encoder of both stages, and the captioner of the second stage (section 3.2).

Shapes: B pairs, F frames, n = h w patches per frame, D channels of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.image_tokenizer import ImageTokenizer, as_pixels
from lightning_idc.nn.relative_position import RelativePositionBias
from lightning_idc.nn.transformer import DecoderState, EncoderLayer
from lightning_idc.utils.errors import DataError

POSITION_STD = 0.3
"""Initial standard deviation of frame, row and column embeddings; their sum is about as large as the features."""


class ProcedureEncoder(nn.Module):
    """Embeds the frames of a procedure and encodes them with attention across all frames.

    Args:
        latent: channels of the tokenizer's features.
        grid: height and width of the grid of a frame.
        frames: F = k + 2, number of frames of a procedure, including both images.
        width: D, width of all tokens.
        layers: number of layers.
        heads: number of attention heads.
        hidden: hidden width of the feed-forward layers; four times ``width`` when None.
        dropout: dropout probability.
        relative_position_bias: whether attention has a learned bias by the relative position of two patches.
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
        relative_position_bias: bool = False,
    ) -> None:
        super().__init__()
        self.grid, self.frames, self.width = grid, frames, width
        self.norm, self.project = nn.LayerNorm(latent), nn.Linear(latent, width)
        self.mask_embedding = nn.Parameter(torch.zeros(width))
        # the position embedding of a token is the sum of its frame, row and column embedding
        self.frame_embed = nn.Parameter(POSITION_STD * torch.randn(frames, 1, 1, width))
        self.row_embed = nn.Parameter(POSITION_STD * torch.randn(grid[0], 1, width))
        self.column_embed = nn.Parameter(POSITION_STD * torch.randn(grid[1], width))
        # not in the paper, whose encoder has CLIP's weights; an encoder from scratch learns relative positions slowly
        self.relative = RelativePositionBias(heads, grid, frames) if relative_position_bias else None
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, 4 * width if hidden is None else hidden, dropout) for _ in range(layers)
        )

    @property
    def cells(self) -> int:
        """Tokens per frame, n_I in the paper."""
        return self.grid[0] * self.grid[1]

    def embed(self, features: Tensor) -> Tensor:
        """Tokens ``(B, F, n, D)``, without position embeddings, of features ``(B, F, latent, h, w)``."""
        return self.project(self.norm(features.flatten(3).mT))

    def position_embeddings(self) -> Tensor:
        """Position embedding of each token, ``(F * n, D)``."""
        return (self.frame_embed + self.row_embed + self.column_embed).flatten(0, 2)

    def queries(self, ends: Tensor) -> Tensor:
        """Both embedded images with procedure queries between them, ``(B, F * n, D)``.

        ProCap Eq. 9

        Each query is the mask embedding of the first stage plus the position embedding of its patch.

        Args:
            ends: tokens of the before and the after image, ``(B, 2, n, D)``.
        """
        between = self.mask_embedding.expand(len(ends), (self.frames - 2) * self.cells, -1)
        return torch.cat([ends[:, 0], between, ends[:, 1]], 1) + self.position_embeddings()

    def relative_bias(self, before: int = 0) -> Tensor | None:
        """Relative position bias of the attention, ``(heads, N, N)``; None if the encoder has none.

        Args:
            before: number of tokens in front of the patches; their bias is 0.
        """
        return None if self.relative is None else F.pad(self.relative(), (before, 0, before, 0))

    def run(self, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run all layers over tokens ``(B, N, D)``.

        Args:
            tokens: tokens with position embeddings.
            bias: float bias or bool mask of the attention, broadcast to ``(B, heads, N, N)``.
        """
        for layer in self.layers:
            tokens = layer(tokens, bias)
        return tokens

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states ``(B, F * n, D)`` of the tokens of a procedure; tokens include position embeddings."""
        return self.run(tokens, self.relative_bias())


def build_projector(inputs: int, outputs: int) -> nn.Sequential:
    """MLP from the encoder's width to the decoder's. The paper states the widths (768 and 512) but not the layers."""
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, outputs), nn.LayerNorm(outputs))


class ProCapNet(nn.Module):
    """Captions a pair from its implicit procedure.

    Args:
        tokenizer: image tokenizer of the input features; frozen.
        encoder: procedure encoder.
        decoder: caption decoder.
        width: width of the decoder's memory.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, decoder: nn.Module, width: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer.requires_grad_(False).eval()
        self.encoder, self.decoder = encoder, decoder
        self.projector = build_projector(encoder.width, width)

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
            DataError: the frames have another size than the position embeddings.
        """
        grid, expected = self.tokenizer.grid(*images.shape[-2:]), self.encoder.grid
        if grid != expected:
            stride = self.tokenizer.stride
            raise DataError(
                f"images are {images.shape[-2]}x{images.shape[-1]}; expected {expected[0] * stride}x"
                f"{expected[1] * stride}, the size of this ProCap; set the data module's `image_size`"
            )
        with torch.no_grad():
            return self.tokenizer_features(images.flatten(0, 1)).unflatten(0, images.shape[:2])

    def encode(self, images: Tensor) -> PairFeatures:
        """Features of uint8 pairs ``(B, 2, 3, H, W)``: the implicit procedure (Eq. 9)."""
        ends = self.encoder.embed(self.features(images))  # (B, 2, n, D)
        before, after = ends.unbind(1)
        memory = self.projector(self.encoder(self.encoder.queries(ends)))
        return PairFeatures(memory, extras={"before": before, "after": after})

    def encode_frames(self, frames: Tensor) -> PairFeatures:
        """Features of uint8 procedures ``(B, k + 2, 3, H, W)``: explicit frames, the ablation of Table 14."""
        cells = self.encoder.embed(self.features(frames))  # (B, k + 2, n, D)
        memory = self.projector(self.encoder(cells.flatten(1, 2) + self.encoder.position_embeddings()))
        return PairFeatures(memory, extras={"before": cells[:, 0], "after": cells[:, -1]})

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
    """Sinusoidal position embeddings ``(count, D)`` of positions from ``start`` on (Vaswani et al. 2017).

    Even channels are sines, odd channels cosines. D, type and device are those of ``like``.
    """
    width = like.shape[-1]
    positions = torch.arange(start, start + count, device=like.device, dtype=torch.float32)
    frequencies = 10000 ** (-torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width)
    angles = positions[:, None] * frequencies  # (count, D / 2)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)

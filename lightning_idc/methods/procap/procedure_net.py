"""The network of ProCap's first stage (section 3.1, Eq. 4).

Shapes: B pairs, F = k + 2 frames, n patches per frame, D channels of tokens, T words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.methods.procap.net import POSITION_STD, ProcedureEncoder, sinusoids
from lightning_idc.nn.image_tokenizer import ImageTokenizer, as_pixels


@dataclass
class Hidden:
    """Hidden states of procedures and captions.

    ProCap Eq. 4

    Args:
        align: hidden state of the alignment token, ``(B, D)``.
        consistency: hidden state of the consistency token, ``(B, D)``.
        visual: hidden states of the patches, ``(B, F * n, D)``.
    """

    align: Tensor
    consistency: Tensor
    visual: Tensor


def _head(width: int, outputs: int) -> nn.Sequential:
    # the encoder is pre-norm, so its output is not normalised
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))


class ProcedureReader(nn.Module, ABC):
    """Base class with tokenizer, encoder and heads of the first stage; subclasses embed words and the special tokens.

    Args:
        tokenizer: image tokenizer of features and targets; frozen.
        encoder: encoder of caption and procedure.
        vocabulary: number of words.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, width = vocabulary, encoder.width
        self.tokenizer = tokenizer.requires_grad_(False).eval()
        self.encoder = encoder
        self.code_head = _head(width, tokenizer.codebook_size)
        self.align_head, self.consistency_head = _head(width, 1), _head(width, 1)

    def train(self, mode: bool = True) -> ProcedureReader:
        super().train(mode)
        self.tokenizer.eval()
        return self

    @torch.no_grad()
    def tokenizer_features(self, frames: Tensor) -> Tensor:
        """Features ``(B, F, latent, h, w)`` of uint8 frames ``(B, F, 3, H, W)``, without autocast.

        The target ids are computed from these features, and rounded features would have other ids.
        """
        pixels = as_pixels(frames.flatten(0, 1), self.encoder.mask_embedding.dtype)
        with torch.autocast(frames.device.type, enabled=False):
            return self.tokenizer.features(pixels).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def targets(self, frames: Tensor, features: Tensor) -> Tensor:
        """Target ids ``(B, F * n)``.

        Args:
            frames: uint8 ``(B, F, 3, H, W)``.
            features: :meth:`tokenizer_features` of the frames; the encoder of the tokenizer is not run again.
        """
        return self.tokenizer.ids_of(features.flatten(0, 1)).view(len(features), -1)

    @abstractmethod
    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        """Encode a caption and a masked procedure.

        Args:
            features: :meth:`tokenizer_features`, ``(B, F, latent, h, w)``.
            masked: bool ``(B, F * n)``, True at patches that the mask embedding replaces.
            words: ids ``(B, T)`` with the end token.
            word_mask: bool ``(B, T)``, False at padding.
        """

    def masked_tokens(self, features: Tensor, masked: Tensor) -> Tensor:
        """Tokens ``(B, F * n, D)`` of the procedure with position embeddings; the mask embedding where ``masked``."""
        visual = self.encoder.embed(features).flatten(1, 2)  # (B, F * n, D)
        mask = self.encoder.mask_embedding.to(visual)
        return torch.where(masked[..., None], mask, visual) + self.encoder.position_embeddings()


class ProcedureNet(ProcedureReader):
    """Encodes the sequence {alignment token, caption, consistency token, procedure}.

    Padding of captions is not attended to. Captions may have any length.

    Args:
        tokenizer: image tokenizer of features and targets; frozen.
        encoder: encoder of caption and procedure.
        vocabulary: number of words.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        self.words = nn.Embedding(vocabulary, encoder.width)
        self.align_token, self.consistency_token = (
            nn.Parameter(POSITION_STD * torch.randn(1, 1, encoder.width)) for _ in range(2)
        )
        nn.init.normal_(self.words.weight, std=POSITION_STD)

    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        count, length = words.shape
        visual = self.masked_tokens(features, masked)
        # sinusoids, so that captions may have any length
        text = self.words(words) + POSITION_STD * sinusoids(0, length, visual)
        align, consistency = self.align_token.expand(count, -1, -1), self.consistency_token.expand(count, -1, -1)
        sequence = torch.cat([align, text, consistency, visual], 1)  # (B, 2 + T + F * n, D)
        valid = F.pad(word_mask, (1, 1 + visual.shape[1]), value=True)[:, None, None]
        bias = self.encoder.relative_bias(length + 2)
        hidden = self.encoder.run(sequence, valid if bias is None else bias.masked_fill(~valid, -torch.inf))
        return Hidden(hidden[:, 0], hidden[:, length + 1], hidden[:, length + 2 :])

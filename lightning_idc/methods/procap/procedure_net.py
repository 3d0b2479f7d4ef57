"""The network of ProCap's first stage and its three losses (section 3.1, eq. 4 to 8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.methods.procap.net import PLACE_SCALE, ProcedureEncoder, sinusoids
from lightning_idc.nn.image_tokenizer import ImageTokenizer, as_pixels


@dataclass
class Hidden:
    """What the encoder makes of procedures and captions.

    ProCap Eq. 4

    Args:
        align: of the alignment token, ``(B, D)``.
        consistency: of the consistency token, ``(B, D)``.
        visual: of the patches, ``(B, F * n, D)``.
    """

    align: Tensor
    consistency: Tensor
    visual: Tensor


def _head(width: int, outputs: int) -> nn.Sequential:
    # the encoder is pre-norm, so its output has not been normalised yet
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))


class ProcedureReader(nn.Module, ABC):
    """Tokenizer, encoder and heads of the first stage; subclasses write :meth:`forward` and bring the words.

    Args:
        tokenizer: gives features and targets; it stays frozen.
        encoder: looks across caption and procedure.
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
        """Features ``(B, F, latent, h, w)`` of uint8 frames ``(B, F, 3, H, W)``.

        Autocast has no say: the ids that are to be learned are read of them, and rounded features give others.
        """
        pixels = as_pixels(frames.flatten(0, 1), self.encoder.mask_embedding.dtype)
        with torch.autocast(frames.device.type, enabled=False):
            return self.tokenizer.features(pixels).unflatten(0, frames.shape[:2])

    @torch.no_grad()
    def targets(self, frames: Tensor, features: Tensor) -> Tensor:
        """Ids ``(B, F * n)`` of the frames, whose features :meth:`look` gave: one pass of the CNN serves both."""
        return self.tokenizer.ids_of(features.flatten(0, 1)).view(len(features), -1)

    @abstractmethod
    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        """Encode a caption and a masked procedure.

        Args:
            features: of :meth:`look`, ``(B, F, latent, h, w)``.
            masked: bool ``(B, F * n)``, True where the mask embedding stands instead of a patch.
            words: ids ``(B, T)``, T of any size, the end token included.
            word_mask: bool ``(B, T)``, False at padding.
        """

    def masked_tokens(self, features: Tensor, masked: Tensor) -> Tensor:
        """Tokens ``(B, F * n, D)`` of the procedure with their places, mask embeddings where ``masked``."""
        visual = self.encoder.embed(features).flatten(1, 2)
        mask = self.encoder.mask_embedding.to(visual)
        return torch.where(masked[..., None], mask, visual) + self.encoder.places()


class ProcedureNet(ProcedureReader):
    """Masked, caption-conditioned reconstruction of {alignment token, caption, consistency token, procedure}.

    Padding is attended to by nothing, and no caption is too long.

    Args:
        tokenizer: gives features and targets; it stays frozen.
        encoder: looks across caption and procedure.
        vocabulary: number of words.
    """

    def __init__(self, tokenizer: ImageTokenizer, encoder: ProcedureEncoder, vocabulary: int) -> None:
        super().__init__(tokenizer, encoder, vocabulary)
        self.words = nn.Embedding(vocabulary, encoder.width)
        self.align_token, self.consistency_token = (
            nn.Parameter(PLACE_SCALE * torch.randn(1, 1, encoder.width)) for _ in range(2)
        )
        nn.init.normal_(self.words.weight, std=PLACE_SCALE)

    def forward(self, features: Tensor, masked: Tensor, words: Tensor, word_mask: Tensor) -> Hidden:
        count, length = words.shape
        visual = self.masked_tokens(features, masked)
        # sinusoids, so that no caption is too long
        text = self.words(words) + PLACE_SCALE * sinusoids(0, length, visual)
        ends = (self.align_token.expand(count, -1, -1), self.consistency_token.expand(count, -1, -1))
        sequence = torch.cat([ends[0], text, ends[1], visual], 1)
        seen = F.pad(word_mask, (1, 1 + visual.shape[1]), value=True)[:, None, None]
        bias = self.encoder.relative_bias(length + 2)
        hidden = self.encoder.run(sequence, seen if bias is None else bias.masked_fill(~seen, -torch.inf))
        return Hidden(hidden[:, 0], hidden[:, length + 1], hidden[:, length + 2 :])


def masked_sequence_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy at the masked patches of the batch; 0 without any.

    ProCap Eq. 6

    Args:
        logits: at the M masked patches, ``(M, codebook)``.
        targets: their ids, ``(M,)``.

    Example:
        >>> masked_sequence_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # log 4
        tensor(1.3863)
    """
    return F.cross_entropy(logits.float(), targets, reduction="sum") / max(1, len(targets))


def discrimination_loss(right: Tensor, wrong: Tensor, rightful: Tensor, wrongful: Tensor) -> Tensor:
    """-log p(1 | right) - log p(0 | wrong), each a mean over the samples that count; 0 without any.

    ProCap Eq. 7
    ProCap Eq. 8

    Args:
        right: logits of what belongs together, ``(B,)``.
        wrong: logits of what does not, ``(B,)``.
        rightful: bool ``(B,)``, True where ``right`` counts.
        wrongful: bool ``(B,)``, True where ``wrong`` counts.

    Example:
        >>> everyone = torch.tensor([True, True])
        >>> discrimination_loss(torch.zeros(2), torch.zeros(2), everyone, everyone)  # twice log 2
        tensor(1.3863)
    """
    positive = (F.softplus(-right.float()) * rightful).sum() / rightful.sum().clamp(min=1)
    return positive + (F.softplus(wrong.float()) * wrongful).sum() / wrongful.sum().clamp(min=1)

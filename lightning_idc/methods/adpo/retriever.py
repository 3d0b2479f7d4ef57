"""How well captions fit pairs, as the distribution that an adversarial retriever draws from (ADPO section 4.2)."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.core.types import PairFeatures
from lightning_idc.core.vocabulary import words_of
from lightning_idc.nn.retrieval import PairTextEncoder

LARGEST_TABLE = 8192
"""Single words and pairs of neighbouring words that a caption encoder knows; the most frequent ones."""
EMBEDDED_TOGETHER = 256


class PairTextMatcher(nn.Module):
    """Unit vectors of pairs and of the captions of one fixed list."""

    @abstractmethod
    def embed_pairs(self, features: PairFeatures, images: Tensor) -> Tensor:
        """``(B, D)`` from a captioner's features and its uint8 images ``(B, 2, 3, H, W)``; no gradient to either."""

    @abstractmethod
    def embed_captions(self, places: Tensor) -> Tensor:
        """``(N, D)`` of the captions at these places of the list."""


class FeatureHeads(PairTextMatcher):
    """Small heads on what the captioner sees, and on the words of captions; trained from nothing.

    A few learned queries read the features, so that a change in one place is not averaged away. A caption is the sum
    of its words and of its pairs of neighbouring words, which keeps ``red cube`` apart from ``red`` and ``cube``.

    Args:
        captions: the list.
        memory: width of the captioner's features.
        width: of the vectors.
        queries: that read the features.
    """

    def __init__(self, captions: Sequence[str], memory: int, width: int = 64, queries: int = 4) -> None:
        super().__init__()
        rows = [_terms(caption) for caption in captions]
        counts = Counter(term for row in rows for term in row)
        known = {term: i for i, (term, _) in enumerate(counts.most_common(LARGEST_TABLE))}
        ids = [[known[term] for term in row if term in known] for row in rows]
        starts = torch.tensor([0, *(len(row) for row in ids)]).cumsum(0)
        self.register_buffer("terms", torch.tensor([i for row in ids for i in row]), persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.norm = nn.LayerNorm(memory)
        self.queries = nn.Parameter(torch.randn(queries, memory) * memory**-0.5)
        self.pairs = nn.Linear(queries * memory, width)
        self.words = nn.EmbeddingBag(len(known), width, mode="sum")
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.captions = nn.Linear(width, width)

    def embed_pairs(self, features: PairFeatures, images: Tensor) -> Tensor:
        memory = self.norm(features.memory.detach().to(self.queries.dtype))
        scores = memory @ self.queries.T
        if features.mask is not None:
            scores = scores.masked_fill(~features.mask[..., None], float("-inf"))
        read = scores.softmax(1).mT @ memory
        return F.normalize(self.pairs(read.flatten(1)), dim=-1)

    def embed_captions(self, places: Tensor) -> Tensor:
        starts: Tensor = self.starts  # type: ignore[assignment]
        first, last = starts[places], starts[places + 1]
        lengths = last - first
        offsets = lengths.cumsum(0) - lengths
        steps = torch.arange(int(lengths.sum()), device=places.device)
        where = torch.repeat_interleave(first - offsets, lengths) + steps
        return F.normalize(self.captions(self.words(self.terms[where], offsets)), dim=-1)  # type: ignore[index]


class EncoderHeads(PairTextMatcher):
    """Projections on the vectors of a finished encoder, such as CLIP4IDC after its adaptation stage.

    They begin as the identity, so that the first negatives are those that the encoder takes for similar. The captions'
    vectors are made once: their tower stays as it is, so that they never grow old.

    Args:
        captions: the list.
        encoder: a module with ``embed_pairs`` and ``embed_captions``.
        train_encoder: also train the encoder's view of the pairs.
    """

    table: Tensor

    def __init__(self, captions: Sequence[str], encoder: PairTextEncoder, train_encoder: bool = False) -> None:
        super().__init__()
        assert isinstance(encoder, nn.Module)
        encoder.requires_grad_(train_encoder)
        self.encoder = encoder
        self.train_encoder = train_encoder
        with torch.no_grad():
            starts = range(0, len(captions), EMBEDDED_TOGETHER)
            parts = [encoder.eval().embed_captions(captions[start : start + EMBEDDED_TOGETHER]) for start in starts]
        self.register_buffer("table", torch.cat(parts), persistent=False)
        width = self.table.shape[1]
        self.pairs, self.captions = (nn.Linear(width, width, bias=False) for _ in range(2))
        for layer in (self.pairs, self.captions):
            nn.init.eye_(layer.weight)

    def train(self, mode: bool = True) -> EncoderHeads:
        super().train(mode)
        self.encoder.eval()  # dropout would make a draw depend on it
        return self

    def embed_pairs(self, features: PairFeatures, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
            found = self.encoder.embed_pairs(images)
        return F.normalize(self.pairs(found), dim=-1)

    def embed_captions(self, places: Tensor) -> Tensor:
        return F.normalize(self.captions(self.table[places]), dim=-1)


def _terms(caption: str) -> list[str]:
    words = words_of(caption)
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]

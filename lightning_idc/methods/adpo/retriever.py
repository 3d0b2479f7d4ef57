"""How well captions fit pairs, as the distribution that an adversarial retriever draws from (ADPO section 4.2)."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.retrieval import PairTextEncoder
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError

LARGEST_TABLE = 8192
"""Single words and pairs of neighbouring words that a caption encoder knows; the most frequent ones."""
EMBEDDED_TOGETHER = 256


class PairTextMatcher(nn.Module):
    """Unit vectors of pairs and of the captions of one fixed list."""

    @abstractmethod
    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """``(B, D)`` from a captioner's features and its uint8 images; no gradient to either.

        Args:
            features: of B pairs.
            images: ``(B, 2, 3, H, W)``.
            sizes: height and width of each pair where they were padded at the right and the bottom, ``(B, 2)``.
        """

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

    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
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
    vectors are made once: their tower stays as it is, so that they never grow old. Images are resized to what the
    encoder takes, on their device.

    A frozen encoder is not a sub-module: it is neither sharded, which scalars such as CLIP's scale forbid, nor stored
    in checkpoints, which would hold the same weights again.

    Args:
        captions: the list.
        encoder: a module with ``embed_pairs`` and ``embed_captions``.
        train_encoder: also train the encoder's view of the pairs.
        image_size: height and width that the encoder takes; None for any.
        images: a pair ``(1, 2, 3, H, W)`` that shows which of the encoder's weights its view of pairs depends on; asked
            for where the encoder is trained.
        device: where the captions' vectors are made.
    """

    table: Tensor

    def __init__(
        self,
        captions: Sequence[str],
        encoder: PairTextEncoder,
        train_encoder: bool = False,
        image_size: tuple[int, int] | None = None,
        images: Tensor | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        assert isinstance(encoder, nn.Module)
        self.train_encoder, self.image_size = train_encoder, image_size
        self._frozen: list[PairTextEncoder] = []
        encoder.requires_grad_(False).eval()
        if device is not None:
            encoder.to(device)
        with torch.no_grad():
            starts = range(0, len(captions), EMBEDDED_TOGETHER)
            parts = [encoder.embed_captions(captions[start : start + EMBEDDED_TOGETHER]) for start in starts]
        self.register_buffer("table", torch.cat(parts), persistent=False)
        width = self.table.shape[1]
        self.pairs, self.captions = (nn.Linear(width, width, bias=False) for _ in range(2))
        for layer in (self.pairs, self.captions):
            nn.init.eye_(layer.weight)
        if train_encoder:
            self.encoder = encoder
            self._train_what_sees(images)
        else:
            self._frozen.append(encoder)

    def _train_what_sees(self, images: Tensor | None) -> None:
        """Train only what a pair's vector depends on: a weight without a gradient would stop distributed training."""
        encoder: Any = self.encoder
        encoder.requires_grad_(True)
        if images is None:
            return
        device = next(encoder.parameters()).device
        found = encoder.embed_pairs(self._resized(images.to(device)))
        weights = dict(encoder.named_parameters())
        used = torch.autograd.grad(found.sum(), list(weights.values()), allow_unused=True)
        for (name, weight), gradient in zip(weights.items(), used, strict=True):
            if gradient is None:
                weight.requires_grad_(False)
            elif not weight.ndim:
                raise ConfigError(f"{name} is a scalar, which cannot be sharded; make it a vector of length 1")

    def train(self, mode: bool = True) -> EncoderHeads:
        super().train(mode)
        if self.train_encoder:
            self.encoder.eval()  # dropout would make a draw depend on it
        return self

    def _resized(self, images: Tensor) -> Tensor:
        if self.image_size is None or tuple(images.shape[-2:]) == tuple(self.image_size):
            return images
        pixels = F.interpolate(images.flatten(0, 1).float(), self.image_size, mode="bilinear", antialias=True)
        return pixels.round().clamp(0, 255).to(images.dtype).unflatten(0, images.shape[:2])

    def _cut(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Each pair without its padding, resized."""
        if self.image_size is None:
            raise ConfigError("pairs of mixed sizes need an encoder that takes one size; set data.image_size")
        cut = [pair[None, ..., :height, :width] for pair, (height, width) in zip(images, sizes.tolist(), strict=True)]
        return torch.cat([self._resized(pair) for pair in cut])

    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        encoder: Any = self.encoder if self.train_encoder else self._frozen[0]
        if not self.train_encoder and next(encoder.parameters()).device != images.device:
            encoder.to(images.device)  # nobody else moves what is not a sub-module
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
            found = encoder.embed_pairs(self._resized(images) if sizes is None else self._cut(images, sizes))
        return F.normalize(self.pairs(found.to(self.pairs.weight.dtype)), dim=-1)

    def embed_captions(self, places: Tensor) -> Tensor:
        return F.normalize(self.captions(self.table[places]), dim=-1)


def _terms(caption: str) -> list[str]:
    words = words_of(caption)
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]

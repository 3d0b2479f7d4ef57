"""Encoders of pairs and captions whose similarity is the distribution of the retriever (ADPO section 4.2).

Shapes: B pairs, N captions, D channels of an embedding; L feature vectors of C channels per pair, Q learned queries.
"""

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

MAX_TERMS = 8192
"""Maximum number of unigrams and bigrams in the vocabulary of a caption encoder; the most frequent ones."""
CAPTION_BATCH_SIZE = 256


class PairTextMatcher(nn.Module):
    """Embeds pairs of images, and the captions of a fixed list, as unit vectors."""

    @abstractmethod
    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Unit vectors ``(B, D)`` of pairs; no gradient flows to features or images.

        Args:
            features: features of B pairs, as the captioner encodes them.
            images: uint8 ``(B, 2, 3, H, W)``.
            sizes: height and width of each pair before it was padded at the right and the bottom, ``(B, 2)``; None
                without padding.
        """

    @abstractmethod
    def embed_captions(self, indices: Tensor) -> Tensor:
        """Unit vectors ``(N, D)`` of the captions of the list at ``indices (N,)``."""


class FeatureHeads(PairTextMatcher):
    """Small heads, trained from scratch, on the captioner's features and on the words of captions.

    Learned queries attend to the features, so that a local change is not averaged away. A caption is the sum of the
    embeddings of its unigrams and bigrams, so that ``red cube`` differs from ``red`` and ``cube``.

    Args:
        captions: captions of the pool.
        memory: width of the captioner's features.
        width: D, width of the embeddings.
        queries: number of learned queries.
    """

    def __init__(self, captions: Sequence[str], memory: int, width: int = 64, queries: int = 4) -> None:
        super().__init__()
        rows = [_terms(caption) for caption in captions]
        counts = Counter(term for row in rows for term in row)
        vocabulary = {term: i for i, (term, _) in enumerate(counts.most_common(MAX_TERMS))}
        ids = [[vocabulary[term] for term in row if term in vocabulary] for row in rows]
        # term ids of all captions one after the other; caption i has terms[starts[i] : starts[i + 1]]
        starts = torch.tensor([0, *(len(row) for row in ids)]).cumsum(0)
        self.register_buffer("terms", torch.tensor([i for row in ids for i in row]), persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.norm = nn.LayerNorm(memory)
        self.queries = nn.Parameter(torch.randn(queries, memory) * memory**-0.5)
        self.pairs = nn.Linear(queries * memory, width)
        self.words = nn.EmbeddingBag(len(vocabulary), width, mode="sum")
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.captions = nn.Linear(width, width)

    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        memory = self.norm(features.memory.detach().to(self.queries.dtype))  # (B, L, C)
        scores = memory @ self.queries.T  # (B, L, Q)
        if features.mask is not None:
            scores = scores.masked_fill(~features.mask[..., None], float("-inf"))
        attended = scores.softmax(1).mT @ memory  # (B, Q, C)
        return F.normalize(self.pairs(attended.flatten(1)), dim=-1)

    def embed_captions(self, indices: Tensor) -> Tensor:
        starts: Tensor = self.starts  # type: ignore[assignment]
        start, stop = starts[indices], starts[indices + 1]
        lengths = stop - start
        offsets = lengths.cumsum(0) - lengths  # start of each of the N captions in their concatenation
        concatenated = torch.arange(int(lengths.sum()), device=indices.device)
        positions = torch.repeat_interleave(start - offsets, lengths) + concatenated
        return F.normalize(self.captions(self.words(self.terms[positions], offsets)), dim=-1)  # type: ignore[index]


class EncoderHeads(PairTextMatcher):
    """Projections of the embeddings of a trained encoder, such as CLIP4IDC after its adaptation stage.

    Both projections are initialised to the identity, so that the first negatives are the captions that the encoder
    finds most similar. The caption tower stays frozen, so captions are embedded once. Images are resized on their
    device to the encoder's size.

    A frozen encoder is not a sub-module: it is not sharded, since FSDP cannot shard scalars such as CLIP's logit scale,
    and it is not stored in checkpoints.

    Args:
        captions: captions of the pool.
        encoder: a module with ``embed_pairs`` and ``embed_captions``.
        train_encoder: whether the encoder's image tower is trained too.
        image_size: height and width of the encoder's images; None for any.
        images: example pair ``(1, 2, 3, H, W)``. With ``train_encoder``, weights that do not affect its embedding stay
            frozen; all weights are trained when None.
        device: device on which the captions are embedded.
    """

    caption_embeddings: Tensor

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
            starts = range(0, len(captions), CAPTION_BATCH_SIZE)
            parts = [encoder.embed_captions(captions[start : start + CAPTION_BATCH_SIZE]) for start in starts]
        self.register_buffer("caption_embeddings", torch.cat(parts), persistent=False)
        width = self.caption_embeddings.shape[1]
        self.pairs, self.captions = (nn.Linear(width, width, bias=False) for _ in range(2))
        for layer in (self.pairs, self.captions):
            nn.init.eye_(layer.weight)
        if train_encoder:
            self.encoder = encoder
            self._unfreeze_image_tower(images)
        else:
            self._frozen.append(encoder)

    def _unfreeze_image_tower(self, images: Tensor | None) -> None:
        """Train the weights that embed pairs. A trained weight without a gradient would make DDP wait for it."""
        encoder: Any = self.encoder
        encoder.requires_grad_(True)
        if images is None:
            return
        device = next(encoder.parameters()).device
        embeddings = encoder.embed_pairs(self._resize(images.to(device)))
        weights = dict(encoder.named_parameters())
        gradients = torch.autograd.grad(embeddings.sum(), list(weights.values()), allow_unused=True)
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            if gradient is None:
                weight.requires_grad_(False)
            elif not weight.ndim:
                raise ConfigError(f"{name} is a scalar, which cannot be sharded; make it a vector of length 1")

    def train(self, mode: bool = True) -> EncoderHeads:
        super().train(mode)
        if self.train_encoder:
            self.encoder.eval()  # dropout would make q random
        return self

    def _resize(self, images: Tensor) -> Tensor:
        if self.image_size is None or tuple(images.shape[-2:]) == tuple(self.image_size):
            return images
        # (B, 2, 3, H, W) -> (2B, 3, h, w) -> (B, 2, 3, h, w)
        pixels = F.interpolate(images.flatten(0, 1).float(), self.image_size, mode="bilinear", antialias=True)
        return pixels.round().clamp(0, 255).to(images.dtype).unflatten(0, images.shape[:2])

    def _crop_and_resize(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Remove the padding of each pair and resize it to the encoder's size."""
        if self.image_size is None:
            raise ConfigError("the encoder of the retriever has no fixed image size; set data.image_size")
        crops = [pair[None, ..., :height, :width] for pair, (height, width) in zip(images, sizes.tolist(), strict=True)]
        return torch.cat([self._resize(pair) for pair in crops])

    def embed_pairs(self, features: PairFeatures, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        encoder: Any = self.encoder if self.train_encoder else self._frozen[0]
        if not self.train_encoder and next(encoder.parameters()).device != images.device:
            encoder.to(images.device)  # not a sub-module, so Lightning does not move it
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
            embeddings = encoder.embed_pairs(
                self._resize(images) if sizes is None else self._crop_and_resize(images, sizes)
            )
        return F.normalize(self.pairs(embeddings.to(self.pairs.weight.dtype)), dim=-1)

    def embed_captions(self, indices: Tensor) -> Tensor:
        return F.normalize(self.captions(self.caption_embeddings[indices]), dim=-1)


def _terms(caption: str) -> list[str]:
    """Unigrams and bigrams of a caption."""
    words = words_of(caption)
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]

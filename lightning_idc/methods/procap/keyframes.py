"""Keyframes of a procedure: similarity and confidence of each frame (Eq. 2), and sampling by confidence (Eq. 3).

1. :class:`VisualSimilarity` (Eq. 11), :class:`VisualTextSimilarity` (Eq. 12) or :class:`TokenizerSimilarity` compares
   each frame with both images,
2. :func:`confidence` turns similarities into confidences, and
3. :func:`draw_keyframes` samples k frames by confidence.

Shapes: l frames of a procedure, k keyframes, B pairs, D channels of an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_idc.data.store.growing import KeyedStore
from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.models.loading import load_module
from lightning_idc.nn.image_tokenizer import as_pixels, load_image_tokenizer
from lightning_idc.nn.retrieval import PairTextEncoder
from lightning_idc.synthesis.models.base import ImageEncoder
from lightning_idc.synthesis.models.pretrained import DinoImages
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

DINOV2 = "facebook/dinov2-large"
"""Encoder of :class:`VisualSimilarity` in the paper."""

CLIP_SCALE = 100.0
"""CLIP's factor of cosines. Eq. 2 is a softmax of squared differences of similarities. For plain cosines these are
about 0.01, so that all frames have almost equal confidence; for cosines times 100 they are about 100, and the frame
that is much more similar to one end gets a confidence near 0. Confidences sum to l - 1 and none exceeds 1, so with any
scale Eq. 2 excludes the worst frame rather than selecting the best."""


def confidence(similarities: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Confidence w of each frame of a procedure, ``(..., l)``.

    ProCap Eq. 2

    Args:
        similarities: similarities to before and after, ``(..., 2, l)``.
        scale: factor of the similarities; with 1 and cosines this is the paper's equation.
    """
    return 1 - squared_difference(scale * similarities).softmax(-1)


def mixed_confidence(similarities: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Confidence of each frame of a procedure by several similarities, ``(l,)``, as in the authors' code.

    The squared differences of each similarity are scaled to [0, 1], and their weighted sum replaces those of Eq. 2.

    Args:
        similarities: similarities to before and after by name, ``(2, l)`` each.
        weights: weight of each similarity.
    """
    return 1 - mixed_difference(similarities, weights).softmax(-1)


def mixed_difference(similarities: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Weighted sum, ``(l,)``, of the scaled squared differences; arguments as in :func:`mixed_confidence`."""
    total = torch.zeros(())
    for name, weight in weights.items():
        difference = squared_difference(similarities[name])
        # extremes of the pair, so that its keyframes do not depend on other pairs; the authors' code uses those of the
        # data set
        low, high = difference.min(), difference.max()
        total = total + weight * (difference - low) / (high - low).clamp(min=1e-12)
    return total


def squared_difference(similarities: Tensor) -> Tensor:
    """Squared difference ``(..., l)`` of the similarities ``(..., 2, l)`` to before and after."""
    return (similarities[..., 0, :] - similarities[..., 1, :]).square()


def draw_keyframes(confidences: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample the positions of ``count`` frames without replacement by confidence ``(l,)``, in temporal order."""
    if not count:
        return torch.empty(0, dtype=torch.long)
    weights = confidences.double().clamp(min=1e-6)  # multinomial needs at least `count` positive weights
    return torch.multinomial(weights, count, generator=generator).sort().values


def evenly_spaced(length: int, count: int) -> list[int]:
    """Positions of ``count`` of ``length`` frames, evenly spaced between both images, as in the authors' code.

    Example:
        >>> evenly_spaced(7, 2)
        [2, 4]
    """
    return [round(step * (length + 1) / (count + 1)) - 1 for step in range(1, count + 1)]


RANDOM, INTERPOLATOR = "random", "own"
"""Names of uniform sampling, and of the similarity that `FrameInterpolator` has stored."""
Similarities = str | dict[str, float] | None
"""Similarity by which keyframes are sampled: None for the one of `FrameInterpolator`; ``random`` for uniform sampling;
the name of a `FrameSimilarity`; or several names, which may include ``own``, with their weights
(:func:`mixed_confidence`)."""


class Keyframes:
    """Samples k frames of the stored procedure of a pair and adds its two images.

    ProCap Eq. 3

    Args:
        folder: folder of :class:`~lightning_idc.methods.procap.interpolation.FrameInterpolator`.
        count: k, number of keyframes.
        scale: factor of the similarities in Eq. 2; unused for a mix of similarities.
        length: l, number of frames to sample from, if fewer than the folder has: every second or fourth frame.
        similarity: similarity by which frames are sampled; sampling is uniform if the folder has no similarities.
        even: whether frames are evenly spaced instead of sampled.

    Raises:
        ConfigError: an argument is out of range, or all weights of similarities are 0.
        DataError: the folder has no procedures.
    """

    def __init__(
        self,
        folder: str | Path,
        count: NonNegativeInt,
        scale: NonNegativeFloat = CLIP_SCALE,
        length: PositiveInt | None = None,
        similarity: Similarities = None,
        even: bool = False,
    ) -> None:
        check_arguments(Keyframes.__init__, locals())
        if isinstance(similarity, Mapping) and not any(similarity.values()):
            raise ConfigError(
                f"similarity is {similarity}; expected names of similarities with weights that are not all 0, or None "
                "for the similarity of FrameInterpolator"
            )
        self.procedures, self.count, self.scale = ProcedureFolder(folder), count, scale
        self.length, self.similarity, self.even = length, similarity, even
        names = [similarity] if isinstance(similarity, str) else list(similarity or ())
        self._stores: dict[str, KeyedStore] = {
            name: self.procedures.similarities(name) for name in names if name not in (RANDOM, INTERPOLATOR)
        }
        if count and not len(self.procedures):
            raise DataError(f"there are no procedures in {str(folder)!r}; run FrameInterpolator first")

    def of(self, sample: PairSample) -> Tensor:
        """Both images with k keyframes between them, uint8 ``(k + 2, 3, H, W)``.

        Keyframes are sampled with the seed ``meta["seed"]``; without a seed they are those of the highest confidence.

        Raises:
            ConfigError: l + 1 does not divide the number of frames plus 1.
            DataError: the procedure has fewer than k frames, or lacks a similarity.
        """
        if not self.count:
            return torch.stack([sample.before, sample.after])
        procedure = self.procedures.of(sample.id, sample.before, sample.after)
        frames = procedure.frames
        step, remainder = divmod(len(frames) + 1, (self.length or len(frames)) + 1)
        if remainder:
            raise ConfigError(
                f"frames is {self.length}; expected a number of evenly spaced frames of a procedure of {len(frames)}"
            )
        selection = slice(step - 1, None, step)
        frames = frames[selection]
        if len(frames) < self.count:
            raise DataError(f"procedures have {len(frames)} frames; expected {self.count} or more")
        seed = sample.meta.get("seed")
        if self.even:
            positions = torch.tensor(evenly_spaced(len(frames), self.count))
        else:
            differences = self._differences(sample.id, procedure.similarities, selection)
            if differences is None:
                differences = torch.zeros(len(frames))
            if seed is None:
                # by the differences themselves: with a scale of 100 most confidences are exactly 1 in float32
                positions = differences.topk(self.count, largest=False).indices.sort().values
            else:
                weights = 1 - differences.softmax(-1)
                positions = draw_keyframes(weights, self.count, torch.Generator().manual_seed(seed))
        return torch.cat([sample.before[None], frames[positions], sample.after[None]])

    def _differences(self, name: str, stored: Tensor | None, selection: slice) -> Tensor | None:
        """Logits of Eq. 2 of the selected frames; None for uniform sampling."""
        similarities = {} if stored is None else {INTERPOLATOR: stored[:, selection]}
        for similarity_name, store in self._stores.items():
            if name not in store:
                raise DataError(
                    f"{str(store.folder)!r} has no similarity {similarity_name!r} of the pair {name!r}; run "
                    "FrameSimilarity over this split first"
                )
            similarities[similarity_name] = torch.tensor(store.value(name, "scores"))[:, selection]
        if self.similarity is None or self.similarity == RANDOM:
            values = similarities.get(self.similarity or INTERPOLATOR)
            return None if values is None else squared_difference(self.scale * values)
        names = [self.similarity] if isinstance(self.similarity, str) else self.similarity
        missing = [similarity_name for similarity_name in names if similarity_name not in similarities]
        if missing:
            raise DataError(
                f"{str(self.procedures.path)!r} has no similarity {missing[0]!r} of the pair {name!r}; "
                f"{INTERPOLATOR!r} is computed by FrameInterpolator, others by FrameSimilarity"
            )
        if isinstance(self.similarity, str):
            return squared_difference(self.scale * similarities[self.similarity])
        return mixed_difference(similarities, self.similarity)


def cosines(ends: Tensor, frames: Tensor) -> Tensor:
    """Cosines of features of both images with features of the frames, ``(B, 2, l)``.

    ProCap Eq. 11

    Args:
        ends: features of the before and the after image, ``(B, 2, D)``.
        frames: features of the frames, ``(B, l, D)``.
    """
    return F.normalize(ends, dim=-1) @ F.normalize(frames, dim=-1).mT


class VisualSimilarity(nn.Module):
    """Similarity of images by a vision encoder (appendix C.1).

    Args:
        encoder: encoder of single images; the paper's DINOv2 ViT-L/14 (class token) when None.
    """

    def __init__(self, encoder: ImageEncoder | None = None) -> None:
        super().__init__()
        self.encoder = encoder if encoder is not None else DinoImages(DINOV2)
        self.encoder.load()

    def extra_repr(self) -> str:
        return str(self.encoder.settings())

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        images = torch.cat([pairs, frames], 1)  # (B, 2 + l, 3, H, W)
        # unit vectors (B, 2 + l, D)
        embeddings = self.encoder.encode(list(images.flatten(0, 1))).view(len(images), images.shape[1], -1)
        return embeddings[:, :2] @ embeddings[:, 2:].mT


class TokenizerSimilarity(nn.Module):
    """Similarity of images by the features of all cells of an image tokenizer; needs no other weights.

    Args:
        tokenizer: checkpoint of the tokenizer.
    """

    def __init__(self, tokenizer: str) -> None:
        super().__init__()
        self.tokenizer = load_image_tokenizer(tokenizer)

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        dtype = self.tokenizer.codebook.weight.dtype
        ends, between = (
            self.tokenizer.features(as_pixels(images.flatten(0, 1), dtype)).flatten(1).unflatten(0, images.shape[:2])
            for images in (pairs, frames)
        )
        return cosines(ends, between)


class VisualTextSimilarity(nn.Module):
    """Similarity of the captions to the change from before to a frame, and to the change from the frame to after.

    ProCap Eq. 12

    The pairs are (before, frame) and (frame, after), in temporal order, as in the authors' code. Eq. 12 has the after
    image first, which would compare the caption with a reversed change.

    Args:
        encoder: encoder of pairs and captions, or a checkpoint of ``Clip4IdcRetrieval``, the paper's encoder.

    Raises:
        ConfigError: the encoder does not embed pairs and captions.
    """

    def __init__(self, encoder: str | nn.Module) -> None:
        super().__init__()
        if isinstance(encoder, str):
            from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

            encoder = load_module(Clip4IdcRetrieval, encoder)
        if not isinstance(encoder, PairTextEncoder):
            raise ConfigError(
                f"{type(encoder).__name__} is not a PairTextEncoder; expected embed_pairs and embed_captions"
            )
        self.encoder = encoder.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        encoder = self.encoder
        assert isinstance(encoder, PairTextEncoder)
        length = frames.shape[1]
        before, after = (side[:, None].expand_as(frames) for side in pairs.unbind(1))
        # (B, 2, l, 2, 3, H, W): for each frame the pairs (before, frame) and (frame, after)
        half_pairs = torch.stack([torch.stack([before, frames], 2), torch.stack([frames, after], 2)], 1)
        changes = encoder.embed_pairs(half_pairs.flatten(0, 2)).view(len(pairs), 2, length, -1)  # (B, 2, l, D)
        empty = [row for row, texts in enumerate(captions) if not texts]
        if empty:
            raise DataError(f"{len(empty)} pairs have no caption to compare frames with; leave these pairs out")
        embeddings = encoder.embed_captions([text for texts in captions for text in texts])
        means = torch.stack([rows.mean(0) for rows in embeddings.split([len(texts) for texts in captions])])  # (B, D)
        # the mean cosine with all captions equals the product with the mean of their unit vectors
        return torch.einsum("bsld,bd->bsl", changes, means)

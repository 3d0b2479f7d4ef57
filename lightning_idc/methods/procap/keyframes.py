"""Keyframes of a procedure: the confidence of each frame (eq. 2), and sampling by confidence (eq. 3).

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

PAPERS_ENCODER = "facebook/dinov2-large"

CLIP_SCALE = 100.0
"""CLIP's factor of cosines. Eq. 2 is a softmax of squared differences of similarities: of plain cosines they are near
0.01, so that every frame has the same confidence; of cosines as logits they are near 100, and the frame most similar to
one end is left out. Confidences sum to l - 1 and none exceeds 1, so no scale favours a frame by more than l / (l - 1)
over uniform sampling: eq. 2 removes the worst frame, it does not select the best."""


def confidence(similarities: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Confidence w of every frame of a procedure.

    ProCap Eq. 2

    Args:
        similarities: similarities to before and after, ``(..., 2, l)``.
        scale: factor of the similarities; 1 is the paper's equation for cosines.

    Returns:
        ``(..., l)``.
    """
    return 1 - squared_difference(scale * similarities).softmax(-1)


def mixed_confidence(similarities: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Confidence of every frame of a procedure by several similarities, as in the authors' code.

    The squared differences of each are scaled to [0, 1] and summed by weight before the softmax of eq. 2.

    Args:
        similarities: similarities to before and after by name, ``(2, l)`` each.
        weights: weight of each similarity.

    Returns:
        ``(l,)``.
    """
    return 1 - mixed_difference(similarities, weights).softmax(-1)


def mixed_difference(similarities: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Weighted sum, ``(l,)``, of the scaled squared differences; arguments as in :func:`mixed_confidence`."""
    total = torch.zeros(())
    for name, weight in weights.items():
        difference = squared_difference(similarities[name])
        # extremes of the pair, where the authors' code has those of the data set: keyframes of a pair then do not
        # depend on other pairs
        low, high = difference.min(), difference.max()
        total = total + weight * (difference - low) / (high - low).clamp(min=1e-12)
    return total


def squared_difference(similarities: Tensor) -> Tensor:
    """Squared difference ``(..., l)`` of the similarities ``(..., 2, l)`` to before and after."""
    return (similarities[..., 0, :] - similarities[..., 1, :]).square()


def draw_keyframes(confidences: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of ``count`` frames, sampled without replacement by confidence ``(l,)``, in temporal order."""
    if not count:
        return torch.empty(0, dtype=torch.long)
    weights = confidences.double().clamp(min=1e-6)  # if all but one are zero, the others must still be possible
    return torch.multinomial(weights, count, generator=generator).sort().values


def evenly_spaced(length: int, count: int) -> list[int]:
    """Positions of ``count`` of ``length`` frames, evenly spaced between both images, as in the authors' code.

    Example:
        >>> evenly_spaced(7, 2)
        [2, 4]
    """
    return [round(step * (length + 1) / (count + 1)) - 1 for step in range(1, count + 1)]


RANDOM, INTERPOLATOR = "random", "own"
"""Names of uniform sampling, and of the similarity that `FrameInterpolator` measured."""
Similarities = str | dict[str, float] | None
"""Similarity by which keyframes are sampled: None for that of `FrameInterpolator`; ``random``; a name of
`FrameSimilarity`; or several names, ``own`` included, with the weights of :func:`mixed_confidence`."""


class Keyframes:
    """Samples k frames of the stored procedure of a pair and adds its two images.

    ProCap Eq. 3

    Args:
        folder: folder of :class:`~lightning_idc.methods.procap.interpolation.FrameInterpolator`.
        count: k, number of keyframes.
        scale: factor of the similarities in eq. 2; unused for a mix of similarities.
        length: l, number of frames to sample from, if fewer than the folder has: every second or fourth.
        similarity: similarity by which frames are sampled; uniform where none was measured.
        even: whether frames are evenly spaced instead of sampled.

    Raises:
        ConfigError: an argument is out of range, or all weights of similarities are 0.
        DataError: the folder holds no procedures.
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
                f"similarity is {similarity}; expected names of similarities with weights, one of them not 0, or None "
                "for that of FrameInterpolator"
            )
        self.procedures, self.count, self.scale = ProcedureFolder(folder), count, scale
        self.length, self.similarity, self.even = length, similarity, even
        names = [similarity] if isinstance(similarity, str) else list(similarity or ())
        self._stores: dict[str, KeyedStore] = {
            name: self.procedures.similarities(name) for name in names if name not in (RANDOM, INTERPOLATOR)
        }
        if count and not len(self.procedures):
            raise DataError(f"there are no procedures in {str(folder)!r}; make them with FrameInterpolator first")

    def of(self, sample: PairSample) -> Tensor:
        """Keyframes and both images, uint8 ``(k + 2, 3, H, W)``; sampled by ``meta["seed"]``, or the most confident.

        Raises:
            ConfigError: l does not divide the frames of the procedure evenly.
            DataError: the procedure has fewer than k frames, or no similarity to choose by.
        """
        if not self.count:
            return torch.stack([sample.before, sample.after])
        procedure = self.procedures.of(sample.id, sample.before, sample.after)
        frames = procedure.frames
        step, remainder = divmod(len(frames) + 1, (self.length or len(frames)) + 1)
        if remainder:
            raise ConfigError(
                f"frames is {self.length}, which does not divide the {len(frames)} frames of a procedure evenly"
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
        """Logits of Eq. 2 of the selected frames; None where there is no similarity to sample by."""
        similarities = {} if stored is None else {INTERPOLATOR: stored[:, selection]}
        for kind, store in self._stores.items():
            if name not in store:
                raise DataError(
                    f"{str(store.folder)!r} has no similarity {kind!r} of the pair {name!r}; measure it with "
                    "FrameSimilarity over this split first"
                )
            similarities[kind] = torch.tensor(store.value(name, "scores"))[:, selection]
        if self.similarity is None or self.similarity == RANDOM:
            values = similarities.get(self.similarity or INTERPOLATOR)
            return None if values is None else squared_difference(self.scale * values)
        names = [self.similarity] if isinstance(self.similarity, str) else self.similarity
        missing = [kind for kind in names if kind not in similarities]
        if missing:
            raise DataError(
                f"{str(self.procedures.path)!r} has no similarity {missing[0]!r} of the pair {name!r}; "
                f"{INTERPOLATOR!r} is measured by FrameInterpolator, others by FrameSimilarity"
            )
        if isinstance(self.similarity, str):
            return squared_difference(self.scale * similarities[self.similarity])
        return mixed_difference(similarities, self.similarity)


def cosines(ends: Tensor, frames: Tensor) -> Tensor:
    """Cosines ``(B, 2, l)`` of features ``(B, 2, D)`` of the ends with ``(B, l, D)`` of the frames.

    ProCap Eq. 11
    """
    return F.normalize(ends, dim=-1) @ F.normalize(frames, dim=-1).mT


class VisualSimilarity(nn.Module):
    """Similarity of images by a vision encoder (appendix C.1).

    Args:
        encoder: encoder of single images; DINOv2 ViT-L/14 (class token) as in the paper when None.
    """

    def __init__(self, encoder: ImageEncoder | None = None) -> None:
        super().__init__()
        self.encoder = encoder if encoder is not None else DinoImages(PAPERS_ENCODER)
        self.encoder.load()

    def extra_repr(self) -> str:
        return str(self.encoder.settings())

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        images = torch.cat([pairs, frames], 1)
        # unit vectors, (B, 2 + l, D)
        embeddings = self.encoder.encode(list(images.flatten(0, 1))).view(len(images), images.shape[1], -1)
        return embeddings[:, :2] @ embeddings[:, 2:].mT


class TokenizerSimilarity(nn.Module):
    """Similarity of images by the features of an image tokenizer, cell by cell; needs no other weights.

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
    """Similarity of the captions to the change up to a frame, and from the frame on.

    ProCap Eq. 12

    The pair is (before, frame) on one side and (frame, after) on the other, in the order of time as in the authors'
    code; eq. 12 has the after image first, and so would compare a reversed change with the caption.

    Args:
        encoder: encoder of pairs and captions, or a checkpoint of ``Clip4IdcRetrieval``, as in the paper.

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
                f"{type(encoder).__name__} has no embed_pairs and embed_captions, which a PairTextEncoder has"
            )
        self.encoder = encoder.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        encoder = self.encoder
        assert isinstance(encoder, PairTextEncoder)
        length = frames.shape[1]
        before, after = (side[:, None].expand_as(frames) for side in pairs.unbind(1))
        halves = torch.stack([torch.stack([before, frames], 2), torch.stack([frames, after], 2)], 1)
        changes = encoder.embed_pairs(halves.flatten(0, 2)).view(len(pairs), 2, length, -1)
        empty = [row for row, texts in enumerate(captions) if not texts]
        if empty:
            raise DataError(f"{len(empty)} pairs have no caption to compare frames with; leave them out")
        words = encoder.embed_captions([text for texts in captions for text in texts])
        means = torch.stack([part.mean(0) for part in words.split([len(texts) for texts in captions])])
        # the mean of the cosines with all captions is the product with the mean of their unit vectors
        return torch.einsum("bsld,bd->bsl", changes, means)

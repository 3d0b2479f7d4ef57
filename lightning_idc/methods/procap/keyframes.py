"""Which frames of a procedure are worth learning from: the confidence of eq. 2, and a draw by it."""

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
"""What CLIP multiplies its cosines by. Eq. 2 takes a softmax of squared differences of similarities: of plain cosines
they are near 0.01, so that every frame gets the same confidence; of cosines as logits they are near 100, and the frame
that is most like one end is left out. Confidences sum to l - 1 and none exceeds 1, so no scale can favour the middle by
more than a factor of l / (l - 1) over an even draw: eq. 2 removes the worst frame, it does not pick the best."""


def confidence(similarities: Tensor, scale: float = CLIP_SCALE) -> Tensor:
    """Confidence w of every frame of a procedure.

    ProCap Eq. 2

    Args:
        similarities: to before and after, ``(..., 2, l)``.
        scale: factor of the similarities; 1 takes the paper's equation at its word for cosines.

    Returns:
        ``(..., l)``.
    """
    return 1 - squared_difference(scale * similarities).softmax(-1)


def mixed_confidence(similarities: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Confidence of every frame of a procedure by several similarities, as in the authors' code.

    The squared differences of each are scaled to reach from 0 to 1 and summed by weight before the softmax of eq. 2.

    Args:
        similarities: each to before and after, ``(2, l)``.
        weights: of each.

    Returns:
        ``(l,)``.
    """
    total = torch.zeros(())
    for name, weight in weights.items():
        found = squared_difference(similarities[name])
        # over the frames of the pair, where the code has the extremes of the data set: the frames of a pair then do not
        # depend on other pairs, and no shard of frames is read for two numbers
        total = total + weight * (found - found.min()) / (found.max() - found.min()).clamp(min=1e-12)
    return 1 - total.softmax(-1)


def squared_difference(similarities: Tensor) -> Tensor:
    """Squared difference ``(..., l)`` of the similarities ``(..., 2, l)`` to before and after."""
    return (similarities[..., 0, :] - similarities[..., 1, :]).square()


def draw_keyframes(confidences: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of ``count`` frames, drawn without replacement by confidence ``(l,)``, in temporal order."""
    if not count:
        return torch.empty(0, dtype=torch.long)
    weights = confidences.double().clamp(min=1e-6)  # where all but one are zero, the rest must still be drawable
    return torch.multinomial(weights, count, generator=generator).sort().values


def evenly_spaced(length: int, count: int) -> list[int]:
    """Positions of ``count`` of ``length`` frames, evenly spaced between both images, as the authors' code takes them.

    Example:
        >>> evenly_spaced(7, 2)
        [2, 4]
    """
    return [round(place * (length + 1) / (count + 1)) - 1 for place in range(1, count + 1)]


RANDOM, OWN = "random", "own"
"""Names of no similarity, by which every frame is as good as another, and of the one that came with the frames."""
Similarities = str | dict[str, float] | None
"""Which similarity chooses frames: None, that which came with them; ``random``; a name of ``FrameSimilarity``; or
several names, ``own`` too, with weights, as :func:`mixed_confidence` takes them."""


class Keyframes:
    """Takes k frames of the cached procedure of a pair and adds its two images.

    ProCap Eq. 3

    Args:
        folder: what :class:`~lightning_idc.methods.procap.interpolation.FrameInterpolator` wrote.
        count: k.
        scale: of the similarities in eq. 2; where none were measured, every frame is as good as another. A mix of
            similarities has a scale of its own.
        length: l, where fewer frames than the folder has are to be chosen from: every second or fourth.
        similarity: that frames are chosen by.
        even: take evenly spaced frames, by no similarity.

    Raises:
        ConfigError: an argument could choose no frame.
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
                "for the one that came with the frames"
            )
        self.procedures, self.count, self.scale = ProcedureFolder(folder), count, scale
        self.length, self.similarity, self.even = length, similarity, even
        named = [similarity] if isinstance(similarity, str) else list(similarity or ())
        self._kept: dict[str, KeyedStore] = {
            name: self.procedures.similarities(name) for name in named if name not in (RANDOM, OWN)
        }
        if count and not len(self.procedures):
            raise DataError(f"there are no procedures in {str(folder)!r}; make them with FrameInterpolator first")

    def of(self, sample: PairSample) -> Tensor:
        """uint8 ``(k + 2, 3, H, W)``: drawn by ``meta["seed"]``, the most confident frames without a seed.

        Raises:
            ConfigError: l frames cannot be taken evenly of the procedure's.
            DataError: the procedure has fewer than k frames, or no similarity to choose by.
        """
        if not self.count:
            return torch.stack([sample.before, sample.after])
        procedure = self.procedures.of(sample.id, sample.before, sample.after)
        frames = procedure.frames
        step, rest = divmod(len(frames) + 1, (self.length or len(frames)) + 1)
        if rest:
            raise ConfigError(f"{self.length} frames cannot be taken evenly of {len(frames)}; make others")
        taken = slice(step - 1, None, step)
        frames = frames[taken]
        if len(frames) < self.count:
            raise DataError(f"procedures of {len(frames)} frames cannot give {self.count}; make longer ones")
        seed = sample.meta.get("seed")
        if self.even:
            chosen = torch.tensor(evenly_spaced(len(frames), self.count))
        else:
            weights = self._confidences(sample.id, procedure.similarities, taken)
            if weights is None:
                weights = torch.ones(len(frames))
            if seed is None:
                chosen = weights.topk(self.count).indices.sort().values
            else:
                chosen = draw_keyframes(weights, self.count, torch.Generator().manual_seed(seed))
        return torch.cat([sample.before[None], frames[chosen], sample.after[None]])

    def _confidences(self, name: str, own: Tensor | None, taken: slice) -> Tensor | None:
        """Of the frames of a pair that are taken; None where there is no similarity to choose by."""
        found = {} if own is None else {OWN: own[:, taken]}
        for kind, store in self._kept.items():
            if name not in store:
                raise DataError(
                    f"{str(store.folder)!r} has no similarity {kind!r} of the pair {name!r}; measure it with "
                    "FrameSimilarity over this split first"
                )
            found[kind] = torch.tensor(store.value(name, "scores"))[:, taken]
        if self.similarity is None or self.similarity == RANDOM:
            chosen = found.get(self.similarity or OWN)
            return None if chosen is None else confidence(chosen, self.scale)
        named = [self.similarity] if isinstance(self.similarity, str) else self.similarity
        missing = [kind for kind in named if kind not in found]
        if missing:
            raise DataError(
                f"{str(self.procedures.path)!r} has no similarity {missing[0]!r} of the pair {name!r}; {OWN!r} is that "
                "which FrameInterpolator measures, other ones come from FrameSimilarity"
            )
        if isinstance(self.similarity, str):
            return confidence(found[self.similarity], self.scale)
        return mixed_confidence(found, self.similarity)


def cosines(ends: Tensor, frames: Tensor) -> Tensor:
    """Cosines ``(B, 2, l)`` of features ``(B, 2, D)`` of the ends with ``(B, l, D)`` of the frames.

    ProCap Eq. 11
    """
    return F.normalize(ends, dim=-1) @ F.normalize(frames, dim=-1).mT


class VisualSimilarity(nn.Module):
    """How like two images are to a network that has only seen images (appendix C.1).

    Args:
        encoder: of single images; the paper's DINOv2 ViT-L/14, by its class token, when None.
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
        # unit vectors already
        found = self.encoder.encode(list(images.flatten(0, 1))).view(len(images), images.shape[1], -1)
        return found[:, :2] @ found[:, 2:].mT


class TokenizerSimilarity(nn.Module):
    """How like two images are cell by cell to an image tokenizer, which needs no other weights.

    Args:
        tokenizer: its checkpoint.
    """

    def __init__(self, tokenizer: str) -> None:
        super().__init__()
        self.tokenizer = load_image_tokenizer(tokenizer)

    @torch.no_grad()
    def forward(self, pairs: Tensor, frames: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        kind = self.tokenizer.codebook.weight.dtype
        ends, between = (
            self.tokenizer.features(as_pixels(images.flatten(0, 1), kind)).flatten(1).unflatten(0, images.shape[:2])
            for images in (pairs, frames)
        )
        return cosines(ends, between)


class VisualTextSimilarity(nn.Module):
    """How well the change up to a frame, and from it on, fits the captions of the whole.

    ProCap Eq. 12

    The pair is (before, frame) on one side and (frame, after) on the other, in the order of time as in the authors'
    code; eq. 12 would put the after image first, and so compare a change run backwards with its caption.

    Args:
        encoder: of pairs and captions, or a checkpoint of ``Clip4IdcRetrieval``, the paper's.

    Raises:
        ConfigError: the encoder embeds something else.
    """

    def __init__(self, encoder: str | nn.Module) -> None:
        super().__init__()
        if isinstance(encoder, str):
            from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

            encoder = load_module(Clip4IdcRetrieval, encoder)
        if not isinstance(encoder, PairTextEncoder):
            raise ConfigError(
                f"{type(encoder).__name__} embeds no pairs and captions; expected embed_pairs and embed_captions"
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

"""Which patches and words have nothing to do with each other, and how they are masked (NAMC, section 3.2.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_idc.methods.namc.losses import cosines

MaskProbabilities = Callable[[Tensor, Tensor, float], Tensor]
"""Maps relevance ``(..., N)``, validity ``(..., N)`` and a share to the probability of masking, ``(..., N)``."""


def token_similarity(patches: Tensor, words: Tensor) -> Tensor:
    """Cosine of every patch with every word, at least in float32.

    NAMC Eq. 1

    Args:
        patches: ``(B, P, D)`` in the space that both encoders share.
        words: ``(B, T, D)``.

    Returns:
        ``(B, P, T)``.
    """
    return cosines(patches, words)


def relevance(similarity: Tensor, word_valid: Tensor) -> tuple[Tensor, Tensor]:
    """Best similarity of each patch with any word, and of each word with any patch.

    Args:
        similarity: ``(B, P, T)``.
        word_valid: bool ``(B, T)``, True at tokens of words; special and padding tokens speak for no patch.

    Returns:
        of the patches ``(B, P)``, 0 where a description has no word; of the words ``(B, T)``.
    """
    spoken = similarity.masked_fill(~word_valid[:, None], float("-inf")).amax(-1)
    return torch.where(word_valid.any(-1, keepdim=True), spoken, torch.zeros_like(spoken)), similarity.amax(1)


def pool_subwords(values: Tensor, word_of: Tensor, words: int) -> Tensor:
    """Mean over the sub-words of each word.

    A mean and not a maximum: a word must not seem more relevant because it was cut into more pieces.

    Args:
        values: one per token, ``(B, S)``.
        word_of: int64 ``(B, S)``, the word that each token belongs to, -1 for special and padding tokens.
        words: number of words W.

    Returns:
        ``(B, W)``, 0 for words without a token.
    """
    # one more place, which takes up what belongs to no word
    places = torch.where(word_of < 0, words, word_of)
    sums = values.new_zeros(len(values), words + 1).scatter_add(1, places, values)
    counts = values.new_zeros(len(values), words + 1).scatter_add(1, places, torch.ones_like(values))
    return (sums / counts.clamp(min=1))[:, :words]


def noise_probabilities(relevance: Tensor, valid: Tensor, share: float) -> Tensor:
    """Probability of masking that rises with irrelevance: share + IR - mean(IR), IR = 1 - relevance.

    The paper leaves open what happens outside [0, 1]; there the probability is cut.

    Args:
        relevance: ``(..., N)``.
        valid: bool ``(..., N)``; what is not valid counts in no mean and is never masked.
        share: of what is valid that is masked on average, as long as nothing is cut; 0 masks nothing.
    """
    if share == 0:
        # Figure 3 varies p_I "and sets p_T = 0": there images alone are masked, or words alone. The formula would cut
        # half of the differences from the mean and mask by the other half.
        return torch.zeros_like(relevance)
    irrelevance = 1 - relevance
    mean = (irrelevance * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return (share + irrelevance - mean).clamp(0, 1) * valid


def random_probabilities(relevance: Tensor, valid: Tensor, share: float) -> Tensor:
    """The same probability everywhere: the random masking of the paper's Figure 3.

    Args:
        relevance: ``(..., N)``; only its shape and type count.
        valid: bool ``(..., N)``.
        share: of what is valid that is masked on average.
    """
    return torch.full_like(relevance, share) * valid


def bernoulli(probabilities: Tensor) -> Tensor:
    """Independent draws, True where masked, on torch's current random numbers."""
    return torch.rand_like(probabilities) < probabilities


def resize_mask(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    """A mask of patches on another grid: a cell is masked if the patch at its centre is.

    Args:
        mask: bool ``(..., h, w)``.
        grid: wanted height and width.
    """
    if mask.shape[-2:] == grid:
        return mask
    rows, columns = (
        ((torch.arange(wanted, device=mask.device) + 0.5) * have / wanted).long()
        for wanted, have in zip(grid, mask.shape[-2:], strict=True)
    )
    return mask[..., rows[:, None], columns[None]]


def fill_masked_patches(images: Tensor, mask: Tensor) -> Tensor:
    """Images whose masked patches have the mean colour of their image, so that any captioner can be kept from them.

    Args:
        images: uint8 ``(..., 3, H, W)``.
        mask: bool ``(..., h, w)``.
    """
    pixels = resize_mask(mask, (images.shape[-2], images.shape[-1])).unsqueeze(-3)
    mean = images.float().mean((-2, -1), keepdim=True).round().to(images.dtype)
    return torch.where(pixels, mean, images)

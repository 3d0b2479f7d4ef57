"""Relevance of patches and words to each other, and masking by irrelevance (NAMC, section 3.2.1).

Shapes: B images with their texts, P patches, T tokens, S sub-words and W words per text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_idc.methods.namc.losses import cosines

MaskProbabilities = Callable[[Tensor, Tensor, float], Tensor]
"""Maps relevance ``(..., N)``, validity ``(..., N)`` and a mask ratio to the probability of masking, ``(..., N)``."""


def token_similarity(patches: Tensor, words: Tensor) -> Tensor:
    """Similarity S: cosine of every patch with every token, ``(B, P, T)``, at least in float32.

    NAMC Eq. 1

    Args:
        patches: patches in the shared space, ``(B, P, D)``.
        words: tokens in the shared space, ``(B, T, D)``.
    """
    return cosines(patches, words)


def relevance(similarity: Tensor, word_valid: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum similarity of each patch over all tokens of words (R_I), and of each token over all patches (R_T).

    Args:
        similarity: result of :func:`token_similarity`, ``(B, P, T)``.
        word_valid: bool ``(B, T)``, True at tokens of words, False at special and padding tokens.

    Returns:
        relevance of patches ``(B, P)``, which is 0 for a text without words, and of tokens ``(B, T)``.
    """
    patches = similarity.masked_fill(~word_valid[:, None], float("-inf")).amax(-1)
    return torch.where(word_valid.any(-1, keepdim=True), patches, torch.zeros_like(patches)), similarity.amax(1)


def pool_subwords(values: Tensor, word_of: Tensor, num_words: int) -> Tensor:
    """Mean over the sub-words of each word, ``(B, W)``; 0 for words without a token.

    With a maximum instead, words of more sub-words would be more relevant.

    Args:
        values: one value per token, ``(B, S)``.
        word_of: int64 ``(B, S)``, index of the word of each token, -1 for special and padding tokens.
        num_words: W, number of words.
    """
    # an additional bin for tokens outside of words
    index = torch.where(word_of < 0, num_words, word_of)
    sums = values.new_zeros(len(values), num_words + 1).scatter_add(1, index, values)
    counts = values.new_zeros(len(values), num_words + 1).scatter_add(1, index, torch.ones_like(values))
    return (sums / counts.clamp(min=1))[:, :num_words]


def noise_probabilities(relevance: Tensor, valid: Tensor, mask_ratio: float) -> Tensor:
    """Masking probability that rises with irrelevance: mask_ratio + IR - mean(IR), with IR = 1 - relevance.

    The paper does not say what happens outside of [0, 1]; here the probability is clamped.

    Args:
        relevance: ``(..., N)``.
        valid: bool ``(..., N)``, False for elements that are neither masked nor part of the mean.
        mask_ratio: fraction of valid elements that is masked on average, if no probability is clamped; 0 masks none.
    """
    if mask_ratio == 0:
        # Figure 3 sets one of p_I and p_T to 0, so that only words or only images are masked; the formula would still
        # mask elements whose irrelevance is above the mean
        return torch.zeros_like(relevance)
    irrelevance = 1 - relevance
    mean = (irrelevance * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return (mask_ratio + irrelevance - mean).clamp(0, 1) * valid


def random_probabilities(relevance: Tensor, valid: Tensor, mask_ratio: float) -> Tensor:
    """Equal masking probability for all elements: the random masking of the paper's Figure 3.

    Args:
        relevance: ``(..., N)``; only its shape and type are used.
        valid: bool ``(..., N)``, False for elements that are never masked.
        mask_ratio: fraction of valid elements that is masked on average.
    """
    return torch.full_like(relevance, mask_ratio) * valid


def resize_mask(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resize a mask of patches to another grid; a cell is masked if the patch at its centre is masked.

    Args:
        mask: bool ``(..., h, w)``.
        grid: height and width of the new mask.
    """
    if mask.shape[-2:] == grid:
        return mask
    rows, columns = (
        ((torch.arange(size, device=mask.device) + 0.5) * old_size / size).long()
        for size, old_size in zip(grid, mask.shape[-2:], strict=True)
    )
    return mask[..., rows[:, None], columns[None]]


def fill_masked_patches(images: Tensor, mask: Tensor) -> Tensor:
    """Fill masked patches with the mean colour of their image, which hides them from any captioner.

    Args:
        images: uint8 ``(..., 3, H, W)``.
        mask: bool ``(..., h, w)``, True at masked patches.
    """
    pixels = resize_mask(mask, (images.shape[-2], images.shape[-1])).unsqueeze(-3)
    mean = images.float().mean((-2, -1), keepdim=True).round().to(images.dtype)
    return torch.where(pixels, mean, images)

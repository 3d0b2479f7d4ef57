"""Functions on the captions of a batch: sampling, padding, and losses from log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.utils.errors import DataError


def chosen_captions(sample: PairSample, count: int) -> list[str]:
    """Captions of a pair for one step: ``count`` sampled with ``meta["seed"]``, the first ones without a seed."""
    seed = sample.meta.get("seed")
    if seed is None or len(sample.captions) <= count:
        return sample.captions[:count]
    order = torch.randperm(len(sample.captions), generator=torch.Generator().manual_seed(seed))
    return [sample.captions[i] for i in order[:count].tolist()]


def pad_captions(rows: Iterable[Sequence[Sequence[int]]], captions: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Pad token ids of B pairs into ``(B, K, T)`` with the mask of the tokens to be predicted.

    Args:
        rows: at most K lists of ids per pair, begin and end tokens included.
        captions: K.
        pad: id of the padding token.
    """
    rows = list(rows)
    length = max((len(ids) for row in rows for ids in row), default=2)
    tokens = torch.full((len(rows), captions, length), pad, dtype=torch.long)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for b, row in enumerate(rows):
        for k, ids in enumerate(row):
            tokens[b, k, : len(ids)] = torch.tensor(ids)
            mask[b, k, 1 : len(ids)] = True
    return tokens, mask


def join_captions(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens and mask of the captions of both, ``(B, K1 + K2, max(T1, T2))``, padded with zeros.

    Args:
        first: tokens and mask, ``(B, K1, T1)`` each.
        second: tokens and mask, ``(B, K2, T2)`` each.
    """
    length = max(first[0].shape[-1], second[0].shape[-1])
    tokens, mask = (
        torch.cat([nn.functional.pad(part, (0, length - part.shape[-1])) for part in parts], 1)
        for parts in zip(first, second, strict=True)
    )
    return tokens, mask


def check_captions(batch: PairBatch) -> None:
    """Check that every pair of a training batch has a caption.

    Raises:
        DataError: a pair has no caption.
    """
    # the texts are in host memory; reading the mask would synchronise with the device
    has_caption = [bool(texts) for texts in batch.chosen] or batch.caption_mask.flatten(1).any(-1).tolist()
    empty = [name for name, present in zip(batch.ids, has_caption, strict=True) if not present]
    if empty:
        raise DataError(f"no caption to train on for {', '.join(empty[:5])}; add captions or leave these pairs out")


def pair_losses(sums: Tensor, mask: Tensor) -> Tensor:
    """Loss of each pair, ``(B,)``, from summed log-probabilities ``(B, K)`` and the mask of tokens ``(B, K, T)``."""
    token_count = mask.sum(-1)
    return (-sums / token_count.clamp(min=1)).sum(-1) / (token_count > 0).sum(-1).clamp(min=1)


def change_probability(sums: Tensor) -> list[float | None]:
    """1 minus the probability of K sentences, from their log-probabilities ``(B, K)``."""
    values: list[float | None] = (1.0 - sums.exp().sum(-1)).clamp(0.0, 1.0).tolist()
    return values

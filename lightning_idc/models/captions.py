"""Captions as a captioner takes them: its words, the captions of a step, and tensors of their tokens."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch, PairSample, ProvidesCaptions
from lightning_idc.nn.vocabulary import Vocabulary, load_vocabulary
from lightning_idc.utils.errors import DataError


def learned_vocabulary(options: MutableMapping[str, Any], data: Any, fitting: bool) -> Vocabulary | None:
    """Words of a captioner, given or learned; the training captions also fill in options that are None.

    Args:
        options: hyper-parameters; changed in place.
        data: data module of the run, None without one.
        fitting: whether a Trainer is fitting.

    Raises:
        DataError: there are neither words nor captions.
    """
    words = options["vocabulary"]
    vocabulary = None if words is None else load_vocabulary(words)
    # fitting learns what was not given; a test needs the words alone, and its data may have no captions for it
    unknown = None in (options["max_length"], options["no_change_captions"])
    if not isinstance(data, ProvidesCaptions) or not (fitting or words is None):
        return vocabulary
    options["image_size"] = options["image_size"] or data.image_size
    if words is None or unknown:
        captions = data.train_captions()
        if not captions and vocabulary is None:
            raise DataError("the training split has no captions; a captioner needs some to learn its words from")
        vocabulary = vocabulary or Vocabulary.build(captions, options["min_word_count"])
        options["no_change_captions"] = options["no_change_captions"] or data.no_change_captions()
        if options["max_length"] is None:
            options["max_length"] = max((len(vocabulary.encode(caption)) for caption in captions), default=None)
    return vocabulary


def chosen_captions(sample: PairSample, wanted: int) -> list[str]:
    """Captions of a pair for one step: ``wanted`` of them drawn by ``meta["seed"]``, the first ones without a seed."""
    seed = sample.meta.get("seed")
    if seed is None or len(sample.captions) <= wanted:
        return sample.captions[:wanted]
    order = torch.randperm(len(sample.captions), generator=torch.Generator().manual_seed(seed))
    return [sample.captions[i] for i in order[:wanted].tolist()]


def pad_captions(rows: Iterable[Sequence[Sequence[int]]], captions: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Pad token ids of B pairs into ``(B, K, T)`` with the mask of the tokens to be predicted.

    Args:
        rows: per pair at most K lists of ids, begin and end tokens included.
        captions: K.
        pad: id of padding.
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


def refuse_without_caption(batch: PairBatch) -> None:
    """Refuse to train on pairs that have nothing to say.

    Raises:
        DataError: a pair has no caption.
    """
    known = batch.caption_mask.flatten(1).any(-1).tolist()
    empty = [name for name, any_ in zip(batch.ids, known, strict=True) if not any_]
    if empty:
        raise DataError(f"no caption to train on for {', '.join(empty[:5])}; add captions or leave these pairs out")


def pair_losses(sums: Tensor, mask: Tensor) -> Tensor:
    """Loss of each pair, ``(B,)``, from summed log-probabilities ``(B, K)`` and the mask of tokens ``(B, K, T)``."""
    token_count = mask.sum(-1)
    return (-sums / token_count.clamp(min=1)).sum(-1) / (token_count > 0).sum(-1).clamp(min=1)


def mass_missing(sums: Tensor) -> list[float | None]:
    """1 minus the probability of K sentences, from their log-probabilities ``(B, K)``."""
    values: list[float | None] = (1.0 - sums.exp().sum(-1)).clamp(0.0, 1.0).tolist()
    return values

"""CaptionCodec: captions to token ids, one by one or as a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_idc.images.types import PairBatch, PairSample, ProvidesCaptions, stack_images
from lightning_idc.models.captions import chosen_captions, pad_captions
from lightning_idc.nn.vocabulary import Vocabulary, load_vocabulary, words_of
from lightning_idc.utils.errors import DataError


class CaptionCodec:
    """Turns captions into token ids.

    Args:
        vocabulary: words with their special tokens.
        hparams: hyper-parameters of the captioner; ``captions_per_pair`` and ``no_change_captions`` are read.
        max_tokens: maximum length of a caption, begin and end token included; longer ones are cut before the end token.
            None keeps all.
    """

    def __init__(self, vocabulary: Vocabulary, hparams: Mapping[str, Any], max_tokens: int | None = None) -> None:
        self.vocabulary, self.max_tokens = vocabulary, max_tokens
        self._hparams = hparams

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Token ids of captions, begin and end tokens included."""
        rows = [self.vocabulary.encode(caption) for caption in captions]
        if self.max_tokens is None:
            return rows
        limit = self.max_tokens
        return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in rows]

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch.

        Raises:
            DataError: the pairs differ in size.
        """
        per_pair = self._hparams["captions_per_pair"]
        chosen = [chosen_captions(sample, per_pair) for sample in samples]
        tokens, mask = pad_captions([self.tokenize(captions) for captions in chosen], captions=per_pair)
        return PairBatch(
            images=stack_images(samples),
            tokens=tokens,
            caption_mask=mask,
            ids=[sample.id for sample in samples],
            references=[sample.captions for sample in samples],
            change_types=[sample.change_type for sample in samples],
            chosen=chosen,
            meta=[sample.meta for sample in samples],
            prompts=[sample.prompt for sample in samples],
            boxes=[sample.boxes for sample in samples],
        )

    def no_change_tokens(self) -> list[list[int]]:
        """Token ids of the no-change sentences; sentences with equal ids count once."""
        rows = self.tokenize(self._hparams["no_change_captions"] or [])
        return [list(row) for row in dict.fromkeys(map(tuple, rows))]

    def no_change_batch(self, num_pairs: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Tokens and mask of the no-change sentences for each pair, ``(B, K, T)``; None if there are none."""
        rows = self.no_change_tokens()
        if not rows:
            return None
        tokens, mask = pad_captions([rows], captions=len(rows))
        shape = (num_pairs, *tokens.shape[1:])
        return tokens.expand(shape).to(device), mask.expand(shape).to(device)


def report_unknown_words(vocabulary: Vocabulary, captions: Sequence[str]) -> None:
    """Print how many words of the training captions a vocabulary of whole words lacks; they cannot be learned.

    Args:
        vocabulary: words; sub-words spell any word.
        captions: training captions.
    """
    known = set(vocabulary.words)
    counts = Counter(word for caption in captions for word in words_of(caption))
    unknown = [word for word in counts if word not in known]
    if unknown:
        total = sum(counts.values())
        rank_zero_info(
            f"{len(unknown)} of {len(counts)} distinct words of the training captions are not in the vocabulary "
            f"({sum(counts[word] for word in unknown) / total:.1%} of all words), such as {unknown[0]!r}; they are "
            "learned as <unk>; a captioner that starts from `init_from` adds them to its vocabulary"
        )


def grow_weights(state: Mapping[str, Tensor], initial: Mapping[str, Tensor], words: int) -> dict[str, Tensor]:
    """Weights of a captioner for one whose vocabulary has the same words and further ones after them.

    Args:
        state: weights with the smaller vocabulary.
        initial: weights with the larger one; the rows of the further words are taken from it.
        words: size of the larger vocabulary.
    """
    grown = dict(state)
    for name, value in state.items():
        new = initial.get(name, value)
        axes = [axis for axis, sizes in enumerate(zip(value.shape, new.shape, strict=False)) if sizes[0] != sizes[1]]
        if value.dim() == new.dim() and len(axes) == 1 and value.shape[axes[0]] < new.shape[axes[0]] == words:
            grown[name] = new.clone()
            grown[name].narrow(axes[0], 0, value.shape[axes[0]]).copy_(value)
    return grown


def learn_vocabulary(
    hparams: Mapping[str, Any], data: Any, fitting: bool, grows: bool = False
) -> tuple[Vocabulary | None, dict[str, Any]]:
    """Vocabulary of a captioner, from its hyper-parameters or built from the training captions.

    Args:
        hparams: hyper-parameters of the captioner.
        data: data module of the run, or None.
        fitting: whether a Trainer is fitting.
        grows: whether words of the training captions that the vocabulary of the hyper-parameters lacks are added to it.

    Returns:
        The vocabulary, None if neither defines it, and the hyper-parameters that come from the data, by name.

    Raises:
        DataError: there are neither a vocabulary nor captions.
    """
    words = hparams["vocabulary"]
    vocabulary = None if words is None else load_vocabulary(words)
    # fitting also takes the other hyper-parameters from the data; a test needs the vocabulary only
    if not isinstance(data, ProvidesCaptions) or not (fitting or words is None):
        return vocabulary, {}
    learned: dict[str, Any] = {"image_size": hparams["image_size"] or data.image_size}
    captions = data.train_captions()
    if fitting and grows and type(vocabulary) is Vocabulary:
        vocabulary = vocabulary.extended(captions, hparams["min_word_count"])
    if words is None or None in (hparams["max_length"], hparams["no_change_captions"]):
        if not captions and vocabulary is None:
            raise DataError("the training split has no captions to build the vocabulary from; set `vocabulary`")
        vocabulary = vocabulary or Vocabulary.build(captions, hparams["min_word_count"])
        learned["no_change_captions"] = hparams["no_change_captions"] or data.no_change_captions()
        if hparams["max_length"] is None:
            learned["max_length"] = max((len(vocabulary.encode(caption)) for caption in captions), default=None)
    return vocabulary, learned

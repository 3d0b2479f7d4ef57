"""METEOR's paraphrase table as sorted hashes, and the phrases of a corpus that have paraphrases in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Ints, find
from lightning_idc.metrics.meteor.hashing import Hashes, appended, line_hashes

MAX_PHRASE = 7
"""Number of words of the longest phrases of the table."""
FILTER_BITS = 25
"""Number of leading bits of a hash in the Bloom filter."""
# no phrase of the table has longer words
_MAX_WORD = 256


class Phrases(NamedTuple):
    """Phrases of some captions that paraphrase one another.

    Args:
        start: first occurrence of each caption, ``(C + 1,)``.
        position: first word of each occurrence within its caption, ``(O,)``; sorted by caption, position and words.
        words: number of words, ``(O,)``.
        phrase: number of the phrase, ``(O,)``.
        paraphrase_start: first paraphrase of each phrase, ``(P + 1,)``.
        paraphrase: phrases in the order of the table, ``(R,)``.
    """

    start: Ints
    position: Ints
    words: Ints
    phrase: Ints
    paraphrase_start: Ints
    paraphrase: Ints


class ParaphraseTable(NamedTuple):
    """The table as arrays.

    Args:
        sources: hashes of phrases that have paraphrases, sorted, ``(S,)``.
        start: first paraphrase of each, ``(S,)``.
        counts: number of its paraphrases, ``(S,)``.
        targets: hashes of the paraphrases in the order of the file, ``(T,)``.
        bloom: a bit for each value of the leading bits, set where a phrase of the table has this value.
    """

    sources: Hashes
    start: Ints
    counts: Ints
    targets: Hashes
    bloom: NDArray[np.uint8]

    def may_contain(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Bloom filter: True for all phrases of the table and a few others, False for the rest."""
        byte = self.bloom[(hashes >> np.uint64(64 - FILTER_BITS + 3)).astype(np.int64)]
        bit = (hashes >> np.uint64(64 - FILTER_BITS)).astype(np.uint8) & np.uint8(7)
        return (byte >> bit & np.uint8(1)).astype(bool)

    def phrases(self, words: list[str], ids: Ints, lengths: Ints) -> Phrases:
        """Phrases of captions that have a paraphrase in any of the captions.

        Args:
            words: the vocabulary.
            ids: words of all captions in one row, ``(N,)``.
            lengths: number of words of each caption, ``(C,)``.
        """
        caption = np.repeat(np.arange(len(lengths)), lengths)
        of_word, width = line_hashes("".join(f"{word}\n" for word in words).encode("utf-8", "surrogatepass"))
        position, size, hashes = self._longer(of_word[ids], width[ids], caption)
        distinct = _distinct(np.concatenate([of_word[self.may_contain(of_word)], hashes]))
        source, target = self._related(distinct)
        used = np.zeros(len(distinct), dtype=bool)
        used[source] = used[target] = True
        number = np.cumsum(used) - 1
        # each word is looked up once, each longer phrase at every occurrence
        word_number, is_phrase = find(distinct[used], of_word)
        single = np.flatnonzero(is_phrase[ids])
        longer_number, has_paraphrase = find(distinct[used], hashes)
        position = np.concatenate([single, position[has_paraphrase]])
        size = np.concatenate([np.ones_like(single), size[has_paraphrase]])
        order = np.argsort(position * (MAX_PHRASE + 1) + size)
        position = position[order]
        return Phrases(
            start=np.searchsorted(caption[position], np.arange(len(lengths) + 1)),
            position=position - (np.cumsum(lengths) - lengths)[caption[position]],
            words=size[order],
            phrase=np.concatenate([word_number[ids[single]], longer_number[has_paraphrase]])[order],
            paraphrase_start=np.searchsorted(number[source], np.arange(used.sum() + 1)),
            paraphrase=number[target],
        )

    def _longer(self, word: Hashes, width: Ints, caption: Ints) -> tuple[Ints, Ints, Hashes]:
        """Position, number of words and hash of every phrase of two or more words that the table may contain."""
        position = np.flatnonzero(width <= _MAX_WORD)
        phrase, length = word[position], width[position]
        parts = [(position[:0], position[:0], phrase[:0])]
        for size in range(2, MAX_PHRASE + 1):
            fits = position + size <= len(word)
            position, phrase, length = position[fits], phrase[fits], length[fits]
            last = position + size - 1
            fits = (caption[last] == caption[position]) & (width[last] <= _MAX_WORD)
            position, phrase, length, last = position[fits], phrase[fits], length[fits], last[fits]
            phrase, length = appended(phrase, length, word[last]), length + 1 + width[last]
            candidates = np.flatnonzero(self.may_contain(phrase))
            parts.append((position[candidates], np.full_like(candidates, size), phrase[candidates]))
        positions, sizes, hashes = zip(*parts, strict=True)
        return np.concatenate(positions), np.concatenate(sizes), np.concatenate(hashes)

    def _related(self, distinct: Hashes) -> tuple[Ints, Ints]:
        """Pairs of sorted phrases that are source and target, by source, targets in the order of the table."""
        index = np.minimum(np.searchsorted(self.sources, distinct), len(self.sources) - 1)
        source = np.flatnonzero(self.sources[index] == distinct)
        count = self.counts[index[source]]
        offset = np.cumsum(count) - count
        entry = np.arange(count.sum()) + np.repeat(self.start[index[source]] - offset, count)
        targets = self.targets[entry]
        candidates = np.flatnonzero(_may_be_among(distinct, targets))
        targets, source = targets[candidates], np.repeat(source, count)[candidates]
        target = np.searchsorted(distinct, targets)
        is_target = distinct[np.minimum(target, len(distinct) - 1)] == targets
        return source[is_target], target[is_target]


def _distinct(hashes: Hashes) -> Hashes:
    """Sorted hashes, each once."""
    ordered = np.sort(hashes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]


def _may_be_among(few: Hashes, many: Hashes) -> NDArray[np.bool_]:
    """Filter by leading bits: False for hashes that are not among the few."""
    shift = np.uint64(64 - 22)
    leading = np.zeros(1 << 22, dtype=bool)
    leading[(few >> shift).astype(np.int64)] = True
    return leading[(many >> shift).astype(np.int64)]

"""Matches of METEOR: words and phrases of a candidate that may go with words and phrases of a reference.

A relation between words or phrases is first asked for by one bit in 64, which most pairs fail, and then exactly.
Compiled by numba.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.paraphrases import LONGEST
from lightning_idc.metrics.meteor.relations import EXACT, PARAPHRASE, STEM, Sentences
from lightning_idc.utils.compiled import compiled


@compiled
def _rank(key, rank, wanted):
    """Rank of two numbers in a relation, or -1."""
    low, high = 0, len(key)
    while low < high:
        middle = (low + high) // 2
        if key[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return rank[low] if low < len(key) and key[low] == wanted else -1


@compiled
def _words(found, n, place, word, words, said, stem, synonyms):
    """Matches of one word of the reference: the same word, the same stem, synonyms; how many there are then.

    Args:
        found: fields of all matches, filled here, ``(5, N)``.
        n: how many there are.
        place: of the word in the reference.
        word: its number.
        words: of all sentences.
        said: first word of the candidate and the one after the last.
        stem: of each word.
        synonyms: relation between words.
    """
    key, rank, bit, bits = synonyms
    for kind in range(PARAPHRASE):
        for at in range(said[0], said[1]):
            other = words[at]
            if kind == EXACT:
                hit = other == word
            elif kind == STEM:
                hit = other != word and stem[other] == stem[word]
            else:
                hit = bits[word] & bit[other] != 0 and _rank(key, rank, word * len(bit) + other) >= 0
            if hit:
                found[0, n], found[1, n], found[2, n], found[3, n], found[4, n] = place, 1, at - said[0], 1, kind
                n += 1
        if kind == STEM and not bits[word]:
            break
    return n


@compiled
def _phrases(found, n, ours, theirs, forward, phrases, paraphrases, keys):
    """Paraphrases of the phrases that begin at one word of the reference; how many matches there are then.

    Args:
        found: fields of all matches, filled here, ``(5, N)``.
        n: how many there are.
        ours: first occurrence of a phrase there and the one after the last.
        theirs: first occurrence of a phrase in the candidate and the one after the last.
        forward: whether the table is read from reference to candidate.
        phrases: start, position, words and phrase of :class:`Phrases`.
        paraphrases: relation between phrases.
        keys: room for numbers to sort.
    """
    _, position, words, phrase = phrases
    key, rank, bit, bits = paraphrases
    count, ranks, others = 0, len(key), theirs[1] - theirs[0]
    for our in range(ours[0], ours[1]):
        for their in range(theirs[0], theirs[1]):
            one, two = (phrase[our], phrase[their]) if forward else (phrase[their], phrase[our])
            if bits[one] & bit[two] == 0:
                continue
            found_rank = _rank(key, rank, one * len(bit) + two)
            if found_rank < 0:
                continue
            # the table's order counts before the order of the words that its paraphrases are found in
            column, other = our - ours[0], their - theirs[0]
            if forward:
                new = (column * ranks + found_rank) * others + other
            else:
                new = (other * ranks + found_rank) * LONGEST + column
            at = count
            while at > 0 and keys[at - 1] > new:
                keys[at] = keys[at - 1]
                at -= 1
            keys[at] = new
            count += 1
    for at in range(count):
        if forward:
            our, their = ours[0] + keys[at] // others // ranks, theirs[0] + keys[at] % others
        else:
            our, their = ours[0] + keys[at] % LONGEST, theirs[0] + keys[at] // LONGEST // ranks
        found[0, n], found[1, n], found[2, n], found[3, n] = position[our], words[our], position[their], words[their]
        found[4, n] = PARAPHRASE
        n += 1
    return n


@compiled
def _same(words, one, two):
    """Whether two sentences have the same words."""
    same = one[1] - one[0] == two[1] - two[0]
    if same:
        for n in range(one[1] - one[0]):
            same &= words[one[0] + n] == words[two[0] + n]
    return same


@compiled
def _find(words, start, stem, synonyms, phrases, paraphrases, candidates, references):
    """What :func:`find_matches` returns."""
    first, position = phrases[0], phrases[1]
    found, n = np.empty((5, 16 * len(candidates) + 16), np.int64), 0
    begins = np.zeros(len(candidates) + 1, np.int64)
    for b in range(len(candidates)):
        candidate, reference = candidates[b], references[b]
        said, expected = (start[candidate], start[candidate + 1]), (start[reference], start[reference + 1])
        theirs = first[candidate], first[candidate + 1]
        end = first[reference]
        same = _same(words, said, expected)
        room = 3 * (said[1] - said[0]) + 2 * LONGEST * (theirs[1] - theirs[0]) + 1
        keys = np.empty(room, np.int64)
        for place in range(expected[1] - expected[0]):
            if n + room > found.shape[1]:
                more = np.empty((5, 2 * (n + room)), np.int64)
                for field in range(5):
                    for at in range(n):
                        more[field, at] = found[field, at]
                found = more
            if same:  # word by word
                found[0, n], found[1, n], found[2, n], found[3, n], found[4, n] = place, 1, place, 1, EXACT
                n += 1
                continue
            n = _words(found, n, place, words[expected[0] + place], words, said, stem, synonyms)
            ours = end
            while end < first[reference + 1] and position[end] == place:
                end += 1
            if end > ours:
                for forward in (True, False):
                    n = _phrases(found, n, (ours, end), theirs, forward, phrases, paraphrases, keys)
        begins[b + 1] = n
    return begins, found[:, :n]


def find_matches(sentences: Sentences, candidates: Ints, references: Ints) -> tuple[Ints, Ints]:
    """First match of each pair, ``(B + 1,)``, and the fields of :class:`Matches` but for the pair, ``(5, M)``.

    Args:
        sentences: the corpus.
        candidates: number of each pair's candidate, ``(B,)``.
        references: number of each pair's reference, ``(B,)``.
    """
    start, fields = _find(
        sentences.words,
        sentences.start,
        sentences.stem,
        tuple(sentences.synonyms),
        tuple(sentences.phrases[:4]),
        tuple(sentences.paraphrases),
        candidates,
        references,
    )
    # of one layout, for which the search is compiled
    return start, np.ascontiguousarray(fields)

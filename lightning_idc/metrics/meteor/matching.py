"""find_matches: METEOR's matches between words and phrases of a candidate and of a reference.

Whether two words or phrases are related is first checked with one bit of 64, which most pairs fail, and then exactly.
Compiled by numba.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.paraphrases import MAX_PHRASE
from lightning_idc.metrics.meteor.relations import EXACT, PARAPHRASE, STEM, Sentences
from lightning_idc.utils.compiled import compiled


@compiled
def _rank(key, rank, pair):
    """Rank of a pair of numbers in a relation, or -1."""
    low, high = 0, len(key)
    while low < high:
        middle = (low + high) // 2
        if key[middle] < pair:
            low = middle + 1
        else:
            high = middle
    return rank[low] if low < len(key) and key[low] == pair else -1


@compiled
def _match_words(matches, count, position, word, words, candidate_span, stem, synonyms):
    """Add the matches of one word of the reference: same word, same stem, synonyms. Returns the new number of matches.

    Args:
        matches: fields of all matches, extended in place, ``(5, N)``.
        count: number of matches so far.
        position: position of the word in the reference.
        word: id of the word.
        words: word ids of all sentences.
        candidate_span: range of the candidate in ``words``.
        stem: stem id of each word.
        synonyms: relation between words.
    """
    key, rank, bit, bits = synonyms
    for kind in range(PARAPHRASE):
        for index in range(candidate_span[0], candidate_span[1]):
            other = words[index]
            if kind == EXACT:
                is_match = other == word
            elif kind == STEM:
                is_match = other != word and stem[other] == stem[word]
            else:
                is_match = bits[word] & bit[other] != 0 and _rank(key, rank, word * len(bit) + other) >= 0
            if is_match:
                matches[0, count], matches[1, count] = position, 1
                matches[2, count], matches[3, count] = index - candidate_span[0], 1
                matches[4, count] = kind
                count += 1
        if kind == STEM and not bits[word]:
            break
    return count


@compiled
def _match_phrases(matches, n, reference_span, candidate_span, forward, phrases, paraphrases, keys):
    """Add the paraphrases of phrases that begin at one word of the reference. Returns the new number of matches.

    Args:
        matches: fields of all matches, extended in place, ``(5, N)``.
        n: number of matches so far.
        reference_span: range of phrase occurrences at that word.
        candidate_span: range of phrase occurrences in the candidate.
        forward: whether paraphrases lead from reference to candidate.
        phrases: start, position, words and phrase of :class:`Phrases`.
        paraphrases: relation between phrases.
        keys: buffer of sort keys.
    """
    _, position, words, phrase = phrases
    key, rank, bit, bits = paraphrases
    count, ranks, num_rows = 0, len(key), candidate_span[1] - candidate_span[0]
    for reference_index in range(reference_span[0], reference_span[1]):
        for candidate_index in range(candidate_span[0], candidate_span[1]):
            source, target = phrase[reference_index], phrase[candidate_index]
            if not forward:
                source, target = target, source
            if bits[source] & bit[target] == 0:
                continue
            pair_rank = _rank(key, rank, source * len(bit) + target)
            if pair_rank < 0:
                continue
            # the order of the table precedes the order of words on the other side
            column, row = reference_index - reference_span[0], candidate_index - candidate_span[0]
            if forward:
                sort_key = (column * ranks + pair_rank) * num_rows + row
            else:
                sort_key = (row * ranks + pair_rank) * MAX_PHRASE + column
            index = count
            while index > 0 and keys[index - 1] > sort_key:
                keys[index] = keys[index - 1]
                index -= 1
            keys[index] = sort_key
            count += 1
    for index in range(count):
        if forward:
            reference_index = reference_span[0] + keys[index] // num_rows // ranks
            candidate_index = candidate_span[0] + keys[index] % num_rows
        else:
            reference_index = reference_span[0] + keys[index] % MAX_PHRASE
            candidate_index = candidate_span[0] + keys[index] // MAX_PHRASE // ranks
        matches[0, n], matches[1, n] = position[reference_index], words[reference_index]
        matches[2, n], matches[3, n] = position[candidate_index], words[candidate_index]
        matches[4, n] = PARAPHRASE
        n += 1
    return n


@compiled
def _are_equal(words, first_span, second_span):
    """Whether two sentences have the same words."""
    are_equal = first_span[1] - first_span[0] == second_span[1] - second_span[0]
    if are_equal:
        for n in range(first_span[1] - first_span[0]):
            are_equal &= words[first_span[0] + n] == words[second_span[0] + n]
    return are_equal


@compiled
def _find_all(words, start, stem, synonyms, phrases, paraphrases, candidates, references):
    """Compiled part of :func:`find_matches`."""
    first, phrase_position = phrases[0], phrases[1]
    matches, count = np.empty((5, 16 * len(candidates) + 16), np.int64), 0
    begins = np.zeros(len(candidates) + 1, np.int64)
    for b in range(len(candidates)):
        candidate, reference = candidates[b], references[b]
        candidate_span = start[candidate], start[candidate + 1]
        reference_span = start[reference], start[reference + 1]
        candidate_phrases = first[candidate], first[candidate + 1]
        end = first[reference]
        are_equal = _are_equal(words, candidate_span, reference_span)
        num_words, num_phrases = candidate_span[1] - candidate_span[0], candidate_phrases[1] - candidate_phrases[0]
        capacity = 3 * num_words + 2 * MAX_PHRASE * num_phrases + 1
        keys = np.empty(capacity, np.int64)
        for position in range(reference_span[1] - reference_span[0]):
            if count + capacity > matches.shape[1]:
                larger = np.empty((5, 2 * (count + capacity)), np.int64)
                for field in range(5):
                    for index in range(count):
                        larger[field, index] = matches[field, index]
                matches = larger
            if are_equal:  # word by word
                matches[0, count], matches[1, count] = position, 1
                matches[2, count], matches[3, count] = position, 1
                matches[4, count] = EXACT
                count += 1
                continue
            word = words[reference_span[0] + position]
            count = _match_words(matches, count, position, word, words, candidate_span, stem, synonyms)
            first_phrase = end
            while end < first[reference + 1] and phrase_position[end] == position:
                end += 1
            if end > first_phrase:
                for forward in (True, False):
                    count = _match_phrases(
                        matches, count, (first_phrase, end), candidate_phrases, forward, phrases, paraphrases, keys
                    )
        begins[b + 1] = count
    return begins, matches[:, :count]


def find_matches(sentences: Sentences, candidates: Ints, references: Ints) -> tuple[Ints, Ints]:
    """Start of each pair's matches, ``(B + 1,)``, and the fields of :class:`Matches` except ``pair``, ``(5, M)``.

    Args:
        sentences: the corpus.
        candidates: sentence of each pair's candidate, ``(B,)``.
        references: sentence of each pair's reference, ``(B,)``.
    """
    start, fields = _find_all(
        sentences.words,
        sentences.start,
        sentences.stem,
        tuple(sentences.synonyms),
        tuple(sentences.phrases[:4]),
        tuple(sentences.paraphrases),
        candidates,
        references,
    )
    # contiguous, as the search is compiled for
    return start, np.ascontiguousarray(fields)

"""choose: METEOR's aligner, which selects the matches of an alignment.

Denkowski and Lavie (2014), section 2: of all sets of matches that share no word, the best one covers the most words,
then has the fewest chunks, then the smallest distance between starts. It is searched by beam search over the reference
from left to right. Where the paper leaves the order open, the search follows the program's output: the cost of a path
includes the distance of every match that it could have taken before the one it takes, and paths of equal cost keep
their order.

Paths advance from event to event. An event is a position where paths may differ, or the first position after a run of
these, where chunks end; matches without conflicts belong to every path and are not events. Compiled by numba, since
paths are small and there are millions of them.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.meteor.relations import EXACT
from lightning_idc.utils.compiled import compiled

BEAM = 40
COST, FREE, LAST, CHOICE = range(4)
# words of a candidate in one bit mask
_BITS = 64


@compiled
def _overlap(first, size, begin, end, words, contested):
    """Mark matches that share a word with another one.

    Args:
        first: first word of each match.
        size: number of words of each match.
        begin: first match of the pair.
        end: end of the pair's matches.
        words: number of words of the text.
        contested: output, ``(end - begin,)``.
    """
    covered = np.zeros(words, np.int64)
    for m in range(begin, end):
        for word in range(first[m], first[m] + size[m]):
            covered[word] += 1
    for m in range(begin, end):
        for word in range(first[m], first[m] + size[m]):
            contested[m - begin] |= covered[word] > 1


@compiled
def _events(matches, contested, words):
    """Positions where paths change, in order, and the properties that all paths share there.

    Returns:
        ``(E, 3)``: position; the word of the candidate that continues a chunk there, -2 for none; end of the last match
        of paths that take no match there, -1 for none. Then the end of the last match before the first event.
    """
    event = np.zeros(words + 2, np.bool_)
    follows, ending = np.full(words + 2, -2), np.full(words + 2, -1)
    for m in range(len(contested)):
        position, size, candidate_position, candidate_size = matches[0, m], matches[1, m], matches[2, m], matches[3, m]
        if contested[m]:
            for word in range(position, position + size):
                event[word] = True
        else:
            follows[position] = candidate_position
            ending[position + size] = candidate_position + candidate_size
    events, count = np.empty((words + 2, 3), np.int64), 0
    for position in range(words + 2):
        closing = position > 0 and event[position - 1] and not event[position]
        if event[position] or closing:
            # behind a closing event all paths end with the same uncontested match
            if count > 0 and events[count - 1, 2] == -2:
                events[count - 1, 2] = ending[position]
            events[count, 0], events[count, 1], events[count, 2] = position, follows[position], -2 if closing else -1
            count += 1
    return events[:count], ending[events[0, 0]]


@compiled
def _masks(matches, rows):
    """Words of the candidate that each match covers, as bits, ``(M, rows)``."""
    masks = np.zeros((matches.shape[1], rows), np.uint64)
    for m in range(matches.shape[1]):
        for word in range(matches[2, m], matches[2, m] + matches[3, m]):
            masks[m, word // _BITS] |= np.uint64(1) << np.uint64(word % _BITS)
    return masks


@compiled
def _insert(order, costs, count, child):
    """Insert a child into the best ones by cost, behind equal costs. Returns their new number."""
    if count == BEAM:
        if costs[child] >= costs[order[count - 1]]:
            return count
        count -= 1
    at = count
    while at > 0 and costs[order[at - 1]] > costs[child]:
        order[at] = order[at - 1]
        at -= 1
    order[at] = child
    return count + 1


@compiled
def _children(paths, used, count, event, matches, costs, masks, chunk, children, parents, order):
    """Best children of all paths at one event, from best to worst. Returns their number.

    Args:
        paths: see ``_search``, ``(BEAM, 4)``.
        used: words of the candidate that each path covers, as bits, ``(BEAM, rows)``.
        count: number of paths.
        event: position of the event, range of the matches there, and the word of the candidate that continues a chunk
            where no match is taken.
        matches: see ``_search``.
        costs: distance and gain of each match.
        masks: words of the candidate that each match covers, ``(M, rows)``.
        chunk: cost of a chunk.
        children: costs of the children, output.
        parents: path and match, or -1, of each child, output, ``(C, 2)``.
        order: indices of the best children, output, ``(BEAM,)``.
    """
    position, first, end, next_word = event
    num_children, num_best = 0, 0
    for p in range(count):
        cost, last = paths[p, COST], paths[p, LAST]
        # a path inside a match does not change
        outside = position >= paths[p, FREE]
        for m in range(first if outside else end, end + 1):
            blocked = False
            if m < end:
                for row in range(used.shape[1]):
                    blocked |= used[p, row] & masks[m, row] != 0
            if blocked:
                continue
            follower = matches[2, m] if m < end else next_word
            ends = outside and last != -1 and follower != last
            children[num_children] = cost + (chunk if ends else 0) - (costs[1, m] if m < end else 0)
            parents[num_children, 0], parents[num_children, 1] = p, m if m < end else -1
            num_best = _insert(order, children, num_best, num_children)
            num_children += 1
            if m < end:
                cost += costs[0, m]
    return num_best


@compiled
def _costs(matches, events):
    """Distance and gain of each match, ``(2, M)``, the gain of all, and the cost of a chunk.

    A path costs the words that it does not cover, then chunks, then distance, as one number.
    """
    costs = np.empty((2, matches.shape[1]), np.int64)
    chunk, total = 1, 0
    for m in range(matches.shape[1]):
        costs[0, m] = abs(matches[0, m] - matches[2, m])
        chunk += costs[0, m]
    for m in range(matches.shape[1]):
        # matches other than exact ones count half, rounded down on either side: a single stem or synonym counts 0
        divisor = 1 if matches[4, m] == EXACT else 2
        costs[1, m] = (matches[1, m] // divisor + matches[3, m] // divisor) * chunk * (events + 2)
        total += costs[1, m]
    return costs, total, chunk


@compiled
def _search(matches, contested, words, reference_words, buffers, taken):
    """Mark the contested matches of one pair that the best path takes.

    Args:
        matches: fields of :class:`Matches` except ``pair``, ``(5, M)``.
        contested: whether each shares a word with another match, ``(M,)``.
        words: number of words of the candidate.
        reference_words: number of words of the reference.
        buffers: buffers of ``_children``.
        taken: output, ``(M,)``.
    """
    events, begin = _events(matches, contested, reference_words)
    masks = _masks(matches, words // _BITS + 1)
    costs, total, chunk = _costs(matches, len(events))
    # columns of a path: cost, first free position in the reference, end of its last match in the candidate, last choice
    paths, used = np.zeros((2, BEAM, 4), np.int64), np.zeros((2, BEAM, masks.shape[1]), np.uint64)
    paths[0, 0, COST], paths[0, 0, LAST], paths[0, 0, CHOICE] = total, begin, -1
    children, parents, order = buffers
    choices = np.empty((BEAM * len(events), 2), np.int64)
    count, num_choices, end = 1, 0, 0
    for number in range(len(events)):
        position = events[number, 0]
        first = end
        while first < len(contested) and matches[0, first] < position:
            first += 1
        end = first
        while end < len(contested) and matches[0, end] == position and contested[end]:
            end += 1
        old, new, old_used, new_used = paths[number % 2], paths[1 - number % 2], used[number % 2], used[1 - number % 2]
        event = (position, first, end, events[number, 1])
        count = _children(old, old_used, count, event, matches, costs, masks, chunk, children, parents, order)
        for n in range(count):
            p, m = parents[order[n], 0], parents[order[n], 1]
            new[n, FREE], new[n, LAST], new[n, CHOICE] = old[p, FREE], old[p, LAST], old[p, CHOICE]
            new[n, COST] = children[order[n]]
            for row in range(masks.shape[1]):
                new_used[n, row] = old_used[p, row] | (masks[m, row] if m >= 0 else np.uint64(0))
            if m >= 0:
                choices[num_choices, 0], choices[num_choices, 1] = old[p, CHOICE], m
                new[n, FREE], new[n, LAST] = matches[0, m] + matches[1, m], matches[2, m] + matches[3, m]
                new[n, CHOICE] = num_choices
                num_choices += 1
            elif position >= old[p, FREE]:
                new[n, LAST] = events[number, 2]
    choice = paths[len(events) % 2, 0, CHOICE]
    while choice >= 0:
        taken[choices[choice, 1]] = True
        choice = choices[choice, 0]


@compiled
def choose(start, matches, lengths):
    """Whether each match belongs to the alignment of its pair, ``(M,)``.

    Args:
        start: first match of each pair, ``(B + 1,)``.
        matches: fields of :class:`Matches` except ``pair``, ``(5, M)``, by pair, position and preference.
        lengths: number of words of each pair's candidate and reference, ``(B, 2)``.
    """
    taken = np.zeros(matches.shape[1], np.bool_)
    max_children, num_here = 0, 0
    for m in range(matches.shape[1]):
        num_here = num_here + 1 if m > 0 and matches[0, m] == matches[0, m - 1] else 1
        max_children = max(max_children, num_here)
    max_children = BEAM * (max_children + 1)
    buffers = np.empty(max_children, np.int64), np.empty((max_children, 2), np.int64), np.empty(BEAM, np.int64)
    for b in range(len(lengths)):
        begin, end = start[b], start[b + 1]
        contested = np.zeros(end - begin, np.bool_)
        _overlap(matches[0], matches[1], begin, end, lengths[b, 1], contested)
        _overlap(matches[2], matches[3], begin, end, lengths[b, 0], contested)
        needs_search = False
        for m in range(end - begin):
            taken[begin + m] = not contested[m]
            needs_search |= contested[m]
        if needs_search:
            _search(matches[:, begin:end], contested, lengths[b, 0], lengths[b, 1], buffers, taken[begin:end])
    return taken

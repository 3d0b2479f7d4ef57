"""METEOR's search: which of the matches an alignment has.

Denkowski and Lavie (2014), section 2: of all sets of matches in which no word is in two, the one that covers most
words, then has fewest chunks, then the least distance between starts; found with a beam over the reference, from left
to right. Where the paper leaves an order open it is that of the program's answers: a path pays the distance of every
match that it could have taken before the one it takes, and of equal paths the one stays ahead that was ahead.

Paths go from event to event. An event is a place where paths may differ, or the first place after such ones, where
chunks end; matches that exclude no other belong to every path and are not events. Compiled by numba, since a path is a
few numbers and there are millions of them.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from lightning_idc.metrics.meteor.relations import EXACT
from lightning_idc.utils.compiled import compiled

BEAM = 40
COST, FREE, LAST, CHOICE = range(4)
# words of a candidate that one number holds as bits
_BITS = 64


@compiled
def _overlap(first, size, begin, end, words, contested):
    """Mark matches that share a word with another one.

    Args:
        first: first word of each match.
        size: number of its words.
        begin: first match of the pair.
        end: the one after the last.
        words: of the text.
        contested: filled here, ``(end - begin,)``.
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
    """Places where paths change, in order, and what holds for all paths there.

    Returns:
        ``(E, 3)``: place; the word of the candidate with which a chunk goes on there, -2 for none; end of the last
        match for paths that take none there, -1 for none. Then the end of the last match before the first event.
    """
    event = np.zeros(words + 2, np.bool_)
    follows, ending = np.full(words + 2, -2), np.full(words + 2, -1)
    for m in range(len(contested)):
        place, size, other, other_size = matches[0, m], matches[1, m], matches[2, m], matches[3, m]
        if contested[m]:
            for word in range(place, place + size):
                event[word] = True
        else:
            follows[place] = other
            ending[place + size] = other + other_size
    found, count = np.empty((words + 2, 3), np.int64), 0
    for place in range(words + 2):
        closing = place > 0 and event[place - 1] and not event[place]
        if event[place] or closing:
            # after the run of places that a closing begins, all paths are at the end of what is fixed there
            if count > 0 and found[count - 1, 2] == -2:
                found[count - 1, 2] = ending[place]
            found[count, 0], found[count, 1], found[count, 2] = place, follows[place], -2 if closing else -1
            count += 1
    return found[:count], ending[found[0, 0]]


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
    """Put a child among the best by cost, after its equals; how many there are now."""
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
def _meet(one, two):
    """Whether two rows of bits share one."""
    found = False
    for row in range(len(one)):
        found |= (one[row] & two[row]) != 0
    return found


@compiled
def _children(paths, used, count, here, matches, costs, masks, chunk, children, origin, order):
    """Best children of all paths at one event, from best to worst; how many there are.

    Args:
        paths: see ``_search``, ``(BEAM, 4)``.
        used: words of the candidate that they cover, as bits, ``(BEAM, rows)``.
        count: how many they are.
        here: place of the event, the first match there, the one after the last, and the word of the candidate with
            which a chunk goes on where no match is taken.
        matches: see ``_search``.
        costs: distance and gain of each match.
        masks: words of the candidate that each match covers, ``(M, rows)``.
        chunk: cost of a chunk.
        children: their costs, filled here.
        origin: path of each child and its match, or -1, filled here, ``(C, 2)``.
        order: numbers of the best children, filled here, ``(BEAM,)``.
    """
    place, first, end, goes_on = here
    made, kept = 0, 0
    for p in range(count):
        paid, last = paths[p, COST], paths[p, LAST]
        # a path that is inside a match stays as it is
        outside = place >= paths[p, FREE]
        for m in range(first if outside else end, end + 1):
            blocked = False
            if m < end:
                for row in range(used.shape[1]):
                    blocked |= used[p, row] & masks[m, row] != 0
            if blocked:
                continue
            follower = matches[2, m] if m < end else goes_on
            ends = outside and last != -1 and follower != last
            children[made] = paid + (chunk if ends else 0) - (costs[1, m] if m < end else 0)
            origin[made, 0], origin[made, 1] = p, m if m < end else -1
            kept = _insert(order, children, kept, made)
            made += 1
            if m < end:
                paid += costs[0, m]
    return kept


@compiled
def _costs(matches, events):
    """Distance and gain of each match, ``(2, M)``, the gain of all, and the cost of a chunk.

    A path costs the words that it does not cover, then chunks, then distance, as one number.
    """
    found = np.empty((2, matches.shape[1]), np.int64)
    chunk, total = 1, 0
    for m in range(matches.shape[1]):
        found[0, m] = abs(matches[0, m] - matches[2, m])
        chunk += found[0, m]
    for m in range(matches.shape[1]):
        # others than exact ones count half, rounded down on either side: that of a stem or a synonym counts nothing
        share = 1 if matches[4, m] == EXACT else 2
        found[1, m] = (matches[1, m] // share + matches[3, m] // share) * chunk * (events + 2)
        total += found[1, m]
    return found, total, chunk


@compiled
def _search(matches, contested, words, reference_words, room, taken):
    """Mark those of the contested matches of one pair that the best path takes.

    Args:
        matches: fields of :class:`Matches` but for the pair, ``(5, M)``.
        contested: whether each shares a word with another one, ``(M,)``.
        words: of the candidate.
        reference_words: of the reference.
        room: for ``_children``.
        taken: filled here, ``(M,)``.
    """
    events, begin = _events(matches, contested, reference_words)
    masks = _masks(matches, words // _BITS + 1)
    costs, total, chunk = _costs(matches, len(events))
    # of a path: cost, first free place in the reference, end of its last match in the candidate, last choice
    paths, used = np.zeros((2, BEAM, 4), np.int64), np.zeros((2, BEAM, masks.shape[1]), np.uint64)
    paths[0, 0, COST], paths[0, 0, LAST], paths[0, 0, CHOICE] = total, begin, -1
    children, origin, order = room
    choices = np.empty((BEAM * len(events), 2), np.int64)
    count, made, end = 1, 0, 0
    for e in range(len(events)):
        place = events[e, 0]
        first = end
        while first < len(contested) and matches[0, first] < place:
            first += 1
        end = first
        while end < len(contested) and matches[0, end] == place and contested[end]:
            end += 1
        old, new, old_used, new_used = paths[e % 2], paths[1 - e % 2], used[e % 2], used[1 - e % 2]
        here = (place, first, end, events[e, 1])
        count = _children(old, old_used, count, here, matches, costs, masks, chunk, children, origin, order)
        for n in range(count):
            p, m = origin[order[n], 0], origin[order[n], 1]
            new[n, FREE], new[n, LAST], new[n, CHOICE] = old[p, FREE], old[p, LAST], old[p, CHOICE]
            new[n, COST] = children[order[n]]
            for row in range(masks.shape[1]):
                new_used[n, row] = old_used[p, row] | (masks[m, row] if m >= 0 else np.uint64(0))
            if m >= 0:
                choices[made, 0], choices[made, 1] = old[p, CHOICE], m
                new[n, FREE], new[n, LAST] = matches[0, m] + matches[1, m], matches[2, m] + matches[3, m]
                new[n, CHOICE] = made
                made += 1
            elif place >= old[p, FREE]:
                new[n, LAST] = events[e, 2]
    choice = paths[len(events) % 2, 0, CHOICE]
    while choice >= 0:
        taken[choices[choice, 1]] = True
        choice = choices[choice, 0]


@compiled
def choose(start, matches, lengths):
    """Whether each match belongs to the alignment of its pair, ``(M,)``.

    Args:
        start: first match of each pair, ``(B + 1,)``.
        matches: fields of :class:`Matches` but for the pair, ``(5, M)``, by pair, place and preference.
        lengths: words of each pair's candidate and reference, ``(B, 2)``.
    """
    taken = np.zeros(matches.shape[1], np.bool_)
    most, here = 0, 0
    for m in range(matches.shape[1]):
        here = here + 1 if m > 0 and matches[0, m] == matches[0, m - 1] else 1
        most = max(most, here)
    most = BEAM * (most + 1)
    room = np.empty(most, np.int64), np.empty((most, 2), np.int64), np.empty(BEAM, np.int64)
    for b in range(len(lengths)):
        begin, end = start[b], start[b + 1]
        contested = np.zeros(end - begin, np.bool_)
        _overlap(matches[0], matches[1], begin, end, lengths[b, 1], contested)
        _overlap(matches[2], matches[3], begin, end, lengths[b, 0], contested)
        search = False
        for m in range(end - begin):
            taken[begin + m] = not contested[m]
            search |= contested[m]
        if search:
            _search(matches[:, begin:end], contested, lengths[b, 0], lengths[b, 1], room, taken[begin:end])
    return taken

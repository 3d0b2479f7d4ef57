"""Polynomial hashes modulo 2**64, with which a phrase is hashed from its words without building its text.

The hash of bytes b is the sum of ``b[i] * base**i`` (Karp and Rabin 1987).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15
_TWO_64 = 1 << 64


@cache
def _powers(size: int, base: int = _BASE) -> Hashes:
    factors = np.full(size, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def line_hashes(text: bytes) -> tuple[Hashes, NDArray[np.int64]]:
    """Hash and number of bytes of every line; the text ends with a line feed."""
    characters = np.frombuffer(text, dtype=np.uint8)
    if not len(characters):
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(characters == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    # round sizes up, so that few tables of powers are cached
    size = 1 << len(text).bit_length()
    powers = _powers(size)
    terms = characters.astype(np.uint64) * powers[: len(characters)]
    sums = np.add.reduceat(terms, starts) - powers[ends] * np.uint64(ord("\n"))
    return sums * _powers(size, pow(_BASE, -1, _TWO_64))[starts], ends - starts


def appended(phrases: Hashes, lengths: NDArray[np.int64], words: Hashes) -> Hashes:
    """Hashes of phrases extended by a space and a word; ``lengths`` are those of the phrases in bytes."""
    max_length = int(lengths.max(initial=0))
    shift = _powers(1 << (max_length + 1).bit_length())[lengths]
    return phrases + shift * (np.uint64(ord(" ")) + np.uint64(_BASE) * words)

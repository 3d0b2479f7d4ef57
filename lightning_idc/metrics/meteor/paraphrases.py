"""METEOR's paraphrase table as sorted hashes: made once from pycocoevalcap's file, then kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_idc.metrics.corpus import Ints
from lightning_idc.metrics.meteor.hashing import Hashes, appended, line_hashes

LONGEST = 7
"""Words of the table's longest phrases."""
_VERSION = 1
_FILTER_BITS = 25
_PIECE = 1 << 18
_DIGEST = hashlib.sha256().digest_size
# longer words are in no phrase of the table
_LONGEST_WORD = 256


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
        count: number of its paraphrases, ``(S,)``.
        targets: hashes of the paraphrases in the order of the file, ``(T,)``.
        bloom: one bit per possible value of a hash's leading bits, set where a phrase has it.
    """

    sources: Hashes
    start: Ints
    count: Ints
    targets: Hashes
    bloom: NDArray[np.uint8]

    def may_hold(self, hashes: Hashes) -> NDArray[np.bool_]:
        """False only for phrases that the table does not hold."""
        byte = self.bloom[(hashes >> np.uint64(64 - _FILTER_BITS + 3)).astype(np.int64)]
        bit = (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.uint8) & np.uint8(7)
        return (byte >> bit & np.uint8(1)).astype(bool)

    def phrases(self, words: list[str], ids: Ints, lengths: Ints) -> Phrases:
        """Phrases of captions that have a paraphrase in any of the captions.

        Args:
            words: the vocabulary.
            ids: words of all captions in one row, ``(N,)``.
            lengths: number of words of each caption, ``(C,)``.
        """
        caption = np.repeat(np.arange(len(lengths)), lengths)
        starts = np.cumsum(lengths) - lengths
        place, size, hashes = self._candidates(words, ids, caption)
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.concatenate([[True], hashes[1:] != hashes[:-1]])[: len(hashes)]
        distinct, rank = hashes[first], np.empty(len(hashes), dtype=np.int64)
        rank[order] = np.cumsum(first) - 1
        source, target = self._related(distinct)
        used = np.zeros(len(distinct), dtype=bool)
        used[source] = used[target] = True
        number = np.cumsum(used) - 1
        kept = np.flatnonzero(used[rank])
        kept = kept[np.lexsort((size[kept], place[kept]))]
        place, size, rank = place[kept], size[kept], rank[kept]
        source, target = number[source], number[target]
        return Phrases(
            np.searchsorted(caption[place], np.arange(len(lengths) + 1)),
            place - starts[caption[place]],
            size,
            number[rank],
            np.searchsorted(source, np.arange(used.sum() + 1)),
            target,
        )

    def _candidates(self, words: list[str], ids: Ints, caption: Ints) -> tuple[Ints, Ints, Hashes]:
        """Place, number of words and hash of every phrase of the captions that the table may hold."""
        if not words:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64)
        hash_of, bytes_of = line_hashes("".join(f"{word}\n" for word in words).encode("utf-8", "surrogatepass"))
        word, width = hash_of[ids], bytes_of[ids]
        place = np.flatnonzero(width <= _LONGEST_WORD)
        phrase, length = word[place], width[place]
        found = []
        for size in range(1, LONGEST + 1):
            kept = self.may_hold(phrase)
            found.append((place[kept], np.full(kept.sum(), size), phrase[kept]))
            going = place + size < len(ids)
            going[going] = caption[place[going] + size] == caption[place[going]]
            going[going] = width[place[going] + size] <= _LONGEST_WORD
            place, phrase, length = place[going], phrase[going], length[going]
            phrase = appended(phrase, length, word[place + size])
            length = length + 1 + width[place + size]
        places, sizes, hashes = zip(*found, strict=True)
        return np.concatenate(places), np.concatenate(sizes), np.concatenate(hashes)

    def _related(self, distinct: Hashes) -> tuple[Ints, Ints]:
        """Pairs of sorted phrases that are source and target, by source, targets in the order of the table."""
        at = np.minimum(np.searchsorted(self.sources, distinct), len(self.sources) - 1)
        source = np.flatnonzero(self.sources[at] == distinct)
        count = self.count[at[source]]
        offset = np.cumsum(count) - count
        entry = np.arange(count.sum()) + np.repeat(self.start[at[source]] - offset, count)
        targets = self.targets[entry]
        maybe = np.flatnonzero(self._among(distinct, targets))
        targets, source = targets[maybe], np.repeat(source, count)[maybe]
        target = np.searchsorted(distinct, targets)
        there = distinct[np.minimum(target, len(distinct) - 1)] == targets
        return source[there], target[there]

    @staticmethod
    def _among(few: Hashes, many: Hashes) -> NDArray[np.bool_]:
        """False only for hashes that are not among the few."""
        shift = np.uint64(64 - 22)
        leading = np.zeros(1 << 22, dtype=bool)
        leading[(few >> shift).astype(np.int64)] = True
        return leading[(many >> shift).astype(np.int64)]


def load(source: Path, folder: Path) -> ParaphraseTable:
    """The table of a file, from the cache folder where it lies there undamaged; otherwise made and kept there.

    Args:
        source: pycocoevalcap's ``paraphrase-en.gz``.
        folder: of the cache.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    kept = folder / f"paraphrases-{_fingerprint(source)}-v{_VERSION}.bin"
    table = _read(kept)
    if table is None:
        table = _make(source)
        try:
            _write(kept, table)
        except OSError as error:
            warnings.warn(f"METEOR's index cannot be kept in {folder} ({error}); every process makes its own", stacklevel=2)
    return table


def _fingerprint(source: Path) -> str:
    """Check sum and size of a gzip file's contents, which its last eight bytes hold."""
    with source.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        return file.read(8).hex()


def _pieces(source: Path) -> Iterator[bytes]:
    """Text of a gzip file; the next piece is made in a thread while one is read."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    with source.open("rb") as file, ThreadPoolExecutor(1) as pool:

        def unpack() -> bytes:
            piece = b""
            while not piece and not unpacker.eof:
                packed = unpacker.unconsumed_tail or file.read(_PIECE)
                if not packed:
                    raise ValueError(f"{source.name} ends too early")
                piece = unpacker.decompress(packed, _PIECE)
            return piece

        coming = pool.submit(unpack)
        while piece := coming.result():
            coming = pool.submit(unpack)
            yield piece


def _make(source: Path) -> ParaphraseTable:
    sources, targets, rest, lines = [], [], b"", 0
    try:
        for piece in _pieces(source):
            end = piece.rfind(b"\n") + 1
            text, rest = rest + piece[:end], piece[end:] if end else rest + piece
            if not end:
                continue
            hashes, _ = line_hashes(text)
            # lines in threes: a probability, a phrase, a paraphrase of it
            sources.append(hashes[(1 - lines) % 3 :: 3])
            targets.append(hashes[(2 - lines) % 3 :: 3])
            lines += len(hashes)
    except zlib.error as error:
        raise ValueError(f"{source.name} is damaged: {error}") from error
    if rest or not lines or lines % 3:
        raise ValueError(f"{source.name} has {lines} whole lines; expected a multiple of three")
    by_line, target = np.concatenate(sources), np.concatenate(targets)
    first = np.flatnonzero(np.concatenate([[True], by_line[1:] != by_line[:-1]]))
    count = np.diff(first, append=len(by_line))
    order = np.argsort(by_line[first])
    bloom = np.zeros(1 << _FILTER_BITS, dtype=bool)
    for hashes in (by_line[first], target):
        bloom[(hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)] = True
    return ParaphraseTable(
        by_line[first][order], first[order], count[order], target, np.packbits(bloom, bitorder="little")
    )


def _write(path: Path, table: ParaphraseTable) -> None:
    sizes = np.array([len(table.sources), len(table.targets)])
    parts = [np.ascontiguousarray(part).data.cast("B") for part in (sizes, *table)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (digest.digest(), *parts):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> ParaphraseTable | None:
    """A kept table; None where there is none, or a damaged one."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _DIGEST + 16 or hashlib.sha256(memoryview(data)[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    sources, targets = (int(size) for size in np.frombuffer(data, np.int64, 2, _DIGEST))
    parts, place = [], _DIGEST + 16
    for dtype, size in (
        (np.uint64, sources),
        (np.int64, sources),
        (np.int64, sources),
        (np.uint64, targets),
        (np.uint8, 1 << _FILTER_BITS - 3),
    ):
        parts.append(np.frombuffer(data, dtype, size, place))
        place += parts[-1].nbytes
    return ParaphraseTable(*parts)

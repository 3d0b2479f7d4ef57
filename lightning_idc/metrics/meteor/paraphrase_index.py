"""The index of METEOR's paraphrase table: built once from pycocoevalcap's file, then read from the cache folder."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lightning_idc.metrics.meteor.hashing import line_hashes
from lightning_idc.metrics.meteor.paraphrases import FILTER_BITS, ParaphraseTable
from lightning_idc.utils.files import atomic_write

VERSION = 2
"""Number raised when the format or content of the index changes."""
_PIECE = 1 << 18
# a checksum, which takes a tenth of the time of a digest, and two sizes
_CHECKSUM = 8
_HEADER = _CHECKSUM + 16


def load(source: Path, folder: Path) -> ParaphraseTable:
    """The table of a file, read from the cache folder, or built and written there if it is absent or damaged.

    Args:
        source: pycocoevalcap's ``paraphrase-en.gz``.
        folder: cache folder.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
    """
    path = folder / f"paraphrases-{_fingerprint(source)}-v{VERSION}.bin"
    table = _read(path)
    if table is None:
        table = build(source)
        try:
            _write(path, table)
        except OSError as error:
            message = f"METEOR's index cannot be written to {folder} ({error}), so every process builds it again"
            warnings.warn(f"{message}; set LIGHTNING_IDC_CACHE to a writable folder", stacklevel=2)
    return table


def _fingerprint(source: Path) -> str:
    """Checksum and size of the contents of a gzip file, from its last eight bytes."""
    with source.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        return file.read(8).hex()


def _pieces(source: Path) -> Iterator[bytes]:
    """Text of a gzip file in pieces; a thread decompresses the next piece in advance."""
    # imported late, since the index is built once
    from concurrent.futures import ThreadPoolExecutor

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

        next_piece = pool.submit(unpack)
        while piece := next_piece.result():
            next_piece = pool.submit(unpack)
            yield piece


def build(source: Path) -> ParaphraseTable:
    """The table of pycocoevalcap's file.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
    """
    sources, targets, remainder, lines = [], [], b"", 0
    try:
        for piece in _pieces(source):
            end = piece.rfind(b"\n") + 1
            text, remainder = (remainder + piece[:end], piece[end:]) if end else (b"", remainder + piece)
            if text:
                hashes, _ = line_hashes(text)
                # groups of three lines: a probability, a phrase, its paraphrase
                sources.append(hashes[(1 - lines) % 3 :: 3])
                targets.append(hashes[(2 - lines) % 3 :: 3])
                lines += len(hashes)
    except zlib.error as error:
        raise ValueError(f"{source.name} is damaged: {error}") from error
    if remainder or not lines or lines % 3:
        raise ValueError(f"{source.name} has {lines} complete lines; expected a multiple of three")
    source_of_line, target = np.concatenate(sources), np.concatenate(targets)
    first = np.flatnonzero(np.concatenate([[True], source_of_line[1:] != source_of_line[:-1]]))
    count = np.diff(first, append=len(source_of_line))
    distinct = source_of_line[first]
    order = np.argsort(distinct)
    bloom = np.zeros(1 << FILTER_BITS, dtype=bool)
    for hashes in (distinct, target):
        bloom[(hashes >> np.uint64(64 - FILTER_BITS)).astype(np.int64)] = True
    return ParaphraseTable(distinct[order], first[order], count[order], target, np.packbits(bloom, bitorder="little"))


def _write(path: Path, table: ParaphraseTable) -> None:
    sizes = np.array([len(table.sources), len(table.targets)])
    contents = b"".join(np.ascontiguousarray(part).tobytes() for part in (sizes, *table))

    def write(target: Path) -> None:
        with target.open("wb") as file:
            file.writelines([_checksum(contents), contents])

    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, write)


def _checksum(contents: bytes | memoryview) -> bytes:
    return zlib.crc32(contents).to_bytes(_CHECKSUM, "little")


def _read(path: Path) -> ParaphraseTable | None:
    """A stored table; None where it is missing or damaged."""
    try:
        data = memoryview(path.read_bytes())
    except OSError:
        return None
    if len(data) < _HEADER or _checksum(data[_CHECKSUM:]) != data[:_CHECKSUM]:
        return None
    sources, targets = (int(size) for size in np.frombuffer(data, np.int64, 2, _CHECKSUM))
    start = _HEADER + 8 * sources
    return ParaphraseTable(
        np.frombuffer(data, np.uint64, sources, _HEADER),
        np.frombuffer(data, np.int64, sources, start),
        np.frombuffer(data, np.int64, sources, start + 8 * sources),
        np.frombuffer(data, np.uint64, targets, start + 16 * sources),
        np.frombuffer(data, np.uint8, 1 << FILTER_BITS - 3, start + 16 * sources + 8 * targets),
    )

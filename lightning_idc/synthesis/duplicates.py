"""Find near-duplicate records within a store and between the splits of a data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore
from lightning_idc.utils.bounds import NonNegativeInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

BITS = 64
"""Length of a difference hash."""
HASHES = "image_hashes"


def difference_hash(image: Tensor) -> str:
    """Compute the difference hash of an image; resized or slightly compressed copies differ in few of its 64 bits.

    Args:
        image: uint8 ``(3, H, W)``.

    Returns:
        16 hexadecimal digits.

    Example:
        >>> import torch
        >>> image = torch.arange(32, dtype=torch.uint8).expand(3, 32, 32)
        >>> difference_hash(image) == difference_hash(image.repeat_interleave(2, 1).repeat_interleave(2, 2))
        True
    """
    gray = image.float().mean(0)[None, None]
    small = F.interpolate(gray, size=(8, 9), mode="area")[0, 0]
    # the margin of 1.5 grey levels keeps compression noise from setting the bits of flat regions
    bits = (small[:, 1:] - small[:, :-1] > 1.5).flatten().tolist()
    return f"{int(''.join('01'[bit] for bit in bits), 2):0{BITS // 4}x}"


class ImageHashes(PipelineStage):
    """Writes the fact ``image_hashes``, the difference hash of each image in order, for `Deduplicate`.

    Args:
        images: names of the images.
        seed: see `PipelineStage`.
    """

    def __init__(self, images: Sequence[str] = ("before", "after"), seed: int = 0) -> None:
        super().__init__(seed)
        self.reads = tuple(images)

    def settings(self) -> dict[str, Any]:
        return {"images": list(self.reads)}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.facts[HASHES] = [difference_hash(record.image(name)) for name in self.reads]
        return records


class Deduplicate(PipelineStage):
    """Drops records whose facts equal those of an earlier record, or of a record in another store (leakage).

    Texts are compared without case, repeated spaces and surrounding punctuation.

    Args:
        facts: names of the facts to compare, such as ``captions`` or ``image_hashes``.
        against: folder of another store, such as the test split, whose records are dropped here.
        distance: largest number of differing bits, summed over the hashes of all images of a record.
        seed: see `PipelineStage`.

    Raises:
        ConfigError: there is no fact to compare, a record lacks one, or ``distance`` is below 0.
        DataError: two records have one name.
    """

    def __init__(
        self, facts: Sequence[str] = (HASHES,), against: str | None = None, distance: NonNegativeInt = 4, seed: int = 0
    ) -> None:
        check_arguments(Deduplicate.__init__, locals())
        super().__init__(seed)
        if not facts:
            raise ConfigError("facts is empty; expected the name of a fact to compare")
        self.names, self.against, self.distance = tuple(facts), against, distance
        self.copies: dict[str, tuple[str, str]] = {}  # reason and id of the original, by record id

    def settings(self) -> dict[str, Any]:
        fingerprint = None if self.against is None else RecordStore(self.against).fingerprint
        return {"facts": list(self.names), "against": fingerprint, "distance": self.distance}

    def prepare(self, source: RecordSource) -> None:
        # every process reads all records, so that the number of processes does not change which one is first
        known, other_index, self.copies = _HashIndex(self.distance), _HashIndex(self.distance), {}
        for record in RecordStore(self.against) if self.against is not None else ():
            if record.dropped is None:
                other_index.find_or_add(*self._key(record), record.id)
        names: set[str] = set()
        for record in (source.record(index) for index in range(len(source))):
            if record.dropped is None:
                if record.id in names:
                    raise DataError(f"two records have the id {record.id!r}; expected unique ids")
                names.add(record.id)
                key = self._key(record)
                earlier, leaked = known.find_or_add(*key, record.id), other_index.find(*key)
                if leaked is not None:
                    self.copies[record.id] = "in another store", leaked
                elif earlier is not None:
                    self.copies[record.id] = "duplicate", earlier

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            if record.id in self.copies:
                record.drop(*self.copies[record.id])
        return records

    def _key(self, record: Record) -> tuple[bytes, str]:
        """Return the digest of the facts that must be equal, and the hashes that may differ in some bits."""
        missing = [name for name in self.names if name not in record.facts]
        if missing:
            raise ConfigError(
                f"record {record.id} has no fact {missing[0]!r} to compare; it has "
                f"{', '.join(record.facts) or 'none'} (ImageHashes writes {HASHES})"
            )
        values = [_normalised(record.facts[name]) for name in self.names if name != HASHES]
        digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).digest()
        return digest, "".join(record.facts[HASHES]) if HASHES in self.names else ""


class _HashIndex:
    """Index of keys for lookup with at most ``distance`` differing bits in their hashes.

    Hashes are split into ``distance + 1`` pieces, so that at least one piece of two matching hashes is equal.
    """

    def __init__(self, distance: int) -> None:
        self.distance = distance
        self.pieces: dict[tuple[bytes, int, str], list[tuple[str, str]]] = {}

    def find(self, digest: bytes, hashes: str) -> str | None:
        for piece in self._pieces(digest, hashes):
            for other, id in self.pieces.get(piece, ()):
                if hashes == other or (int(hashes, 16) ^ int(other, 16)).bit_count() <= self.distance:
                    return id
        return None

    def find_or_add(self, digest: bytes, hashes: str, id: str) -> str | None:
        key = self.find(digest, hashes)
        if key is None:
            for piece in self._pieces(digest, hashes):
                self.pieces.setdefault(piece, []).append((hashes, id))
        return key

    def _pieces(self, digest: bytes, hashes: str) -> list[tuple[bytes, int, str]]:
        size = max(1, len(hashes) // (self.distance + 1))
        starts = range(0, max(1, self.distance + 1)) if hashes else range(1)
        return [(digest, start, hashes[start * size : (start + 1) * size]) for start in starts]


def _normalised(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split()).strip(" .!?")
    if isinstance(value, list):
        return [_normalised(item) for item in value]
    return value

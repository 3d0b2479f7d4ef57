"""Record: one thing on its way through a pipeline, with its images and with what was done to it."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_idc.core.images import read_image_bytes
from lightning_idc.core.types import PairError

UNREADABLE = "unreadable image"


@dataclass(slots=True)
class Record:
    """What a stage reads and writes: an image, a pair, or whatever a pipeline is about.

    Args:
        id: unique within a store.
        facts: plain JSON values, the record's content apart from images and arrays.
        history: one entry per stage that worked on it, oldest first: stage, its settings and the record's scores.
        dropped: the stage that dropped it, the reason, the value found and the limit; None while it is kept.
        images: encoded files by name; images of an earlier stage are looked up, not copied.
        arrays: features and the like.
        origin: row of the source store that it was made from; None where the source is no store.
        inherit: gives the encoded image of an earlier stage by name.
    """

    id: str
    facts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, Any] | None = None
    images: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    origin: int | None = None
    inherit: Callable[[str], bytes | None] | None = None
    decoded: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def encoded(self, name: str) -> bytes:
        """File of an image, as bytes.

        Raises:
            PairError: neither this record nor the one it was made from has such an image.
        """
        data = self.images.get(name)
        if data is None and self.inherit is not None:
            data = self.inherit(name)
        if data is None:
            raise PairError(f"record {self.id!r} has no image {name!r}; it has {', '.join(self.images) or 'none'}")
        return data

    def image(self, name: str) -> Tensor:
        """Image as uint8 ``(3, H, W)``.

        Raises:
            PairError: it is missing or cannot be decoded.
        """
        if name not in self.decoded:
            self.decoded[name] = decode_image(self.encoded(name), f"record {self.id!r}, image {name!r}")
        return self.decoded[name]

    def put(self, name: str, image: Tensor) -> None:
        """Add an image, uint8 ``(3, H, W)``; it is kept without loss, since later stages look for small differences."""
        self.images[name] = encode_png(image)
        self.decoded[name] = image

    def score(self, **values: float) -> None:
        """Note what the stage at work measured."""
        self.history[-1].setdefault("scores", {}).update({name: float(value) for name, value in values.items()})

    def drop(self, reason: str, value: float | str | None = None, limit: str = "") -> None:
        """Drop the record; later stages pass it on untouched, and the audit page shows why.

        Args:
            reason: short and the same for all records of one kind: they are counted by it.
            value: what was found.
            limit: what was asked for.
        """
        stage = self.history[-1]["stage"] if self.history else ""
        self.dropped = {"stage": stage, "reason": reason, "value": value, "limit": limit}

    def child(self, name: str) -> Record:
        """A record made from this one, named below it, with its facts, history and images."""
        return Record(
            f"{self.id}/{name}",
            copy.deepcopy(self.facts),
            copy.deepcopy(self.history),
            None,
            dict(self.images),
            {},
            self.origin,
            self.inherit,
            dict(self.decoded),
        )


def record_seed(seed: int, id: str) -> np.random.Generator:
    """Random numbers that depend on a seed and the record's name alone, never on its neighbours or the process."""
    digest = hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def decode_image(data: bytes, what: str) -> Tensor:
    """Encoded image to uint8 ``(3, H, W)``.

    Raises:
        PairError: the bytes are no image, damaged or too large.
    """
    return read_image_bytes(data, what)


def encode_png(image: Tensor) -> bytes:
    """uint8 ``(3, H, W)`` to a PNG, quickly rather than small.

    Raises:
        PairError: the tensor is no such image.
    """
    from PIL import Image

    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise PairError(f"an image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")
    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def counted(reasons: Mapping[str, int]) -> str:
    """Counts by reason as one line, the commonest first."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))

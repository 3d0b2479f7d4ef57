"""Record: one thing on its way through a pipeline, with its images and with what was done to it."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_idc.images.read import read_image
from lightning_idc.images.resize import resize
from lightning_idc.synthesis.drawing import same_size
from lightning_idc.utils.errors import DataError, IDCError

UNREADABLE = "unreadable image"
ImageFormat = Literal["png", "jpeg", "webp"]
KeepDropped = Literal["all", "thumbnails", "none"]
THUMBNAIL = 160
"""Longer side of the pictures that are kept of dropped records, pixels."""


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
        origin: row of the source store that it was made from; None where the source is not a store.
        inherit: gives the encoded image of an earlier stage by name.
        decoded: images as tensors, while a batch is at work.
        unsaved: names of those in ``decoded`` that have no file yet; :meth:`seal` encodes them.
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
    unsaved: set[str] = field(default_factory=set, repr=False)

    def encoded(self, name: str) -> bytes:
        """File of an image, as bytes.

        Raises:
            DataError: neither this record nor the one it was made from has such an image.
        """
        if name in self.unsaved:
            self.images[name] = encode_image(self.decoded[name])
            self.unsaved.discard(name)
        data = self.images.get(name)
        if data is None and self.inherit is not None:
            data = self.inherit(name)
        if data is None:
            raise DataError(f"record {self.id!r} has no image {name!r}; it has {', '.join(self.images) or 'none'}")
        return data

    def image(self, name: str) -> Tensor:
        """Image as uint8 ``(3, H, W)``.

        Raises:
            DataError: it is missing or cannot be decoded.
        """
        if name not in self.decoded:
            self.decoded[name] = decode_image(self.encoded(name), f"record {self.id!r}, image {name!r}")
        return self.decoded[name]

    def pair(self, first: str = "before", second: str = "after") -> tuple[Tensor, Tensor]:
        """Both images of a pair, uint8 ``(3, H, W)``; a second one of another size is resized to the first.

        Args:
            first: name of the image.
            second: name of the other.
        """
        return self.image(first), same_size(self.image(first), self.image(second))

    def put(self, name: str, image: Tensor) -> None:
        """Add an image, uint8 ``(3, H, W)``; it is encoded when the batch is done, or when its file is asked for.

        Raises:
            DataError: the tensor is not such an image.
        """
        _check_image(image)
        self.images.pop(name, None)
        self.decoded[name] = image
        self.unsaved.add(name)

    def remove(self, name: str) -> None:
        """Forget an image of this record; one of an earlier stage stays where it is."""
        self.images.pop(name, None)
        self.decoded.pop(name, None)
        self.unsaved.discard(name)

    def seal(self, image_format: ImageFormat = "png", keep_dropped: KeepDropped = "all", quality: int = 95) -> None:
        """Turn the images into files, and let the decoded ones go.

        Args:
            image_format: of images that have no file yet; PNG loses nothing.
            keep_dropped: what stays of a dropped record's images: all, small JPEG copies, or none.
            quality: of JPEG and WebP.
        """
        if self.dropped is not None and keep_dropped != "all":
            names = dict.fromkeys([*self.images, *self.decoded]) if keep_dropped == "thumbnails" else []
            names = [name for name in names if name in self.images or name in self.unsaved]
            self.images = {name: thumb for name in names if (thumb := self._thumbnail(name)) is not None}
        else:
            # the order in which they were put, not that of the set
            for name in [name for name in self.decoded if name in self.unsaved]:
                self.images[name] = encode_image(self.decoded[name], image_format, quality)
        self.unsaved, self.decoded = set(), {}

    def _thumbnail(self, name: str) -> bytes | None:
        try:
            return encode_image(shrink(self.image(name), THUMBNAIL), "jpeg", 80)
        except IDCError:
            return None  # an unreadable file is why the record was dropped

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
            set(self.unsaved),
        )


def record_seed(seed: int, id: str) -> np.random.Generator:
    """Random numbers that depend on a seed and the record's name alone, never on its neighbours or the process."""
    digest = hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def decode_image(data: bytes, what: str) -> Tensor:
    """Encoded image to uint8 ``(3, H, W)``.

    Raises:
        DataError: the bytes are not an image, damaged or too large.
    """
    return read_image(data, name=what)


def encode_image(image: Tensor, image_format: ImageFormat = "png", quality: int = 95) -> bytes:
    """uint8 ``(3, H, W)`` to a file, quickly rather than small.

    Args:
        image: uint8 ``(3, H, W)``.
        image_format: PNG loses nothing.
        quality: of JPEG and WebP, 0 to 100.

    Raises:
        DataError: the tensor is not such an image.
    """
    from PIL import Image

    _check_image(image)
    options: dict[str, Any] = {"compress_level": 1} if image_format == "png" else {"quality": quality}
    if image_format == "jpeg":
        options["subsampling"] = 0  # half the colour would move small differences
    stream = io.BytesIO()
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    picture.save(stream, image_format.upper(), **options)
    return stream.getvalue()


def encode_png(image: Tensor) -> bytes:
    """uint8 ``(3, H, W)`` to a PNG; see `encode_image`."""
    return encode_image(image)


def shrink(image: Tensor, side: int) -> Tensor:
    """Image whose longer side has at most that many pixels, uint8 ``(3, H, W)``."""
    height, width = image.shape[1:]
    scale = side / max(height, width)
    return image if scale >= 1 else resize(image, (max(1, round(height * scale)), max(1, round(width * scale))))


def _check_image(image: Tensor) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise DataError(f"an image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")


def counted(reasons: Mapping[str, int]) -> str:
    """Counts by reason as one line, the commonest first."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))

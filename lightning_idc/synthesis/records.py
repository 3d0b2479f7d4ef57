"""Record: sample of a pipeline with its images, metadata and history."""

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
"""Longer side in pixels of the thumbnails of dropped records."""


@dataclass(slots=True)
class Record:
    """Sample that stages read and write, such as an image, a pair or a caption.

    Args:
        id: unique id within a store.
        facts: metadata as plain JSON values.
        history: entry of each stage, oldest first, with the stage, its settings and the scores of the record.
        dropped: stage that dropped the record, reason, measured value and limit; None for a kept record.
        images: encoded images by name; images of earlier stages are looked up rather than copied.
        arrays: arrays such as features, by name.
        origin: row of the source store; None if the source is not a store.
        inherit: function that returns the encoded image of an earlier stage by name.
        decoded: image tensors by name, while a batch is processed.
        unsaved: names of images in ``decoded`` that are not encoded yet; :meth:`seal` encodes them.
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
        """Return an encoded image.

        Raises:
            DataError: neither this record nor its origin has an image of this name.
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
        """Decode an image to uint8 ``(3, H, W)``.

        Raises:
            DataError: the image is missing or cannot be decoded.
        """
        if name not in self.decoded:
            self.decoded[name] = decode_image(self.encoded(name), f"record {self.id!r}, image {name!r}")
        return self.decoded[name]

    def pair(self, first: str = "before", second: str = "after") -> tuple[Tensor, Tensor]:
        """Decode both images of a pair, uint8 ``(3, H, W)``; the second is resized to the size of the first.

        Args:
            first: name of the first image.
            second: name of the second image.
        """
        return self.image(first), same_size(self.image(first), self.image(second))

    def put(self, name: str, image: Tensor) -> None:
        """Add an image, uint8 ``(3, H, W)``, which is encoded after the batch or on first access.

        Raises:
            DataError: the tensor has another type or shape.
        """
        _check_image(image)
        self.images.pop(name, None)
        self.decoded[name] = image
        self.unsaved.add(name)

    def remove(self, name: str) -> None:
        """Remove an image of this record; images of earlier stages are not affected."""
        self.images.pop(name, None)
        self.decoded.pop(name, None)
        self.unsaved.discard(name)

    def seal(self, image_format: ImageFormat = "png", keep_dropped: KeepDropped = "all", quality: int = 95) -> None:
        """Encode new images and release decoded ones.

        Args:
            image_format: format of new images; PNG is lossless.
            keep_dropped: images to keep of a dropped record: all, JPEG thumbnails, or none.
            quality: quality of JPEG and WebP.
        """
        if self.dropped is not None and keep_dropped != "all":
            names = dict.fromkeys([*self.images, *self.decoded]) if keep_dropped == "thumbnails" else []
            names = [name for name in names if name in self.images or name in self.unsaved]
            self.images = {name: thumb for name in names if (thumb := self._thumbnail(name)) is not None}
        else:
            # in insertion order, which the set does not have
            for name in [name for name in self.decoded if name in self.unsaved]:
                self.images[name] = encode_image(self.decoded[name], image_format, quality)
        self.unsaved, self.decoded = set(), {}

    def _thumbnail(self, name: str) -> bytes | None:
        try:
            return encode_image(shrink(self.image(name), THUMBNAIL), "jpeg", 80)
        except IDCError:
            return None  # the record may have been dropped because of this image

    def score(self, **values: float) -> None:
        """Add scores to the entry of the current stage."""
        self.history[-1].setdefault("scores", {}).update({name: float(value) for name, value in values.items()})

    def drop(self, reason: str, value: float | str | None = None, limit: str = "") -> None:
        """Drop the record; later stages return it unchanged, and the audit page shows the reason.

        Args:
            reason: short category by which dropped records are counted.
            value: measured value.
            limit: required value.
        """
        stage = self.history[-1]["stage"] if self.history else ""
        self.dropped = {"stage": stage, "reason": reason, "value": value, "limit": limit}

    def child(self, name: str) -> Record:
        """Derive a record ``ID/NAME`` with copies of the facts, history and images."""
        return Record(
            f"{self.id}/{name}",
            facts=copy.deepcopy(self.facts),
            history=copy.deepcopy(self.history),
            images=dict(self.images),
            origin=self.origin,
            inherit=self.inherit,
            decoded=dict(self.decoded),
            unsaved=set(self.unsaved),
        )


def record_generator(seed: int, id: str) -> np.random.Generator:
    """Create a random generator that depends only on a seed and the id of a record."""
    digest = hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def decode_image(data: bytes, name: str) -> Tensor:
    """Decode an image to uint8 ``(3, H, W)``.

    Raises:
        DataError: the bytes are not an image, damaged or too large.
    """
    return read_image(data, name=name)


def encode_image(image: Tensor, image_format: ImageFormat = "png", quality: int = 95) -> bytes:
    """Encode an image, optimised for speed rather than size.

    Args:
        image: uint8 ``(3, H, W)``.
        image_format: file format; PNG is lossless.
        quality: quality of JPEG and WebP, 0 to 100.

    Raises:
        DataError: the tensor has another type or shape.
    """
    from PIL import Image

    _check_image(image)
    options: dict[str, Any] = {"compress_level": 1} if image_format == "png" else {"quality": quality}
    if image_format == "jpeg":
        options["subsampling"] = 0  # chroma subsampling would blur small differences
    stream = io.BytesIO()
    pil_image = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    pil_image.save(stream, image_format.upper(), **options)
    return stream.getvalue()


def encode_png(image: Tensor) -> bytes:
    """Encode uint8 ``(3, H, W)`` as PNG; see `encode_image`."""
    return encode_image(image)


def shrink(image: Tensor, side: int) -> Tensor:
    """Downscale an image, uint8 ``(3, H, W)``, so that its longer side has at most ``side`` pixels."""
    height, width = image.shape[1:]
    scale = side / max(height, width)
    return image if scale >= 1 else resize(image, (max(1, round(height * scale)), max(1, round(width * scale))))


def _check_image(image: Tensor) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise DataError(f"an image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")


def format_counts(reasons: Mapping[str, int]) -> str:
    """Format counts by reason as one line, most frequent first."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))

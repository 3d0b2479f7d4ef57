"""On-disk cache of the features of a frozen encoder, used if reading is faster than computing.

The key of a feature is the digest of its image; the folder name contains the encoder, its weights and the
preprocessing. The cache is therefore never stale, and shuffling, mixing and augmentation need no special handling: an
augmented image has another key.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.data.store.growing import KeyedStore
from lightning_idc.utils.errors import DataError, StoreError
from lightning_idc.utils.files import DIGEST_BYTES, digest_of_all

Encode = Callable[[list[int]], Tensor | Sequence[Tensor]]
"""Computes the features of the images of some rows."""

_TOLERANCE = 0.05
# these types have different sizes, so the number of bytes identifies the type
_IDENTIFIED_BY_SIZE = (torch.uint8, torch.float16, torch.float32, torch.float64)


class FeatureCache:
    """Callable that returns features of images from a store, and computes and stores missing ones.

    The first batch times computing and reading; if reading is not faster, the store is not used. Several processes may
    write to one folder; features of other processes become visible when the store is reopened.

    Args:
        encode: encoder of images ``(N, ...)``, independent of each other, to features ``(N, ...)``.
        folder: folder of the features of this encoder; see :func:`folder_of`.
        dtype: type of the stored features; with float16 all returned features are rounded to it.
        always: whether the store is used without timing.
        max_bytes: maximum size of the features that this process adds; further ones are recomputed each time.

    Raises:
        StoreError: the folder contains another store, or the manifest is damaged.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        folder: Path,
        dtype: np.dtype,
        always: bool = False,
        max_bytes: float = float("inf"),
    ) -> None:
        identity = {"features": folder.name, "numbers": dtype.name}
        self.store = KeyedStore(folder, "features", f"delete {folder} and run again", identity)
        self.encode, self.dtype, self.max_bytes, self.written = encode, dtype, max_bytes, 0
        self.used: bool | None = True if always else None
        """Whether the store is used; None until it has been timed."""
        self.seconds: dict[str, float] = {}
        """Seconds per image for ``encode`` and ``read``, measured on the first batch."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features ``(N, ...)`` of images, without gradients."""
        return torch.stack(self.rows(images, lambda rows: self.encode(images[rows])))

    @torch.no_grad()
    def rows(self, images: Tensor | Sequence[Tensor], encode: Encode) -> list[Tensor]:
        """Return the features of each image, without gradients; images and their features may differ in size.

        Args:
            images: images, or pairs of images, which are the keys.
            encode: computes the features of the images of these rows.
        """
        if self.used is None:
            return self._time_first_batch(images, encode)
        return self._read_or_compute(images, encode) if self.used else self._encode(encode, range(len(images)))

    def _encode(self, encode: Encode, rows: Sequence[int]) -> list[Tensor]:
        features = encode(list(rows))
        if not isinstance(features, Tensor | list) or len(features) != len(rows):
            result = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise DataError(
                f"the encoder returned {result} for {len(rows)} images; expected a tensor with one row per image"
            )
        is_half = self.dtype == np.float16
        return [row.half().to(row.dtype) if is_half else row for row in features]

    def _read_or_compute(self, images: Tensor | Sequence[Tensor], encode: Encode) -> list[Tensor]:
        on_cpu = images.cpu() if isinstance(images, Tensor) else [image.cpu() for image in images]
        keys = [image_digest(image) for image in on_cpu]
        try:
            return self._read_and_encode(keys, encode, images[0].device)
        except StoreError as error:
            print(f"recomputing features: {error}", flush=True)
            self.store.remove_damaged()
            return self._read_and_encode(keys, encode, images[0].device)

    def _read_and_encode(self, keys: list[str], encode: Encode, device: torch.device) -> list[Tensor]:
        stored = [row for row, key in enumerate(keys) if key in self.store]
        missing = sorted(set(range(len(keys))) - set(stored))
        features: dict[int, Tensor] = {}
        if missing:
            computed = [row.float() for row in self._encode(encode, missing)]
            self._add([keys[row] for row in missing], [row.cpu().numpy() for row in computed])
            features.update(zip(missing, computed, strict=True))
            device = computed[0].device
        for row in stored:
            features[row] = torch.from_numpy(np.array(self.store.value(keys[row], "features"))).float().to(device)
        return [features[row] for row in range(len(keys))]

    def _add(self, keys: list[str], features: list[np.ndarray]) -> None:
        """Store features unless ``max_bytes`` would be exceeded."""
        first_value = self.store.first_value("features")
        rows_of: dict[tuple[int, ...], dict[str, int]] = {}
        for row, (key, value) in enumerate(zip(keys, features, strict=True)):
            if first_value is not None and first_value.shape[1:] != value.shape[1:]:
                raise StoreError(
                    f"{self.store.folder} holds features of shape {first_value.shape}, these are {value.shape}; use "
                    "another folder"
                )
            rows_of.setdefault(value.shape, {})[key] = row  # a batch may contain an image twice
        for rows in rows_of.values():
            values = np.stack([features[row] for row in rows.values()]).astype(self.dtype, copy=False)
            if self.written + values.nbytes <= self.max_bytes:
                self.store.add(list(rows), features=values)
                self.written += values.nbytes

    def _time_first_batch(self, images: Tensor | Sequence[Tensor], encode: Encode) -> list[Tensor]:
        (single,) = self._encode(encode, [0])  # also warms up the encoder before the timing
        start = time.perf_counter()
        features = self._encode(encode, range(len(images)))
        if features[0].device.type == "cuda":
            torch.cuda.synchronize(features[0].device)
        encoded = time.perf_counter()
        if (single - features[0]).abs().max() > _TOLERANCE * max(row.abs().max() for row in features):
            raise DataError(
                "the encoder's features of an image depend on the other images of the batch, so they cannot be cached"
            )
        self._read_or_compute(images, encode)
        filled = time.perf_counter()
        self._read_or_compute(images, encode)
        read = time.perf_counter() - filled
        self.seconds = {"encode": (encoded - start) / len(images), "read": read / len(images)}
        self.used = self.seconds["read"] < self.seconds["encode"]
        return features


def folder_of(root: Path, encoder: nn.Module, name: str, *facts: str) -> Path:
    """Return the folder of the features of an encoder, named after the encoder, other settings and its weights."""
    prefix = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (name, *facts))
    return root.expanduser() / f"{prefix}-{weights_digest(encoder)}"


def image_digest(image: Tensor) -> str:
    """Compute the digest of an image's shape, dtype and bytes."""
    dtype = "" if image.dtype in _IDENTIFIED_BY_SIZE else str(image.dtype)
    # SHA-256 is twice as fast as BLAKE2b because processors have instructions for it
    state = hashlib.sha256(f"{tuple(image.shape)!r}{dtype}".encode())
    # viewed as bytes, since NumPy has no bfloat16
    state.update(image.contiguous().view(torch.uint8).numpy().data)
    return state.hexdigest()[: 2 * DIGEST_BYTES]


def weights_digest(module: nn.Module) -> str:
    """Compute the digest of the structure, weights and buffers of a module, including non-persistent buffers."""

    def parts() -> Iterator[Any]:
        yield repr(module)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    return digest_of_all(parts())[:16]

"""Features of a frozen encoder on disk, and whether reading them back is faster than computing them.

The key of a feature is the digest of its image, in a folder that is named by the encoder, its weights and how images
are prepared. So nothing stale is read, whatever shuffles, mixes or augments the pairs; an augmented image is a new one.
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

_TOLERANCE = 0.05
# types of different sizes, which the number of bytes tells apart
_TOLD_BY_SIZE = (torch.uint8, torch.float16, torch.float32, torch.float64)


class FeatureCache:
    """Features of images, read from a store where they are there, and otherwise computed and added to it.

    At the first batch computing and reading are timed; where reading is not faster the disk is left alone.

    Args:
        encode: maps images ``(N, 3, H, W)``, each by itself, to features ``(N, ...)``.
        store: store of the features.
        always: use the disk without timing it.
        max_bytes: size of this process' new features; what does not fit is computed every time.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        store: FeatureStore,
        always: bool = False,
        max_bytes: float = float("inf"),
    ) -> None:
        self.encode, self.store, self.max_bytes = encode, store, max_bytes
        self.used: bool | None = True if always else None
        """Whether the disk is used; None until it has been timed."""
        self.seconds: dict[str, float] = {}
        """Per image: ``encode`` and ``read``, as timed at the first batch."""

    def __call__(self, images: Tensor) -> Tensor:
        """Features of images."""
        if self.used is None:
            return self._timed(images)
        return self._through_disk(images) if self.used else self._encoded(images)

    def _encoded(self, images: Tensor) -> Tensor:
        features = self.encode(images)
        if not isinstance(features, Tensor) or features.shape[:1] != images.shape[:1]:
            what = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise DataError(f"an encoder made {what} of {len(images)} images; expected one tensor with a row each")
        return features.half().to(features.dtype) if self.store.dtype == np.float16 else features

    def _through_disk(self, images: Tensor) -> Tensor:
        digests = [image_digest(image) for image in images.cpu()]
        try:
            return self._read_or_encoded(images, digests)
        except StoreError as error:
            print(f"features are computed anew: {error}", flush=True)
            self.store.remove_damaged()
            return self._read_or_encoded(images, digests)

    def _read_or_encoded(self, images: Tensor, digests: list[bytes]) -> Tensor:
        missing = [row for row, digest in enumerate(digests) if digest not in self.store]
        stored = sorted(set(range(len(images))) - set(missing))
        read = self.store.read([digests[row] for row in stored]) if stored else None
        if not missing:
            return torch.from_numpy(read).float().to(images.device)
        fresh = self._encoded(images[missing]).float()
        if self.store.written + fresh.numel() * self.store.dtype.itemsize <= self.max_bytes:
            self.store.add([digests[row] for row in missing], fresh.cpu().numpy())
        if read is None:
            return fresh
        features = fresh.new_empty(len(images), *fresh.shape[1:])
        features[missing], features[stored] = fresh, torch.from_numpy(read).float().to(images.device)
        return features

    def _timed(self, images: Tensor) -> Tensor:
        alone = self._encoded(images[:1])  # what is only slow the first time does not count
        start = time.perf_counter()
        features = self._encoded(images)
        if images.device.type == "cuda":
            torch.cuda.synchronize(images.device)
        encoded = time.perf_counter()
        if (alone[0] - features[0]).abs().max() > _TOLERANCE * features.abs().max():
            raise DataError("the encoder's features of an image depend on the images beside it, so none is stored")
        self._through_disk(images)
        filled = time.perf_counter()
        self._through_disk(images)
        read = time.perf_counter() - filled
        self.seconds = {"encode": (encoded - start) / len(images), "read": read / len(images)}
        self.used = self.seconds["read"] < self.seconds["encode"]
        return features


class FeatureStore:
    """Features of one shape by the digest of their image; many processes may add at once.

    What others add is seen when the store is opened.

    Args:
        folder: folder of the store.
        dtype: type of the numbers.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder, self.dtype, self.written = folder, dtype, 0
        identity = {"features": folder.name, "numbers": dtype.name}
        self._store = KeyedStore(folder, "features", f"delete {folder} and run again", identity)
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, digest: bytes) -> bool:
        return digest.hex() in self._store

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder, self.dtype)  # a copy opens the store anew

    def add(self, digests: Sequence[bytes], features: np.ndarray) -> None:
        """Add features ``(N, ...)``; those of images that are there already are left out.

        Raises:
            StoreError: they have another shape than those in the store, which is read from it, or cannot be written.
        """
        if self._shape is None:
            first = self._store.first("features")
            self._shape = features.shape[1:] if first is None else first.shape
        if features.shape[1:] != self._shape:
            raise StoreError(
                f"{self.folder} holds features of shape {self._shape}, these are {features.shape[1:]}; give them a "
                "folder of their own"
            )
        rows = {digest: row for row, digest in reversed([*enumerate(digests)]) if digest not in self}
        if not rows:
            return
        fresh = features[list(rows.values())].astype(self.dtype, copy=False)
        try:
            self._store.add([digest.hex() for digest in rows], features=fresh)
        except OSError as error:
            raise StoreError(f"cannot write features to {self.folder}: {error}; give them another folder") from error
        self.written += fresh.nbytes

    def read(self, digests: Sequence[bytes]) -> np.ndarray:
        """Features of images that are all there, ``(N, ...)``.

        Raises:
            StoreError: some are damaged.
        """
        return np.stack([self._store.value(digest.hex(), "features") for digest in digests])

    def remove_damaged(self) -> None:
        """Remove damaged features, which then count as never added."""
        self._store.remove_damaged()


def folder_of(root: Path, encoder: nn.Module, name: str, *facts: str) -> Path:
    """Folder of the features of an encoder, named by it, by what else decides them, and by its weights."""
    prefix = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (name, *facts))
    return root.expanduser() / f"{prefix}-{weights_digest(encoder)}"


def image_digest(image: Tensor) -> bytes:
    """Digest of an image's size, bytes and kind of numbers."""
    dtype = "" if image.dtype in _TOLD_BY_SIZE else str(image.dtype)
    # SHA-256 and not BLAKE2b: processors have instructions for it, which make it twice as fast
    state = hashlib.sha256(f"{tuple(image.shape)!r}{dtype}".encode())
    # as bytes, since NumPy has no bfloat16
    state.update(image.contiguous().view(torch.uint8).numpy().data)
    return state.digest()[:DIGEST_BYTES]


def weights_digest(module: nn.Module) -> str:
    """Digest of all weights and buffers of a module, those that no checkpoint keeps included, and of its structure."""

    def parts() -> Iterator[Any]:
        yield repr(module)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    return digest_of_all(parts())[:16]

"""Features of a frozen encoder on disk, and whether reading them back is faster than computing them.

A feature is known by the bytes of its image, below a folder named by the encoder, its weights and how images are
prepared. So nothing stale is read, whatever shuffles, mixes or augments the pairs; an augmented image is a new one.
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

from lightning_idc.data.store.growing_store import GrowingStore
from lightning_idc.data.store.shards import StoreError
from lightning_idc.images.types import PairError
from lightning_idc.utils.files import DIGEST_BYTES, digest_of_all

_SAME = 0.05
# kinds that the number of their bytes tells apart; images of them are known without a name of the kind
_TOLD_BY_SIZE = (torch.uint8, torch.float16, torch.float32, torch.float64)


class FeatureCache:
    """Features of images, read from a store where they are kept, and otherwise computed and kept.

    At the first batch computing and reading are timed; where reading is not faster the disk is left alone.

    Args:
        encode: maps images ``(N, 3, H, W)``, each by itself, to features ``(N, ...)``.
        store: of the features.
        always: use the disk without timing it.
        max_bytes: of this process' new features; what does not fit is computed every time.
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
            raise PairError(f"an encoder made {what} of {len(images)} images; only one tensor, a row each, can be kept")
        return features.half().to(features.dtype) if self.store.kind == np.float16 else features

    def _through_disk(self, images: Tensor) -> Tensor:
        digests = [image_digest(image) for image in images.cpu()]
        while True:
            kept = len(self.store)
            try:
                return self._read_or_encoded(images, digests)
            except StoreError as error:
                if len(self.store) >= kept:
                    raise  # nothing was removed, so it would happen again
                print(f"features are computed anew: {error}", flush=True)

    def _read_or_encoded(self, images: Tensor, digests: list[bytes]) -> Tensor:
        new = [place for place, digest in enumerate(digests) if digest not in self.store]
        kept = sorted(set(range(len(images))) - set(new))
        read = self.store.read([digests[place] for place in kept]) if kept else None
        if not new:
            return torch.from_numpy(read).float().to(images.device)
        fresh = self._encoded(images[new]).float()
        if self.store.written + fresh.numel() * self.store.kind.itemsize <= self.max_bytes:
            self.store.add([digests[place] for place in new], fresh.cpu().numpy())
        if read is None:
            return fresh
        features = fresh.new_empty(len(images), *fresh.shape[1:])
        features[new], features[kept] = fresh, torch.from_numpy(read).float().to(images.device)
        return features

    def _timed(self, images: Tensor) -> Tensor:
        alone = self._encoded(images[:1])  # what is only slow the first time does not count
        began = time.perf_counter()
        features = self._encoded(images)
        if images.device.type == "cuda":
            torch.cuda.synchronize(images.device)
        encoded = time.perf_counter()
        if (alone[0] - features[0]).abs().max() > _SAME * features.abs().max():
            raise PairError("the encoder's features of an image depend on the images beside it, so none can be kept")
        self._through_disk(images)
        filled = time.perf_counter()
        self._through_disk(images)
        read = time.perf_counter() - filled
        self.seconds = {"encode": (encoded - began) / len(images), "read": read / len(images)}
        self.used = self.seconds["read"] < self.seconds["encode"]
        return features


class FeatureStore:
    """Features of one shape by the digest of their image; many processes may add at once.

    Each process appends to a file of its own. What others add is seen when the store is opened; what is damaged is
    removed and counts as never written.

    Args:
        folder: of the files.
        kind: of the numbers.
    """

    def __init__(self, folder: Path, kind: np.dtype) -> None:
        self.folder, self.kind, self.written = folder, kind, 0
        identity = {"features": folder.name, "numbers": kind.name}
        self._store = GrowingStore(folder, "features", f"delete {folder} and run again", identity)
        self._features = self._store.column("features")
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._store.rows)

    def __contains__(self, name: bytes) -> bool:
        return name.hex() in self._store.rows

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder, self.kind)  # a copy opens the store anew

    def add(self, digests: Sequence[bytes], features: np.ndarray) -> None:
        """Keep features ``(N, ...)``.

        Raises:
            PairError: they have another shape than those before them, or cannot be written.
            StoreError: those before them are damaged, and are removed.
        """
        if self._shape is None:
            self._shape = self._row(0).shape if len(self._store) else features.shape[1:]
        if features.shape[1:] != self._shape:
            raise PairError(
                f"{self.folder} holds features of shape {self._shape}, these are {features.shape[1:]}; give them a "
                "folder of their own"
            )
        first = {digest: row for row, digest in reversed([*enumerate(digests)]) if digest not in self}
        if not first:
            return
        kept = features[sorted(first.values())].astype(self.kind, copy=False)
        try:
            self._store.add([digests[row].hex() for row in sorted(first.values())], features=kept)
        except OSError as error:
            raise PairError(f"cannot write features to {self.folder}: {error}; give them another folder") from error
        self.written += kept.nbytes

    def read(self, digests: Sequence[bytes]) -> np.ndarray:
        """Features of images that are all there, ``(N, ...)``.

        Raises:
            StoreError: some are damaged, which are no longer there then.
        """
        return np.stack([self._row(self._store.rows[digest.hex()]) for digest in digests])

    def _row(self, index: int) -> np.ndarray:
        try:
            return self._features[index]
        except StoreError:
            self._store.discard_damaged()
            raise


def folder_of(root: Path, encoder: nn.Module, name: str, *facts: str) -> Path:
    """Folder of the features of an encoder, named by it, by what else decides them, and by its weights."""
    called = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (name, *facts))
    return root.expanduser() / f"{called}-{weights_digest(encoder)}"


def image_digest(image: Tensor) -> bytes:
    """Digest of an image's size, bytes and kind of numbers."""
    kind = "" if image.dtype in _TOLD_BY_SIZE else str(image.dtype)
    # SHA-256 and not BLAKE2b: processors have instructions for it, which make it twice as fast
    found = hashlib.sha256(f"{tuple(image.shape)!r}{kind}".encode())
    # as bytes, since NumPy has no bfloat16
    found.update(image.contiguous().view(torch.uint8).numpy().data)
    return found.digest()[:DIGEST_BYTES]


def weights_digest(module: nn.Module) -> str:
    """Digest of all weights and buffers of a module, those that no checkpoint keeps included, and of its structure."""

    def parts() -> Iterator[Any]:
        yield repr(module)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

    return digest_of_all(parts())[:16]

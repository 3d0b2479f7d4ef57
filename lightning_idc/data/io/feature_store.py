"""Features of a frozen encoder on disk, and whether reading them back is faster than computing them.

A feature is known by the bytes of its image, below a folder named by the encoder, its weights and how images are
prepared. So nothing stale is read, whatever shuffles, mixes or augments the pairs; an augmented image is a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.core.types import PairError

_DIGEST = 16
_SAME = 0.05


class FeatureCache:
    """Features of images, read from a store where they are kept, and otherwise computed and kept.

    At the first batch computing and reading are timed; where reading is not faster the disk is left alone.

    Args:
        encode: maps images ``(N, 3, H, W)``, each by itself, to features ``(N, ...)``.
        store: of the features.
        always: use the disk without timing it.
        most_bytes: of this process' new features; what does not fit is computed every time.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        store: FeatureStore,
        always: bool = False,
        most_bytes: float = float("inf"),
    ) -> None:
        self.encode, self.store, self.most_bytes = encode, store, most_bytes
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
        new = [place for place, digest in enumerate(digests) if digest not in self.store]
        fresh = None
        if new:
            fresh = self._encoded(images[new]).float()
            if self.store.written + fresh.numel() * self.store.kind.itemsize <= self.most_bytes:
                self.store.add([digests[place] for place in new], fresh.cpu().numpy())
            if len(new) == len(images):
                return fresh
        kept = sorted(set(range(len(images))) - set(new))
        read = torch.from_numpy(self.store.read([digests[place] for place in kept])).float().to(images.device)
        if fresh is None:
            return read
        features = fresh.new_empty(len(images), *fresh.shape[1:])
        features[new], features[kept] = fresh, read
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

    Each process appends to a file of its own, ``*.bin`` with its ``*.idx``; a tail that a killed process left half
    written is not read. What others add is seen when the store is opened.

    Args:
        folder: of the files.
        kind: of the numbers.
    """

    def __init__(self, folder: Path, kind: np.dtype) -> None:
        self.folder, self.kind = folder, kind
        self.shape: tuple[int, ...] | None = None
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._files: dict[Path, BinaryIO] = {}
        self._own: Path | None = None
        self._count = self._process = self.written = 0
        for index in sorted(folder.glob("*.idx")) if folder.is_dir() else []:
            self._open(index)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places

    def __getstate__(self) -> dict[str, object]:
        # open files cannot be copied; a copy opens the store anew
        return {"folder": self.folder, "kind": self.kind}

    def __setstate__(self, state: dict[str, object]) -> None:
        FeatureStore.__init__(self, **state)  # type: ignore[arg-type]

    def add(self, digests: Sequence[bytes], features: np.ndarray) -> None:
        """Keep features ``(N, ...)``.

        Raises:
            PairError: they have another shape than those before them, or cannot be written.
        """
        if self.shape is None:
            self.shape = features.shape[1:]
        if features.shape[1:] != self.shape:
            raise PairError(
                f"{self.folder} holds features of shape {self.shape}, these are {features.shape[1:]}; give them a "
                "folder of their own"
            )
        try:
            # never the file of the process that this one was forked from
            if self._own is None or self._process != os.getpid():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._own = self.folder / f"{uuid.uuid4().hex}.bin"
                self._own.with_suffix(".idx").write_bytes(_header(self.shape))
                self._process, self._count = os.getpid(), 0
            with open(self._own, "ab") as data, open(self._own.with_suffix(".idx"), "ab") as index:
                for digest, feature in zip(digests, features, strict=True):
                    if digest in self._places:
                        continue
                    data.write(np.ascontiguousarray(feature, self.kind).data)
                    data.flush()  # the index names only what is there
                    index.write(digest)
                    self._places[digest] = self._own, self._count
                    self._count += 1
                    self.written += feature.size * self.kind.itemsize
        except OSError as error:
            raise PairError(f"cannot write features to {self.folder}: {error}; give them another folder") from error

    def read(self, digests: Sequence[bytes]) -> np.ndarray:
        """Features of images that are all there, ``(N, ...)``."""
        assert self.shape is not None
        found = np.empty((len(digests), *self.shape), self.kind)
        size = found[0].nbytes
        for row, digest in enumerate(digests):
            path, place = self._places[digest]
            if path not in self._files:
                self._files[path] = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with the store
            raw = os.pread(self._files[path].fileno(), size, place * size)
            if len(raw) != size:
                raise PairError(f"{path} has been cut short; delete {self.folder} and run again")
            found[row] = np.frombuffer(raw, self.kind).reshape(self.shape)
        return found

    def _open(self, index: Path) -> None:
        raw, data = index.read_bytes(), index.with_suffix(".bin")
        line, _, digests = raw.partition(b"\n")
        try:
            shape = tuple(map(int, line.split()))
        except ValueError:
            return
        size = int(np.prod(shape)) * self.kind.itemsize
        if not data.is_file() or size == 0 or self.shape not in (None, shape):
            return
        self.shape = shape
        for place in range(min(len(digests) // _DIGEST, data.stat().st_size // size)):
            self._places.setdefault(digests[place * _DIGEST : (place + 1) * _DIGEST], (data, place))


def folder_of(root: Path, encoder: nn.Module, name: str, *facts: str) -> Path:
    """Folder of the features of an encoder, named by it, by what else decides them, and by its weights."""
    called = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (name, *facts))
    return root.expanduser() / f"{called}-{weights_digest(encoder)}"


def _header(shape: Sequence[int]) -> bytes:
    return " ".join(map(str, shape)).encode() + b"\n"


def image_digest(image: Tensor) -> bytes:
    """Digest of an image's size and bytes."""
    digest = hashlib.blake2b(repr(tuple(image.shape)).encode(), digest_size=_DIGEST)
    digest.update(image.contiguous().numpy().data)
    return digest.digest()


def weights_digest(module: nn.Module) -> str:
    """Digest of all weights and buffers of a module, those that no checkpoint keeps included, and of its structure."""
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]

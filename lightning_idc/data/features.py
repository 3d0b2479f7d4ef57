"""Features of a frozen encoder, computed once per image and kept on disk where reading them back is faster.

A feature is known by the bytes of its image, below a folder named by the encoder, its weights and how images are
prepared. So nothing stale is read, whatever shuffles, mixes or augments the pairs; an augmented image is a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.images import Interpolation, resize
from lightning_idc.nn.backbones import IMAGENET_MEAN, IMAGENET_STD
from lightning_idc.pairs import PairError

_DIGEST = 16


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What an encoder is given: images of one size, normalised.

    Args:
        size: height and width.
        interpolation: how images are scaled; the aspect is not kept.
        mean: per channel, of values in [0, 1].
        std: per channel.
    """

    size: tuple[int, int]
    interpolation: Interpolation
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 images ``(N, 3, H, W)`` to float ``(N, 3, *size)`` on the same device."""
        scaled = torch.stack([resize(image, self.size, self.interpolation) for image in images.cpu()])
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return ((scaled / 255 - mean) / std).to(images.device)


PREPROCESSING = {
    # the extractor that DUDA, SCORER, DIRL, CARD and SMART share writes 0.224 for the last deviation, too
    "grid-features": Preprocessing((224, 224), "bicubic", IMAGENET_MEAN, (0.229, 0.224, 0.224)),
    "imagenet": Preprocessing((224, 224), "bicubic", IMAGENET_MEAN, IMAGENET_STD),
    # CLIP4IDC scales to the square, without CLIP's crop
    "clip": Preprocessing(
        (224, 224), "bicubic", (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    ),
}
"""The preparations of the field's reference code, by name."""


class CachedEncoder(nn.Module):
    """A frozen encoder of images with its features on disk.

    At its first batch the encoder and the disk are timed; where the disk is not faster it is left alone.

    Args:
        encoder: maps normalised images ``(N, 3, h, w)`` to features ``(N, ...)``; it is frozen and set to eval mode.
        preprocessing: a name of :data:`PREPROCESSING`.
        folder: of all kept features.
        name: of the encoder, for the name of its folder.
        half: keep 16-bit numbers; what is returned is then rounded to them in any case.
        always: use the disk without timing it.

    Raises:
        PairError: the preparation is unknown.
    """

    def __init__(
        self,
        encoder: nn.Module,
        preprocessing: str,
        folder: str | Path,
        name: str | None = None,
        half: bool = False,
        always: bool = False,
    ) -> None:
        super().__init__()
        if preprocessing not in PREPROCESSING:
            raise PairError(f"preprocessing is {preprocessing!r}; expected one of {', '.join(PREPROCESSING)}")
        self.encoder = encoder.eval().requires_grad_(False)
        self.prepare = PREPROCESSING[preprocessing]
        self.kind = np.dtype(np.float16 if half else np.float32)
        called = re.sub(r"[^\w.-]+", "_", name or type(encoder).__name__)
        key = f"{called}-{preprocessing}-{self.kind.name}-{weights_digest(encoder)}"
        self.store = FeatureStore(Path(folder).expanduser() / key, self.kind)
        self.used: bool | None = True if always else None
        """Whether the disk is used; None until it has been timed."""
        self.seconds: dict[str, float] = {}
        """Per image: ``encode`` and ``read``, as timed at the first batch."""

    def train(self, mode: bool = True) -> CachedEncoder:
        """Stay in eval mode: statistics of a frozen encoder must not move."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """uint8 images ``(N, 3, H, W)`` to features ``(N, ...)``."""
        if self.used is None:
            return self._timed(images)
        return self._through_disk(images) if self.used else self._encode(images)

    def _encode(self, images: Tensor) -> Tensor:
        features = self.encoder(self.prepare(images)).float()
        return features.half().float() if self.kind == np.float16 else features

    def _through_disk(self, images: Tensor) -> Tensor:
        digests = [image_digest(image) for image in images.cpu()]
        new = [place for place, digest in enumerate(digests) if digest not in self.store]
        if new:
            self.store.add([digests[place] for place in new], self._encode(images[new]).cpu().numpy())
        return torch.from_numpy(self.store.read(digests)).float().to(images.device)

    def _timed(self, images: Tensor) -> Tensor:
        self._encode(images[:1])  # what is only slow the first time does not count
        began = time.perf_counter()
        features = self._encode(images)
        if images.device.type == "cuda":
            torch.cuda.synchronize(images.device)
        encoded = time.perf_counter()
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
        self._count = self._process = 0
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


def _header(shape: Sequence[int]) -> bytes:
    return " ".join(map(str, shape)).encode() + b"\n"


def image_digest(image: Tensor) -> bytes:
    """Digest of an image's size and bytes."""
    digest = hashlib.blake2b(repr(tuple(image.shape)).encode(), digest_size=_DIGEST)
    digest.update(image.contiguous().numpy().data)
    return digest.digest()


def weights_digest(module: nn.Module) -> str:
    """Digest of all weights and buffers of a module, and of its structure."""
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]

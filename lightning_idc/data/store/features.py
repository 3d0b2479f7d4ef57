"""The preparations of the field's reference extractors by name, and an encoder whose features are stored.

Within a captioner :class:`~lightning_idc.callbacks.cache_features.CacheFeatures` does the same from YAML.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.data.store.feature_store import FeatureCache, FeatureStore, folder_of
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.nn.grid_backbone import IMAGENET_MEAN, IMAGENET_STD
from lightning_idc.utils.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Preparation of images for an encoder: one size, normalised.

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
        folder: folder of all features.
        name: name of the encoder, for that of its folder; its class when None.
        half: store 16-bit numbers; all features are then rounded to them.
        always: use the disk without timing it.

    Raises:
        ConfigError: the preparation is unknown.
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
            raise ConfigError(f"preprocessing is {preprocessing!r}; expected one of {', '.join(PREPROCESSING)}")
        self.encoder = encoder.eval().requires_grad_(False)
        self.prepare = PREPROCESSING[preprocessing]
        dtype = np.dtype(np.float16 if half else np.float32)
        below = folder_of(Path(folder), encoder, name or type(encoder).__name__, preprocessing, dtype.name)
        self.cache = FeatureCache(self._encode, FeatureStore(below, dtype), always)

    @property
    def store(self) -> FeatureStore:
        """Stored features."""
        return self.cache.store

    @property
    def used(self) -> bool | None:
        """Whether the disk is used; None until it has been timed."""
        return self.cache.used

    @property
    def seconds(self) -> dict[str, float]:
        """Per image: ``encode`` and ``read``, as timed at the first batch."""
        return self.cache.seconds

    def train(self, mode: bool = True) -> CachedEncoder:
        """Stay in eval mode: statistics of a frozen encoder must not move."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """uint8 images ``(N, 3, H, W)`` to features ``(N, ...)``."""
        return self.cache(images).float()

    def _encode(self, images: Tensor) -> Tensor:
        return self.encoder(self.prepare(images))

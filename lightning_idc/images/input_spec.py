"""InputSpec: properties of a captioner's training images, so that inference prepares images in the same way."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lightning_idc.images.bars import content_window
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.read import Source, read_pair, warn_if_sizes_differ
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample, ProvidesInputSpec
from lightning_idc.utils.errors import DataError

MAX_SCALE = 4.0
"""Factor of downscaling beyond which a warning is issued; for upscaling, half of it."""
MAX_ASPECT_DIFFERENCE = 0.15
"""Relative difference of aspect ratios beyond which a warning is issued."""
_OPTIONS = ("value_range", "bands", "page", "fill_nan", "crop_bars")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Properties of the images that a captioner was trained on.

    Args:
        size: height and width; None keeps the size of each file.
        interpolation: interpolation used to resize images.
        options: value range, bands, page and missing values.
        channels: number of channels; None if unknown.
        domain: domain of the images, such as remote sensing; None if unknown.

    Example:
        >>> InputSpec.from_hparams({"input_spec": {"size": [64, 96], "channels": 3}}).size
        (64, 96)
    """

    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    options: ImageOptions = PLAIN
    channels: int | None = None
    domain: str | None = None

    @classmethod
    def from_hparams(cls, hparams: Mapping[str, Any]) -> InputSpec:
        """Build the specification from a captioner's hyper-parameters; ``image_size`` overrides the training size."""
        stored = hparams.get("input_spec") or {}
        size = hparams.get("image_size") or stored.get("size")
        return cls(
            size=None if size is None else (int(size[0]), int(size[1])),
            interpolation=stored.get("interpolation") or "bilinear",
            options=ImageOptions(**{name: stored[name] for name in _OPTIONS if stored.get(name) is not None}),
            channels=stored.get("channels"),
            domain=stored.get("domain"),
        )

    def read(
        self,
        before: Source,
        after: Source,
        id: str = "pair",
        options: ImageOptions | None = None,
    ) -> PairSample:
        """Read a pair as the training did; warn if the images differ strongly from the training images.

        Args:
            before: path, contents of a file, PIL image or uint8 tensor ``(C, H, W)``.
            after: image of the same kinds.
            id: name of the pair.
            options: image options that replace those of the training.

        Returns:
            The pair; ``meta["sizes"]`` holds the original height and width of both images. If bars were cropped,
            ``meta["window"]`` holds the remaining window as x1 y1 x2 y2, relative to width and height.

        Raises:
            DataError: an image cannot be read, or has another number of channels than the training images.
        """
        name = "" if id == "pair" else id
        options = options or self.options
        first, second = read_pair(before, after, options, name)
        for side, image in (("before", first), ("after", second)):
            if self.channels is not None and len(image) != self.channels:
                raise DataError(
                    f"the {side} image{name and f' of {name}'} has {len(image)} channels; this captioner reads "
                    f"{self.channels}"
                )
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in (first, second)]
        warn_if_sizes_differ(sizes[0], sizes[1], self.size, scaled=True)
        meta: dict[str, Any] = {"sizes": sizes}
        if options.crop_bars and self.size is not None and sizes[0] == sizes[1]:
            rows, columns = content_window(first, second, self.size)
            (height, width), cropped = sizes[0], first[:, rows, columns]
            if cropped.shape != first.shape:
                first, second = cropped, second[:, rows, columns]
                window = columns.start / width, rows.start / height, columns.stop / width, rows.stop / height
                meta["window"] = window
                warnings.warn(
                    f"uniform borders are cropped: {width}x{height} to {cropped.shape[2]}x{cropped.shape[1]} pixels",
                    stacklevel=3,
                )
        size = (int(first.shape[1]), int(first.shape[2]))
        self._warn_of_scaling(size)
        return PairSample(id, self._resize(first, size), self._resize(second, size), meta=meta)

    def resized(self, sample: PairSample) -> PairSample:
        """Resize a pair to the training size."""
        if self.size is None or tuple(sample.before.shape[1:]) == self.size:
            return sample
        before, after = (self._resize(image, self.size) for image in (sample.before, sample.after))
        return replace(sample, before=before, after=after, boxes=None, masks=None)

    def _resize(self, image: Tensor, size: tuple[int, int]) -> Tensor:
        return resize(image, self.size or size, self.interpolation)

    def _warn_of_scaling(self, size: tuple[int, int]) -> None:
        if self.size is None:
            return
        (height, width), (trained_height, trained_width) = size, self.size
        scale = math.sqrt(height * width / (trained_height * trained_width))
        aspect = (width / height) / (trained_width / trained_height)
        trained_on = f"the captioner was trained on {trained_width}x{trained_height}"
        if max(aspect, 1 / aspect) > 1 + MAX_ASPECT_DIFFERENCE:
            warnings.warn(
                f"the images are {width}x{height} pixels and {trained_on}: they are stretched to another aspect "
                "ratio, which changes shapes. Crop them to that ratio first",
                stacklevel=4,
            )
        elif scale > MAX_SCALE or scale < 2 / MAX_SCALE:
            scaling = (
                f"{scale:.0f} times down, so that small changes may be lost"
                if scale > 1
                else f"{1 / scale:.0f} times up"
            )
            warnings.warn(
                f"the images are {width}x{height} pixels and {trained_on}: they are scaled {scaling}", stacklevel=4
            )


def update_input_spec(spec: dict[str, Any] | None, size: list[int] | None, data: Any) -> dict[str, Any]:
    """Update the input specification that a checkpoint stores, after a training batch.

    Args:
        spec: specification after the previous batches; None at the first batch.
        size: height and width of this batch.
        data: data module of the training.
    """
    if spec is None:
        data_spec = data.input_spec() if isinstance(data, ProvidesInputSpec) else {}
        return {"size": size, **{name: value for name, value in data_spec.items() if name != "image_size"}}
    return spec if spec.get("size") == size else {**spec, "size": None}  # mixed sizes: images are not resized

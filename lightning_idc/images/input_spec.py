"""InputSpec: what the images of a captioner's training were like, so that every way in prepares others alike."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lightning_idc.images.bars import content
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.read import Source, read_pair, warn_of_sizes
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample, ProvidesInputSpec
from lightning_idc.utils.errors import DataError

FAR_SCALE = 4.0
"""Images are reported that are scaled by more than this, down or, by half as much, up."""
FAR_ASPECT = 0.15
"""Images are reported whose ratio of width to height differs by a larger share than this."""
_OPTIONS = ("value_range", "bands", "page", "fill_nan", "crop_bars")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What the images that a captioner was trained on were like.

    Args:
        size: height and width; None keeps those of the files.
        interpolation: how images are scaled to it.
        options: value range, bands, page and missing values.
        channels: of an image; None where it is not known.
        domain: what the images show; None where it is not known.

    Example:
        >>> InputSpec.of({"input_spec": {"size": [64, 96], "channels": 3}}).size
        (64, 96)
    """

    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    options: ImageOptions = PLAIN
    channels: int | None = None
    domain: str | None = None

    @classmethod
    def of(cls, hparams: Mapping[str, Any]) -> InputSpec:
        """What the hyper-parameters of a captioner say; ``image_size`` wins over the size seen in training."""
        stored = hparams.get("input_spec") or {}
        size = hparams.get("image_size") or stored.get("size")
        return cls(
            None if size is None else (int(size[0]), int(size[1])),
            stored.get("interpolation") or "bilinear",
            ImageOptions(**{name: stored[name] for name in _OPTIONS if stored.get(name) is not None}),
            stored.get("channels"),
            stored.get("domain"),
        )

    def read(
        self,
        before: Source,
        after: Source,
        id: str = "pair",
        options: ImageOptions | None = None,
    ) -> PairSample:
        """A pair as the captioner was trained on; warns where the images are far from that.

        Args:
            before: path, contents of a file, PIL image or uint8 tensor ``(C, H, W)``.
            after: the same.
            id: name of the pair.
            options: of reading, in place of those that the captioner was trained with.

        Returns:
            The pair; ``meta["sizes"]`` holds height and width of both images as they were, ``meta["window"]`` where in
            them the pair lies if bars were cut off, x1 y1 x2 y2 as shares.

        Raises:
            DataError: an image cannot be read, or the number of channels is not the captioner's.
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
        warn_of_sizes(sizes[0], sizes[1], self.size, scaled=True)
        meta: dict[str, Any] = {"sizes": sizes}
        if options.crop_bars and self.size is not None and sizes[0] == sizes[1]:
            rows, columns = content(first, second, self.size)
            (height, width), inner = sizes[0], first[:, rows, columns]
            if inner.shape != first.shape:
                first, second = inner, second[:, rows, columns]
                ends = columns.start / width, rows.start / height, columns.stop / width, rows.stop / height
                meta["window"] = ends
                warnings.warn(
                    f"borders of one colour are cut off: of {width}x{height} pixels {inner.shape[2]}x{inner.shape[1]} "
                    "are described",
                    stacklevel=3,
                )
        own = (int(first.shape[1]), int(first.shape[2]))
        self._warn_of_distance(own)
        return PairSample(id, self._scaled(first, own), self._scaled(second, own), meta=meta)

    def scaled(self, sample: PairSample) -> PairSample:
        """A pair at the size of the training."""
        if self.size is None or tuple(sample.before.shape[1:]) == self.size:
            return sample
        before, after = (self._scaled(image, self.size) for image in (sample.before, sample.after))
        return replace(sample, before=before, after=after, boxes=None, masks=None)

    def _scaled(self, image: Tensor, own: tuple[int, int]) -> Tensor:
        return resize(image, self.size or own, self.interpolation)

    def _warn_of_distance(self, own: tuple[int, int]) -> None:
        if self.size is None:
            return
        (height, width), (trained_height, trained_width) = own, self.size
        scale = math.sqrt(height * width / (trained_height * trained_width))
        aspect = (width / height) / (trained_width / trained_height)
        known = f"the captioner was trained on {trained_width}x{trained_height}"
        if max(aspect, 1 / aspect) > 1 + FAR_ASPECT:
            warnings.warn(
                f"the images are {width}x{height} pixels and {known}: they are stretched to another aspect, which "
                "changes shapes. Crop them to that aspect first",
                stacklevel=4,
            )
        elif scale > FAR_SCALE or scale < 2 / FAR_SCALE:
            much = (
                f"{scale:.0f} times down, so that small changes may be lost"
                if scale > 1
                else f"{1 / scale:.0f} times up"
            )
            warnings.warn(f"the images are {width}x{height} pixels and {known}: they are scaled {much}", stacklevel=4)


def noted(spec: dict[str, Any] | None, size: list[int] | None, data: Any) -> dict[str, Any]:
    """What a checkpoint says of the images of a training, after a batch.

    Args:
        spec: after the batches before; None at the first.
        size: height and width of this batch.
        data: data module of the run.
    """
    if spec is None:
        said = data.input_spec() if isinstance(data, ProvidesInputSpec) else {}
        return {"size": size, **{name: value for name, value in said.items() if name != "image_size"}}
    return spec if spec.get("size") == size else {**spec, "size": None}  # mixed sizes: images keep theirs

"""MaskedSource: pairs whose changed pixels are in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lightning_idc.data.source import PairSource, View
from lightning_idc.data.tables.files import FileSource, file_state
from lightning_idc.data.transforms.pairs import resize_masks
from lightning_idc.images.read import read_image
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import digest_of_all

MaskFiles = Callable[[Path], Sequence[Path]]
"""Files of a pair by the path of its first image: one mask of changes, or a map of classes of each image."""


class MaskedSource(View):
    """View of a source with the changed pixels of each pair as ``masks``.

    Args:
        source: source of image files.
        files: names the files of a pair. Of one file, pixels that are not black have changed; of two, pixels that
            differ.
    """

    def __init__(self, source: PairSource, files: MaskFiles) -> None:
        super().__init__(source)
        assert isinstance(source, FileSource)
        self.records, self.files = source.records, files

    def fingerprint(self) -> str | None:
        images = self.source.fingerprint()
        maps = (file_state(path, record.name) for record in self.records for path in self.files(record.before))
        return images and f"{images}/{digest_of_all(maps)}"

    def load(self, index: int) -> PairSample:
        """Pair with its images and masks.

        Raises:
            DataError: a file is missing or cannot be read, or a mask has another size than the images on disk.
        """
        sample, record = super().load(index), self.records[index]
        maps = [read_image(path, name=record.name) for path in self.files(record.before)]
        if len({tuple(values.shape) for values in maps}) > 1:
            sizes = " and ".join(f"{values.shape[2]}x{values.shape[1]}" for values in maps)
            raise DataError(f"{record.name}: the maps of both images have {sizes} pixels; expected one size")
        changed = (maps[0] != (maps[1] if len(maps) > 1 else torch.zeros_like(maps[0]))).any(0)
        size = (int(sample.before.shape[1]), int(sample.before.shape[2]))
        return replace(sample, masks=resize_masks(changed.expand(2, -1, -1), size))

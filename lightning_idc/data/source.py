"""PairSource: the pairs of one split as a torch dataset, with an id for each pair."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_idc.images.types import PairSample

if TYPE_CHECKING:
    from PIL.Image import Image


class PairSource(Dataset[PairSample], ABC):
    """Torch dataset of the stored pairs of one split; its items are :class:`PairSample`.

    Captions and labels are available without reading images; only :meth:`load` reads images.
    """

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pairs={len(self):,})"

    def __getitem__(self, index: int) -> PairSample:
        """Return the pair at an index; a negative index counts from the end."""
        return self.load(normalise_index(index, len(self)))

    def plot(self, index: int) -> Image:
        """Plot a pair with its boxes and captions as one image."""
        from lightning_idc.data.plotting import plot_pair

        return plot_pair(self[index])

    @abstractmethod
    def load(self, index: int) -> PairSample:
        """Read a pair with its images.

        Raises:
            DataError: an image is missing or cannot be read.
        """

    @abstractmethod
    def captions(self, index: int) -> list[str]:
        """Return all reference captions of a pair, without reading its images."""

    @abstractmethod
    def change_type(self, index: int) -> str | None:
        """Return the label of the change, without reading the images."""

    def meta(self, index: int) -> dict[str, Any]:
        """Return other metadata of a pair, without reading its images."""
        return {}

    def image_size(self, index: int) -> tuple[int, int]:
        """Return height and width of the images of a pair; by default they are read for this."""
        height, width = self.load(index).before.shape[1:]
        return height, width

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        """Images of a pair before they are resized to ``image_size``, for reports; by default those of :meth:`load`.

        Returns:
            Images before and after, uint8 ``(3, H, W)``, whose sizes may differ.
        """
        sample = self.load(index)
        return sample.before, sample.after

    def fingerprint(self) -> str | None:
        """Compute a digest of everything that determines the images of :meth:`load`; None if it is unknown."""
        return None


def normalise_index(index: int, length: int) -> int:
    """Convert an index, which may be negative as for lists, to a non-negative one.

    Raises:
        IndexError: the index is out of range; this also ends a ``for`` loop over a dataset.
    """
    index = operator.index(index)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for {length:,} pairs")
    return index % length


class View(PairSource):
    """View of all or some pairs of another source; subclasses override single methods.

    Args:
        source: source of the pairs.
        indices: indices of the visible pairs, in order; all pairs when None.
    """

    def __init__(self, source: PairSource, indices: Sequence[int] | None = None) -> None:
        self.source = source
        self.indices: Sequence[int] = range(len(source)) if indices is None else indices
        self.ids = source.ids if indices is None else [source.ids[index] for index in indices]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(source={self.source!r}, pairs={len(self):,})"

    def load(self, index: int) -> PairSample:
        return self.source.load(self.indices[index])

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        return self.source.original(self.indices[index])

    def captions(self, index: int) -> list[str]:
        return self.source.captions(self.indices[index])

    def change_type(self, index: int) -> str | None:
        return self.source.change_type(self.indices[index])

    def meta(self, index: int) -> dict[str, Any]:
        return self.source.meta(self.indices[index])

    def image_size(self, index: int) -> tuple[int, int]:
        return self.source.image_size(self.indices[index])

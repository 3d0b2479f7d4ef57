"""PairSource: the pairs of one split as a torch dataset, known by id."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from lightning_idc.images.types import PairSample

if TYPE_CHECKING:
    from PIL.Image import Image


class PairSource(Dataset[PairSample], ABC):
    """Pairs of one split as they are stored: a torch dataset whose items are :class:`PairSample`.

    Captions are cheap to ask for; images are read by :meth:`load` only.
    """

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> PairSample:
        """The pair at a place, from the end where it is negative."""
        return self.load(position(index, len(self)))

    def plot(self, index: int) -> Image:
        """Before, after, boxes and captions of a pair as one picture."""
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
        """All references of a pair, without reading its images."""

    @abstractmethod
    def change_type(self, index: int) -> str | None:
        """Label of the change, without reading the images."""

    def meta(self, index: int) -> dict[str, Any]:
        """Whatever else is known of a pair without reading its images."""
        return {}

    def image_size(self, index: int) -> tuple[int, int]:
        """Height and width of the images of a pair; this reads them, a subclass may know better."""
        height, width = self.load(index).before.shape[1:]
        return height, width

    def fingerprint(self) -> str | None:
        """Digest of all that decides the images of :meth:`load`; None where that is not known."""
        return None


def position(index: int, length: int) -> int:
    """Place of an index from 0, as lists count.

    Raises:
        IndexError: there is no such place, which also ends a loop over a dataset.
    """
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"there is no pair {place}; the split has {length:,}")
    return place % length


class View(PairSource):
    """The pairs of another source, all of them or some; a subclass writes what it changes.

    Args:
        source: of the pairs.
        places: of those that are seen, in order; all of them when None.
    """

    def __init__(self, source: PairSource, places: Sequence[int] | None = None) -> None:
        self.source = source
        self.places: Sequence[int] = range(len(source)) if places is None else places
        self.ids = source.ids if places is None else [source.ids[index] for index in places]

    def load(self, index: int) -> PairSample:
        return self.source.load(self.places[index])

    def captions(self, index: int) -> list[str]:
        return self.source.captions(self.places[index])

    def change_type(self, index: int) -> str | None:
        return self.source.change_type(self.places[index])

    def meta(self, index: int) -> dict[str, Any]:
        return self.source.meta(self.places[index])

    def image_size(self, index: int) -> tuple[int, int]:
        return self.source.image_size(self.places[index])

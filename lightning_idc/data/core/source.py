"""PairSource: the pairs of one split, known by id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning_idc.core.types import PairSample


class PairSource(ABC):
    """Pairs of one split. Captions are cheap to ask for; images are read by :meth:`load` only."""

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def load(self, index: int) -> PairSample:
        """Read a pair with its images.

        Raises:
            PairError: an image is missing or cannot be read.
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

    def fingerprint(self) -> str | None:
        """Digest of all that decides the images of :meth:`load`; None where that is not known."""
        return None


class View(PairSource):
    """The pairs of another source, all of them or some; a subclass writes what it changes.

    Args:
        source: of the pairs.
        places: of those that are seen, in order; all of them when None.
    """

    def __init__(self, source: PairSource, places: Sequence[int] | None = None) -> None:
        self.source = source
        self.places: Sequence[int] = range(len(source)) if places is None else places
        self.ids = source.ids if places is None else [source.ids[place] for place in places]

    def load(self, index: int) -> PairSample:
        return self.source.load(self.places[index])

    def captions(self, index: int) -> list[str]:
        return self.source.captions(self.places[index])

    def change_type(self, index: int) -> str | None:
        return self.source.change_type(self.places[index])

    def meta(self, index: int) -> dict[str, Any]:
        return self.source.meta(self.places[index])

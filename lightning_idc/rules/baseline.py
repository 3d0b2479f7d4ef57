"""Rule-based baseline for captioners: one caption per pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from lightning_idc.images.options import ImageOptions
from lightning_idc.rules.describe import describe_changes

ROW = "rules"
"""Name of the baseline in tables."""


class Pair(Protocol):
    """A pair with an id, such as a :class:`~lightning_idc.images.types.PairSample`."""

    id: str
    before: Any
    after: Any


def rules_captions(pairs: Iterable[Pair], options: ImageOptions | None = None) -> dict[str, str]:
    """Caption pairs by rules.

    Args:
        pairs: Pairs of one data set, such as a split.
        options: Value range, bands and page; see :func:`~lightning_idc.rules.describe_changes`.

    Returns:
        Sentences by pair id, the format of :func:`~lightning_idc.metrics.score_captions`.

    Raises:
        DataError: An image cannot be read, or the two of a pair differ in size.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> image = np.zeros((3, 32, 32), np.uint8)
        >>> rules_captions([SimpleNamespace(id="a", before=image, after=image)])
        {'a': 'Nothing changed.'}
    """
    return {pair.id: describe_changes(pair.before, pair.after, options, resize=True).sentence for pair in pairs}

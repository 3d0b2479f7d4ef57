"""Confusion matrix of changed and unchanged pairs against captions that describe a change or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_idc.metrics.no_change import NO_CHANGE, no_change_rule


@dataclass(frozen=True)
class Confusion:
    """Numbers of pairs; the first word is the ground truth, the second the caption.

    Args:
        same_same: unchanged pairs captioned as unchanged.
        same_changed: unchanged pairs captioned as changed.
        changed_same: changed pairs captioned as unchanged.
        changed_changed: changed pairs captioned as changed.
    """

    same_same: int
    same_changed: int
    changed_same: int
    changed_changed: int

    def __str__(self) -> str:
        same, changed = self.same_same + self.same_changed, self.changed_same + self.changed_changed
        wrong = f"{self.changed_same} of {changed} changed pairs"
        return f'"no change" is predicted for {self.same_same} of {same} unchanged and {wrong}'


def confusion(records: Sequence[Mapping[str, Any]], sentences: Iterable[str] = ()) -> Confusion | None:
    """Count changed and unchanged pairs by their captions; None if no pair is labelled ``no_change``.

    :func:`~lightning_idc.metrics.no_change.no_change_rule` decides whether a caption says that nothing changed; it also
    recognises ``sentences`` and the references of unchanged pairs.

    Args:
        records: records with ``caption``, ``references`` and ``change_type``; those without a type do not count.
        sentences: sentences of the data that say nothing changed.
    """
    labelled = [record for record in records if record["change_type"] is not None]
    unchanged = [record for record in labelled if record["change_type"] == NO_CHANGE]
    if not unchanged:
        return None
    texts = dict.fromkeys([*sentences, *(text for record in unchanged for text in record["references"])])
    says_no_change = no_change_rule(texts)
    counts = {(is_unchanged, says_unchanged): 0 for is_unchanged in (True, False) for says_unchanged in (True, False)}
    for record in labelled:
        counts[record["change_type"] == NO_CHANGE, says_no_change(record["caption"])] += 1
    return Confusion(counts[True, True], counts[True, False], counts[False, True], counts[False, False])

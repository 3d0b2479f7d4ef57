"""Evaluator: collects captions and losses of all processes by pair id and scores them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import Caption, PairBatch
from lightning_idc.metrics.captions import FAST_METRICS, STANDARD_METRICS
from lightning_idc.metrics.confusion import confusion
from lightning_idc.metrics.metric import CaptionScores

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores


class Evaluator(nn.Module):
    """Scores the captions of a split.

    After :meth:`finish`, ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``, ``change_score``
    in a test, ``references``, ``change_type``, ``loss``), sorted by id and equal on all processes, and ``scores`` the
    corpus scores. Processes communicate only in :meth:`finish`, so that their numbers of batches may differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self.caption_scores = CaptionScores()
        self.predictions: list[dict[str, Any]] = []
        self.scores: Scores | None = None

    def start(self, test: bool) -> None:
        """Begin an evaluation; drops the captions of an interrupted one.

        Args:
            test: compute all usual scores instead of the fast ones only.
        """
        self.caption_scores.reset()
        self.caption_scores.metrics = STANDARD_METRICS if test else FAST_METRICS

    def update(
        self,
        batch: PairBatch,
        captions: Sequence[Caption],
        losses: Tensor,
        change_scores: Sequence[float | None] = (),
        boxes: Sequence[list[list[float]]] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            batch: B pairs.
            captions: generated captions, one per pair.
            losses: ``(B,)``; ignored for a pair without references.
            change_scores: change score of each pair; empty in validation.
            boxes: boxes of the changes of each pair, in pixels; None if the captioner predicts none.
        """
        has_reference = batch.caption_mask.flatten(1).any(-1).tolist()
        scores = change_scores or [None] * len(captions)
        located: Sequence[dict[str, Any]] = [{}] * len(captions) if boxes is None else [{"boxes": b} for b in boxes]
        columns = batch.ids, captions, scores, batch.references, batch.change_types, losses.tolist(), has_reference
        self.caption_scores.update(
            [
                {
                    "id": id,
                    "caption": caption.text,
                    "log_prob": caption.log_prob,
                    "change_score": score,
                    "references": texts,
                    "change_type": kind,
                    "loss": loss if referenced else None,
                    **where,
                }
                for (id, caption, score, texts, kind, loss, referenced), where in zip(
                    zip(*columns, strict=True), located, strict=True
                )
            ]
        )

    def finish(self) -> dict[str, float]:
        """Gather the records, drop pairs that a sampler repeated, and score; all processes must call this.

        Returns:
            scores by name, ``loss`` (the mean over pairs with a reference) and :func:`no_change_rates`; equal on all
            processes.
        """
        self.predictions, self.scores = self.caption_scores.compute()
        self.caption_scores.reset()
        self.caption_scores.metrics = FAST_METRICS
        values = {**mean_loss(self.predictions), **no_change_rates(self.predictions)}
        return values if self.scores is None else {**values, **self.scores.as_dict()}


def mean_loss(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean of the losses of the records that have one, as ``{"loss": mean}``; empty if none has."""
    losses = [record["loss"] for record in records if record["loss"] is not None]
    return {"loss": torch.tensor(losses, dtype=torch.float64).mean().item()} if losses else {}


def no_change_rates(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Percentage of changed pairs described as unchanged, and of unchanged pairs described as changed.

    Args:
        records: with ``caption``, ``references`` and ``change_type``.

    Returns:
        ``missed_change`` and ``invented_change``; empty if the split has no unchanged or no changed pair.
    """
    counts = confusion(records)
    if counts is None or not counts.changed_same + counts.changed_changed:
        return {}
    return {
        "missed_change": 100 * counts.changed_same / (counts.changed_same + counts.changed_changed),
        "invented_change": 100 * counts.same_changed / (counts.same_same + counts.same_changed),
    }

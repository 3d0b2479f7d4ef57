"""Evaluation of a captioner: collect captions and losses by pair id over processes, score the corpus once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_idc.images.types import Caption, PairBatch
from lightning_idc.metrics.captions import FAST, USUAL
from lightning_idc.metrics.confusion import confusion
from lightning_idc.metrics.metric import CaptionScores

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores


class CorpusEvaluation(nn.Module):
    """Measures what a captioner says of a split.

    After :meth:`finish`, ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``,
    ``change_score`` of a test,
    ``references``, ``change_type``, ``loss``), sorted by id and equal on all processes, and ``scores`` the corpus
    scores. All collectives are in :meth:`finish`, once per evaluation, whatever the batches of a process held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.caption_scores = CaptionScores()
        self.predictions: list[dict[str, Any]] = []
        self.scores: Scores | None = None

    def start(self, test: bool) -> None:
        """Forget what an interrupted evaluation left.

        Args:
            test: compute all usual scores, not only the fast ones.
        """
        self.caption_scores.reset()
        self.caption_scores.metrics = USUAL if test else FAST

    def update(
        self, batch: PairBatch, captions: Sequence[Caption], losses: Tensor, change_scores: Sequence[float | None] = ()
    ) -> None:
        """Add a batch.

        Args:
            batch: B pairs.
            captions: generated, one per pair.
            losses: ``(B,)``; not counted where a pair has no reference.
            change_scores: of the pairs, where they are known.
        """
        known = batch.caption_mask.flatten(1).any(-1).tolist()
        scores = change_scores or [None] * len(captions)
        of_pairs = batch.ids, captions, scores, batch.references, batch.change_types, losses.tolist(), known
        self.caption_scores.update(
            [
                {
                    "id": id,
                    "caption": caption.text,
                    "log_prob": caption.log_prob,
                    "change_score": score,
                    "references": texts,
                    "change_type": kind,
                    "loss": loss if counted else None,
                }
                for id, caption, score, texts, kind, loss, counted in zip(*of_pairs, strict=True)
            ]
        )

    def finish(self) -> dict[str, float]:
        """Gather, drop pairs that a sampler dealt twice, score; all processes must call this.

        Returns:
            scores by name, ``loss``, the mean over pairs with a reference, and :func:`no_change_rates`; equal on all
            processes.
        """
        self.predictions, self.scores = self.caption_scores.compute()
        self.caption_scores.reset()
        self.caption_scores.metrics = FAST
        values = {**mean_loss(self.predictions), **no_change_rates(self.predictions)}
        return values if self.scores is None else {**values, **self.scores.as_dict()}


def mean_loss(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean of the losses of the records that have one, as ``{"loss": mean}``; empty where none has."""
    losses = [record["loss"] for record in records if record["loss"] is not None]
    return {"loss": torch.tensor(losses, dtype=torch.float64).mean().item()} if losses else {}


def no_change_rates(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Percent of changed pairs said to be unchanged, and of unchanged ones said to have changed.

    Args:
        records: with ``caption``, ``references`` and ``change_type``.

    Returns:
        ``missed_change`` and ``invented_change``; empty where the split has no unchanged or no changed pair.
    """
    counts = confusion(records)
    if counts is None or not counts.changed_same + counts.changed_changed:
        return {}
    return {
        "missed_change": 100 * counts.changed_same / (counts.changed_same + counts.changed_changed),
        "invented_change": 100 * counts.same_changed / (counts.same_same + counts.same_changed),
    }

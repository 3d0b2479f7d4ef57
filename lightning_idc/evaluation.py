"""Validation and test of a captioner: generate, gather over ranks, drop duplicates, score the corpus once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_idc.metrics.captions import score_captions
from lightning_idc.pairs import Caption, PairBatch, PairFeatures

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores


class Evaluation:
    """The part of a PairCaptioner that measures it.

    After an evaluation ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``,
    ``references``, ``change_type``), sorted by id and equal on all ranks, and ``scores`` the corpus scores.
    """

    predictions: list[dict[str, Any]]
    scores: Scores | None

    def __init__(self) -> None:
        super().__init__()
        self.predictions, self.scores = [], None

    def _begin(self) -> None:
        self.predictions, self.scores = [], None

    def _evaluate(self, batch: PairBatch, split: str) -> None:
        features: PairFeatures = self.encode(batch)  # type: ignore[attr-defined]
        if batch.caption_mask.flatten(1).any(-1).all():
            loss: Tensor = self.caption_loss(features, batch)  # type: ignore[attr-defined]
            self.log(f"{split}/loss", loss, batch_size=len(batch), sync_dist=True)  # type: ignore[attr-defined]
        captions: list[Caption] = self.generate(features)  # type: ignore[attr-defined]
        self.predictions += [
            {"id": name, "caption": caption.text, "log_prob": caption.log_prob, "references": references, "change_type": kind}
            for name, caption, references, kind in zip(
                batch.ids, captions, batch.references, batch.change_types, strict=True
            )
        ]

    def _finish(self, split: str) -> None:
        self.predictions = gather_by_id(self.predictions)
        scored = [record for record in self.predictions if record["references"]]
        if not scored:
            return
        self.scores = score_captions(
            {record["id"]: record["caption"] for record in scored},
            {record["id"]: record["references"] for record in scored},
        )
        for name, value in self.scores.as_dict().items():
            self.log(f"{split}/{name}", value, prog_bar=name == "CIDEr-D", rank_zero_only=True)  # type: ignore[attr-defined]

    def on_validation_epoch_start(self) -> None:
        self._begin()

    def on_test_epoch_start(self) -> None:
        self._begin()

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")


def gather_by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of all ranks, one per id, sorted by id; samplers pad the last batch with pairs seen before."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        parts: list[list[dict[str, Any]]] = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(parts, records)
        records = [record for part in parts for record in part]
    unique = {record["id"]: record for record in reversed(records)}
    return [unique[name] for name in sorted(unique)]

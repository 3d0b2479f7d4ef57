"""Validation and test of a captioner: generate, gather over processes, drop duplicates, score the corpus once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_idc.core.types import Caption, PairBatch, PairFeatures
from lightning_idc.metrics import meteor
from lightning_idc.metrics.captions import FAST, USUAL
from lightning_idc.metrics.metric import CaptionScores

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores


class Evaluation:
    """The part of a PairCaptioner that measures it.

    After an evaluation ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``,
    ``references``, ``change_type``), sorted by id and equal on all processes, and ``scores`` the corpus scores.
    """

    predictions: list[dict[str, Any]]
    scores: Scores | None

    def __init__(self) -> None:
        super().__init__()
        self.predictions, self.scores = [], None
        self.caption_scores = CaptionScores()

    def _evaluate(self, batch: PairBatch, split: str) -> None:
        features: PairFeatures = self.encode(batch)  # type: ignore[attr-defined]
        if batch.caption_mask.flatten(1).any(-1).all():
            loss: Tensor = self.caption_loss(features, batch)  # type: ignore[attr-defined]
            self.log(f"{split}/loss", loss, batch_size=len(batch), sync_dist=True)  # type: ignore[attr-defined]
        captions: list[Caption] = self.generate(features)  # type: ignore[attr-defined]
        facts = zip(batch.ids, captions, batch.references, batch.change_types, strict=True)
        self.caption_scores.update(
            [
                {
                    "id": id,
                    "caption": caption.text,
                    "log_prob": caption.log_prob,
                    "references": texts,
                    "change_type": kind,
                }
                for id, caption, texts, kind in facts
            ]
        )

    def _finish(self, split: str) -> None:
        self.predictions, self.scores = self.caption_scores.compute()
        self.caption_scores.reset()
        if self.scores is not None:
            for name, value in self.scores.as_dict().items():
                # equal on all processes, which all scored the whole corpus; Lightning warns if it need not average them
                self.log(f"{split}/{name}", value, prog_bar=name == "CIDEr-D", sync_dist=True)  # type: ignore[attr-defined]

    def on_validation_epoch_start(self) -> None:
        self.caption_scores.reset()

    def on_test_epoch_start(self) -> None:
        self.caption_scores.reset()
        # METEOR takes seconds to start, so only the test asks for it; they pass while the test runs
        self.caption_scores.metrics = USUAL
        if self.global_rank == 0:  # type: ignore[attr-defined]
            meteor.start()

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")
        self.caption_scores.metrics = FAST

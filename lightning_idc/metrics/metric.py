"""CaptionScores: a torchmetrics Metric that scores a corpus once, however many processes made its captions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from lightning_idc.metrics.captions import FAST, KNOWN, References, Scores, check_metrics, score_captions
from lightning_idc.utils.errors import DataError

_NEEDED = ("id", "caption", "references")


class CaptionScores(Metric):
    """Collects records of captioned pairs, gathers them over processes, drops duplicates by id, scores once.

    Corpus metrics cannot be averaged over processes: CIDEr-D weighs words by all references. A record is a dict of
    plain values with at least ``id``, ``caption`` and ``references``; of two with one id the first counts, since
    samplers fill the last round up with pairs seen before.

    Args:
        metrics: as in :func:`~lightning_idc.metrics.captions.score_captions`.

    Raises:
        ConfigError: a metric is unknown.

    Example:
        >>> metric = CaptionScores(["ROUGE-L"])
        >>> metric.update([{"id": "1", "caption": "the cube moved", "references": ["the cube moved"]}])
        >>> records, scores = metric.compute()
        >>> len(records), round(scores.values["ROUGE-L"], 1)
        (1, 100.0)
    """

    full_state_update = False
    payload: list[Tensor]

    def __init__(self, metrics: Sequence[str] = FAST, **options: Any) -> None:
        super().__init__(**options)
        check_metrics(metrics, KNOWN)
        self.metrics = tuple(metrics)
        # a validation scores the same references after every epoch
        self._prepared: tuple[dict[str, list[str]], References] | None = None
        # torchmetrics gathers tensors only, so records travel as bytes, one JSON document a line
        self.add_state("payload", default=[], dist_reduce_fx="cat")

    def update(self, records: Sequence[dict[str, Any]]) -> None:
        """Add records.

        Raises:
            DataError: one is no dict of plain values, or lacks what every record has.
        """
        if isinstance(records, Mapping):
            raise DataError(
                f"update was given one dict with {', '.join(map(str, records))}; expected a list of records"
            )
        text = "".join(_line(record, number) for number, record in enumerate(records, 1))
        data = (
            torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)
        )
        self.payload.append(data.to(self.device))

    def sync(self, *args: Any, **options: Any) -> None:
        """Gather over processes; one that saw no pair takes part with no bytes, not with torchmetrics' float tensor."""
        if isinstance(self.payload, list) and not self.payload:
            self.payload.append(torch.zeros(0, dtype=torch.uint8, device=self.device))
        super().sync(*args, **options)

    def records(self) -> list[dict[str, Any]]:
        """Records by id, sorted; of all processes when called from :meth:`compute`."""
        parts = self.payload if isinstance(self.payload, list) else [self.payload]
        # `set_dtype` of a collection reaches the bytes, too
        lines = b"".join(bytes(part.cpu().to(torch.uint8).numpy()) for part in parts).splitlines()
        unique: dict[str, dict[str, Any]] = {}
        for record in map(json.loads, lines):
            unique.setdefault(record["id"], record)
        return [unique[id] for id in sorted(unique, key=lambda id: (isinstance(id, str), id))]

    def compute(self) -> tuple[list[dict[str, Any]], Scores | None]:
        """All records, and the scores of those that have references; None when none has."""
        records = self.records()
        scored = [record for record in records if record["references"]]
        if not scored:
            return records, None
        if not self._is_synced:
            return records, self._score(scored)
        # the first process scores for all: once is enough
        outcome: list[Any] = [None]
        first = 0 if self.process_group is None else dist.get_global_rank(self.process_group, 0)
        if dist.get_rank() == first:
            try:
                outcome = [self._score(scored)]
            except Exception as error:  # the others wait for an answer
                outcome = [error]
        dist.broadcast_object_list(outcome, src=first, group=self.process_group)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return records, outcome[0]

    def _score(self, records: Sequence[dict[str, Any]]) -> Scores:
        captions = {record["id"]: record["caption"] for record in records}
        references = {record["id"]: record["references"] for record in records}
        if self._prepared is None or self._prepared[0] != references:
            self._prepared = references, References(references)
        return score_captions(captions, self._prepared[1], self.metrics)


def _line(record: Any, number: int) -> str:
    """A record as one line of JSON.

    Raises:
        DataError: it is none.
    """
    if not isinstance(record, Mapping):
        raise DataError(f"record {number} is {record!r}; expected a dict with {', '.join(_NEEDED)}")
    absent = [name for name in _NEEDED if name not in record]
    if absent:
        raise DataError(f"record {number} has no {', '.join(absent)}; it has {', '.join(record)}")
    if isinstance(record["id"], bool) or not isinstance(record["id"], str | int):
        raise DataError(f"record {number}: id is {record['id']!r}; expected text or a whole number")
    try:
        return json.dumps(dict(record)) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"record {number} holds what JSON cannot ({error}); give it plain values") from None

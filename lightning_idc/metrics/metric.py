"""CaptionScores: every score of a corpus at once, from records of captioned pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_idc.metrics.captions import FAST_METRICS, METRICS, Scores, check_metrics, score_captions
from lightning_idc.metrics.gathering import RecordMetric
from lightning_idc.utils.errors import DataError

REQUIRED_FIELDS = ("id", "caption", "references")


class CaptionScores(RecordMetric):
    """Records of captioned pairs from all processes, without duplicates, and their scores.

    A record is a dict of plain values with at least ``id``, ``caption`` and ``references``. Of records with
    the same id only the first counts, since distributed samplers repeat pairs to fill the last batch. For one score as
    a tensor, see :mod:`~lightning_idc.metrics.torch_metrics`.

    Args:
        metrics: names as in :func:`~lightning_idc.metrics.captions.score_captions`.
        options: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        ConfigError: a metric is unknown.

    Example:
        >>> metric = CaptionScores(["ROUGE-L"])
        >>> metric.update([{"id": "1", "caption": "the cube moved", "references": ["the cube moved"]}])
        >>> records, scores = metric.compute()
        >>> len(records), round(scores.values["ROUGE-L"], 1)
        (1, 100.0)
    """

    def __init__(self, metrics: Sequence[str] = FAST_METRICS, **options: Any) -> None:
        super().__init__(**options)
        check_metrics(metrics, METRICS)
        self.metrics = tuple(metrics)

    def update(self, records: Sequence[dict[str, Any]]) -> None:
        """Add records.

        Raises:
            DataError: a record is not a dict of plain values, or lacks a required field.
        """
        if isinstance(records, Mapping):
            raise DataError(f"update received a dict with {', '.join(map(str, records))}; expected a list of records")
        self.append([_line(record, number) for number, record in enumerate(records, 1)])

    def records(self) -> list[dict[str, Any]]:
        """Records sorted by id, without duplicates; of all processes when called from :meth:`compute`."""
        unique: dict[str, dict[str, Any]] = {}
        for record in self.collected():
            unique.setdefault(record["id"], record)
        return [unique[id] for id in sorted(unique, key=lambda id: (isinstance(id, str), id))]

    def compute(self) -> tuple[list[dict[str, Any]], Scores | None]:
        """All records, and the scores of those with references; None when no record has references."""
        records = self.records()
        captions = {record["id"]: record["caption"] for record in records if record["references"]}
        references = {record["id"]: record["references"] for record in records if record["references"]}
        if not captions:
            return records, None
        return records, self.once(lambda: score_captions(captions, self.prepare(references), self.metrics))


def _line(record: Any, number: int) -> str:
    """A record as one line of JSON.

    Raises:
        DataError: the record is not a dict of plain values, or lacks a required field.
    """
    if not isinstance(record, Mapping):
        raise DataError(f"record {number} is {record!r}; expected a dict with {', '.join(REQUIRED_FIELDS)}")
    absent = [name for name in REQUIRED_FIELDS if name not in record]
    if absent:
        raise DataError(f"record {number} has no {', '.join(absent)}; it has {', '.join(record)}")
    if isinstance(record["id"], bool) or not isinstance(record["id"], str | int):
        raise DataError(f"record {number}: id is {record['id']!r}; expected text or a whole number")
    try:
        return json.dumps(dict(record))
    except (TypeError, ValueError) as error:
        raise DataError(f"record {number} cannot be stored as JSON ({error}); expected plain values") from None

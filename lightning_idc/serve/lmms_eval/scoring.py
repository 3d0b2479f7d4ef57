"""Scores of the tasks: records of pairs from ``process_results``, and one aggregation per metric.

A record names its protocol, so that the aggregations of all tasks are the same functions. ``*_constant`` scores the
best constant caption (of the references themselves, so the strongest one), ``*_shuffled`` the captions of other pairs:
a model that is not above both does not see the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_idc.metrics.baselines import constant_caption, shuffled_captions
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import evaluate, protocol_named

Document = Mapping[str, Any]
Record = dict[str, Any]
CAPTION_METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "CIDEr-D_constant", "CIDEr-D_shuffled")
DIFFERENCE_METRICS = ("recall", "precision", "F1", "F1_shuffled", "specificity")


def images(document: Document) -> list[Any]:
    """Both images of a row of ``data export --format parquet``."""
    return [document["before"].convert("RGB"), document["after"].convert("RGB")]


def prompt(document: Document) -> str:
    """Prompt of a row."""
    return str(document["prompt"])


def references(document: Document) -> list[str]:
    """References of a row."""
    return list(document["captions"])


def _record(protocol: str, document: Document, results: Sequence[str]) -> dict[str, Record]:
    caption = results[0] if results else ""
    record = {
        "protocol": protocol,
        "id": document["id"],
        "caption": caption,
        "references": list(document["captions"]),
        "change_type": document["change_type"],
    }
    names = DIFFERENCE_METRICS if protocol == "difference-list" else CAPTION_METRICS
    return dict.fromkeys(names, record)


def coco(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``coco``."""
    return _record("coco", document, results)


def clevr_change(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``clevr-change/total``."""
    return _record("clevr-change/total", document, results)


def spot_the_diff(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``spot-the-diff/grouped``."""
    return _record("spot-the-diff/grouped", document, results)


def image_editing_request(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``image-editing-request``."""
    return _record("image-editing-request", document, results)


def levir_cc(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``levir-cc/words``."""
    return _record("levir-cc/words", document, results)


def omnidiff(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``omnidiff/multi``."""
    return _record("omnidiff/multi", document, results)


def difference_list(document: Document, results: Sequence[str]) -> dict[str, Record]:
    """Record under the protocol ``difference-list``."""
    return _record("difference-list", document, results)


def bleu_4(records: Sequence[Record]) -> float:
    """BLEU-4, 0 to 100."""
    return _score(records, "BLEU-4")


def meteor(records: Sequence[Record]) -> float:
    """METEOR, 0 to 100."""
    return _score(records, "METEOR")


def rouge_l(records: Sequence[Record]) -> float:
    """ROUGE-L, 0 to 100."""
    return _score(records, "ROUGE-L")


def cider_d(records: Sequence[Record]) -> float:
    """CIDEr-D, 0 to 1000."""
    return _score(records, "CIDEr-D")


def cider_d_constant(records: Sequence[Record]) -> float:
    """CIDEr-D of the best constant caption."""
    caption = constant_caption([record["references"] for record in records])
    return _score([{**record, "caption": caption} for record in records], "CIDEr-D")


def cider_d_shuffled(records: Sequence[Record]) -> float:
    """CIDEr-D of the captions of other pairs."""
    return _score(_shuffled(records), "CIDEr-D")


def recall(records: Sequence[Record]) -> float:
    """Recall of differences, 0 to 100."""
    return _score(records, "recall")


def precision(records: Sequence[Record]) -> float:
    """Precision of claims, 0 to 100."""
    return _score(records, "precision")


def f1(records: Sequence[Record]) -> float:
    """F1 of differences, 0 to 100."""
    return _score(records, "F1")


def f1_shuffled(records: Sequence[Record]) -> float:
    """F1 of the captions of other pairs."""
    return _score(_shuffled(records), "F1")


def specificity(records: Sequence[Record]) -> float:
    """Fraction of unchanged pairs about which nothing is claimed, 0 to 100."""
    return _score(records, "specificity")


def _shuffled(records: Sequence[Record]) -> list[Record]:
    captions = shuffled_captions({str(number): record["caption"] for number, record in enumerate(records)})
    return [{**record, "caption": captions[str(number)]} for number, record in enumerate(records)]


def _score(records: Sequence[Record], metric: str) -> float:
    """Score of the first part of the protocol that has the metric; NaN where no part has it."""
    protocol = protocol_named(records[0]["protocol"])
    captions = {record["id"]: record["caption"] for record in records}
    truths = [ReferenceRecord(r["id"], tuple(r["references"]), change_type=r["change_type"]) for r in records]
    family = metric.split("-")[0] if metric.startswith("BLEU") else metric
    requested = None if protocol.lists_differences else [family]
    parts = evaluate(protocol, captions, truths, requested).values()
    return next((part.values[metric] for part in parts if metric in part.values), float("nan"))

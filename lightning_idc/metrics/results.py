"""make_result: the result of an evaluation as JSON, with scores, protocol, data, software and origin."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning_idc.metrics.bootstrap import Interval
from lightning_idc.metrics.captions import Scores
from lightning_idc.metrics.confusion import confusion
from lightning_idc.metrics.difference_list import UNCHANGED
from lightning_idc.metrics.diffspot import OVERALL, RECALL
from lightning_idc.metrics.diversity import diversity
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.metrics.protocols import Protocol
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import parse_json, read_text

SCHEMA = "lightning_idc.result/1"
PREDICTIONS, METRICS = "predictions.jsonl", "metrics.json"
"""Files that a test writes: captions, one record per pair, and their result."""
IMPLEMENTATIONS = {
    "BLEU": "lightning_idc, equal to pycocoevalcap 1.2 given the same tokens",
    "METEOR": "METEOR 1.5, -l en -norm, with the tables of pycocoevalcap 1.2",
    "ROUGE-L": "lightning_idc, equal to pycocoevalcap 1.2 given the same tokens",
    "CIDEr-D": "lightning_idc, equal to Cider of pycocoevalcap 1.2",
    "CIDEr": "lightning_idc, without the clipping and the length penalty of CIDEr-D",
    **dict.fromkeys(("recall", "precision", "F1"), "lightning_idc, differences that a claim states, by the judge"),
    "specificity": "lightning_idc, fraction of unchanged pairs without a claim",
    **dict.fromkeys(RECALL[1:], "lightning_idc, the operator itself, in the element, and by IoU above one half"),
    **dict.fromkeys(OVERALL, "lightning_idc, fraction of pairs that are hits or rightly called unchanged"),
    "SPICE": "SPICE 1.0 (Java) of pycocoevalcap with CoreNLP 3.6.0, without its cache",
}


@dataclass(frozen=True)
class Origin:
    """Origin of the captions and references of a result.

    Args:
        model: name of the captioner.
        data: name of the data.
        split: split of the data.
        decoding: decoding options; None if unknown.
        seed: random seed; None if unknown.
        checkpoint: tested checkpoint.
        selection: split on which the model was selected; None if unknown.
        files: SHA-256 of the input files by name.
        weights: digest of the tested weights; None if unknown.
    """

    model: str | None = None
    data: str | None = None
    split: str | None = None
    decoding: Mapping[str, Any] | None = None
    seed: int | None = None
    checkpoint: str | None = None
    selection: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None


def make_result(
    protocol: Protocol,
    parts: Mapping[str, Scores],
    captions: Mapping[str, str],
    references: Sequence[ReferenceRecord],
    origin: Origin,
    intervals: Mapping[str, Interval] | None = None,
    sentences: Sequence[str] = (),
) -> dict[str, Any]:
    """Build a result of plain values.

    Args:
        protocol: scoring protocol.
        parts: scores by part, the headline first.
        captions: caption by pair id.
        references: references of the pairs.
        origin: origin of captions and references.
        intervals: confidence intervals of the headline.
        sentences: sentences that say nothing changed, in addition to the references of unchanged pairs.
    """
    headline = next(iter(parts))
    record_of = {record.id: record for record in references if record.id in captions}
    sentences = [
        *sentences,
        *(text for record in references if record.change_type == NO_CHANGE for text in record.references),
    ]
    caption_diversity = diversity([captions[id] for id in record_of], sentences)
    records = [
        {"caption": captions[id], "references": list(record.references), "change_type": record.change_type}
        for id, record in record_of.items()
    ]
    counts = confusion(records, sentences)
    return {
        "schema": SCHEMA,
        "model": origin.model,
        "protocol": {
            "name": protocol.name,
            "hash": protocol.hash,
            "about": protocol.about,
            **protocol.definition(),
            "backends": parts[headline].backends,
        },
        "headline": headline,
        "scores": {name: {m: rounded(v) for m, v in scores.values.items()} for name, scores in parts.items()},
        "intervals": {m: [rounded(i.low), rounded(i.high)] for m, i in (intervals or {}).items()},
        "not_computed": _not_computed(protocol, parts),
        "counts": {name: _counts(scores) for name, scores in parts.items()},
        "pairs_with_empty_references": sum(
            not any(text.strip() for text in record.references) for record in references
        ),
        "diversity": caption_diversity.as_dict(),
        "remarks": caption_diversity.remarks(),
        "change_no_change": None if counts is None else dict(vars(counts)),
        "data": {
            "name": origin.data,
            "split": origin.split,
            "fingerprint": fingerprint(protocol, references),
        },
        "predictions": {"count": len(captions), "digest": digest(list(map(list, captions.items())))},
        "files": dict(origin.files),
        "decoding": None if origin.decoding is None else dict(origin.decoding),
        "seed": origin.seed,
        "checkpoint": origin.checkpoint,
        "weights": origin.weights,
        "selection": origin.selection,
        "tokenizer": protocol.tokens,
        "metrics": _implementations(protocol, parts),
        "software": software(),
    }


def read_result(path: str | Path) -> dict[str, Any] | None:
    """Read a result; None if the file contains other JSON.

    Raises:
        DataError: the file is not JSON, or an incomplete result.
    """
    source = Path(path)
    value = parse_json(read_text(source), str(source))
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    try:
        is_valid = _is_valid(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{source} is not a complete result: {error!r}; score its predictions again") from None
    if not is_valid:
        raise DataError(f"{source} is not a valid result: a name or a score has the wrong type; score again")
    return value


def part_of(result: Mapping[str, Any], metric: str) -> str | None:
    """Name of the part of a result that has a metric: the headline, or the first part with the metric.

    Args:
        result: content of ``metrics.json``.
        metric: name of the metric among the scores.

    Returns:
        Name of the part; None where no part has the metric.

    Example:
        >>> scores = {"changed": {"F1": 40.0}, "unchanged": {"specificity": 90.0}}
        >>> part_of({"headline": "changed", "scores": scores}, "specificity")
        'unchanged'
    """
    parts = [result["headline"], *result["scores"]]
    return next((part for part in parts if metric in result["scores"][part]), None)


def fingerprint(protocol: Protocol, references: Sequence[ReferenceRecord]) -> str:
    """Sixteen digits that identify the data under a protocol: every reference, and the records of each part.

    Parts depend on types of change, overlaps and ids. The digits are the same whether these come from the records or
    from a separate file, and do not depend on fields that the protocol ignores.

    Args:
        protocol: scoring protocol.
        references: references of the pairs.

    Raises:
        DataError: the protocol does not fit the pairs.
    """
    texts = [[record.id, text] for record in references for text in record.references]
    parts = protocol.parts(references)
    if list(parts) == ["all"]:
        return digest(texts)
    membership = [[name, record.id, sorted(record.references)] for name, part in parts.items() for record in part]
    return digest([*texts, *membership])


def digest(records: Sequence[Sequence[Any]]) -> str:
    """Sixteen digits that identify plain records, independent of their order and of the file format."""
    lines = sorted(json.dumps(list(record), ensure_ascii=True) for record in records)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def rounded(score: float) -> float | None:
    """A score rounded to the digits that do not depend on the order of sums; None where it is not a number."""
    return round(score, 6) if math.isfinite(score) else None


@cache
def software() -> dict[str, str]:
    """Versions of the software that computed the scores."""
    from lightning_idc import __version__

    versions = {"lightning_idc": __version__, "python": platform.python_version()}
    for package in ("numpy", "pycocoevalcap", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _is_valid(value: dict[str, Any]) -> bool:
    """Whether the fields that a leaderboard displays have the right types."""
    protocol, data, digest = value["protocol"], value["data"], value["predictions"]["digest"]
    counts, scores, origin = value["counts"], value["scores"], (data["name"], data["split"])
    texts = [protocol["name"], protocol["hash"], protocol["selection"], data["fingerprint"], digest]
    ends = [end for low, high in value["intervals"].values() for end in (low, high)]
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(text, str | None) for text in (value["model"], value["selection"], *origin))
        and value["headline"] in scores
        and all(type(counts[part][name]) is int for part in scores for name in ("pairs", "references"))
        and all(map(_is_number, [*(score for part in scores.values() for score in part.values()), *ends]))
    )


def _not_computed(protocol: Protocol, parts: Mapping[str, Scores]) -> dict[str, str]:
    computed = {name for scores in parts.values() for name in _families(scores)}
    absent = {name: _absence(protocol, parts, name) for name in protocol.metrics if name not in computed}
    return absent | next(iter(parts.values())).missing


def _absence(protocol: Protocol, parts: Mapping[str, Scores], metric: str) -> str:
    """Reason why no part has a metric of the protocol."""
    of_part = "unchanged" if metric in UNCHANGED else "changed"
    if protocol.counts_unchanged and of_part not in parts:
        return f"not computed: no pair is {of_part}"
    return "not computed: not requested"


def _counts(scores: Scores) -> dict[str, int]:
    records = {"records": scores.records} if scores.records_of else {}
    return {"pairs": scores.pairs, **records, "references": scores.references}


def _families(scores: Scores) -> set[str]:
    """Names of metrics, the four BLEUs as one."""
    return {"BLEU" if name.startswith("BLEU-") else name for name in scores.values}


def _implementations(protocol: Protocol, parts: Mapping[str, Scores]) -> dict[str, str]:
    if protocol.tokens.startswith("interleave"):
        return {"ROUGE-L": "lightning_idc, equal to the package rouge 1.0.1 after LLaVA-Interleave's cleaning"}
    families = {name for scores in parts.values() for name in _families(scores)}
    return {name: text for name, text in IMPLEMENTATIONS.items() if name in families}


def _is_number(value: Any) -> bool:
    # whole numbers of thousands of digits are not floats; NaN is not below anything
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12)

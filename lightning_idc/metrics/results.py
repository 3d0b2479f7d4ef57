"""The result of an evaluation as JSON: scores, and everything that a reader needs to know what they are scores of."""

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
from lightning_idc.metrics.diversity import diversity
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.metrics.protocols import Protocol
from lightning_idc.utils.errors import DataError

SCHEMA = "lightning_idc.result/1"
IMPLEMENTATIONS = {
    "BLEU": "lightning_idc, equal to pycocoevalcap 1.2 given the same tokens",
    "METEOR": "METEOR 1.5, -l en -norm, with the tables of pycocoevalcap 1.2",
    "ROUGE-L": "lightning_idc, equal to pycocoevalcap 1.2 given the same tokens",
    "CIDEr-D": "lightning_idc, equal to what pycocoevalcap 1.2 calls Cider",
    "CIDEr": "lightning_idc, without the clipping and the length penalty of CIDEr-D",
    **dict.fromkeys(("recall", "precision", "F1"), "lightning_idc, differences that claims state, by the judge named"),
    "specificity": "lightning_idc, share of unchanged pairs of which nothing is claimed",
    "SPICE": "SPICE 1.0 (Java) of pycocoevalcap with CoreNLP 3.6.0, without its cache",
}


@dataclass(frozen=True)
class Origin:
    """Where captions and references come from.

    Args:
        model: who said the captions.
        data: whose pairs they are.
        split: of the data.
        decoding: how the captions were made; None where unknown.
        seed: of the run; None where unknown.
        checkpoint: that was tested.
        selection: split on which the model was chosen; None where unknown.
        files: SHA-256 of the files that were read, by name.
    """

    model: str | None = None
    data: str | None = None
    split: str | None = None
    decoding: Mapping[str, Any] | None = None
    seed: int | None = None
    checkpoint: str | None = None
    selection: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def make_result(
    protocol: Protocol,
    parts: Mapping[str, Scores],
    captions: Mapping[str, str],
    truths: Sequence[ReferenceRecord],
    origin: Origin,
    intervals: Mapping[str, Interval] | None = None,
    sentences: Sequence[str] = (),
) -> dict[str, Any]:
    """A result as plain values.

    Args:
        protocol: that was in force.
        parts: scores by part, the headline first.
        captions: by pair.
        truths: references of the pairs.
        origin: of both.
        intervals: confidence intervals of the headline.
        sentences: known to say nothing changed, besides the references of pairs that are labelled so.
    """
    headline = next(iter(parts))
    known = {truth.id: truth for truth in truths if truth.id in captions}
    sentences = [*sentences, *(text for truth in truths if truth.change_type == NO_CHANGE for text in truth.references)]
    varied = diversity([captions[id] for id in known], sentences)
    records = [
        {"caption": captions[id], "references": list(truth.references), "change_type": truth.change_type}
        for id, truth in known.items()
    ]
    judged = confusion(records, sentences)
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
        "pairs_without_a_reference_that_says_anything": sum(
            not any(text.strip() for text in truth.references) for truth in truths
        ),
        "diversity": varied.as_dict(),
        "remarks": varied.remarks(),
        "change_no_change": None if judged is None else dict(vars(judged)),
        "data": {
            "name": origin.data,
            "split": origin.split,
            "fingerprint": fingerprint(protocol, truths),
        },
        "predictions": {"count": len(captions), "digest": digest(list(map(list, captions.items())))},
        "files": dict(origin.files),
        "decoding": None if origin.decoding is None else dict(origin.decoding),
        "seed": origin.seed,
        "checkpoint": origin.checkpoint,
        "selection": origin.selection,
        "tokenizer": protocol.tokens,
        "metrics": _implementations(protocol, parts),
        "software": software(),
    }


def read_result(path: str | Path) -> dict[str, Any] | None:
    """A result from its file; None where the file is JSON of another kind.

    Raises:
        DataError: the file is not JSON, or a result that lacks what it must have.
    """
    source = Path(path)
    try:
        value = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{source} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    try:
        sound = _is_sound(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{source} is not a complete result: {error!r}; score its predictions again") from None
    if not sound:
        raise DataError(f"{source} is not a sound result: a name or a score is of the wrong kind; score again")
    return value


def part_of(result: Mapping[str, Any], metric: str) -> str | None:
    """The part of a result whose score counts for a metric: the headline, or the first one that has it.

    Args:
        result: as of ``result.json``.
        metric: as its scores name it.

    Returns:
        the part's name; None where no part has the metric.

    Example:
        >>> scores = {"changed": {"F1": 40.0}, "unchanged": {"specificity": 90.0}}
        >>> part_of({"headline": "changed", "scores": scores}, "specificity")
        'unchanged'
    """
    parts = [result["headline"], *result["scores"]]
    return next((part for part in parts if metric in result["scores"][part]), None)


def fingerprint(protocol: Protocol, truths: Sequence[ReferenceRecord]) -> str:
    """Sixteen digits of the data under a protocol: every reference, and what each part holds where there are parts.

    Parts are cut by types of change, overlaps and ids. What those are comes from the records or from a file beside
    them; either gives the same digits, and what the protocol does not look at changes none.

    Args:
        protocol: that is in force.
        truths: references of the pairs.

    Raises:
        DataError: the protocol does not fit the pairs.
    """
    texts = [[truth.id, text] for truth in truths for text in truth.references]
    parts = protocol.parts(truths)
    if list(parts) == ["all"]:
        return digest(texts)
    cut = [[name, truth.id, sorted(truth.references)] for name, part in parts.items() for truth in part]
    return digest([*texts, *cut])


def digest(records: Sequence[Sequence[Any]]) -> str:
    """Sixteen digits of plain records in any order: of what they say, not of how a file writes it."""
    lines = sorted(json.dumps(list(record), ensure_ascii=True) for record in records)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def rounded(score: float) -> float | None:
    """A score with the digits that survive another order of sums; None where it is not a number."""
    return round(score, 6) if math.isfinite(score) else None


@cache
def software() -> dict[str, str]:
    """Versions of what computed the scores."""
    from lightning_idc import __version__

    found = {"lightning_idc": __version__, "python": platform.python_version()}
    for package in ("numpy", "pycocoevalcap", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_sound(value: dict[str, Any]) -> bool:
    """Whether what a leaderboard shows of a result is of the right kind."""
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
    there = {name for scores in parts.values() for name in _families(scores)}
    absent = {name: _absence(protocol, parts, name) for name in protocol.metrics if name not in there}
    return absent | next(iter(parts.values())).missing


def _absence(protocol: Protocol, parts: Mapping[str, Scores], metric: str) -> str:
    """Why no part has a metric of the protocol."""
    of_part = "unchanged" if metric in UNCHANGED else "changed"
    if protocol.lists_differences and of_part not in parts:
        return f"not computed: no pair is {of_part}"
    return "not computed: not asked for"


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
    return {name: how for name, how in IMPLEMENTATIONS.items() if name in families}


def _is_number(value: Any) -> bool:
    # whole numbers of thousands of digits are not floats; NaN is not below anything
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12)

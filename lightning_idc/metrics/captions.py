"""Scores of a corpus of captions: one call, every metric, each pair named once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from lightning_idc.metrics.bleu import bleu
from lightning_idc.metrics.cider import cider_d
from lightning_idc.metrics.corpus import Corpus, Floats, ReferenceCounts
from lightning_idc.metrics.meteor import NotComputed, meteor_scores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.pairs import PairError

T = TypeVar("T")


@dataclass  # not frozen: torchmetrics copies what a Metric computes field by field
class Scores:
    """Scores on the scale that papers print: pycocoevalcap's values times 100, so that CIDEr-D ends at 1000.

    Args:
        values: corpus score by metric.
        per_pair: score of each pair by metric, in the order of ``ids``.
        ids: pairs.
        references: number of references.
        missing: metrics that were asked for and could not be computed, with the reason.
    """

    values: dict[str, float]
    per_pair: dict[str, Floats]
    ids: list[str]
    references: int
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self.ids)

    def as_dict(self) -> dict[str, float]:
        """Corpus score by metric."""
        return dict(self.values)

    def of_pair(self, id: str) -> dict[str, float]:
        """Scores of one pair by metric."""
        place = self.ids.index(id)
        return {metric: float(values[place]) for metric, values in self.per_pair.items()}


class References:
    """References of a corpus, tokenised and counted once; scoring against them again is several times cheaper.

    Args:
        references: texts by pair id, or (id, texts).

    Raises:
        PairError: an id comes twice, a pair has no reference, or one is not text.
    """

    def __init__(self, references: Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]]) -> None:
        texts = _by_id(references, "references")
        empty = [id for id, of_pair in texts.items() if isinstance(of_pair, str) or not len(of_pair)]
        if empty:
            raise PairError(
                f"{len(empty)} of {len(texts)} pairs have no list of references: {_some(empty)}; "
                "give each pair a list with at least one text"
            )
        self.ids = list(texts)
        self.counts = ReferenceCounts(
            [[_tokens(id, text, "reference") for text in of_pair] for id, of_pair in texts.items()]
        )


def score_captions(
    candidates: Mapping[str, str] | Iterable[tuple[str, str]],
    references: Mapping[str, Sequence[str]] | References,
    meteor: bool = False,
) -> Scores:
    """Score one caption per pair against all references of the pair.

    BLEU, ROUGE-L and CIDEr-D equal pycocoevalcap's given the same tokens. Pairs come in the order of the references.

    Args:
        candidates: caption by pair id, or (id, caption); an empty caption is one that says nothing.
        references: references by pair id; the same ids.
        meteor: also run METEOR in Java.

    Raises:
        PairError: ids differ or come twice, a pair has no reference, or there is nothing to score.
    """
    texts = _by_id(candidates, "captions")
    if not texts:
        raise PairError("there are no captions to score")
    known: Mapping[str, object] = dict.fromkeys(references.ids) if isinstance(references, References) else references
    for name, have, lack in (("reference", texts, known), ("caption", known, texts)):
        absent = [id for id in have if id not in lack]
        if absent:
            raise PairError(
                f"{len(absent)} of {len(have)} pairs have no {name}: {_some(absent)}; "
                "captions and references must name the same pairs"
            )
    expected = references if isinstance(references, References) else References(references)
    said = [_tokens(id, texts[id], "caption") for id in expected.ids]
    corpus = Corpus(said, expected.counts)
    whole, each = bleu(corpus)
    rouge, rouge_each = rouge_l(corpus)
    cider, cider_each = cider_d(corpus)
    values = {f"BLEU-{n + 1}": float(whole[n]) for n in range(4)} | {"ROUGE-L": rouge, "CIDEr-D": cider}
    per_pair = {f"BLEU-{n + 1}": each[n] for n in range(4)} | {"ROUGE-L": rouge_each, "CIDEr-D": cider_each}
    missing: dict[str, str] = {}
    if meteor:
        outcome = meteor_scores(said, expected.counts.tokens)
        if isinstance(outcome, NotComputed):
            missing["METEOR"] = str(outcome)
        else:
            values["METEOR"], per_pair["METEOR"] = outcome[0], np.array(outcome[1])
    return Scores(
        {metric: 100 * value for metric, value in values.items()},
        {metric: 100 * value for metric, value in per_pair.items()},
        list(expected.ids),
        int(expected.counts.per_pair.sum()),
        missing,
    )


def _by_id(items: Mapping[str, T] | Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    if isinstance(items, Mapping):
        return dict(items)
    found: dict[str, T] = {}
    for id, item in items:
        if id in found:
            raise PairError(f"pair {id!r} has {what} twice; give each id once")
        found[id] = item
    return found


def _tokens(id: str, text: str, what: str) -> list[str]:
    if not isinstance(text, str):
        raise PairError(f"pair {id!r}: a {what} is {text!r}, which is no text; leave the pair out or give it text")
    return ptb_tokenize(text)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")

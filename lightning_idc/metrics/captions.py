"""Scores of a corpus of captions: one call, every metric, each pair named once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_idc.metrics.bleu import bleu
from lightning_idc.metrics.cider import cider_d
from lightning_idc.metrics.corpus import Corpus, Floats
from lightning_idc.metrics.meteor import NotComputed, meteor_scores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.pairs import PairError

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")


@dataclass  # not frozen: torchmetrics copies what a Metric computes field by field
class Scores:
    """Scores on the scale that papers print: times 100, with CIDEr-D's own factor of 10 taken out first.

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


def score_captions(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]], meteor: bool = False
) -> Scores:
    """Score one caption per pair against all references of the pair.

    BLEU, ROUGE-L and CIDEr-D equal pycocoevalcap's given the same tokens. CIDEr-D is printed as papers do:
    pycocoevalcap's value (0 to 10) times 100.

    Args:
        candidates: caption by pair id.
        references: references by pair id; the same ids.
        meteor: also run METEOR in Java.

    Raises:
        PairError: ids differ, a pair has no reference, or there is nothing to score.
    """
    if not candidates:
        raise PairError("there are no captions to score")
    for name, have, lack in (("reference", candidates, references), ("caption", references, candidates)):
        absent = [id for id in have if id not in lack]
        if absent:
            raise PairError(
                f"{len(absent)} of {len(have)} pairs have no {name}: {', '.join(map(repr, absent[:5]))}; "
                "captions and references must name the same pairs"
            )
    empty = [id for id, texts in references.items() if isinstance(texts, str) or not len(texts)]
    if empty:
        raise PairError(f"{len(empty)} pairs have no list of references: {', '.join(map(repr, empty[:5]))}")
    ids = list(candidates)
    said = [ptb_tokenize(candidates[id]) for id in ids]
    expected = [[ptb_tokenize(text) for text in references[id]] for id in ids]
    corpus = Corpus(said, expected)
    whole, each = bleu(corpus)
    rouge, rouge_each = rouge_l(corpus)
    cider, cider_each = cider_d(corpus)
    values = {f"BLEU-{n + 1}": 100 * float(whole[n]) for n in range(4)} | {
        "ROUGE-L": 100 * rouge,
        "CIDEr-D": 100 * cider,
    }
    per_pair = {f"BLEU-{n + 1}": 100 * each[n] for n in range(4)} | {
        "ROUGE-L": 100 * rouge_each,
        "CIDEr-D": 100 * cider_each,
    }
    missing: dict[str, str] = {}
    if meteor:
        outcome = meteor_scores(said, expected)
        if isinstance(outcome, NotComputed):
            missing["METEOR"] = str(outcome)
        else:
            values["METEOR"] = 100 * outcome[0]
            per_pair["METEOR"] = 100 * np.array(outcome[1])
    return Scores(values, per_pair, ids, sum(map(len, expected)), missing)

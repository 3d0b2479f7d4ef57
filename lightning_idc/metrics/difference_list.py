"""The protocol difference-list: each sentence of the references is a difference, each sentence of a caption a claim.

The scores of changed pairs are recall, precision and F1 of differences, as means over pairs; that of unchanged pairs is
specificity, the fraction of pairs whose caption makes no claim. A judge, which the result names, decides which claim
states which difference.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_idc.metrics.captions import Scores, ScoringResources, check_ids, check_metrics
from lightning_idc.metrics.judge import PromptedModel, fill
from lightning_idc.metrics.no_change import list_differences
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import DataError

Matches = list[int | None]
"""For each difference the index of the claim that states it; None where no claim does."""
DifferenceJudge = Callable[[Sequence[tuple[Sequence[str], Sequence[str]]]], list[Matches | None]]
"""Maps differences and claims of several pairs to matches; None for an unreadable answer."""
CHANGED, UNCHANGED = ("recall", "precision", "F1"), ("specificity",)

PROMPT = """Two images differ. First the differences that are there, then the claims that somebody made about them.

Differences:
{differences}

Claims:
{claims}

For each difference name the claim that states it. A claim states a difference if it names the same object and the \
same kind of change, in whatever words; it does not if object, attribute, direction, number or text contradict it. \
Each claim states one difference at most. Answer with one line for each difference: its number, a colon, and the \
letter of the claim or "none". Write nothing else."""
PROMPT_VERSION = "difference-list-1"


def by_differences(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    resources: ScoringResources,
) -> Scores:
    """Score one part of the protocol: changed or unchanged pairs.

    Args:
        captions: caption by pair id; each sentence or line is a claim, unless it says that nothing changed.
        references: differences by pair id, from ``grouping.differences``; an empty list where nothing changed.
        metrics: names among recall, precision, F1 and specificity.
        resources: scoring resources, with the judge.

    Raises:
        ConfigError: a metric is unknown.
        DataError: ids differ, or no answer of the judge could be read.
    """
    check_metrics(metrics, (*CHANGED, *UNCHANGED))
    check_ids(captions, references)
    ids = list(references)
    claims = [list_differences([captions[id]]) for id in ids]
    if not any(references.values()):
        is_empty = np.array([100.0 * (not pair_claims) for pair_claims in claims])
        per_pair = {name: is_empty for name in UNCHANGED if name in metrics}
        return Scores({name: float(is_empty.mean()) for name in per_pair}, per_pair, ids, len(ids))
    judge = resources.judge or lexical_judge
    indices = [index for index, id in enumerate(ids) if claims[index]]
    matches_of: dict[int, Matches | None] = dict(
        zip(indices, judge([(references[ids[index]], claims[index]) for index in indices]), strict=True)
    )
    rows, scored_ids, num_unread = [], [], 0
    for index, id in enumerate(ids):
        matches = matches_of.get(index, [None] * len(references[id]))
        if matches is None:
            num_unread += 1
            continue
        scored_ids.append(id)
        rows.append(_rates(matches, len(references[id]), len(claims[index])))
    if not rows:
        raise DataError("no answer of the judge could be read; use another judge")
    table = 100 * np.array(rows)
    per_pair = {name: table[:, column] for column, name in enumerate(CHANGED) if name in metrics}
    missing = {"unread": f"{num_unread} of {len(ids)} answers of the judge could not be read"} if num_unread else {}
    values = {name: float(pair_scores.mean()) for name, pair_scores in per_pair.items()}
    return Scores(values, per_pair, scored_ids, sum(len(references[id]) for id in scored_ids), missing)


def _rates(matches: Matches, num_differences: int, num_claims: int) -> tuple[float, float, float]:
    num_stated = len({match for match in matches if match is not None})
    recall, precision = num_stated / num_differences, num_stated / num_claims if num_claims else 0.0
    return recall, precision, 2 * recall * precision / max(recall + precision, 1e-12)


def lexical_judge(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], threshold: float = 0.5) -> list[Matches | None]:
    """A judge that compares words: the baseline with which a language model must agree better than by chance.

    Args:
        pairs: differences and claims of each pair.
        threshold: minimum F1 of word counts at which a claim states a difference.
    """
    return [best_matches(differences, claims, _word_f1, threshold) for differences, claims in pairs]


LEXICAL: tuple[str, DifferenceJudge] = "lexical, half of the words", lexical_judge
"""Name and function of the default judge."""


def best_matches(
    differences: Sequence[str], claims: Sequence[str], similarity: Callable[[str, str], float], threshold: float
) -> Matches:
    """The assignment of claims to differences with the highest total similarity.

    Args:
        differences: differences of a pair.
        claims: claims about the pair.
        similarity: similarity of a difference and a claim, 0 to 1.
        threshold: minimum similarity of a match.
    """
    from scipy.optimize import linear_sum_assignment

    rows = [[similarity(difference, claim) for claim in claims] for difference in differences]
    table = np.array(rows).reshape(len(differences), len(claims))
    table = np.where(table >= threshold, table, 0)
    matches: Matches = [None] * len(differences)
    for row, column in zip(*linear_sum_assignment(table, maximize=True), strict=True):
        if table[row, column] > 0:
            matches[int(row)] = int(column)
    return matches


def _word_f1(first: str, second: str) -> float:
    first_words, second_words = Counter(ptb_tokenize(first)), Counter(ptb_tokenize(second))
    return 2 * (first_words & second_words).total() / max(first_words.total() + second_words.total(), 1)


class PromptedJudge(PromptedModel):
    """A language model as judge of which claim states which difference."""

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
        def read(index: int, answer: str) -> Matches | None:
            return read_matches(answer, *map(len, pairs[index]))

        return self.ask([prompt_of(*pair) for pair in pairs], read)


def prompt_of(differences: Sequence[str], claims: Sequence[str]) -> str:
    """Prompt of the judge for one pair."""
    numbered = "\n".join(f"{number}: {text}" for number, text in enumerate(differences, 1))
    lettered = "\n".join(f"{letter}: {text}" for letter, text in zip(_letters(len(claims)), claims, strict=True))
    return fill(PROMPT, differences=numbered, claims=lettered)


def _letters(count: int) -> list[str]:
    lengths = (itertools.product(string.ascii_lowercase, repeat=length) for length in itertools.count(1))
    return ["".join(signs) for signs in itertools.islice(itertools.chain.from_iterable(lengths), count)]


def read_matches(answer: str, num_differences: int, num_claims: int) -> Matches | None:
    """Matches of an answer; None unless each difference is answered once and no claim is named twice.

    Args:
        answer: text of the judge.
        num_differences: number of differences.
        num_claims: number of claims.

    Example:
        >>> read_matches("1: b\\n2: none", 2, 2)
        [1, None]
    """
    letters = {letter: index for index, letter in enumerate(_letters(num_claims))}
    longest = max([2, *map(len, letters)])
    line = rf"^\W*(\d{{1,3}})\W*[:.)-]\W*(none|[a-z]{{1,{longest}}})\b"
    matches: dict[int, int | None] = {}
    for number, name in re.findall(line, answer.lower(), re.MULTILINE):
        index = int(number) - 1
        if index in matches or not 0 <= index < num_differences or (name != "none" and name not in letters):
            return None
        matches[index] = letters.get(name)
    named = [match for match in matches.values() if match is not None]
    if len(matches) < num_differences or len(set(named)) < len(named):
        return None
    return [matches[index] for index in range(num_differences)]


def agreement(first: Sequence[Matches | None], second: Sequence[Matches | None]) -> float | None:
    """Cohen's kappa of two judges over differences: whether each is stated by some claim.

    Args:
        first: matches of each pair by one judge.
        second: matches of each pair by the other judge; pairs with an unreadable answer of either do not count.

    Returns:
        1 for full agreement, 0 for chance; None where both judges always give the same single answer.
    """
    read = [pair for pair in zip(first, second, strict=True) if None not in pair]
    is_stated = [
        (one is not None, other is not None)
        for of_first, of_second in read
        for one, other in zip(of_first or (), of_second or (), strict=True)
    ]
    if not is_stated:
        return None
    observed = np.mean([by_first == by_second for by_first, by_second in is_stated])
    rates = np.mean(is_stated, axis=0)
    expected = float(rates[0] * rates[1] + (1 - rates[0]) * (1 - rates[1]))
    return None if expected >= 1 else float((observed - expected) / (1 - expected))


@dataclass
class RecordingJudge:
    """A judge that stores its decisions, so that its agreement with word overlap can be reported.

    Args:
        name: name in results.
        judge: function that decides.
    """

    name: str
    judge: DifferenceJudge
    pairs: list[tuple[Sequence[str], Sequence[str]]] = field(default_factory=list)
    matches: list[Matches | None] = field(default_factory=list)

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
        matches = self.judge(pairs)
        self.pairs += pairs
        self.matches += matches
        return matches

    def as_dict(self) -> dict[str, Any]:
        """Name, and Cohen's kappa with the judge that compares words."""
        kappa = None if self.judge is lexical_judge else agreement(self.matches, lexical_judge(self.pairs))
        unread = sum(matches is None for matches in self.matches)
        return {"judge": self.name, "pairs": len(self.pairs), "unread": unread, "kappa_with_words": kappa}

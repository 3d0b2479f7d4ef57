"""Captions as lists of differences: how many of those that are there are named, and how many of those named are there.

On pairs that changed: recall, precision and F1 of differences, means over pairs. On pairs that did not: specificity,
the share of which nothing is claimed. Which claim states which difference is a judge's decision; the result names it.
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
from lightning_idc.metrics.judge import TextModel, ask_until_read
from lightning_idc.metrics.no_change import list_differences
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import DataError

Matches = list[int | None]
"""For each difference that is there the place of the claim that states it; None where no claim does."""
DifferenceJudge = Callable[[Sequence[tuple[Sequence[str], Sequence[str]]]], list[Matches | None]]
"""From differences and claims of several pairs to their matches; None where its answer could not be read."""
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
    """Score one part of the protocol: pairs that changed, or pairs that did not.

    Args:
        captions: by pair; each sentence or line is a claim, and one that says nothing changed is none.
        references: differences by pair, from ``grouping.differences``; an empty list where nothing changed.
        metrics: of recall, precision, F1 and specificity.
        resources: with the judge.

    Raises:
        ConfigError: a metric is none of these.
        DataError: ids differ, or no answer of the judge could be read.
    """
    check_metrics(metrics, (*CHANGED, *UNCHANGED))
    check_ids(captions, references)
    ids = list(references)
    claims = [list_differences([captions[id]]) for id in ids]
    if not any(references.values()):
        silent = np.array([100.0 * (not of_pair) for of_pair in claims])
        per_pair = {name: silent for name in UNCHANGED if name in metrics}
        return Scores({name: float(silent.mean()) for name in per_pair}, per_pair, ids, len(ids))
    judge = resources.judge or lexical_judge
    asked = [place for place, id in enumerate(ids) if claims[place]]
    found: dict[int, Matches | None] = dict(
        zip(asked, judge([(references[ids[place]], claims[place]) for place in asked]), strict=True)
    )
    rows, kept, unread = [], [], 0
    for place, id in enumerate(ids):
        matches = found.get(place, [None] * len(references[id]))
        if matches is None:
            unread += 1
            continue
        kept.append(id)
        rows.append(_rates(matches, len(references[id]), len(claims[place])))
    if not rows:
        raise DataError("no answer of the judge could be read, so there is nothing to score; ask another judge")
    table = 100 * np.array(rows)
    per_pair = {name: table[:, column] for column, name in enumerate(CHANGED) if name in metrics}
    missing = {"unread": f"{unread} of {len(ids)} answers of the judge could not be read"} if unread else {}
    values = {name: float(of_pairs.mean()) for name, of_pairs in per_pair.items()}
    return Scores(values, per_pair, kept, sum(len(references[id]) for id in kept), missing)


def _rates(matches: Matches, there: int, claimed: int) -> tuple[float, float, float]:
    stated = len({match for match in matches if match is not None})
    recall, precision = stated / there, stated / claimed if claimed else 0.0
    return recall, precision, 2 * recall * precision / max(recall + precision, 1e-12)


def lexical_judge(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], threshold: float = 0.5) -> list[Matches | None]:
    """A judge that compares words: the baseline that a language model must agree with better than by chance.

    Args:
        pairs: differences and claims of each pair.
        threshold: F1 of words, each counted as often as it is said, from which on a claim states a difference.
    """
    return [best_matches(there, claims, _word_f1, threshold) for there, claims in pairs]


LEXICAL: tuple[str, DifferenceJudge] = "lexical, half of the words", lexical_judge
"""Name and judge of the protocol where no other is named."""


def best_matches(
    there: Sequence[str], claims: Sequence[str], alike: Callable[[str, str], float], threshold: float
) -> Matches:
    """The assignment of claims to differences that agrees best, without pairs that agree too little.

    Args:
        there: differences.
        claims: about them.
        alike: of a difference and a claim, 0 to 1.
        threshold: from which on a claim states a difference.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.array([[alike(one, other) for other in claims] for one in there]).reshape(len(there), len(claims))
    table = np.where(table >= threshold, table, 0)
    matches: Matches = [None] * len(there)
    for row, column in zip(*linear_sum_assignment(table, maximize=True), strict=True):
        if table[row, column] > 0:
            matches[int(row)] = int(column)
    return matches


def _word_f1(first: str, second: str) -> float:
    one, other = Counter(ptb_tokenize(first)), Counter(ptb_tokenize(second))
    return 2 * (one & other).total() / max(one.total() + other.total(), 1)


@dataclass
class PromptedJudge:
    """A language model as judge of which claim states which difference.

    Args:
        model: answers prompts.
        retries: further tries for answers that cannot be read.
        batch_size: prompts per call of the model.
    """

    model: TextModel
    retries: int = 2
    batch_size: int = 8

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
        def read(place: int, answer: str) -> Matches | None:
            return read_matches(answer, *map(len, pairs[place]))

        prompts = [prompt_of(*pair) for pair in pairs]
        return ask_until_read(self.model, prompts, read, self.retries, self.batch_size)[0]


def prompt_of(there: Sequence[str], claims: Sequence[str]) -> str:
    """The prompt about one pair."""
    differences = "\n".join(f"{number}: {text}" for number, text in enumerate(there, 1))
    lettered = "\n".join(f"{letter}: {text}" for letter, text in zip(_letters(len(claims)), claims, strict=True))
    # format() would read braces of captions, too
    filled = {"{differences}": differences, "{claims}": lettered}
    return re.sub(r"\{differences\}|\{claims\}", lambda mark: filled[mark.group()], PROMPT)


def _letters(count: int) -> list[str]:
    every = (itertools.product(string.ascii_lowercase, repeat=length) for length in itertools.count(1))
    return ["".join(signs) for signs in itertools.islice(itertools.chain.from_iterable(every), count)]


def read_matches(answer: str, there: int, claims: int) -> Matches | None:
    """Matches of an answer; None unless each difference is answered once and no claim is named twice.

    Args:
        answer: as the judge wrote it.
        there: number of differences.
        claims: number of claims.

    Example:
        >>> read_matches("1: b\\n2: none", 2, 2)
        [1, None]
    """
    letters = {letter: place for place, letter in enumerate(_letters(claims))}
    longest = max([2, *map(len, letters)])
    line = rf"^\W*(\d{{1,3}})\W*[:.)-]\W*(none|[a-z]{{1,{longest}}})\b"
    found: dict[int, int | None] = {}
    for number, said in re.findall(line, answer.lower(), re.MULTILINE):
        place = int(number) - 1
        if place in found or not 0 <= place < there or (said != "none" and said not in letters):
            return None
        found[place] = letters.get(said)
    named = [match for match in found.values() if match is not None]
    if len(found) < there or len(set(named)) < len(named):
        return None
    return [found[place] for place in range(there)]


def agreement(first: Sequence[Matches | None], second: Sequence[Matches | None]) -> float | None:
    """Cohen's kappa of two judges over differences: whether each is stated by some claim.

    Args:
        first: matches of each pair, by one judge.
        second: by the other; pairs that either left unread do not count.

    Returns:
        1 for full agreement, 0 for that of chance; None where one answer is all that either ever gave.
    """
    read = [pair for pair in zip(first, second, strict=True) if None not in pair]
    both = [(a is not None, b is not None) for one, other in read for a, b in zip(one or (), other or (), strict=True)]
    if not both:
        return None
    observed = np.mean([one == other for one, other in both])
    shares = np.mean(both, axis=0)
    expected = float(shares[0] * shares[1] + (1 - shares[0]) * (1 - shares[1]))
    return None if expected >= 1 else float((observed - expected) / (1 - expected))


@dataclass
class Recorded:
    """A judge whose decisions about one file are kept, to say how far another one agrees.

    Args:
        name: for results.
        judge: that decides.
    """

    name: str
    judge: DifferenceJudge
    pairs: list[tuple[Sequence[str], Sequence[str]]] = field(default_factory=list)
    matches: list[Matches | None] = field(default_factory=list)

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
        found = self.judge(pairs)
        self.pairs += pairs
        self.matches += found
        return found

    def as_dict(self) -> dict[str, Any]:
        """Name, and Cohen's kappa with the judge that compares words."""
        same = self.judge is lexical_judge
        kappa = None if same else agreement(self.matches, lexical_judge(self.pairs))
        unread = sum(matches is None for matches in self.matches)
        return {"judge": self.name, "pairs": len(self.pairs), "unread": unread, "kappa_with_words": kappa}

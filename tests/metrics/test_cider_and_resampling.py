"""CIDEr against its equations, resampled scores against scores of the resampled corpus, diversity."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lightning_idc.metrics import bootstrap as resampling
from lightning_idc.metrics.bootstrap import bootstrap, compare
from lightning_idc.metrics.captions import FAST_METRICS, References, Scores, ScoringResources, score_captions
from lightning_idc.metrics.cider import cider, cider_d
from lightning_idc.metrics.corpus import Corpus, ReferenceCounts
from lightning_idc.metrics.diversity import diversity
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.protocols import evaluate, protocol_named
from lightning_idc.utils.errors import ConfigError, DataError

WORDS = ["a", "the", "small", "red", "cube", "sphere", "moved", "left", "gone", "now"]


def corpus_of(pairs: int, seed: int) -> tuple[list[list[str]], list[list[list[str]]]]:
    generator = random.Random(seed)
    expected = [
        [generator.choices(WORDS, k=generator.randint(1, 9)) for _ in range(generator.randint(1, 3))]
        for _ in range(pairs)
    ]
    candidates = [generator.choice(of_pair)[: generator.randint(0, 9)] for of_pair in expected]
    return candidates, expected


def by_equations(
    candidates: list[list[str]], expected: list[list[list[str]]], documents: list[list[list[str]]], clipped: bool
) -> list[float]:
    """CIDEr (equations 1 to 3) and CIDEr-D (equation 4), from dictionaries of n-grams."""

    def grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
        return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    scores = []
    for candidate, references in zip(candidates, expected, strict=True):
        total = 0.0
        for n in range(1, 5):
            seen = Counter(gram for texts in documents for gram in {g for text in texts for g in grams(text, n)})

            def weighed(tokens: list[str], n: int = n, seen: Counter = seen) -> dict[tuple[str, ...], float]:
                return {g: c * math.log(len(documents) / max(1, seen[g])) for g, c in grams(tokens, n).items()}

            hypothesis = weighed(candidate)
            for reference in references:
                expected_weights = weighed(reference)
                norms = math.hypot(*hypothesis.values()) * math.hypot(*expected_weights.values())
                dot = sum(
                    (min(w, expected_weights.get(g, 0)) if clipped else w) * expected_weights.get(g, 0)
                    for g, w in hypothesis.items()
                )
                delta = max(len(candidate) - 1, 0) - max(len(reference) - 1, 0)
                penalty = math.exp(-(delta**2) / 72) if clipped else 1
                total += penalty * dot / norms / len(references) if norms else 0
        scores.append(10 * total / 4)
    return scores


@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
def test_cider_follows_its_equations(clipped: bool, foreign: bool) -> None:
    candidates, expected = corpus_of(30, seed=1)
    candidates[0] = ["unheard", "of", "red", "cube"]
    documents = corpus_of(50, seed=2)[1] if foreign else expected
    frequencies = ReferenceCounts(documents) if foreign else None
    score = cider_d if clipped else cider
    corpus_score, each = score(Corpus(candidates, expected), frequencies)
    equations = by_equations(candidates, expected, documents, clipped)
    np.testing.assert_allclose(each, equations, atol=1e-12)
    assert corpus_score == pytest.approx(sum(equations) / len(equations), abs=1e-12)


def test_frequencies_of_the_same_references_change_nothing() -> None:
    candidates, expected = corpus_of(40, seed=3)
    for score in (cider, cider_d):
        own, foreign = (
            score(Corpus(candidates, expected)),
            score(Corpus(candidates, expected), ReferenceCounts(expected)),
        )
        np.testing.assert_allclose(own[1], foreign[1], atol=1e-12)


def texts(pairs: int, seed: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    candidates, expected = corpus_of(pairs, seed)
    return (
        {str(n): " ".join(tokens) for n, tokens in enumerate(candidates)},
        {str(n): [" ".join(tokens) for tokens in of_pair] for n, of_pair in enumerate(expected)},
    )


def test_resampled_scores_equal_scoring_the_resampled_corpus() -> None:
    """A draw with repeats equals the score of a corpus that repeats pairs, with the original document frequencies."""
    candidates, expected = texts(12, seed=4)
    metrics = [*FAST_METRICS, "METEOR"]
    scores = score_captions(candidates, expected, metrics)
    weights = np.array([[3, 0, 1, 2, 0, 0, 1, 1, 0, 2, 1, 1]], dtype=np.float64)
    copies = [(id, copy) for id, times in zip(scores.ids, weights[0], strict=True) for copy in range(int(times))]
    drawn = score_captions(
        {f"{id}/{copy}": candidates[id] for id, copy in copies},
        {f"{id}/{copy}": expected[id] for id, copy in copies},
        metrics,
        ScoringResources(References(expected)),
    )
    result = resampling._resampled(scores, weights)
    for name, value in drawn.values.items():
        assert result[name][0] == pytest.approx(value, abs=1e-9), name


def test_block_size_does_not_change_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, expected = texts(61, seed=5)
    scores = score_captions(candidates, expected)
    whole = bootstrap(scores, 130)
    monkeypatch.setattr(resampling, "_MAX_WEIGHTS", 7 * 61)
    for name, result in bootstrap(scores, 130).items():
        assert (result.low, result.high) == pytest.approx((whole[name].low, whole[name].high), abs=1e-9)


@pytest.mark.parametrize(("pairs", "samples"), [(2, 3), (300, 130), (70_000, 70)])
def test_samples_follow_the_seed(monkeypatch: pytest.MonkeyPatch, pairs: int, samples: int) -> None:
    """Published intervals stay reproducible."""
    monkeypatch.setattr(resampling, "_MAX_CACHED", 700)
    generator = np.random.default_rng(5)
    blocks = [block.copy() for block in resampling._pair_weights(pairs, samples, 5)]
    for weights in np.concatenate(blocks):
        assert (weights == np.bincount(generator.integers(pairs, size=pairs), minlength=pairs)).all()
    assert sum(map(len, blocks)) == samples


def test_records_of_a_pair_are_resampled_together() -> None:
    """Five references of a pair, scored one by one, carry no more information on other pairs than their mean."""
    generator = random.Random(1)
    words = "abcdefghijklmnop"
    records, captioners = [], ({}, {})  # type: tuple[list[ReferenceRecord], tuple[dict[str, str], dict[str, str]]]
    for number in range(60):
        spoken = generator.choices(words, k=6)
        references = tuple(" ".join([*spoken[:5], generator.choice(words)]) for _ in range(5))
        records.append(ReferenceRecord(f"pair {number}", references))
        for captions in captioners:
            captions[f"pair {number}"] = " ".join(spoken) if generator.random() < 0.5 else "z y x"
    of_records = [evaluate(protocol_named("interleave-rouge"), captions, records)["all"] for captions in captioners]
    of_pairs = [
        Scores(scores.values, {"ROUGE-L": scores.per_pair["ROUGE-L"].reshape(60, 5).mean(1)}, list(captions), 300)
        for scores, captions in zip(of_records, captioners, strict=True)
    ]
    assert [(scores.pairs, scores.records) for scores in of_records] == [(60, 300)] * 2
    whole, means = (bootstrap(scores[0])["ROUGE-L"] for scores in (of_records, of_pairs))
    assert (whole.low, whole.high) == pytest.approx((means.low, means.high))
    result, expected = (compare(*scores)["ROUGE-L"].as_dict() for scores in (of_records, of_pairs))
    assert result == pytest.approx(expected)


def test_resampled_pairs_keep_all_records() -> None:
    """For pairs with one to three records, a draw of pairs equals the score of all their records."""
    candidates, expected = texts(6, seed=7)
    metrics = ["BLEU", "METEOR", "ROUGE-L"]
    pair_of = dict(zip(expected, "abbccc", strict=True))
    scores = replace(score_captions(candidates, expected, metrics), records_of=pair_of)
    times = {"a": 3, "b": 0, "c": 2}
    copies = [(id, copy) for id in scores.ids for copy in range(times[pair_of[id]])]
    drawn = score_captions(
        {f"{id}/{copy}": candidates[id] for id, copy in copies},
        {f"{id}/{copy}": expected[id] for id, copy in copies},
        metrics,
    )
    result = resampling._resampled(scores, np.array([[times[pair_of[id]] for id in scores.ids]], dtype=np.float64))
    for name, value in drawn.values.items():
        assert result[name][0] == pytest.approx(value, abs=1e-9), name
    blocks = list(resampling._record_weights(scores, 20, 0))
    assert all((block[:, 1] == block[:, 2]).all() and (block[:, 3] == block[:, 5]).all() for block in blocks)
    assert all((block[:, [0, 1, 3]].sum(1) == scores.pairs).all() for block in blocks)


def test_intervals_hold_the_score_and_are_reproducible() -> None:
    candidates, expected = texts(60, seed=5)
    scores = score_captions(candidates, expected)
    intervals = bootstrap(scores, 300, seed=1)
    assert intervals == bootstrap(scores, 300, seed=1) != bootstrap(scores, 300, seed=2)
    for name, interval in intervals.items():
        assert interval.low < scores.values[name] < interval.high, name
    wide = bootstrap(scores, 300, confidence=0.99, seed=1)
    assert wide["ROUGE-L"].low < intervals["ROUGE-L"].low
    # the mean of ROUGE-L has a known standard error
    error = scores.per_pair["ROUGE-L"].std(ddof=1) / math.sqrt(60)
    width = intervals["ROUGE-L"].high - intervals["ROUGE-L"].low
    assert width == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_a_captioner_against_itself_and_against_a_better_one() -> None:
    candidates, expected = texts(60, seed=6)
    scores = score_captions(candidates, expected)
    same = compare(scores, scores, 200)["CIDEr-D"]
    assert (same.difference, same.p, same.wins, same.losses) == (0, 1, 0, 0)
    better = score_captions({id: of_pair[0] for id, of_pair in expected.items()}, expected)
    result = compare(scores, better, 200)["ROUGE-L"]
    assert result.difference == pytest.approx(better.values["ROUGE-L"] - scores.values["ROUGE-L"])
    assert result.low > 0 and result.losses == 0 and result.p == pytest.approx(2 / 201)
    mirrored = compare(better, scores, 200)["ROUGE-L"]
    assert (mirrored.wins, mirrored.losses) == (0, result.wins)
    assert mirrored.high == pytest.approx(-result.low)


def test_comparing_needs_the_same_pairs() -> None:
    first = score_captions({"a": "x", "b": "y"}, {"a": ["x"], "b": ["y"]})
    second = score_captions({"a": "x", "c": "y"}, {"a": ["x"], "c": ["y"]})
    with pytest.raises(DataError, match="2 pairs are scored for only one of them: 'b', 'c'"):
        compare(first, second)
    with pytest.raises(DataError, match="at least two"):
        bootstrap(score_captions({"a": "x"}, {"a": ["x"]}))
    with pytest.raises(ConfigError, match="confidence is 1; expected a number above 0 and less than 1"):
        bootstrap(first, confidence=1)


def test_remarks_report_collapse() -> None:
    varied = diversity(["The cube moved.", "the cube moved", "there is no change", "", "a b c a b c"])
    assert (varied.captions, varied.distinct, varied.most_common) == (5, 3 / 5, "the cube moved")
    assert (varied.most_common_share, varied.empty, varied.no_change) == (2 / 5, 1 / 5, 1 / 5)
    assert (varied.words, varied.longest, varied.vocabulary) == (16 / 5, 6, 10)
    assert varied.repeating == 1 / 5
    assert varied.distinct_2 == (2 + 3 + 3) / (2 + 2 + 3 + 5)
    assert varied.remarks() == [
        "20.0% of all captions are empty",
        "20% of all captions repeat a sequence of three words",
    ]
    collapsed = diversity(["the cube moved"] * 9 + ["it is gone"])
    assert collapsed.remarks() == ["90% of all captions are 'the cube moved'"]


def test_no_change_is_counted_in_any_wording() -> None:
    candidates = [
        "The images are identical.",
        "I cannot see any differences.",
        "as ever",
        "The scene is the same. A dog appeared.",
    ]
    assert diversity(candidates).no_change == 2 / 4
    assert diversity([*candidates, "As ever!"], ["as ever"]).no_change == 4 / 5, "a sentence of the data"

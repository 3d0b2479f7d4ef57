"""BLEU, ROUGE-L and CIDEr-D against pycocoevalcap on the same tokens."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_idc.metrics.bleu import bleu
from lightning_idc.metrics.captions import References, score_captions
from lightning_idc.metrics.cider import cider_d
from lightning_idc.metrics.corpus import Corpus, ReferenceCounts
from lightning_idc.metrics.metric import CaptionScores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.utils.errors import DataError

WORDS = ["a", "the", "small", "red", "blue", "cube", "sphere", "moved", "left", "of", "is", "gone", "now", "there"]


def corpus_of(pairs: int, references: int, seed: int) -> tuple[list[list[str]], list[list[list[str]]]]:
    generator = random.Random(seed)

    def sentence(min_words: int = 0) -> list[str]:
        return generator.choices(WORDS, k=generator.randint(min_words, 12))

    candidates = [sentence() for _ in range(pairs)]
    expected = [[sentence(1) for _ in range(generator.randint(1, references))] for _ in range(pairs)]
    for number in range(0, pairs, 3):  # some captions must be right, since all scores would be 0 otherwise
        candidates[number] = list(expected[number][0])
    return candidates, expected


def oracle(candidates: list[list[str]], references: list[list[list[str]]]) -> dict[str, tuple[object, object]]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    captions = {number: [" ".join(tokens)] for number, tokens in enumerate(candidates)}
    expected = {number: [" ".join(tokens) for tokens in of_pair] for number, of_pair in enumerate(references)}
    with contextlib.redirect_stdout(io.StringIO()):
        return {
            "bleu": Bleu(4).compute_score(expected, captions),
            "rouge": Rouge().compute_score(expected, captions),
            "cider": Cider().compute_score(expected, captions),
        }


def assert_equal_to_oracle(candidates: list[list[str]], references: list[list[list[str]]]) -> None:
    expected = oracle(candidates, references)
    corpus = Corpus(candidates, references)
    for name, scores in (("bleu", bleu(corpus)), ("rouge", rouge_l(corpus)), ("cider", cider_d(corpus))):
        np.testing.assert_allclose(scores[0], expected[name][0], atol=1e-9, err_msg=name)
        np.testing.assert_allclose(scores[1], np.array(expected[name][1]), atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("pairs", "references"), [(1, 1), (1, 5), (2, 3), (40, 5), (400, 3)])
def test_scores_equal_pycocoevalcap(pairs: int, references: int) -> None:
    assert_equal_to_oracle(*corpus_of(pairs, references, seed=pairs + references))


def test_empty_captions_score_as_in_pycocoevalcap() -> None:
    assert_equal_to_oracle([[], ["red"]], [[["red", "cube"]], [["red"], []]])
    assert_equal_to_oracle([[], []], [[["red", "cube"]], [["a", "b", "c", "d", "e"]]])


sentences = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=7)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sentences, st.lists(sentences, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_any_small_corpus_equals_pycocoevalcap(pairs: list[tuple[list[str], list[list[str]]]]) -> None:
    # pycocoevalcap fails if all references are empty
    assume(any(reference for _, of_pair in pairs for reference in of_pair))
    assert_equal_to_oracle([candidate for candidate, _ in pairs], [expected for _, expected in pairs])


@pytest.mark.slow
def test_real_references_score_equal_end_to_end(shared: object) -> None:
    """Image Editing Request: the first test reference of each pair against the others, with the Java tokenizer."""
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    import json

    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    records = json.loads((Path(str(shared)) / "realdata/annotations/image_editing_request/test.json").read_text())
    texts = {r["uid"]: r["sents"] for r in records}
    candidates = {id: sents[0] for id, sents in texts.items()}
    references = {id: sents[1:] for id, sents in texts.items()}
    scores = score_captions(candidates, references)
    with contextlib.redirect_stderr(io.StringIO()):
        tokens = PTBTokenizer().tokenize({id: [{"caption": text}] for id, text in candidates.items()})
        expected = PTBTokenizer().tokenize({id: [{"caption": t} for t in ts] for id, ts in references.items()})
    oracle_scores = oracle([tokens[id][0].split() for id in texts], [[t.split() for t in expected[id]] for id in texts])
    bleus: Sequence[float] = oracle_scores["bleu"][0]  # type: ignore[assignment]
    assert scores.values["BLEU-4"] == pytest.approx(100 * bleus[3], abs=1e-3)
    assert scores.values["ROUGE-L"] == pytest.approx(100 * float(oracle_scores["rouge"][0]), abs=1e-3)  # type: ignore[arg-type]
    assert scores.values["CIDEr-D"] == pytest.approx(100 * float(oracle_scores["cider"][0]), abs=1e-3)  # type: ignore[arg-type]


def test_mismatched_ids_are_reported() -> None:
    with pytest.raises(DataError, match="1 of 2 pairs have no reference: 'b'"):
        score_captions({"a": "x", "b": "y"}, {"a": ["x"]})
    with pytest.raises(DataError, match="1 of 2 pairs have no caption: 'c'"):
        score_captions({"a": "x"}, {"a": ["x"], "c": ["y"]})
    with pytest.raises(DataError, match="no list of references: 'a'"):
        score_captions({"a": "x"}, {"a": []})
    with pytest.raises(DataError, match="no captions to score"):
        score_captions({}, {})


def test_rejects_repeated_ids_and_captions_that_are_not_text() -> None:
    with pytest.raises(DataError, match="pair 'a' has captions twice"):
        score_captions([("a", "x"), ("a", "y")], {"a": ["x"]})
    with pytest.raises(DataError, match="pair 'a' has references twice"):
        References([("a", ["x"]), ("a", ["y"])])
    with pytest.raises(DataError, match="pair 'a': a caption is None"):
        score_captions({"a": None}, {"a": ["x"]})  # type: ignore[dict-item]
    with pytest.raises(DataError, match="pair 'b': a reference is 3"):
        References({"b": [3]})  # type: ignore[list-item]


def test_prepared_references_serve_many_candidates() -> None:
    """Words that are in no reference still count in lengths and norms."""
    _, expected = corpus_of(30, 4, seed=8)
    counts = ReferenceCounts(expected)
    generator = random.Random(0)
    for _ in range(3):
        candidates = [generator.choices([*WORDS, "new", "unseen"], k=generator.randint(0, 9)) for _ in expected]
        candidates[3] = ["unseen"] * 6
        oracle_scores = oracle(candidates, expected)
        corpus = Corpus(candidates, counts)
        for name, scores in (("bleu", bleu(corpus)), ("rouge", rouge_l(corpus)), ("cider", cider_d(corpus))):
            np.testing.assert_allclose(scores[0], oracle_scores[name][0], atol=1e-9, err_msg=name)
            np.testing.assert_allclose(scores[1], np.array(oracle_scores[name][1]), atol=1e-9, err_msg=name)


def test_pairs_come_in_the_order_of_the_references() -> None:
    scores = score_captions({"b": "red cube", "a": "blue ball"}, References({"a": ["blue ball"], "b": ["green"]}))
    assert scores.ids == ["a", "b"]
    assert scores.of_pair("a")["BLEU-1"] == pytest.approx(100, abs=1e-4)
    assert scores.of_pair("b")["BLEU-1"] == pytest.approx(0, abs=1e-4)
    assert (scores.pairs, scores.references) == (2, 2)


def test_the_metric_scores_once_and_resets() -> None:
    metric = CaptionScores()
    records = [{"id": str(n), "caption": "the cube moved", "references": ["the cube moved"]} for n in range(3)]
    metric.update(records[:2])
    metric.update(records[1:])
    seen, scores = metric.compute()
    assert [r["id"] for r in seen] == ["0", "1", "2"]
    assert scores is not None and scores.pairs == 3
    assert scores.values["BLEU-1"] == pytest.approx(100, abs=1e-6)
    metric.reset()
    assert metric.compute() == ([], None)

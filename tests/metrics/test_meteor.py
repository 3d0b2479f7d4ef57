"""METEOR: the words each matcher finds, the aligner against all alignments, the index of paraphrases, and the jar."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snowballstemmer.english_stemmer import EnglishStemmer

from lightning_idc.cli import main
from lightning_idc.metrics import meteor
from lightning_idc.metrics.captions import STANDARD_METRICS, ScoringResources, score_captions
from lightning_idc.metrics.meteor import (
    MeteorScores,
    NotComputed,
    java,
    meteor_scores,
    normalizer,
    paraphrase_index,
    scorer,
)
from lightning_idc.metrics.meteor.normalizer import normalize
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder
from lightning_idc.metrics.results import IMPLEMENTATIONS
from lightning_idc.utils.errors import ConfigError

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
KINDS = ("exact", "stem", "synonym", "paraphrase")
FOLDER = pycocoevalcap_folder()


def scored(said: list[str], expected: list[list[str]], backend: meteor.Backend = "python") -> MeteorScores:
    outcome = meteor_scores([text.split() for text in said], [[t.split() for t in of] for of in expected], backend)
    assert isinstance(outcome, MeteorScores), outcome
    return outcome


def matched(said: str, expected: str) -> dict[str, tuple[int, int]]:
    """Return the number of matched words of the candidate and of the reference for each matcher."""
    counts = scored([said], [[expected]]).statistics[4:20, 0].reshape(4, 4).astype(int)
    found = {kind: (int(row[0] + row[2]), int(row[1] + row[3])) for kind, row in zip(KINDS, counts, strict=True)}
    return {kind: words for kind, words in found.items() if any(words)}


@pytest.mark.parametrize(
    ("said", "expected", "found"),
    [
        ("red cube", "red cube", {"exact": (2, 2)}),
        ("Red CUBE.", "red cube .", {"exact": (3, 3)}),
        ("the cubes", "the cube", {"exact": (1, 1), "stem": (1, 1)}),
        ("a big sofa", "a large couch", {"exact": (1, 1), "synonym": (2, 2)}),
        ("mice", "mouse", {"synonym": (1, 1)}),  # by the list of irregular forms
        ("a lot of", "much", {"paraphrase": (2, 1)}),  # of which "lot of" is enough
        ("much", "a lot of", {"paraphrase": (1, 3)}),  # the table is read in both directions
        ("red cube there is no", "red cube there are no", {"exact": (3, 3), "paraphrase": (2, 2)}),
        # as in the jar: where two matchers find the same words, a stem or a synonym has no weight in the search
        ("buses", "bus", {}),
        ("an automobile", "a car", {}),
        ("red", "blue", {}),
        ("", "blue", {}),
    ],
)
def test_each_matcher(said: str, expected: str, found: dict[str, tuple[int, int]]) -> None:
    assert matched(said, expected) == found


def test_scores_of_extreme_captions() -> None:
    same, nothing = scored(["the red cube moved", "zzz"], [["the red cube moved"], ["the cube"]]).per_pair
    assert same == pytest.approx(1) and nothing == 0
    best = scored(["a red cube"], [["one ball", "a red cube"]])
    assert best.per_pair[0] == scored(["a red cube"], [["a red cube", "one ball"]]).per_pair[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("The dog's red-brown ball, No. 5.", "the dog 's red brown ball , no. 5 ."),
        ("Mr. A. said: 1,000 (or 3.5)!", "mr. a. said : 1,000 ( or 3.5 ) !"),
        ("u.s.a. a...b", "usa a ... b"),
        ("\u201cquoted\u201d \u2013 it\u2019s", '" quoted " - it \'s'),
    ],
)
def test_words_of_a_line(line: str, words: str) -> None:
    assert " ".join(normalize(line)) == words


def coco_captions() -> list[dict[str, Any]]:
    """Return the captions in pycocoevalcap's SPICE jar."""
    assert FOLDER is not None
    with zipfile.ZipFile(FOLDER / "spice" / "spice-1.0.jar") as archive:
        found: list[dict[str, Any]] = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    return found


@pytest.mark.slow
def test_fast_paths_give_the_same_words_and_stems() -> None:
    """Lines without unusual characters skip the rules, and words without a suffix skip the stemmer."""
    generator = random.Random(0)
    lines = [record["caption"].strip() for record in generator.sample(coco_captions(), 1500)]
    tokens = ["a", "Dr", "St", "No", "v", "5", "1990", "cube", "Mr.", "x.", ",", ".", "b,", "7,"]
    lines += [" ".join(generator.choices(tokens, k=generator.randint(1, 5))) for _ in range(1500)]
    lines += [line.replace(" .", ".") for line in lines]
    assert sum(normalizer._PLAIN.fullmatch(line) is not None for line in lines) > 1500
    assert [line for line in lines if normalize(line) != normalizer._by_rules(line)] == []
    words = {word for line in lines for word in normalize(line)}
    with zipfile.ZipFile(FOLDER / "meteor" / "meteor-1.5.jar") as jar:  # type: ignore[operator]
        words |= set(jar.read("synonym/english.synsets").decode().split("\n")[::100])
    words |= {
        "'tis",
        "skis",
        "skies",
        "dying",
        "sky",
        "only",
        "inning",
        "generous",
        "fluently",
        "travelling",
        "bell",
        "y",
    }
    assert {word for word in words if scorer._stem(word) != EnglishStemmer().stemWord(word)} == set()
    assert sum(scorer._HAS_SUFFIX.search(word) is None for word in words) > 500


def alignments(said: str, expected: str) -> Iterator[tuple[int, int]]:
    """Yield the number of matched words and chunks of every alignment of equal words."""
    choices = [[None, *(place for place, word in enumerate(said) if word == wanted)] for wanted in expected]
    for places in product(*choices):
        taken = [place for place in places if place is not None]
        if len(taken) == len(set(taken)):
            goes_on = sum(one is not None and two == one + 1 for one, two in pairwise(places))
            yield len(taken), len(taken) - goes_on


def test_alignment_is_the_best_of_all() -> None:
    """The alignment has the maximum number of words, then the minimum of chunks. Oracle: all alignments."""
    generator = random.Random(0)
    texts = [["".join(generator.choices("qxz", k=generator.randint(1, 6))) for _ in range(2)] for _ in range(150)]
    counts = scored([" ".join(said) for said, _ in texts], [[" ".join(expected)] for _, expected in texts]).statistics
    for column, (said, expected) in enumerate(texts):
        words, chunks = max(alignments(said, expected), key=lambda found: (found[0], -found[1]))
        if (chunks, words, words) == (1, len(said), len(expected)):
            chunks = 0  # the jar counts no chunk if the whole candidate matches
        assert counts[[21, 22, 20], column].tolist() == [words, words, chunks], (said, expected)


def test_plain_python_aligns_as_the_compiled_functions() -> None:
    generator = random.Random(0)
    text = "a the red cube cubes moved moves moving in front of before behind big large it has been is gone"
    words = text.split()
    texts = [generator.choices(words, k=generator.randint(0, 14)) for _ in range(600)]
    texts[::50] = texts[1::50]
    loaded = scorer._load()
    assert isinstance(loaded, scorer.Scorer)
    sentences = loaded._sentences(texts)
    candidates, references = np.arange(300), 300 + np.arange(300)
    candidates[:20] = references[:20]
    plain, compiled = (scorer.align(sentences, candidates, references, compiled) for compiled in (False, True))
    assert len(plain.pair) > 500 and set(plain.kind.tolist()) == {0, 1, 2, 3}
    for field, found, expected in zip(plain._fields, plain, compiled, strict=True):
        assert np.array_equal(found, expected), field


@pytest.mark.parametrize(
    ("pairs", "is_installed", "expected"),
    [
        ([5000], True, [False]),
        ([5001], True, [True]),
        ([5001], False, [False]),
        ([3000, 2000, 1, 1], True, [False, False, True, True]),
    ],
)
def test_numba_is_used_where_it_pays(
    pairs: list[int], is_installed: bool, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not matter whether numba is imported: functions are loaded or compiled at their first call."""
    pytest.importorskip("numba")
    loaded = scorer._load()
    assert isinstance(loaded, scorer.Scorer)
    monkeypatch.setattr(loaded, "_num_aligned", 0)
    monkeypatch.setattr(scorer, "find_spec", lambda name: object() if is_installed else None)
    assert [loaded._is_worth_compiling(number) for number in pairs] == expected


@pytest.mark.slow
def test_few_captions_are_scored_without_numba() -> None:
    code = "import sys; from lightning_idc.metrics.coco import Meteor; texts = {1: ['the red cubes moved']}; "
    code += "print(Meteor().compute_score(texts, {1: ['the red cube moved']})[0], 'numba' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(printed[0]) == scored(["the red cube moved"], [["the red cubes moved"]]).corpus
    assert printed[1] == "False"


def table(folder: Path) -> Path:
    """Write a file in the format of the paraphrase table."""
    source = folder / "paraphrase-en.gz"
    lines = ["0.5", "in front of", "before", "0.25", "in front of", "facing", "0.5", "red", "crimson"]
    source.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return source


def related(found: paraphrase_index.ParaphraseTable) -> list[tuple[int, int]]:
    """Return pairs of positions of related phrases in a caption with all phrases."""
    words = ["it", "in", "front", "of", "before", "facing", "red", "crimson"]
    phrases = found.phrases(words, np.arange(len(words)), np.array([len(words)]))
    place = dict(zip(phrases.phrase.tolist(), phrases.position.tolist(), strict=True))
    source = np.repeat(np.arange(len(phrases.paraphrase_start) - 1), np.diff(phrases.paraphrase_start))
    return sorted((place[a], place[b]) for a, b in zip(source.tolist(), phrases.paraphrase.tolist(), strict=True))


def test_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    source, folder = table(tmp_path), tmp_path / "cache"
    assert related(paraphrase_index.load(source, folder)) == [(1, 4), (1, 5), (6, 7)]
    (index,) = folder.iterdir()
    sound = index.read_bytes()
    for damaged in (b"", sound[:-9], sound[:200], sound[:100] + bytes([sound[100] ^ 1]) + sound[101:], sound + b"0"):
        index.write_bytes(damaged)
        assert related(paraphrase_index.load(source, folder)) == [(1, 4), (1, 5), (6, 7)]
        assert index.read_bytes() == sound and list(folder.iterdir()) == [index]


def test_unwritable_cache_folder_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.warns(UserWarning, match="set LIGHTNING_IDC_CACHE to a writable folder"):
        found = paraphrase_index.load(table(tmp_path), tmp_path / "cache")
    assert related(found) == [(1, 4), (1, 5), (6, 7)]


def test_damaged_table_is_reported(tmp_path: Path) -> None:
    source = table(tmp_path)
    sound = source.read_bytes()
    for damaged, reason in (
        (sound[:-20], "ends too early"),
        (sound[:30] + b"\xff\xff\xff" + sound[33:], "is damaged"),
        (gzip.compress(b"0.5\nred\n"), "expected a multiple of three"),
    ):
        source.write_bytes(damaged)
        with pytest.raises(ValueError, match=reason):
            paraphrase_index.load(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["absent", "cut", "flipped", "not a jar"])
def test_damaged_tables_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str) -> None:
    assert FOLDER is not None
    jar = tmp_path / "meteor" / "meteor-1.5.jar"
    jar.parent.mkdir()
    content = bytearray((FOLDER / "meteor" / jar.name).read_bytes())
    with zipfile.ZipFile(FOLDER / "meteor" / jar.name) as sound:
        place = sound.getinfo("synonym/english.synsets").header_offset + 1000
    content[place : place + 100] = bytes(100)
    if damage != "absent":
        jar.write_bytes({"cut": content[:-5000], "flipped": content, "not a jar": b"PK"}[damage])
    monkeypatch.setattr(scorer, "pycocoevalcap_folder", lambda: tmp_path)
    monkeypatch.setattr(scorer, "_load", cache(scorer._load.__wrapped__))
    outcome = meteor_scores([["a"]], [[["a"]]])
    assert str(outcome).startswith("not computed: METEOR's tables in pycocoevalcap cannot be read (")


def test_meteor_needs_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = score_captions({"a": "red cube"}, {"a": ["red cubes"]}, STANDARD_METRICS)
    assert not scores.missing and 30 < scores.values["METEOR"] < 100
    assert scores.backends == {"METEOR": "python"}
    java.running.cache_clear()
    scores = score_captions({"a": "red cube"}, {"a": ["red cube"]}, ["METEOR"], ScoringResources(meteor_backend="java"))
    java.running.cache_clear()
    assert scores.missing == {"METEOR": "not computed: no Java"} and "METEOR" not in scores.values


def test_backend_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meteor.backend_named() == "python"
    monkeypatch.setenv("LIGHTNING_IDC_METEOR", "java")
    assert meteor.backend_named() == "java" and meteor.backend_named("python") == "python"
    monkeypatch.setenv("LIGHTNING_IDC_METEOR", "jar")
    with pytest.raises(ConfigError, match="unknown METEOR backend 'jar' in LIGHTNING_IDC_METEOR; expected python or j"):
        score_captions({"a": "red"}, {"a": ["red"]}, ["METEOR"])


def test_result_holds_the_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "said.json").write_text(json.dumps({"a": "the cube moved"}), encoding="utf-8")
    (tmp_path / "truth.json").write_text(json.dumps({"a": ["the cubes move"]}), encoding="utf-8")
    inputs = ["score", str(tmp_path / "said.json"), "--references", str(tmp_path / "truth.json"), "--json"]
    assert main([*inputs, "--meteor_backend", "python"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["protocol"]["backends"] == {"METEOR": "python"}
    assert result["metrics"]["METEOR"] == IMPLEMENTATIONS["METEOR"] and result["scores"]["all"]["METEOR"] > 0


def fake(folder: Path, script: str, deadline: float = 300) -> java.Meteor:
    """Return the Java backend with a script in place of Java."""
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return java.Meteor(str(program), folder / "meteor.jar", deadline)


FAILED, HANGS = "not computed: METEOR's program failed (", "not computed: METEOR's program did not answer in 0.5 s"


@pytest.mark.parametrize(
    ("script", "words", "reason"),
    [
        ("while read line; do echo nonsense; done", 1, f"{FAILED}could not convert"),
        ("exit 3", 1, f"{FAILED}ended with code 3; -Xmx2G may exceed the memory of this machine)"),
        ("exec >&-; exec sleep 60", 1, HANGS),
        ("exec sleep 60", 1, HANGS),
        ("read line; echo 1; exec sleep 60", 1, HANGS),
        ("exec sleep 60", 100_000, HANGS),  # the input is larger than the buffer of a pipe
    ],
)
def test_failing_or_hanging_program_is_stopped_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: int, reason: str
) -> None:
    running = fake(tmp_path, script, 0.5)
    monkeypatch.setattr(java, "running", cache(lambda: running))
    began = time.monotonic()
    outcome = meteor_scores([["word"] * words] * 2, [[["word"]]] * 2, "java")
    assert isinstance(outcome, NotComputed) and str(outcome).startswith(reason)
    assert running._process.poll() is not None and time.monotonic() - began < 20


def odd_sets(pairs: int) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Return real COCO captions and their references, some of them cut, repeated, joined or with symbols."""
    by_image: dict[int, list[list[str]]] = {}
    for record in coco_captions():
        by_image.setdefault(record["image_id"], []).append(record["caption"].split())
    generator = random.Random(0)
    signs = [*"'\"-.,;:!?/()&%$#*|", "\u2019", "\u2013", "...", "--", "No.", "3.5", "1,000", "\u00e9", "|||"]
    candidates, references = [], []
    for number, image in enumerate(generator.sample(sorted(by_image), pairs)):
        said, *expected = [list(tokens) for tokens in by_image[image]]
        if number % 4 == 1:
            said = said[: len(said) // 2] if number % 8 == 1 else []
        elif number % 4 == 2:
            for tokens in (said, *expected):
                for _ in range(3):
                    place = generator.randrange(len(tokens))
                    tokens[place] += generator.choice(signs) + generator.choice(["", tokens[place]])
        elif number % 4 == 3:
            said, expected = [*said, *said[:7], *expected[0]], [[*expected[1], *expected[2], *said], expected[3]]
        candidates.append(said)
        references.append(expected)
    return candidates, references


@pytest.mark.slow
@needs_java
def test_the_python_backend_equals_the_jar() -> None:
    candidates, references = odd_sets(240)
    oracle = java.running()  # reads its tables while ours are read
    ours = meteor_scores(candidates, references, "python")
    theirs = meteor_scores(candidates, references, "java")
    assert isinstance(ours, MeteorScores) and isinstance(theirs, MeteorScores)
    np.testing.assert_array_equal(ours.statistics, theirs.statistics)
    np.testing.assert_allclose(ours.per_pair, theirs.per_pair, atol=1e-12)
    assert ours.corpus == pytest.approx(theirs.corpus, abs=1e-12)
    assert 0 < ours.per_pair.mean() < 1 and (ours.statistics[4:20].sum(1).reshape(4, 4).sum(1) > 20).all()
    assert java.running() is oracle  # the process is reused


@pytest.mark.slow
@needs_java
def test_the_java_backend_equals_pycocoevalcap() -> None:
    from pycocoevalcap.meteor.meteor import Meteor

    program = Meteor()
    said, expected = {0: ["a red cube moved"], 1: [""]}, {0: ["the cubes move", "a ball"], 1: ["no change"]}
    corpus, each = program.compute_score(expected, said)
    found = scored([text for (text,) in said.values()], list(expected.values()), "java")
    assert (found.corpus, found.per_pair.tolist()) == (corpus, each)

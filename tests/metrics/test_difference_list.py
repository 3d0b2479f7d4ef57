"""Captions as lists of differences: what counts as a difference, as no change, and how claims are matched."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers.servers import serving

from lightning_idc.cli import main
from lightning_idc.data.synthetic.judging import exact_judge
from lightning_idc.metrics.baselines import baseline_scores
from lightning_idc.metrics.captions import ScoringResources
from lightning_idc.metrics.confusion import confusion
from lightning_idc.metrics.difference_list import (
    PromptedJudge,
    agreement,
    by_differences,
    lexical_judge,
    prompt_of,
    read_matches,
)
from lightning_idc.metrics.grouping import ReferenceRecord, differences, first_differences
from lightning_idc.metrics.no_change import list_differences, says_nothing_changed
from lightning_idc.metrics.protocols import protocol_named
from lightning_idc.utils.errors import DataError

CLOSED = (
    # CLEVR-Change's
    "no change has occurred", "the two scenes seem identical", "nothing has changed", "no change was made",
    "the scene is the same as before", "nothing was modified", "the scene remains the same", "there is no change",
    # LEVIR-CC's, if not above
    "there is no difference", "almost nothing has changed",
    # the most frequent sentences of Spot-the-Diff's annotators
    "there are no differences", "no difference", "no change",
)  # fmt: skip
SAME = (
    "No change was made.", "There is no visible difference between the two images.", "The images are identical.",
    "Nothing has changed.", "I cannot see any differences.", "Both pictures look exactly the same.",
    "There aren't any changes.", "There do not seem to be any differences.", "no different", "Unchanged",
    "The two images show the same kitchen. There are no noticeable changes between them.",
    "It looks the same as before.", "The page has not been changed.", "The second image is the same as the first one.",
    "There are no more changes.", "There aren\u2019t any changes.",
    "The scene hasn't changed.", "The images don't differ.", "It hasn't been altered.",
    "I can\u2019t see any difference.", "The scene has not changed and is the same as before.",
    "The images are identical without exception.",
)  # fmt: skip
CHANGED = (
    "The red car is gone.", "The person is in the same place but the car moved.",
    "Nothing else changed except the cup.",
    "The man with the same shirt moved.", "Everything is the same except the lamp was removed.",
    "There is no longer a car.", "There is no car in the after image.", "No people in the second picture.",
    "The two scenes are identical, but the cube is missing.", "The cup has changed color from red to blue.",
    "The only difference is a new chair.", "The scene is the same. A dog appeared.", "The images are not the same.",
    "Both photos appear to show the same group of students, now sitting.", "",
    "The cube is red instead of blue. There are no other changes.", "A dog stands by the tree; no further differences.",
    "The sign says 20 and not 10. No additional differences can be seen.",
    "There are no more than two changes.", "I count no fewer than three differences.", "It has no less than one edit.",
    "In the second image the cup is the same as the first plate was.",
    "The images aren't identical.", "The two scenes aren\u2019t the same.", "The pictures are no longer identical.",
    "The images are not quite the same.", "They are hardly identical.", "The images are far from identical.",
    "The images are identical with the exception of the car.", "The images are identical, aside from the missing car.",
    "The red cube is gone and there are no other changes.", "The car is missing, with no other differences.",
)  # fmt: skip


def test_recognises_no_change_in_any_wording() -> None:
    assert [text for text in (*SAME, *CLOSED) if not says_nothing_changed(text)] == []
    assert [text for text in CHANGED if says_nothing_changed(text)] == []
    records = [{"caption": text, "references": ["the same"], "change_type": "no_change"} for text in SAME]
    counts = confusion([*records, {"caption": "a car left", "references": ["a car left"], "change_type": "drop"}])
    assert counts is not None and counts.same_same == len(SAME) and counts.changed_changed == 1


@pytest.mark.slow
def test_recognises_no_change_of_levir_cc_and_nothing_else(shared: Path) -> None:
    path = shared / "realdata" / "annotations" / "levir_cc" / "levir_cc_captions.json.gz"
    if not path.is_file():
        pytest.skip("LEVIR-CC's captions are not in the shared folder")
    pairs = json.loads(gzip.decompress(path.read_bytes()))
    said = [sum(map(says_nothing_changed, texts)) for texts in pairs.values()]
    # five sentences of an unchanged pair say so, of a changed pair none; LEVIR-CC has 5,039 pairs without a change
    assert (said.count(5), said.count(0), len(said)) == (5039, 5038, 10077)


def test_nothing_else_changed_is_not_a_difference() -> None:
    text = "The cube is red instead of blue. There are no other changes. There are not any further visible differences."
    assert list_differences([text]) == ["The cube is red instead of blue"]
    assert list_differences(["The cube is gone, no other changes."]) == ["The cube is gone, no other changes"]
    assert says_nothing_changed("The images are identical. There are no other differences.")
    assert says_nothing_changed("There are no other changes.")  # it says no more than that


def test_differences_are_lines_or_sentences() -> None:
    text = "1. The car is gone.\n2) A man appeared! Nothing else changed.\n- The car is gone.\n* it is 2.5 m longer"
    assert list_differences([text]) == ["The car is gone", "A man appeared", "it is 2.5 m longer"]
    assert list_differences(["There is no difference.", ""]) == []
    # a list may be in one line
    two = ["The car is gone", "2 men appeared"]
    for line in ("1. {}. 2. {}.", "1) {}; 2) {}.", "(1) {}. (2) {}", "1: {}! 2: {}!", "{}. {}. 3. Nothing else."):
        assert list_differences([line.format(*two)]) == two, line


def test_pairs_are_divided_and_differences_listed() -> None:
    truths = [
        ReferenceRecord("a", ("a car left", "a man came. a dog too")),
        ReferenceRecord("b", ("no difference",)),
        ReferenceRecord("c", ("the sky is darker",), "no_change"),
        ReferenceRecord("d", ()),
    ]
    parts = differences(truths)
    assert [t.references for t in parts["changed"]] == [("a car left", "a man came", "a dog too")]
    assert [t.id for t in parts["unchanged"]] == ["b", "c", "d"]
    assert first_differences(truths)["changed"][0].references == ("a car left",)
    untold = [ReferenceRecord("e", (), "color"), ReferenceRecord("f", ("it is red",), "color")]
    with pytest.raises(DataError, match=r"1 of 2 pairs with a type of change .*'e'; they would count as unchanged"):
        differences(untold)


def test_rates_equal_hand_calculation() -> None:
    references = {"a": ["the red car left", "a man came"], "b": ["a dog appeared"], "c": ["the sky is darker"]}
    captions = {"a": "The red car left. A tree fell over the fence.", "b": "A dog appeared", "c": "No difference."}
    scores = by_differences(captions, references, ("recall", "precision", "F1", "specificity"), ScoringResources())
    assert scores.per_pair["recall"].tolist() == [50, 100, 0] and scores.per_pair["precision"].tolist() == [50, 100, 0]
    assert scores.values == pytest.approx({"recall": 50.0, "precision": 50.0, "F1": 50.0})
    same = by_differences(
        {"x": "nothing changed", "y": "a dog"}, {"x": [], "y": []}, ("specificity",), ScoringResources()
    )
    assert same.values == {"specificity": 50.0}
    # one claim never matches two differences
    twice = by_differences(
        {"a": "a man came"}, {"a": ["a man came", "a man came here"]}, ("recall",), ScoringResources()
    )
    assert twice.values == {"recall": 50.0}


@pytest.mark.parametrize(
    ("answer", "matches"),
    [
        ("1: b\n2: none", [1, None]),
        ("**1**: A\n2 - b.", [0, 1]),
        ("Sure!\n1) none\n2) a", [None, 0]),
        ("1: a\n2: a", None),  # a claim matches one difference
        ("1: a", None),
        ("1: a\n2: d", None),
        ("1: a\n1: b\n2: none", None),
        ("both are named", None),
    ],
)
def test_answers_are_parsed_strictly(answer: str, matches: list[int | None] | None) -> None:
    assert read_matches(answer, 2, 2) == matches


def test_unreadable_answers_are_retried_and_counted() -> None:
    asked: list[int] = []

    def model(prompts: Sequence[str], attempt: int) -> list[str]:
        asked.append(attempt)
        return ["1: a" if "{braces}" in prompt or attempt else "no idea" for prompt in prompts]

    judge = PromptedJudge(model)
    assert judge([(["the {braces} left"], ["it left"]), (["a car"], ["a dog"])]) == [[0], [0]] and asked == [0, 1]
    never = PromptedJudge(lambda prompts, attempt: ["?" if "tree" in prompt else "1: a" for prompt in prompts])
    references = {"a": ["a tree fell"], "b": ["a dog came"]}
    scores = by_differences({"a": "it fell", "b": "a dog"}, references, ("recall",), ScoringResources(judge=never))
    assert scores.ids == ["b"] and scores.values == {"recall": 100.0} and "1 of 2" in scores.missing["unread"]
    with pytest.raises(DataError, match="no answer of the judge"):
        by_differences({"a": "it fell"}, {"a": ["a tree fell"]}, ("recall",), ScoringResources(judge=never))


def test_every_claim_has_its_own_letters() -> None:
    claims = [f"claim {number}" for number in range(800)]
    prompt = prompt_of(["a difference"], claims)
    letters = [line.partition(":")[0] for line in prompt.splitlines() if ": claim " in line]
    assert letters[:3] + letters[26:28] + letters[-1:] == ["a", "b", "c", "aa", "ab", "adt"]
    assert [read_matches(f"1: {letter}", 1, 800) for letter in letters] == [[place] for place in range(800)]


def test_the_prompt_names_differences_by_number_and_claims_by_letter() -> None:
    text = prompt_of(["a car left", "{claims}"], [f"claim {n}" for n in range(28)])
    assert "1: a car left\n2: {claims}\n" in text and "a: claim 0\n" in text and "ab: claim 27\n" in text


def test_the_exact_judge_reads_facts_and_not_words() -> None:
    there = ["the small red metal cube that is left of the large blue rubber sphere is now cyan"]
    assert exact_judge([(there, ["the small red metal cube became cyan", "nothing"])]) == [[0]]
    assert exact_judge(
        [(there, ["the small red metal cube that is left of the large blue rubber sphere is now gray"])]
    ) == [[None]]
    assert lexical_judge(
        [(there, ["the small red metal cube that is left of the large blue rubber sphere is now gray"])]
    ) == [[0]]
    with pytest.raises(DataError, match="rendered worlds"):
        exact_judge([(["a man came"], ["a man came"])])


def test_agreement_is_kappa() -> None:
    assert agreement([[0, None], [1]], [[2, None], [0]]) == 1.0
    # 2 of 4 agree; both match half of the time, so chance agreement is one half
    assert agreement([[0, 0, None, None]], [[0, None, 0, None]]) == 0.0
    assert agreement([[0]], [[0]]) is None and agreement([None], [[0]]) is None


class Judge(BaseHTTPRequestHandler):
    requests: ClassVar[list[dict[str, Any]]] = []
    left: ClassVar[int] = 10**9
    """Number of requests that are answered before all others are refused."""
    cut: ClassVar[str | None] = None
    """Text that is returned as an answer cut off by the token limit, if any."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.requests) >= self.left:
            self.send_error(403)
            return
        self.requests.append(request)
        asked = request["messages"][0]["content"]
        if "forbidden" in asked:
            self.send_error(400)
            return
        answer = "hm" if "weird" in asked else "1: a" if "came" in asked else "1: none"
        choice: dict[str, Any] = {"message": {"content": answer}}
        if self.cut is not None:
            choice = {"message": {"content": self.cut}, "finish_reason": "length"}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Judge.requests.clear()
    monkeypatch.setattr(Judge, "left", Judge.left)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Judge)) as address:
        yield f"{address}/v1"


def test_score_reports_baselines_and_judge(tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "said.json").write_text(
        json.dumps({"a": "A person arrived.", "b": "The lamp was moved.", "c": "No change."})
    )
    (tmp_path / "there.json").write_text(
        json.dumps({"a": ["a man came"], "b": ["the lamp went out"], "c": ["no difference"]})
    )
    arguments = [
        "score",
        str(tmp_path / "said.json"),
        "--references",
        str(tmp_path / "there.json"),
        "--protocol",
        "difference-list",
    ]
    assert main([*arguments, "--judge", endpoint, "--judge_model", "any", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scores"] == {
        "changed": {"recall": 50.0, "precision": 50.0, "F1": 50.0},
        "unchanged": {"specificity": 100.0},
    }
    assert result["judge"]["judge"] == "any, difference-list-1, 512 tokens" and result["protocol"]["inputs"][
        "judge"
    ].startswith("any")
    assert result["baselines"]["claims nothing"] == {
        "changed": {"recall": 0.0, "precision": 0.0, "F1": 0.0}, "unchanged": {"specificity": 100.0},
    }  # fmt: skip
    assert result["not_computed"] == {}
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "lexical" in shown and "baseline, captions of other pairs" in shown
    assert main([*arguments, "--judge", endpoint]) == 1 and "--judge_model" in capsys.readouterr().err


THERE = {"a": ["a man came"], "b": ["the lamp went out"], "c": ["a car came"], "d": ["a dog came", "a cat left"]}
MINE = {"a": "A person.", "b": "The lamp.", "c": "A car.", "d": "No change."}
THEIRS = {"a": "A man. A weird one.", "b": "The lamp.", "c": "No change.", "d": "No change."}


def asks(tmp_path: Path, mine: dict[str, str], theirs: dict[str, str], endpoint: str) -> list[str]:
    """Return a command that compares two files of captions with the judge of an endpoint."""
    for name, value in {"there": THERE, "mine": mine, "theirs": theirs}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    files = [str(tmp_path / "mine.json"), "--references", str(tmp_path / "there.json")]
    arguments = ["score", *files, "--against", str(tmp_path / "theirs.json"), "--protocol", "difference-list"]
    return [*arguments, "--judge", endpoint, "--judge_model", "any", "--out", str(tmp_path / "out.json")]


def test_files_are_compared_on_pairs_readable_for_both(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreadable answer excludes only its own pair; each file has its own judge."""
    assert main(asks(tmp_path, MINE, THEIRS, endpoint)) == 0
    assert "compared on 3 of 4 pairs" in " ".join(capsys.readouterr().out.split())
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["scores"]["changed"]["recall"] == 50.0 and result["counts"]["changed"]["pairs"] == 4
    assert (result["against_pairs"], result["against_unread"]) == (3, 1)
    # in b, c and d neither file states a difference that is there, except for c in the first file
    against = result["against"]["recall"]
    assert (against["first"], against["second"], against["wins"]) == (0.0, pytest.approx(100 / 3), 1)
    assert (result["judge"]["pairs"], result["judge"]["unread"]) == (3, 0)
    assert (result["against_judge"]["pairs"], result["against_judge"]["unread"]) == (2, 1)


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"a": "weird", "b": "weird", "c": "weird", "d": "weird"}, "no answer of the judge could be read"),
        ({"a": "A man.", "b": "weird", "c": "weird", "d": "weird"}, "at least two"),
        ({"a": "A man.", "b": "forbidden", "c": "A car.", "d": "It."}, "status 400"),
    ],
)
def test_failed_comparison_keeps_the_scores(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str], theirs: dict[str, str], reason: str
) -> None:
    assert main(asks(tmp_path, MINE, theirs, endpoint)) == 1
    printed = capsys.readouterr()
    assert "--against" in printed.err and reason in printed.err and "recall" in printed.out
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["scores"]["changed"]["recall"] == 50.0 and "against" not in result
    assert reason in result["not_computed"]["against"]


def test_failed_baseline_keeps_the_scores() -> None:
    never = ScoringResources(judge=lambda pairs: [None for _ in pairs])
    truths = [ReferenceRecord(id, tuple(texts)) for id, texts in THERE.items()]
    result, reasons = baseline_scores(protocol_named("difference-list"), MINE | {"d": "A dog."}, truths, never)
    assert result == {"claims nothing": {"changed": {"recall": 0.0, "precision": 0.0, "F1": 0.0}}}
    assert list(reasons) == ["baseline, captions of other pairs"]
    assert "no answer of the judge" in reasons["baseline, captions of other pairs"]


def test_files_are_checked_before_the_judge_runs(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = asks(tmp_path, MINE, {"a": "A man.", "x": "A dog."}, endpoint)
    assert main(arguments) == 1 and "'x'" in capsys.readouterr().err
    (tmp_path / "theirs.json").unlink()
    assert main(arguments) == 1 and "there is no file" in capsys.readouterr().err
    assert Judge.requests == []


def test_judge_tokens_are_part_of_the_judge_name(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*asks(tmp_path, MINE, MINE, endpoint), "--json"]
    hashes = set()
    for more, tokens in (([], 512), (["--judge_tokens", "16384"], 16384)):
        Judge.requests.clear()
        assert main([*arguments, *more]) == 0
        result = json.loads(capsys.readouterr().out)
        assert {request["max_tokens"] for request in Judge.requests} == {tokens}
        assert result["protocol"]["inputs"]["judge"] == f"any, difference-list-1, {tokens} tokens"
        hashes.add(result["protocol"]["hash"])
    assert len(hashes) == 2
    assert main([*arguments, "--judge_tokens", "0"]) == 2 and "--judge_tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "score"), [("The score is 8", None), ("Score: 85. It names the", 85.0), ("Score: 85\n", 85.0)]
)
def test_truncated_number_is_not_a_score(
    tmp_path: Path,
    endpoint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    score: float | None,
) -> None:
    for name, value in {"there": THERE, "mine": MINE}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    arguments = [
        "score",
        str(tmp_path / "mine.json"),
        "--references",
        str(tmp_path / "there.json"),
        "--metrics",
        "BLEU",
    ]
    monkeypatch.setattr(Judge, "cut", said)
    assert main([*arguments, "--judge", endpoint, "--judge_model", "any", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judge"]["mean"] == score


def test_resumed_judge_answers_missing_prompts_only(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*asks(tmp_path, MINE, THEIRS, endpoint), "--json"]
    assert main(arguments) == 0
    whole, every = json.loads(capsys.readouterr().out), len(Judge.requests)
    Judge.requests.clear()
    Judge.left = 2
    with_cache = [*arguments, "--judge_cache", str(tmp_path / "answers")]
    assert main(with_cache) == 1 and "status 403" in capsys.readouterr().err
    Judge.left = 10**9
    assert main(with_cache) == 0
    assert json.loads(capsys.readouterr().out) == whole
    # equal requests are sent only once
    assert len(Judge.requests) <= every and len({json.dumps(one) for one in Judge.requests}) == len(Judge.requests)
    asked = len(Judge.requests)
    assert main(with_cache) == 0 and len(Judge.requests) == asked
    lexical = [name if name != endpoint else "lexical" for name in with_cache]
    assert main(lexical) == 1 and "--judge_model and --judge_cache would be ignored" in capsys.readouterr().err


def test_scores_survive_a_failed_judge(tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"there": THERE, "mine": MINE}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    arguments = [
        "score",
        str(tmp_path / "mine.json"),
        "--references",
        str(tmp_path / "there.json"),
        "--metrics",
        "BLEU",
    ]
    arguments += ["--judge", endpoint, "--judge_model", "any", "--out", str(tmp_path / "out.json")]
    Judge.left = 1
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert "BLEU-4" in shown.out
    assert "the scores were computed, but not --judge: " in shown.err and "status 403" in shown.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert "BLEU-4" in result["scores"]["all"] and "judge" not in result and "403" in result["not_computed"]["judge"]
    assert main([name if name != endpoint else str(tmp_path / "none") for name in arguments]) == 1
    assert "--judge_model would be ignored" in capsys.readouterr().err

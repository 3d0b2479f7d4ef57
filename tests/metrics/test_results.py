"""The verbs `score` and `leaderboard`, the result JSON, and the files of a test run."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_idc.cli import main
from lightning_idc.metrics.captions import score_captions
from lightning_idc.metrics.results import SCHEMA, read_result
from lightning_idc.report.leaderboard import as_latex, as_markdown, boards, write_html
from lightning_idc.report.result_rows import read_results
from lightning_idc.utils.errors import DataError

FAST = ("--metrics", "BLEU,ROUGE-L,CIDEr-D")
CAPTIONS = {"a": "the red cube moved", "b": "nothing has changed", "c": "the ball is gone"}
REFERENCES = {"a": ["the red cube has moved", "a cube moved"], "b": ["there is no change"], "c": ["the ball vanished"]}


def files(folder: Path, captions: Any = CAPTIONS, references: Any = REFERENCES) -> list[str]:
    (folder / "said.json").write_text(json.dumps(captions), encoding="utf-8")
    (folder / "truth.json").write_text(json.dumps(references), encoding="utf-8")
    return ["score", str(folder / "said.json"), "--references", str(folder / "truth.json"), *FAST]


def test_score_prints_what_it_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*files(tmp_path), "--bootstrap", "50"]) == 0
    printed = capsys.readouterr().out
    expected = score_captions(CAPTIONS, REFERENCES).values
    assert f"{expected['ROUGE-L']:.1f}" in printed and f"{expected['CIDEr-D']:.1f}" in printed
    assert "coco (c96ab79b76d8): 3 pairs, 4 references, x100" in printed
    assert "METEOR: not computed: not requested" in printed
    assert "95 % intervals over pairs" in printed and "33.3% say nothing changed" in printed


def test_no_change_fraction_covers_any_wording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(files(tmp_path, dict.fromkeys(CAPTIONS, "The images are identical."))) == 0
    assert "100.0% say nothing changed" in capsys.readouterr().out


def test_references_of_unchanged_pairs_say_that_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["quite as it was", "quite as it was", "the cube moved"]
    types = ["no_change", "move", "move"]
    records = [
        {
            "id": str(n),
            "caption": text,
            "change_type": kind,
            "references": [("quite as it was", "it moved")[kind == "move"]],
        }
        for n, (text, kind) in enumerate(zip(said, types, strict=True))
    ]
    (tmp_path / "records.json").write_text(json.dumps(records), encoding="utf-8")
    assert main(["score", str(tmp_path / "records.json"), *FAST, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["diversity"]["no_change"] == pytest.approx(2 / 3, abs=1e-4)
    judged = {"same_same": 1, "same_changed": 0, "changed_same": 1, "changed_changed": 1}
    assert result["change_no_change"] == judged


def test_score_as_json_describes_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    arguments = [
        *files(tmp_path),
        "--json",
        "--out",
        str(target),
        "--model_name",
        "M",
        "--data_name",
        "D",
        "--bootstrap",
        "50",
    ]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == read_result(target)
    assert (result["schema"], result["model"], result["protocol"]["name"]) == (SCHEMA, "M", "coco")
    assert result["scores"]["all"] == pytest.approx(score_captions(CAPTIONS, REFERENCES).values, abs=1e-5)
    assert result["counts"] == {"all": {"pairs": 3, "references": 4}}
    assert result["not_computed"] == {"METEOR": "not computed: not requested"}
    assert result["tokenizer"] == "ptb-1" and set(result["metrics"]) == {"BLEU", "ROUGE-L", "CIDEr-D"}
    assert set(result["files"]) == {"said.json", "truth.json"}
    low, high = result["intervals"]["ROUGE-L"]
    assert low <= result["scores"]["all"]["ROUGE-L"] <= high


def test_unprintable_names_do_not_stop_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    result = tmp_path / "r.json"
    arguments = [*files(tmp_path), "--metrics", "BLEU", "--model_name", "caf\u00e9 \udcff", "--out", str(result)]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main([*arguments, "--json"]) == 0
    assert json.loads(printed.getvalue())["model"] == "caf\u00e9 \udcff"
    assert json.loads(result.read_text(encoding="utf-8"))["model"] == "caf\u00e9 ?"
    assert main(arguments) == 0 and b"BLEU-4" in printed.getvalue()
    assert main(["leaderboard", str(tmp_path)]) == 0 and b"caf\\xe9" in printed.getvalue()


@pytest.mark.parametrize("form", [["--json"], []])
def test_scores_are_shown_though_their_file_cannot_be_written(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge may have worked for hours, so the scores must not be lost."""

    def full(target: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lightning_idc.utils.outputs.write_content", full)
    assert main([*files(tmp_path), *form, "--out", str(tmp_path / "result.json")]) == 1
    captured = capsys.readouterr()
    assert "ROUGE-L" in captured.out and "No space left on device" in captured.err and "result.json" in captured.err


def test_folder_at_the_output_path_is_an_early_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*files(tmp_path), "--out", "."]) == 1
    assert capsys.readouterr().err == "error: --out '.' is a folder; expected the path of a file\n"


def test_captions_and_references_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = files(tmp_path)
    for name in ("said.json", "truth.json"):
        kept = (tmp_path / name).read_bytes()
        assert main([*inputs, "--out", str(tmp_path / name)]) == 1
        assert f"{name}' is an input and would be overwritten; choose another file" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == kept


def test_fingerprint_ignores_order_and_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files with the same captions and references, in another format and order, have the same digests."""

    def digests(captions: Any, references: Any) -> tuple[Any, ...]:
        assert main([*files(tmp_path, captions, references), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        return result["data"]["fingerprint"], result["predictions"]["digest"], result["files"]["said.json"]

    first = digests(CAPTIONS, REFERENCES)
    listed = [{"image_id": id, "caption": text} for id, text in reversed(CAPTIONS.items())]
    records = [{"id": id, "captions": texts} for id, texts in reversed(REFERENCES.items())]
    second = digests(listed, records)
    assert first[:2] == second[:2] and first[2] != second[2]
    third = digests({**CAPTIONS, "a": "the red cube moved."}, {**REFERENCES, "a": ["a cube moved"]})
    assert third[0] != first[0] and third[1] != first[1]


CLEVR = {f"{n:06d}.png": [f"the red cube {n} moved"] for n in range(6)}


def scored(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the result of the verb `score` with ROUGE-L, which is a mean over pairs."""
    assert main(["score", *arguments, "--json", "--metrics", "ROUGE-L"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("protocol", "option", "field", "facts"),
    [
        (
            "clevr-change/by-type",
            "--types",
            "change_type",
            [dict(zip(CLEVR, kinds, strict=True)) for kinds in (["add", "move"] * 3, ["add"] * 3 + ["move"] * 3)],
        ),
        (
            "clevr-change/by-iou",
            "--iou",
            "iou",
            [
                dict(zip(CLEVR, ious, strict=True))
                for ious in ([0.1, 0.5, 0.6, 0.7, 0.8, 0.9], [0.9, 0.5, 0.6, 0.7, 0.8, 0.1])
            ],
        ),
    ],
)
def test_fingerprint_covers_the_parts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    protocol: str,
    option: str,
    field: str,
    facts: list[dict[str, Any]],
) -> None:
    """Facts from a file and facts in the records give equal results; other facts give other scores of the parts."""
    said = {id: texts[0] if n % 2 else "x y" for n, (id, texts) in enumerate(CLEVR.items())}
    command = files(tmp_path, said, CLEVR)[1:4]
    found = []
    for of_pairs in facts:
        (tmp_path / "facts.json").write_text(json.dumps(of_pairs), encoding="utf-8")
        beside = scored(capsys, *command, "--protocol", protocol, option, str(tmp_path / "facts.json"))
        assert set(beside["files"]) == {"said.json", "truth.json", "facts.json"}
        records = [{"id": id, "captions": texts, field: of_pairs[id]} for id, texts in CLEVR.items()]
        (tmp_path / "own.json").write_text(json.dumps(records), encoding="utf-8")
        own = scored(capsys, command[0], "--references", str(tmp_path / "own.json"), "--protocol", protocol)
        assert own["scores"] == beside["scores"] and own["data"] == beside["data"]
        whole = scored(capsys, command[0], "--references", str(tmp_path / "own.json"))
        found.append((beside["scores"], beside["data"]["fingerprint"], whole["data"]["fingerprint"]))
    assert found[0][0] != found[1][0] and found[0][1] != found[1][1]
    assert found[0][2] == found[1][2], "coco does not look at types and overlaps"


def test_the_fingerprint_of_a_difference_list_covers_unchanged_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fingerprint(**unchanged: list[str]) -> str:
        records = [{"id": "a", "caption": "a man came", "references": ["a man came"], "change_type": "add"}]
        records += [
            {"id": id, "caption": "no change", "references": texts, "change_type": "no_change"}
            for id, texts in unchanged.items()
        ]
        (tmp_path / "records.json").write_text(json.dumps(records), encoding="utf-8")
        assert main(["score", str(tmp_path / "records.json"), "--protocol", "difference-list", "--json"]) == 0
        return str(json.loads(capsys.readouterr().out)["data"]["fingerprint"])

    found = [fingerprint(), fingerprint(b=[]), fingerprint(b=[], c=[]), fingerprint(b=["a dog left"])]
    assert len(set(found)) == 4


def test_a_difference_list_reports_pairs_without_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"id": "a", "caption": "a man came", "references": ["a man came"], "change_type": "add"}
    same = {"id": "b", "caption": "no change", "references": [], "change_type": "no_change"}
    lacking = {
        "specificity": "not computed: no pair is unchanged",
        **dict.fromkeys(("recall", "precision", "F1"), "not computed: no pair is changed"),
    }
    for records, metrics in (([changed], ["specificity"]), ([same], ["recall", "precision", "F1"])):
        (tmp_path / "records.json").write_text(json.dumps(records), encoding="utf-8")
        assert main(["score", str(tmp_path / "records.json"), "--protocol", "difference-list", "--json"]) == 0
        reasons = json.loads(capsys.readouterr().out)["not_computed"]
        assert {name: reasons[name] for name in metrics} == {name: lacking[name] for name in metrics}


@pytest.mark.parametrize(
    ("named", "asked", "split"),
    [
        ([None, None], None, None),
        ([None, None], "val", "val"),
        (["val", "val"], "val", "val"),
        (["test", "test"], None, "test"),
        (["test", "val"], None, "test"),  # if there are several, test is the default
    ],
)
def test_split_comes_from_references_or_option(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    named: list[str | None],
    asked: str | None,
    split: str | None,
) -> None:
    records = [
        {"id": id, "captions": ["a cube moved"], **({} if of is None else {"split": of})}
        for id, of in zip("ab", named, strict=True)
    ]
    said = {record["id"]: "x" for record in records if record.get("split") in (None, named[0])}
    command = [*files(tmp_path, said, records)[1:4], *([] if asked is None else ["--split", asked])]
    assert scored(capsys, *command)["data"]["split"] == split


def test_real_validation_references_are_not_called_test(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = shared / "realdata" / "annotations" / "image_editing_request" / "valid.json"
    said = {record["uid"]: record["sents"][0] for record in json.loads(truth.read_text(encoding="utf-8"))}
    (tmp_path / "said.json").write_text(json.dumps(said), encoding="utf-8")
    command = [str(tmp_path / "said.json"), "--references", str(truth)]
    assert scored(capsys, *command)["data"]["split"] is None
    assert scored(capsys, *command, "--split", "valid")["data"]["split"] == "valid"


def test_rejects_a_split_other_than_that_of_the_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": "a", "caption": "x", "references": ["a cube moved"], "split": "val"}]
    (tmp_path / "records.json").write_text(json.dumps(records), encoding="utf-8")
    assert main(["score", str(tmp_path / "records.json"), "--split", "test"]) == 1
    assert "--split is test, but the references belong to val" in capsys.readouterr().err


def test_every_file_that_decides_a_score_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.json").write_text('{"<UNK>": 0, "cube": 1}', encoding="utf-8")
    (tmp_path / "corpus").mkdir()
    other = tmp_path / "corpus" / "truth.json"
    other.write_text(json.dumps(CLEVR), encoding="utf-8")
    more = ["--vocabulary", str(tmp_path / "words.json"), "--frequencies", str(other)]
    result = scored(capsys, *files(tmp_path)[1:4], "--protocol", "levir-cc/ids", *more)
    paths = {"said.json", "words.json", (tmp_path / "truth.json").as_posix(), other.as_posix()}
    assert set(result["files"]) == paths and len(set(result["files"].values())) == 4


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ({**CAPTIONS, "d": "x"}, REFERENCES, "1 of 4 pairs have no reference: 'd'"),
        ({"a": "x"}, REFERENCES, "2 of 3 pairs have no caption: 'b', 'c'"),
        ([{"id": "a", "caption": "x"}] * 2, REFERENCES, "appears twice"),
        (CAPTIONS, {**REFERENCES, "b": []}, "no reference with text: 'b'"),
        (CAPTIONS, {**REFERENCES, "b": [""]}, "they would score 0"),
    ],
)
def test_score_rejects_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], captions: Any, references: Any, message: str
) -> None:
    assert main(files(tmp_path, captions, references)) == 1
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


def test_references_may_be_in_the_captions_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": id, "caption": text, "references": REFERENCES[id]} for id, text in CAPTIONS.items()]
    (tmp_path / "records.json").write_text(json.dumps(records), encoding="utf-8")
    assert main(["score", str(tmp_path / "records.json"), *FAST, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["all"]["pairs"] == 3
    arguments = files(tmp_path)
    assert main([*arguments[:2], *FAST]) == 1
    assert "set --references to a file of them" in capsys.readouterr().err


def test_the_field_of_the_captions_is_named_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"id": id, "caption": REFERENCES[id][0], "prediction": "zzz"} for id in CAPTIONS]
    inputs = [*files(tmp_path, records), *FAST]
    assert main(inputs) == 1
    assert "record 1 has caption" in capsys.readouterr().err
    assert main([*inputs, "--field", "prediction", "--against", inputs[1], "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scores"]["all"]["ROUGE-L"] == 0 == result["against"]["ROUGE-L"]["first"]


def test_two_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = tmp_path / "better.json"
    better.write_text(json.dumps({id: texts[0] for id, texts in REFERENCES.items()}), encoding="utf-8")
    arguments = files(tmp_path)
    assert main([arguments[0], str(better), *arguments[2:], "--against", arguments[1]]) == 0
    assert "higher on 3 pairs, lower on 0" in capsys.readouterr().out
    assert main([arguments[0], str(better), *arguments[2:], "--against", arguments[1], "--bootstrap", "5000"]) == 0
    assert "p <0.001" in capsys.readouterr().out, "no p is 0"
    assert main([arguments[0], str(better), *arguments[2:], "--against", arguments[1], "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    against = result["against"]
    assert against["ROUGE-L"]["second"] == pytest.approx(100) and against["ROUGE-L"]["low"] > 0
    (tmp_path / "other").mkdir()
    same_name = tmp_path / "other" / better.name
    same_name.write_text(json.dumps(CAPTIONS), encoding="utf-8")
    assert main([arguments[0], str(better), *arguments[2:], "--against", str(same_name), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 3 == len(result["files"])


def test_document_frequencies_and_their_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashes, scores = [], []
    other = tmp_path / "other.json"
    other.write_text(json.dumps({str(n): text for n, text in enumerate(["the red cube", "the cube", "a ball"])}))
    for more in ([], ["--frequencies", str(tmp_path / "truth.json")], ["--frequencies", str(other)]):
        assert main([*files(tmp_path), *more, "--json", "--metrics", "CIDEr-D,CIDEr"]) == 0
        result = json.loads(capsys.readouterr().out)
        hashes.append(result["protocol"]["hash"])
        scores.append(result["scores"]["all"])
    assert len(set(hashes)) == 3
    assert scores[0] == scores[1] != scores[2], "the references themselves are the usual corpus"


def test_protocols_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "protocols"]) == 0
    assert "spot-the-diff/grouped 6970b1f42c30 one caption" in " ".join(capsys.readouterr().out.split())
    assert main(["score"]) == 2
    assert main(["score", "x.json", "--protocol", "cocoa"]) == 1
    assert "did you mean 'coco'?" in capsys.readouterr().err


def test_leaderboard_separates_incomparable_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = tmp_path / "board"
    board.mkdir()
    for name, captions, protocol in (
        ("good", {id: texts[0] for id, texts in REFERENCES.items()}, "coco"),
        ("bad|<b>", CAPTIONS, "coco"),
        ("old", CAPTIONS, "legacy/procap"),
    ):
        arguments = [*files(tmp_path, captions), "--protocol", protocol, "--model_name", name, "--data_name", "D"]
        assert main([*arguments, "--out", str(board / f"{name[:3]}.json")]) == 0
    (board / "timings.json").write_text('{"seconds": 3}', encoding="utf-8")
    capsys.readouterr()
    assert main(["leaderboard", str(board), "--out", str(tmp_path / "board.md")]) == 0
    text = (tmp_path / "board.md").read_text(encoding="utf-8")
    assert text.count("\n## ") == 2
    coco, legacy = text.split("\n## ")[1:]
    assert coco.index("| good ") < coco.index("bad\\|&lt;b&gt;"), "the best first, and nothing that breaks the table"
    assert "TEST" in legacy and "TEST" not in coco
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert "<b>" not in page and "bad|&lt;b&gt;" in page
    assert main(["leaderboard", str(board)]) == 0
    assert capsys.readouterr().out.endswith(text + "\n")


def sound_result() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": None,
        "headline": "all",
        "scores": {"all": {"CIDEr-D": 3.0, "BLEU-4": None}},
        "intervals": {"CIDEr-D": [2.0, 4.0]},
        "protocol": {"name": "coco", "hash": "1", "selection": "val"},
        "data": {"name": None, "split": None, "fingerprint": "1"},
        "counts": {"all": {"pairs": 1, "references": 1}},
        "predictions": {"digest": "1"},
        "selection": None,
    }


def test_damaged_results_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", str(tmp_path)]) == 1
    assert "there are no results in" in capsys.readouterr().err
    sound = sound_result()
    for text, message in (
        ("{", "not JSON"),
        (json.dumps({"schema": SCHEMA}), "is not a complete result"),
        (json.dumps({**sound, "scores": {"all": {"CIDEr-D": "high"}}}), "is not a valid result"),
        (json.dumps({**sound, "scores": {"all": {"CIDEr-D": 10**400}}}), "is not a valid result"),
        (json.dumps({**sound, "headline": ["all"]}), "is not a complete result"),
        (json.dumps({**sound, "model": 3}), "is not a valid result"),
    ):
        (tmp_path / "r.json").write_text(text, encoding="utf-8")
        assert main(["leaderboard", str(tmp_path)]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "r.json").write_text(json.dumps(sound), encoding="utf-8")
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "| r | - | 3.0 (2.0 to 4.0) | ? | 1 | r.json |" in " ".join(capsys.readouterr().out.split())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.sampled_from(sorted(sound_result())), min_size=1, max_size=3), value=anything)
def test_any_result_is_shown_or_an_error(tmp_path: Path, keys: list[str], value: Any) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**sound_result(), **dict.fromkeys(keys, value)}), encoding="utf-8")
    try:
        found = boards(read_results(tmp_path), tmp_path)
    except DataError:
        return
    assert as_markdown(found) and as_latex(found)
    write_html(tmp_path / "page.html", found)


@pytest.mark.parametrize("source", ["clevr_change", "levir_cc", "aurora_magicbrush", "mgie_qual"])
def test_references_of_real_pairs_are_scored(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    manifest = json.loads((shared / "realdata" / source / "manifest.json").read_text(encoding="utf-8"))
    pairs = {pair["id"]: pair["captions"] for pair in manifest["pairs"] if pair["captions"]}
    arguments = files(tmp_path, {id: texts[-1] for id, texts in pairs.items()}, pairs)
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["counts"]["all"]["pairs"] == len(pairs)
    assert result["scores"]["all"]["ROUGE-L"] == pytest.approx(100)


def test_devices_and_pipes_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, pipe = tmp_path / "said.json", tmp_path / "pipe"
    said.write_text(json.dumps([{"id": "1", "caption": "a cube moved", "references": ["the cube moved"]}]))
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["score", str(said), "--metrics", "ROUGE-L", "--out", str(pipe)]) == 0
        assert pipe.is_fifo(), "as /dev/null it would be a file from now on"
        assert json.loads(os.read(reading, 1 << 16))["model"] is None
    finally:
        os.close(reading)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("said.json", "pipe")] == []

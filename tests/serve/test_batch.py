"""`compare` and `predict` on the command line: no pair is lost, repeated or silently skipped."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from helpers.processes import forking_python
from PIL import Image
from pyarrow import parquet

from lightning_idc.cli import main
from lightning_idc.images.types import PairSample
from lightning_idc.serve import batch
from lightning_idc.serve.answers import Answer
from lightning_idc.serve.describer import CaptionerDescriber
from lightning_idc.serve.pairs import Ignored, list_pairs
from lightning_idc.utils.errors import DataError

Draw = Callable[..., Path]


def lines(path: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def folders(draw: Draw, tmp_path: Path) -> tuple[str, str]:
    """Pairs that are equal in bytes, equal in pixels, changed, new and deleted."""
    for name in ("same", "packed", "other", "sub/gone"):
        draw(f"old/{name}.png", seed=len(name))
    for name in ("same", "sub/fresh"):
        draw(f"now/{name}.png", seed=len(name))
    draw("now/other.png", seed=5, square=(8, 16))
    with Image.open(tmp_path / "old/packed.png") as image:
        image.save(tmp_path / "now/packed.png", compress_level=1)
    return str(tmp_path / "old"), str(tmp_path / "now")


@pytest.mark.slow
def test_unchanged_pairs_are_never_described_and_reports_name_every_pair(
    model: Path, folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("out.jsonl", "reg.json", "junit.xml", "page.html")}
    arguments = ["compare", *folders, "--model", str(model), "--out", str(files["out.jsonl"]), "--where"]
    reports = ["--reg", str(files["reg.json"]), "--junit", str(files["junit.xml"]), "--report", str(files["page.html"])]
    assert main([*arguments, *reports, "--fail_on", "changed"]) == 1
    assert "5 pairs: 2 unchanged, 1 changed, 1 new, 1 deleted; 1 described" in capsys.readouterr().out
    records = {record["id"]: record for record in lines(files["out.jsonl"])}
    assert {name: record["status"] for name, record in records.items()} == {
        "other": "changed", "packed": "unchanged", "same": "unchanged", "sub/fresh": "new", "sub/gone": "deleted",
    }  # fmt: skip
    assert records["other"]["caption"] and records["other"]["boxes"]
    assert records["same"]["caption"] is None and not records["packed"]["described"]
    reg = json.loads(files["reg.json"].read_text())
    assert reg["failedItems"] == reg["diffItems"] == ["other.png"] and reg["newItems"] == ["sub/fresh.png"]
    assert reg["deletedItems"] == ["sub/gone.png"] and reg["passedItems"] == ["packed.png", "same.png"]
    assert sorted(reg["expectedItems"]) == ["other.png", "packed.png", "same.png", "sub/gone.png"]
    assert (reg["expectedDir"], reg["actualDir"]) == ("old", "now")  # relative to reg.json
    suite = ElementTree.parse(files["junit.xml"]).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    failures = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failures == ["other", "sub/fresh", "sub/gone"]
    page = files["page.html"].read_text(encoding="utf-8")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    shown = data["pairs"]
    assert [pair["type"] for pair in shown] == ["changed", "new", "deleted", "unchanged", "unchanged"]
    assert shown[0]["caption"] == records["other"]["caption"] and shown[0]["pictures"] == 2
    assert [[round(v * 32) for v in box] for box in shown[0]["boxes"][1]] == records["other"]["boxes"]
    assert data["box_label"] == "predicted" and "where the captioner sees the change" in page
    assert main([*arguments[:3], *arguments[3:5]]) == 0  # changes alone are not an error
    same = [str(Path(folders[0]) / "sub"), str(Path(folders[0]) / "sub")]
    assert main(["compare", *same, "--model", str(model), "--fail_on", "pixels"]) == 0
    os.remove("comparison.jsonl")


@pytest.mark.parametrize(
    ("said", "score", "status"),
    [
        ("There is no visible difference between the two images.", None, "unchanged"),
        ("the cube moved", None, "changed"),
        ("", None, "changed"),
        ("the cube moved", 0.1, "unchanged"),
        ("There is no visible difference between the two images.", 0.9, "changed"),
    ],
)
def test_a_captioner_without_a_change_score_decides_by_its_caption(
    model: Path, folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    said: str, score: float | None, status: str,
) -> None:  # fmt: skip
    """A published vision-language model has no change score."""
    changed = None if score is None else score >= 0.5

    def answer(self: object, samples: Sequence[PairSample], where: bool) -> list[Answer]:
        return [Answer(sample.id, said, -0.1, score, changed, [[0, 0, 8, 8]], size=(32, 32)) for sample in samples]

    monkeypatch.setattr(CaptionerDescriber, "answer", answer)
    for name in ("sub/gone", "sub/fresh"):
        next(tmp_path.glob(f"*/{name}.png")).unlink()
    out = tmp_path / "out.jsonl"
    arguments = ["compare", *folders, "--model", str(model), "--out", str(out), "--fail_on"]
    assert main([*arguments, "changed"]) == (status == "changed") and main([*arguments, "pixels"]) == 1
    record = next(record for record in lines(out) if record["id"] == "other")
    assert (record["status"], record["caption"], record["described"]) == (status, said, True)
    assert bool(record["boxes"]) == (status == "changed"), "an unchanged pair has no place of a change"


def test_pairs_that_fail_by_their_pixels_alone_are_named_and_fail_in_every_report(
    model: Path, folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A captioner that sees no change must not turn a job that fails by its pixels into reports that passed."""

    def answer(self: object, samples: Sequence[PairSample], where: bool) -> list[Answer]:
        return [Answer(sample.id, "nothing changed", -0.1, 0.1, False) for sample in samples]

    monkeypatch.setattr(CaptionerDescriber, "answer", answer)
    for name in ("sub/gone", "sub/fresh"):
        next(tmp_path.glob(f"*/{name}.png")).unlink()
    reg, junit = tmp_path / "reg.json", tmp_path / "junit.xml"
    arguments = ["compare", *folders, "--model", str(model), "--out", str(tmp_path / "out.jsonl")]
    arguments += ["--reg", str(reg), "--junit", str(junit), "--fail_on"]
    for fail_on, failed in (("pixels", ["other"]), ("changed", []), ("never", [])):
        assert main([*arguments, fail_on]) == len(failed)
        assert ("other: nothing changed" in capsys.readouterr().out) == bool(failed)
        suite = ElementTree.parse(junit).getroot()
        assert [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None] == failed
        assert suite.get("failures") == str(len(failed))
        result = json.loads(reg.read_text())
        assert result["failedItems"] == result["diffItems"] == [f"{name}.png" for name in failed]
        assert ("other.png" in result["passedItems"]) == (not failed)


def test_what_cannot_be_read_or_compared_is_status_two(
    model: Path, folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "now/other.png").write_bytes((tmp_path / "now/other.png").read_bytes()[:300])
    out = tmp_path / "out.csv"
    arguments = ["compare", *folders, "--model", str(model), "--out", str(out), "--junit", str(tmp_path / "junit.xml")]
    assert main(arguments) == 2
    with out.open(newline="") as file:
        failed = [row for row in csv.DictReader(file) if row["status"] == "failed"]
    assert [row["id"] for row in failed] == ["other"] and "damaged" in failed[0]["error"]
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("errors") == "1"
    for wrong, message in (
        (["compare", folders[0], "nowhere"], "there is no 'nowhere'"),
        (["compare", *folders, "--out", "x.txt"], "expected a name that ends with .jsonl, .csv, .parquet"),
        (["compare", *folders, "--ignore", "left"], "expected X1,Y1,X2,Y2"),
        (["compare", *folders, "--ignore", "8,24,0,16"], "'8,24,0,16' has no pixels"),
        (["compare", *folders, "--ignore", "1,2,3,\u00b2"], "expected X1,Y1,X2,Y2"),
    ):
        extra = [] if "--out" in wrong else ["--out", str(tmp_path / "new.jsonl")]
        assert main([*wrong, "--model", str(model), *extra]) == 2
        assert message in capsys.readouterr().err
    assert main(["compare", *folders, "--batch_size", "0", "--out", str(tmp_path / "new.jsonl")]) == 2
    assert "argument --batch_size: expected at least 1" in capsys.readouterr().err


def test_what_is_ignored_does_not_count(model: Path, folders: tuple[str, str], tmp_path: Path, draw: Draw) -> None:
    def status(*ignored: str) -> str:
        out = tmp_path / "out.jsonl"
        assert main(["compare", *folders, "--model", str(model), "--out", str(out), "--ignore", *ignored]) == 0
        return next(record["status"] for record in lines(out) if record["id"] == "other")

    mask = Image.new("L", (32, 32))
    mask.paste(255, (8, 16, 16, 24))
    (tmp_path / "masks").mkdir()
    mask.save(tmp_path / "masks/other.png")
    mask.save(tmp_path / "one.png")
    assert status("8,16,16,24") == "unchanged" and status("0,0,12,32", "12,0,32,32") == "unchanged"
    assert status(str(tmp_path / "masks")) == "unchanged" and status(str(tmp_path / "one.png")) == "unchanged"
    assert status("8,16,15,24") == "changed"


def test_what_is_transparent_in_a_mask_is_not_bright(
    model: Path, folders: tuple[str, str], tmp_path: Path, draw: Draw
) -> None:
    """If transparency counted as bright, a mask on an empty layer would ignore whole images, and every pair pass."""
    for kind in ("RGBA", "LA", "P"):
        mask = Image.new("RGBA", (32, 32), (255, 255, 255, 0))
        mask.paste((255, 255, 255, 255), (0, 0, 4, 4))
        path = tmp_path / f"{kind}.png"
        mask.convert(kind).save(path)
        ignored = Ignored([str(path)])
        result = ignored.apply("a", torch.zeros(3, 32, 32, dtype=torch.uint8), torch.ones(3, 32, 32, dtype=torch.uint8))
        assert int((result == 0).all(0).sum()) == 16 and not result[:, :4, :4].any(), kind
    out = tmp_path / "out.jsonl"
    arguments = ["compare", *folders, "--model", str(model), "--out", str(out), "--fail_on", "pixels"]
    assert main([*arguments, "--ignore", str(tmp_path / "RGBA.png")]) == 1


@pytest.mark.slow
def test_a_table_a_list_and_a_folder_give_the_same_captions_in_every_format(
    model: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        draw(f"before/{number}.png", seed=number)
        draw(f"after/{number}.png", seed=number, square=(number, number))
    draw("after/4.png", seed=4, size=(48, 48))
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},before/{n}.png,after/{n}.png" for n in range(5)]
    Path("pairs.csv").write_text("\n".join(["id,before,after", *rows]))
    Path("pairs.txt").write_text("# two a line\n" + "\n".join(f"before/{n}.png\tafter/{n}.png" for n in range(5)))
    said = []
    for arguments, out in (
        (["before", "after"], "a.jsonl"),
        ([str(tmp_path)], "b.csv"),
        (["pairs.csv"], "c.parquet"),
        (["pairs.txt"], "d.jsonl"),
    ):
        assert main(["predict", *arguments, "--model", str(model), "--out", out, "--batch_size", "2"]) == 0
        if out.endswith(".csv"):
            with open(out, newline="") as file:
                result = list(csv.DictReader(file))
        else:
            result = parquet.read_table(out).to_pylist() if out.endswith("parquet") else lines(Path(out))
        said.append([(record["caption"], round(float(record["log_prob"]), 4)) for record in result])
        assert not list(tmp_path.glob("*.part"))
    assert len(said[0]) == 5 and said == [said[0]] * 4
    assert "note: before is 32x32 and after is 48x48" not in capsys.readouterr().out
    os.remove("after/3.png")
    assert main(["predict", "before", "after", "--model", str(model)]) == 1
    assert "1 images have no partner of the same name on the other side: 3" in capsys.readouterr().err


def test_lists_are_read_strictly(tmp_path: Path) -> None:
    for text, message in (
        ("a.png", "line 1: 1 paths"),
        ("a.png b.png\na.png b.png", "line 2: the pair 'a..b' appears twice"),
        ("a.png b.png\n\na.jpg b.png", "line 3: the pair 'a..b' has other files than an earlier one"),
        ("", "no pairs"),
    ):
        (tmp_path / "pairs.txt").write_text(text)
        with pytest.raises(DataError, match=message):
            list_pairs([tmp_path / "pairs.txt"])
    (tmp_path / "pairs.txt").write_text(". b.png")
    assert [pair.id for pair in list_pairs([tmp_path / "pairs.txt"])] == ["...b"]  # fails only when it is read
    # as Windows editors save it: with a byte order mark, or as UTF-16
    (tmp_path / "pairs.txt").write_bytes(b"\xef\xbb\xbfa.png b.png\r\n\xc3\xa4\xe2\x80\xa8.png\tc.png\r\n")
    assert [pair.before for pair in list_pairs([tmp_path / "pairs.txt"])] == [
        tmp_path / "a.png", tmp_path / "\u00e4\u2028.png",
    ]  # fmt: skip
    (tmp_path / "pairs.txt").write_text("a.png b.png\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"pairs.txt, line 1: byte 0xff is not UTF-8 text"):
        list_pairs([tmp_path / "pairs.txt"])


def test_options_may_stand_before_the_pairs(
    model: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage line of `predict --help` lists the options before the pairs."""
    monkeypatch.chdir(tmp_path)
    draw("before/0.png", seed=0)
    draw("after/0.png", seed=1)
    (tmp_path / "pairs.txt").write_text("before/0.png after/0.png")
    for arguments in (
        ["--model", str(model), "before", "after"],
        [f"--model={model}", "pairs.txt"],
        ["--model", str(model), "--batch_size=4", "--where", "pairs.txt"],
    ):
        assert main(["predict", *arguments]) == 0, capsys.readouterr().err
        assert "1 pairs" in capsys.readouterr().out
    assert main(["predict", "--out", "out.csv", "--model", str(model)]) == 2
    assert "the following arguments are required: pairs" in capsys.readouterr().err
    assert main(["predict", "--config", "absent.yaml", "before", "--out", "out.csv"]) == 1
    assert "absent.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_goes_on_and_neither_loses_nor_repeats_a_pair(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(400):
        draw(f"before/{number:03d}.png", seed=number)
        draw(f"after/{number:03d}.png", seed=number, square=(number % 24, 3))
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    arguments = ["predict", str(tmp_path), "--model", str(model), "--out", str(out), "--batch_size", "1"]
    running = subprocess.Popen([forking_python(), "-m", "lightning_idc", *arguments], stderr=subprocess.PIPE)
    while running.poll() is None and (not part.is_file() or part.read_bytes().count(b"\n") < 20):
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not out.exists()
    with part.open("a") as file:
        file.write('{"id": "399", "cap')  # as if killed in the middle of a line
    kept = part.read_text().splitlines()[1:-1]
    assert main([*arguments[:-2], "--batch_size", "32"]) == 0
    captured = capsys.readouterr()
    assert f"{len(kept)} of 400 pairs were answered before" in captured.err
    result = out.read_text().splitlines()
    assert [json.loads(line)["id"] for line in result] == [f"{number:03d}" for number in range(400)]
    assert result[: len(kept)] == kept and not part.exists()


def test_an_unfinished_run_of_other_settings_is_not_mixed_with(
    model: Path, folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "out.jsonl.part"
    answered = f'{{"prediction": "{"0" * 32}"}}\n{{"id": "other", "status": "changed"}}\n'
    part.write_text(answered)
    arguments = ["compare", *folders, "--model", str(model), "--out", str(tmp_path / "out.jsonl")]
    assert main(arguments) == 2 and part.read_text() == answered
    assert "unfinished run of another captioner" in capsys.readouterr().err


def test_captions_are_written_next_to_the_second_images_and_not_replaced(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        draw(f"before/{number}.png", seed=number)
        draw(f"after/{number}.png", seed=9)
    (tmp_path / "after/1.txt").write_text("by hand\n")
    assert main(["predict", str(tmp_path), "--sidecar", "--model", str(model)]) == 0
    assert "2 captions written, 1 were there, 0 failed" in capsys.readouterr().out
    assert (tmp_path / "after/1.txt").read_text() == "by hand\n" and (tmp_path / "after/2.txt").read_text().strip()
    assert (
        main(["predict", str(tmp_path), "--sidecar", "--model", str(model), "--prompt", "Write the instruction."]) == 1
    )
    assert "takes no prompt" in capsys.readouterr().err


def test_captions_that_would_be_one_file_are_refused_and_lonely_images_are_counted(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("before/1", "before/2", "after/1", "after/3"):
        draw(f"{name}.png", seed=len(name))
    assert main(["predict", str(tmp_path), "--sidecar", "--model", str(model)]) == 0
    assert "2 images have no partner" in capsys.readouterr().err
    table = tmp_path / "pairs.jsonl"
    rows = [{"id": str(number), "before": f"before/{number}.png", "after": "after/3.png"} for number in (1, 2)]
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["predict", str(table), "--sidecar", "--model", str(model)]) == 1
    assert "the captions of 1 and 2 would both be" in capsys.readouterr().err
    assert not (tmp_path / "after/3.txt").exists()


def test_names_of_files_cannot_steer_the_terminal(
    model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("old", "now"):
        draw(f"{side}/a.png", seed=ord(side[0])).rename(tmp_path / side / "\x1b[2Jone.png")
        (tmp_path / side / "\x1b[2Jtwo.png").write_text("no picture")
    folders = [str(tmp_path / side) for side in ("old", "now")]
    arguments = ["--model", str(model), "--out", str(tmp_path / "out.jsonl")]
    assert main(["compare", *folders, "--model", str(model), "--out", str(tmp_path / "compared.jsonl")]) == 2
    assert main(["predict", *folders, *arguments]) == 2
    (tmp_path / "now/\x1b[2Jtwo.png").unlink()
    assert main(["predict", *folders, *arguments]) == 1  # one has no counterpart
    captured = capsys.readouterr()
    assert "\\x1b[2Jone" in captured.out and "\\x1b[2Jtwo" in captured.err
    assert "\x1b" not in captured.out + captured.err
    for side in ("old", "now"):
        (tmp_path / side).rename(tmp_path / ("before" if side == "old" else "after"))
    (tmp_path / "after/\x1b[2Jtwo.png").write_text("no picture")
    assert main(["predict", str(tmp_path), "--sidecar", "--model", str(model)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_answers_of_an_unfinished_run_are_not_taken_for_other_pictures_of_the_same_names(
    model: Path, draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("old", "monday", "tuesday"):
        for name in ("a", "b"):
            os.utime(draw(f"{folder}/{name}.png", seed=len(folder)), (0, 0))
    compared = ["--model", str(model), "--out", str(tmp_path / "out.jsonl"), "--batch_size", "1"]
    monday, tuesday = ([str(tmp_path / "old"), str(tmp_path / day)] for day in ("monday", "tuesday"))
    whole = batch.answer_batches

    def stopped(*arguments: object) -> object:
        yield next(iter(whole(*arguments)))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "answer_batches", stopped)
    assert main(["compare", *monday, *compared]) == 130
    monkeypatch.setattr(batch, "answer_batches", whole)
    assert main(["compare", *tuesday, *compared]) == 2
    assert "of other pairs" in capsys.readouterr().err
    answered = tmp_path / "out.jsonl.part"
    kept = answered.stat()
    (first,) = [record["id"] for record in lines(answered) if "id" in record]
    changed = draw(f"monday/{first}.png", seed=len("old"))  # equal to the first image
    os.utime(changed, (kept.st_mtime + 1, kept.st_mtime + 1))
    assert main(["compare", *monday, *compared]) == 0
    assert {record["id"]: record["status"] for record in lines(tmp_path / "out.jsonl")}[first] == "unchanged"
    assert main(["compare", *tuesday, *compared]) == 0
    assert all("tuesday" in record["after"] for record in lines(tmp_path / "out.jsonl"))


@pytest.mark.parametrize("option", ["--out", "--reg", "--junit", "--report"])
def test_a_file_that_cannot_be_written_is_named_before_the_work_and_is_no_change(
    option: str, model: Path, folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    arguments = ["compare", *folders, "--model", str(model), "--out", str(tmp_path / "out.jsonl")]
    assert main([*arguments, option, str(tmp_path / "taken/found.jsonl")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and option in captured.err and "Traceback" not in captured.err
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "out.jsonl.part").exists()


@pytest.mark.parametrize("option", ["--out", "--reg", "--junit", "--report"])
def test_a_folder_instead_of_a_file_raises_an_error_before_the_work(
    option: str, model: Path, folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reports.csv").mkdir()
    arguments = ["compare", *folders, "--model", str(model), "--out", str(tmp_path / "out.jsonl")]
    assert main([*arguments, option, str(tmp_path / "reports.csv")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {option} ") and "reports.csv' is a folder" in printed
    assert not list(tmp_path.glob("*.jsonl*")) and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_table_that_is_read_is_not_written_over(
    kind: str, model: Path, draw: Draw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may hold captions written by people."""
    draw("a.png", seed=0)
    draw("b.png", seed=1)
    table = tmp_path / f"pairs.{kind}"
    row = {"before": "a.png", "after": "b.png", "captions": "the ball is gone"}
    lines = [",".join(row), ",".join(row.values())] if kind == "csv" else [json.dumps(row)]
    table.write_text("\n".join(lines) + "\n")
    before = table.read_bytes()
    assert main(["predict", str(table), "--model", str(model), "--out", str(tmp_path / "." / table.name)]) == 1
    assert f"{table.name}' is an input and would be overwritten; choose another file" in capsys.readouterr().err
    assert table.read_bytes() == before


def test_a_fault_of_the_program_is_not_taken_for_a_change(
    model: Path,
    folders: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(batch, "answer_batches", broken)
    assert main(["compare", *folders, "--model", str(model), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "RuntimeError: a fault" in capsys.readouterr().err


def test_pixels_are_compared_as_the_files_store_them(model: Path, tmp_path: Path) -> None:
    """White on transparent, and frames that are not shown, differ although the displayed images are equal."""
    before, after = tmp_path / "old", tmp_path / "now"
    for folder, x in ((before, 4), (after, 20)):
        folder.mkdir()
        logo = Image.new("RGBA", (32, 32))
        logo.paste((255, 255, 255, 255), (x, 8, x + 8, 24))
        logo.save(folder / "logo.png")
        Image.new("RGBA", (32, 32), (x, x, x, 0)).save(folder / "invisible.png")
        frames = [Image.new("L", (32, 32), 90), Image.new("L", (32, 32), x)]
        frames[0].save(folder / "frames.gif", save_all=True, append_images=frames[1:])
    out = tmp_path / "out.jsonl"
    arguments = ["compare", str(before), str(after), "--model", str(model), "--out", str(out), "--fail_on", "pixels"]
    assert main([*arguments, "--image", "page=0"]) == 1
    records = {record["id"]: record for record in lines(out)}
    assert {name: record["described"] for name, record in records.items()} == {
        "frames": True, "invisible": False, "logo": True,
    }  # fmt: skip
    assert records["logo"]["compared"] == "256 of 1,024 pixels differ by up to 255 (3 bands of 8 bits and opacity)"
    assert "in 2 images" in records["frames"]["compared"] and records["invisible"]["compared"].startswith("0 of 1,024")


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--tolerance", "3"], 1), (["--tolerance", "4"], 0),
                                                 (["--allow_pixels", "1"], 0)])  # fmt: skip
def test_differences_within_the_tolerance_pass(model: Path, tmp_path: Path, options: list[str], status: int) -> None:
    page = Image.new("RGB", (32, 32), (250, 250, 250))
    for side in ("old", "now"):
        (tmp_path / side).mkdir()
        page.save(tmp_path / side / "a.png")
        page.putpixel((30, 20), (246, 246, 246))
    arguments = [
        str(tmp_path / "old"),
        str(tmp_path / "now"),
        "--model",
        str(model),
        "--out",
        str(tmp_path / "out.jsonl"),
    ]
    assert main(["compare", *arguments, "--fail_on", "pixels", *options]) == status

"""The verb `questions`: answers scored, and a tiny vision-language captioner asked, with and without CoCoT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import vlm_tiny
from lightning.pytorch import Trainer
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.core.types import PairError
from lightning_idc.data.benchmarks.questions import Question, read_questions
from lightning_idc.metrics.paired_accuracy import CONTRAST


def pictures(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", (32, 32), (40 * number, 90, 30)).save(folder / name)


def table(folder: Path) -> Path:
    pictures(folder, "a.png", "b.png")
    lines = ["pair,question,answer,before,after"]
    lines += [f'1,"Which {side}? (a) left (b) right",{answer},a.png,b.png' for side, answer in (("x", "a"), ("y", "b"))]
    (folder / "questions.csv").write_text("\n".join(lines))
    return folder / "questions.csv"


def test_answers_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.json"
    said = [("1", "a", "(a)"), ("1", "b", "B."), ("2", "a", "(a)"), ("2", "b", "who knows")]
    answers.write_text(json.dumps([dict(zip(("pair", "answer", "said"), row, strict=True)) for row in said]))
    assert main(["questions", "score", str(answers), "--out", str(tmp_path / "result.json")]) == 0
    told = capsys.readouterr()
    assert "pairs with both answers right: 50.0 % of 2" in told.out
    assert "75.0 % of 4" in told.out and "1 answers choose nothing" in told.err
    expected = {"file": "answers.json", "letters": "ab", "pairs": 50, "questions": 75, "unparsed": 1, "counted": 2}
    assert json.loads((tmp_path / "result.json").read_text()) == expected
    assert main(["questions", "score", str(answers), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["questions", "score", str(answers), "--letters", "aa"]) == 1
    assert "at least two different letters" in capsys.readouterr().err


def test_questions_of_both_layouts(tmp_path: Path) -> None:
    own = read_questions(table(tmp_path / "own"))
    folder = tmp_path / "own"
    assert own[1] == Question("1", "Which y? (a) left (b) right", "b", folder / "a.png", folder / "b.png")
    pictures(tmp_path / "mmvp/MMVP Images", "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    lines = ["Index,Question,Options,Correct Answer"]
    lines += [f"{n},Is it open?,(a) Yes (b) No,({letter})" for n, letter in ((1, "a"), (2, "b"), (3, "a"), (4, "b"))]
    (tmp_path / "mmvp/Questions.csv").write_text("\n".join(lines))
    theirs = read_questions(tmp_path / "mmvp/Questions.csv")
    assert [question.pair for question in theirs] == ["1", "1", "2", "2"]
    assert theirs[3].text == "This is about the second image only. Is it open? (a) Yes (b) No"
    assert (theirs[3].before.name, theirs[3].after.name, theirs[3].answer) == ("3.jpg", "4.jpg", "(b)")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1,Which?,a,a.png,gone.png", "1 images of questions.csv are not there"),
        ("1,Which?,a,../a.png,b.png", "outside|leaves"),
        ("1,,a,a.png,b.png", "a column is empty"),
    ],
)
def test_questions_that_cannot_be_asked(tmp_path: Path, line: str, told: str) -> None:
    path = table(tmp_path / "own")
    path.write_text(f"pair,question,answer,before,after\n{line}")
    with pytest.raises(PairError, match=told):
        read_questions(path)
    path.write_text("pair,question,answer,before\n1,Which?,a,a.png")
    with pytest.raises(PairError, match="no column 'after'"):
        read_questions(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vlm") / "vlm.ckpt"
    model = vlm_tiny.captioner("llava", image_size=(32, 32))
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)
    return path


def test_a_captioner_is_asked(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_idc.methods.vlm.module import VLMCaptioner

    asked: list[str] = []
    prompt_inputs = VLMCaptioner.prompt_inputs
    monkeypatch.setattr(
        VLMCaptioner,
        "prompt_inputs",
        lambda self, prompts, sizes: (asked.extend(prompts), prompt_inputs(self, prompts, sizes))[1],
    )
    given = ["questions", "ask", str(table(tmp_path)), "--checkpoint", str(checkpoint), "--tokens", "5"]
    records: dict[bool, list[dict[str, Any]]] = {}
    for contrast in (False, True):
        asked.clear()
        out = tmp_path / f"{contrast}.jsonl"
        assert main([*given, "--out", str(out), *(["--contrast"] if contrast else [])]) == 0
        records[contrast] = [json.loads(line) for line in out.read_text().splitlines()]
        questions = [prompt for prompt in asked if "Which" in prompt]
        assert [record["answer"] for record in records[contrast]] == ["a", "b"]
        assert asked.count(CONTRAST) == contrast and len(questions) == 2
        if contrast:
            assert all(prompt.startswith(records[True][0]["differences"].strip()) for prompt in questions)
    assert "differences" not in records[False][0]
    capsys.readouterr()
    assert main(["questions", "score", str(out)]) == 0
    assert "% of 1" in capsys.readouterr().out


def test_what_is_missing_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["questions", "ask", str(table(tmp_path))]
    for more, told in (
        ([], "name a file with --out"),
        (["--out", str(tmp_path / "x")], "either --checkpoint FILE or --model ID"),
        (["--out", str(tmp_path / "x"), "--model", "m", "--tokens", "0"], "at least one"),
    ):
        assert main([*given, *more]) == 1
        assert told in capsys.readouterr().err

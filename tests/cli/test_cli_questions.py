"""`predict --questions` and `score --questions`, with a tiny vision-language captioner, with and without CoCoT."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import vlm_tiny
from lightning.pytorch import Trainer
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.data.benchmarks.questions import Question, read_questions
from lightning_idc.metrics.paired_accuracy import CONTRAST, corrected_key, paired_accuracy, read_answers
from lightning_idc.utils.errors import ConfigError, DataError


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
    answers.write_text(json.dumps([dict(zip(("pair", "answer", "response"), row, strict=True)) for row in said]))
    assert main(["score", str(answers), "--questions", "pairs", "--out", str(tmp_path / "result.json")]) == 0
    captured = capsys.readouterr()
    assert "pairs with both answers right: 50.0 % of 2" in captured.out
    assert "75.0 % of 4" in captured.out and "1 answers choose nothing" in captured.err
    expected = {"file": "answers.json", "letters": "ab", "pairs": 50, "questions": 75, "unparsed": 1, "counted": 2}
    assert json.loads((tmp_path / "result.json").read_text()) == expected
    assert main(["score", str(answers), "--questions", "pairs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["score", str(answers), "--questions", "pairs", "--letters", "aa"]) == 1
    assert "at least two different letters" in capsys.readouterr().err


def test_answers_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.jsonl"
    text = "".join(json.dumps({"pair": "1", "answer": key, "response": key}) + "\n" for key in "ab")
    answers.write_text(text)
    assert main(["score", str(answers), "--questions", "pairs", "--out", str(answers)]) == 1
    assert "is an input and would be overwritten" in capsys.readouterr().err
    assert answers.read_text() == text
    assert main(["score", str(answers), "--questions", "pairs", "--out", str(tmp_path)]) == 1
    assert "is a folder; expected the path of a file" in capsys.readouterr().err


def test_a_single_answer_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"pair": "spatialmap.0", "answer": "a", "response": "(a)"}) + "\n")
    assert main(["score", str(answers), "--questions", "tasks"]) == 0
    assert "all: 100.0 % of 1" in capsys.readouterr().out
    answers.write_text(json.dumps({"1": "a"}))
    assert main(["score", str(answers), "--questions", "tasks"]) == 1
    assert "holds a map; expected a list of records" in capsys.readouterr().err


def test_questions_of_both_layouts(tmp_path: Path) -> None:
    own = read_questions(table(tmp_path / "own"))
    folder = tmp_path / "own"
    assert own[1] == Question("1", "Which y? (a) left (b) right", "b", (folder / "a.png", folder / "b.png"))
    pictures(tmp_path / "mmvp/MMVP Images", "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    lines = ["Index,Question,Options,Correct Answer"]
    lines += [f"{n},Is it open?,(a) Yes (b) No,({letter})" for n, letter in ((1, "a"), (2, "b"), (3, "a"), (4, "b"))]
    (tmp_path / "mmvp/Questions.csv").write_text("\n".join(lines))
    theirs = read_questions(tmp_path / "mmvp/Questions.csv")
    assert [question.pair for question in theirs] == ["1", "1", "2", "2"]
    assert theirs[3].text == "This is about the second image only. Is it open? (a) Yes (b) No"
    assert ([path.name for path in theirs[3].images], theirs[3].answer) == (["3.jpg", "4.jpg"], "(b)")
    alone = read_questions(tmp_path / "mmvp/Questions.csv", single=True)
    assert [path.name for asked in alone for path in asked.images] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert alone[3].text == "Is it open? (a) Yes (b) No", "as MMVP's own script puts it"
    assert [path.name for path in alone[3].compared] == ["3.jpg", "4.jpg"]
    with pytest.raises(ConfigError, match="column image"):
        read_questions(folder / "questions.csv", single=True)


def test_four_keys_of_mmvp_are_corrected(tmp_path: Path) -> None:
    """The keys of rows 99 and 100, and of 279 and 280, are swapped: issues 14 and 30 of tsb0601/MMVP."""
    asked = {99: "Does the elephant have long or short tusks?", 279: "Is the elderly person standing or sitting?"}
    pictures(tmp_path / "MMVP Images", *(f"{n}.jpg" for n in range(1, 301)))
    lines = ["Index,Question,Options,Correct Answer"]
    answers = []
    for n in range(1, 301):
        question, letter = asked.get(n) or asked.get(n - 1) or "Is it open?", "a" if n % 2 else "b"
        lines.append(f"{n},{question},(a) Yes (b) No,({letter})")
        answers.append({"question_id": n, "prompt": question, "answer": f"({letter})", "response": f"({letter})"})
    (tmp_path / "Questions.csv").write_text("\n".join(lines))
    published = read_questions(tmp_path / "Questions.csv", published_keys=True)
    corrected = read_questions(tmp_path / "Questions.csv")
    changed = {n: (a.answer, b.answer) for n, (a, b) in enumerate(zip(published, corrected, strict=True), 1) if a != b}
    assert changed == {99: ("(a)", "(b)"), 100: ("(b)", "(a)"), 279: ("(a)", "(b)"), 280: ("(b)", "(a)")}
    (tmp_path / "said.jsonl").write_text("\n".join(json.dumps(record) for record in answers))
    assert paired_accuracy(read_answers(tmp_path / "said.jsonl", published_keys=True)).pairs == 100
    assert paired_accuracy(read_answers(tmp_path / "said.jsonl")).pairs == pytest.approx(100 * 148 / 150)
    # a table that is already corrected, or in another order, is not changed
    (tmp_path / "Questions.csv").write_text(
        "\n".join(lines).replace(f"99,{asked[99]},(a) Yes (b) No,(a)", f"99,{asked[99]},(a) Yes (b) No,(b)")
    )
    assert read_questions(tmp_path / "Questions.csv")[98].answer == "(b)"
    assert corrected_key(99, "Is it open?", "(a)") == "(a)"


def spatial(path: Path) -> Path:
    """Write a file of MilaWang/SpatialEval as `hf download` does."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = io.BytesIO()
    Image.new("RGB", (32, 32), (9, 90, 30)).save(file, "PNG")
    image = {"bytes": file.getvalue(), "path": None}
    rows = [
        {"id": f"{task}.{n}.0", "text": f"Which way? Available options: A. Up B. Down. ({n})", "image": image}
        | {"oracle_answer": answer, "oracle_option": letter, "oracle_full_answer": f"{letter}. {answer}"}
        for task in ("spatialmap", "spatialreal", "mazenav")
        for n, (letter, answer) in enumerate((("A", "Up"), ("B", "Down")))
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def test_spatialeval_is_scored_by_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = read_questions(spatial(tmp_path / "vqa.parquet"))
    assert [question.answer for question in asked[:2]] == ["A", "B"] and asked[1].words == "Down"
    assert asked[0].text.startswith("Which way?") and asked[0].text.endswith("step-by-step explanation.")
    said = {
        "spatialmap.0.0": "A. Up",
        "spatialmap.1.0": "down.",
        "spatialreal.0.0": "B",
        "spatialreal.1.0": "who knows",
    }
    lines = [
        json.dumps({"pair": q.pair, "answer": q.answer, "response": said[q.pair], "words": q.words})
        for q in asked
        if q.pair in said
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(lines))
    assert main(["score", str(tmp_path / "said.jsonl"), "--questions", "tasks", "--letters", "abcd"]) == 0
    printed = capsys.readouterr()
    assert "spatialmap: 100.0 % of 2" in printed.out and "spatialreal: 0.0 % of 2" in printed.out
    assert "1 answers choose nothing" in printed.err
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="MilaWang/SpatialEval"):
        read_questions(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,Which?,a,a.png,gone.png", "1 images of questions.csv are missing"),
        ("1,Which?,a,../a.png,b.png", "outside|leaves"),
        ("1,,a,a.png,b.png", "a column is empty"),
    ],
)
def test_invalid_questions(tmp_path: Path, line: str, message: str) -> None:
    path = table(tmp_path / "own")
    path.write_text(f"pair,question,answer,before,after\n{line}")
    with pytest.raises(DataError, match=message):
        read_questions(path)
    path.write_text("pair,question,answer,before\n1,Which?,a,a.png")
    with pytest.raises(DataError, match="no column 'after'"):
        read_questions(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vlm") / "vlm.ckpt"
    model = vlm_tiny.captioner("llava", image_size=(32, 32))
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)
    return path


@pytest.mark.slow
def test_a_captioner_answers_questions(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_idc.models.vlm.module import VLMCaptioner

    asked: list[str] = []
    prompt_inputs = VLMCaptioner.prompt_inputs
    monkeypatch.setattr(
        VLMCaptioner,
        "prompt_inputs",
        lambda self, prompts, sizes: (asked.extend(prompts), prompt_inputs(self, prompts, sizes))[1],
    )
    arguments = ["predict", str(table(tmp_path)), "--questions", "--model", str(checkpoint), "--tokens", "5"]
    records: dict[bool, list[dict[str, Any]]] = {}
    for contrast in (False, True):
        asked.clear()
        out = tmp_path / f"{contrast}.jsonl"
        assert main([*arguments, "--out", str(out), *(["--contrast"] if contrast else [])]) == 0
        records[contrast] = [json.loads(line) for line in out.read_text().splitlines()]
        questions = [prompt for prompt in asked if "Which" in prompt]
        assert [record["answer"] for record in records[contrast]] == ["a", "b"]
        assert asked.count(CONTRAST) == contrast and len(questions) == 2
        if contrast:
            assert all(prompt.startswith(records[True][0]["differences"].strip()) for prompt in questions)
    assert "differences" not in records[False][0]
    capsys.readouterr()
    assert main(["score", str(out), "--questions", "pairs"]) == 0
    assert "% of 1" in capsys.readouterr().out


@pytest.mark.slow
def test_questions_about_a_single_image(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is asked about its own image; with --contrast the pair is compared first, as for Table 11."""
    from lightning_idc.models.vlm.question_answering import QuestionAnswerer

    asked: list[tuple[list[str], str]] = []
    call = QuestionAnswerer.__call__

    def seen(self: QuestionAnswerer, images: Any, questions: Any) -> list[str]:
        asked.extend(([Path(image).name for image in images], question) for question in questions)
        return call(self, images, questions)

    monkeypatch.setattr(QuestionAnswerer, "__call__", seen)
    folder = tmp_path / "mmvp"
    pictures(folder / "MMVP Images", "1.jpg", "2.jpg")
    lines = ["Index,Question,Options,Correct Answer", "1,Open?,(a) Yes (b) No,(a)", "2,Open?,(a) Yes (b) No,(b)"]
    (folder / "Questions.csv").write_text("\n".join(lines))
    arguments = ["predict", str(folder / "Questions.csv"), "--questions", "--model", str(checkpoint), "--tokens", "4"]
    out = tmp_path / "out.jsonl"
    assert main([*arguments, "--single", "--out", str(out)]) == 0
    assert asked == [(["1.jpg"], "Open? (a) Yes (b) No"), (["2.jpg"], "Open? (a) Yes (b) No")]
    asked.clear()
    assert main([*arguments, "--single", "--contrast", "--out", str(out)]) == 0
    assert [(images, text == CONTRAST) for images, text in asked] == [
        (["1.jpg", "2.jpg"], True),
        (["1.jpg"], False),
        (["1.jpg", "2.jpg"], True),
        (["2.jpg"], False),
    ]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["answer"] for record in records] == ["(a)", "(b)"] and all("differences" in r for r in records)
    tasks = ["predict", str(spatial(tmp_path / "vqa.parquet")), "--questions", "--model", str(checkpoint)]
    more = ["--tokens", "3", "--tasks", "spatialreal", "--out", str(out)]
    monkeypatch.setattr(QuestionAnswerer, "__call__", call)
    assert main([*tasks, *more]) == 0
    assert [json.loads(line)["pair"] for line in out.read_text().splitlines()] == ["spatialreal.0.0", "spatialreal.1.0"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl", "internvl"])
def test_one_picture_is_answered_as_the_stock_model_does(kind: str) -> None:
    from lightning_idc.models.vlm.question_answering import QuestionAnswerer

    captioner = vlm_tiny.captioner(kind, image_size=(32, 32))
    picture = vlm_tiny.samples(1, 32)[0].before
    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file, "PNG")
    (answer,) = QuestionAnswerer(captioner, 5)([file.getvalue()], ["what is it?"])
    net = captioner.built_net
    text = net.family.prompt(net.processor, "what is it?", images=1)
    assert text.count(net.family.image_text) == 1
    inputs = net.processor(text=[text], images=[[picture]], return_tensors="pt", **net.family.image_options)
    special = captioner.built_vocabulary.special
    stops = {"eos_token_id": list(special.ends), "pad_token_id": special.pad}
    out = net.model.generate(
        **inputs, do_sample=False, max_new_tokens=5, suppress_tokens=list(special.suppress_tokens), **stops
    )
    assert answer == captioner.built_vocabulary.decode(out[0, inputs["input_ids"].shape[1] :].tolist())
    other = QuestionAnswerer(captioner, 5)([file.getvalue()], ["what changed?"])
    assert isinstance(other[0], str)


def test_what_is_missing_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", str(table(tmp_path)), "--questions"]
    for more, message in (
        (["--out", str(tmp_path / "x")], "name one with --model"),
        (["--out", arguments[1], "--model", "m"], "is an input and would be overwritten; choose another file"),
        (["--out", str(tmp_path), "--model", "m"], "is a folder; expected the path of a file"),
    ):
        assert main([*arguments, *more]) == 1
        assert message in capsys.readouterr().err

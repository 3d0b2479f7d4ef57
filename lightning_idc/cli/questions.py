"""Questions about pairs or single images: answered by `predict --questions`, scored by `score --questions`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_idc.serve.opening import ModelOptions
from lightning_idc.utils.bounds import PositiveInt, check_fields
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_file, saved, write_file

if TYPE_CHECKING:
    from lightning_idc.data.benchmarks.questions import Question
    from lightning_idc.models.vlm.question_answering import QuestionAnswerer


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """Options for questions to a vision-language model.

    Args:
        questions: PAIRS is a file of questions with answers to choose from: a CSV or JSONL with the columns pair,
            question, answer, before, after, MMVP's Questions.csv next to its folder "MMVP Images", or a Parquet file of
            SpatialEval (vqa or vtqa). `score --questions` scores the answers.
        root: folder of the images of the questions; the folder of their file by default.
        single: ask each question about one image, as MMVP does, instead of both.
        contrast: let the model compare the images first (CoCoT).
        tasks: only the questions of these tasks, such as spatialmap spatialreal.
        published_keys: keep MMVP's wrong keys of rows 99, 100, 279 and 280.
        tokens: maximum number of tokens of an answer.
    """

    questions: bool = False
    root: str | None = None
    single: bool = False
    contrast: bool = False
    tasks: Sequence[str] = ()
    published_keys: bool = False
    tokens: PositiveInt = 128

    def __post_init__(self) -> None:
        check_fields(self)


def answer_questions(
    files: Sequence[str], model: ModelOptions, options: QuestionOptions, out: Path, overwrite: bool
) -> int:
    """Answer a file of questions by a vision-language model, and write one answer per line.

    Args:
        files: file of questions; exactly one.
        model: the vision-language model.
        options: options for the questions.
        out: output file.
        overwrite: replace a file that this command did not write.
    """
    from lightning_idc.data.benchmarks.questions import ImageFile, read_questions

    if len(files) != 1:
        raise ConfigError(f"--questions reads one file of questions; found {len(files)}")
    if model.model is None:
        raise ConfigError("--questions needs a vision-language model; name one with --model")
    (file,) = files
    check_file("--out", out, [file], overwrite)
    by_images: dict[tuple[ImageFile, ...], list[Question]] = {}
    questions = read_questions(file, options.root, options.single, options.published_keys)
    if options.tasks:
        questions = [question for question in questions if question.pair.partition(".")[0] in options.tasks]
        if not questions:
            raise ConfigError(f"--tasks {' '.join(options.tasks)}: no question of {file} is of these tasks")
    for question in questions:
        by_images.setdefault(question.images, []).append(question)
    answerer = _answerer(model, options.tokens)
    records = [record for group in by_images.values() for record in _answers(answerer, group, options.contrast)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_file(out, lines.encode("utf-8", "replace"), overwrite, [file])
    print(f"{len(questions)} answers: {out}; now: lightning-idc score {out} --questions pairs")
    return 0


def _answers(answerer: QuestionAnswerer, questions: list[Question], contrast: bool) -> list[dict[str, Any]]:
    """Records of the answers to questions about the same images."""
    from lightning_idc.metrics.paired_accuracy import ask_with_contrast

    images, compared = questions[0].images, questions[0].compared or questions[0].images
    texts = [question.text for question in questions]
    if contrast and len(compared) < 2:
        raise ConfigError("--contrast lets the model compare two images; these questions are about single ones")
    differences, answers = (
        ask_with_contrast(answerer, images, texts, compared) if contrast else (None, answerer(images, texts))
    )
    records: list[dict[str, Any]] = [
        {"pair": question.pair, "question": question.text, "answer": question.answer, "response": response}
        | ({"words": question.words} if question.words else {})
        for question, response in zip(questions, answers, strict=True)
    ]
    return records if differences is None else [{**record, "differences": differences} for record in records]


def _answerer(options: ModelOptions, tokens: int) -> QuestionAnswerer:
    from lightning_idc.models.vlm.module import VLMCaptioner
    from lightning_idc.models.vlm.question_answering import QuestionAnswerer

    captioner = options.open()
    if not isinstance(captioner, VLMCaptioner):
        raise ConfigError(
            f"{options.model} is a {type(captioner).__name__}, which only captions changes; questions need a "
            "VLMCaptioner"
        )
    return QuestionAnswerer(captioner, tokens)


def score_answers(
    file: Path,
    *,
    by: Literal["pairs", "tasks"],
    letters: str,
    published_keys: bool,
    json_only: bool,
    out: Path | None,
    overwrite: bool,
) -> int:
    """Score the answers to questions, as MMVP or as SpatialEval does.

    Args:
        file: answers of `predict --questions` or of MMVP's script.
        by: ``pairs`` counts a pair if both of its questions are answered correctly; ``tasks`` counts each question.
        letters: letters of the answer choices.
        published_keys: keep MMVP's wrong keys.
        json_only: print the result as JSON.
        out: file to write the result to.
        overwrite: replace a file that this command did not write.
    """
    from lightning_idc.metrics.paired_accuracy import accuracy_by_task, paired_accuracy, read_answers

    letters = letters.lower()
    if len(set(letters)) < 2 or not letters.isascii() or not letters.isalpha():
        raise ConfigError(f"--letters {letters!r}: expected at least two different letters, such as abcd")
    if out is not None:
        check_file("--out", out, [file], overwrite)
    answers = read_answers(file, published_keys)
    result: dict[str, Any] = {"file": file.name, "letters": letters}
    if by == "tasks":
        tasks = accuracy_by_task(answers, letters)
        result["tasks"], unparsed = tasks, int(tasks["all"]["unparsed"])
        lines = [f"{task}: {scores['questions']:.1f} % of {scores['counted']}" for task, scores in tasks.items()]
    else:
        pairs = paired_accuracy(answers, letters)
        result |= pairs.as_dict()
        unparsed = pairs.unparsed
        lines = [
            f"pairs with both answers right: {pairs.pairs:.1f} % of {pairs.counted}",
            f"questions answered correctly:  {pairs.questions:.1f} % of {2 * pairs.counted}",
        ]
    text = json.dumps(result, indent=1)
    if out is not None and not saved(out, lambda: write_file(out, f"{text}\n", overwrite, [file])):
        return 1
    if json_only:
        print(text)
        return 0
    print("\n".join(lines))
    if unparsed:
        print(f"{unparsed} answers choose nothing, or several things; they count as wrong", file=sys.stderr)
    return 0

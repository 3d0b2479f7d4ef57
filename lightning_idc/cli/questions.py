"""questions: ask a vision-language captioner about pairs or single images; score answers as MMVP and SpatialEval do."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_file, saved, write_file

if TYPE_CHECKING:
    from lightning_idc.data.benchmarks.questions import Question
    from lightning_idc.models.vlm.asking import QuestionAnswerer

_ABOUT = """Questions about pairs of images, two about each, or about single ones, with answers to choose from.

  questions ask QUESTIONS --model MODEL --out answers.jsonl
  questions score ANSWERS

MODEL is a checkpoint of a VLMCaptioner, or the folder or hub id of a vision-language model as it is published.
QUESTIONS is a CSV or JSONL with the columns pair, question, answer, before, after (images below --root), or MMVP's
Questions.csv beside its folder "MMVP Images", or a Parquet file of SpatialEval (vqa or vtqa). MMVP asks about single
pictures: --single does; without it the model sees both of the pair and is told which one is meant. ANSWERS is what
`ask` writes, or what MMVP's own script does. A pair counts if both of its questions are answered rightly; --by-task
scores each question for itself (SpatialEval). An answer that chooses nothing, or several things, is wrong and counted.
"""


def run(given: list[str]) -> int:
    """The verb `questions`."""
    from lightning_idc.cli import parser

    arguments = parser("questions", _ABOUT)
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    add = arguments.add_argument
    add("what", choices=("ask", "score"))
    add("file", help="of questions or answers")
    add("--letters", default="ab", help="that may be chosen (default: ab)")
    add("--out", help="ask: answers, one a line; score: the result as JSON")
    add("--json", action="store_true", help="score: print the result as JSON")
    add("--model", help="ask: checkpoint of a VLMCaptioner, or folder or hub id of a vision-language model")
    add("--revision", help="ask: branch, tag or commit of a hub id")
    add("--dtype", default="auto", help="ask: of the weights (default: the files' on a GPU, float32 otherwise)")
    add("--device", default="auto", help="ask: for example cuda:1 (default: a GPU if there is one)")
    add("--quantize", help="ask: bits of the weights of a published model: 4bit, 8bit, int4 or int8")
    add("--attn", help="ask: implementation of attention of a published model, for example flash_attention_2")
    add("--root", help="ask: folder of the images; without it that of the file")
    add("--contrast", action="store_true", help="ask: first let the model compare the images (CoCoT)")
    add("--single", action="store_true", help="ask: show each question its own picture alone, as MMVP does")
    add("--tasks", nargs="+", help="ask: only these tasks, for example spatialmap spatialreal")
    add("--published-keys", action="store_true", help="keep MMVP's keys of rows 99, 100, 279 and 280, which are wrong")
    add("--by-task", action="store_true", help="score: each question for itself, by task")
    add("--tokens", type=int, default=128, help="ask: most tokens of an answer (default: 128)")
    add("--overwrite", action="store_true", help="replace a file that this command did not write")
    options = arguments.parse_args(given[1:])
    letters = options.letters.lower()
    if len(set(letters)) < 2 or not letters.isascii() or not letters.isalpha():
        raise ConfigError(f"--letters {options.letters!r}: expected at least two different letters, such as abcd")
    if options.out is not None:
        check_file("--out", Path(options.out), [options.file], options.overwrite)
    return _ask(options) if options.what == "ask" else _score(options, letters)


def _ask(options: argparse.Namespace) -> int:
    from lightning_idc.data.benchmarks.questions import Picture, read_questions

    if options.out is None:
        raise ConfigError("questions ask writes its answers; name a file with --out answers.jsonl")
    if options.model is None:
        raise ConfigError("questions ask needs a vision-language model; name one with --model")
    if options.tokens < 1:
        raise ConfigError(f"--tokens {options.tokens}: an answer has at least one")
    target = Path(options.out)
    by_images: dict[tuple[Picture, ...], list[Question]] = {}
    questions = read_questions(options.file, options.root, options.single, options.published_keys)
    if options.tasks:
        questions = [question for question in questions if question.pair.partition(".")[0] in options.tasks]
        if not questions:
            raise ConfigError(f"--tasks {' '.join(options.tasks)}: no question of {options.file} is of these tasks")
    for question in questions:
        by_images.setdefault(question.images, []).append(question)
    ask = _asker(options)
    records = [record for about in by_images.values() for record in _answered(ask, about, options.contrast)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_file(target, lines.encode("utf-8", "replace"), options.overwrite, [options.file])
    print(f"{len(questions)} answers: {target}; now: lightning-idc questions score {target}")
    return 0


def _answered(ask: QuestionAnswerer, about: list[Question], contrast: bool) -> list[dict[str, Any]]:
    """Records of the answers to questions about the same images."""
    from lightning_idc.metrics.paired_accuracy import ask_with_contrast

    images, compared = about[0].images, about[0].compared or about[0].images
    texts = [question.text for question in about]
    if contrast and len(compared) < 2:
        raise ConfigError("--contrast lets the model compare two images; these questions are about single ones")
    differences, answers = ask_with_contrast(ask, images, texts, compared) if contrast else (None, ask(images, texts))
    records: list[dict[str, Any]] = [
        {"pair": question.pair, "question": question.text, "answer": question.answer, "response": response}
        | ({"words": question.words} if question.words else {})
        for question, response in zip(about, answers, strict=True)
    ]
    return records if differences is None else [{**record, "differences": differences} for record in records]


def _asker(options: argparse.Namespace) -> QuestionAnswerer:
    from lightning_idc.models.vlm.asking import QuestionAnswerer
    from lightning_idc.models.vlm.module import VLMCaptioner
    from lightning_idc.serve.opening import open_model

    captioner = open_model(
        options.model,
        revision=options.revision,
        dtype=options.dtype,
        device=options.device,
        quantize=options.quantize,
        attn=options.attn,
    )
    if not isinstance(captioner, VLMCaptioner):
        raise ConfigError(
            f"{options.model} is a {type(captioner).__name__}, which only says what changed; questions need a "
            "VLMCaptioner"
        )
    return QuestionAnswerer(captioner, options.tokens)


def _score(options: argparse.Namespace, letters: str) -> int:
    from lightning_idc.metrics.paired_accuracy import accuracy_by_task, paired_accuracy, read_answers

    answers = read_answers(options.file, options.published_keys)
    about: dict[str, Any] = {"file": Path(options.file).name, "letters": letters}
    if options.by_task:
        tasks = accuracy_by_task(answers, letters)
        about["tasks"], unparsed = tasks, int(tasks["all"]["unparsed"])
        lines = [f"{task}: {found['questions']:.1f} % of {found['counted']}" for task, found in tasks.items()]
    else:
        pairs = paired_accuracy(answers, letters)
        about |= pairs.as_dict()
        unparsed = pairs.unparsed
        lines = [
            f"pairs with both answers right: {pairs.pairs:.1f} % of {pairs.counted}",
            f"questions answered rightly:    {pairs.questions:.1f} % of {2 * pairs.counted}",
        ]
    text = json.dumps(about, indent=1)
    if options.out and not saved(
        Path(options.out), lambda: write_file(options.out, f"{text}\n", options.overwrite, [options.file])
    ):
        return 1
    if options.json:
        print(text)
        return 0
    print("\n".join(lines))
    if unparsed:
        print(f"{unparsed} answers choose nothing, or several things; they count as wrong", file=sys.stderr)
    return 0

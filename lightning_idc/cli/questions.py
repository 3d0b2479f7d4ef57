"""questions: ask a vision-language captioner about pairs of images, and score answers as MMVP does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_idc.errors import ConfigError

if TYPE_CHECKING:
    from lightning_idc.data.benchmarks.questions import Question
    from lightning_idc.methods.vlm.asking import Asker

_ABOUT = """Questions about pairs of images, two about each, with answers to choose from.

  questions ask QUESTIONS --checkpoint FILE --out answers.jsonl     (or --model ID, a model as it is published)
  questions score ANSWERS

QUESTIONS is a CSV or JSONL with the columns pair, question, answer, before, after (images below --root), or MMVP's
Questions.csv beside its folder "MMVP Images". ANSWERS is what `ask` writes, or what MMVP's own script does. A pair
counts if both of its questions are answered rightly; an answer that chooses nothing, or several things, is wrong and
counted."""


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
    add("--checkpoint", help="ask: of a VLMCaptioner")
    add("--model", help="ask: folder or hub id of a vision-language model")
    add("--revision", help="ask: branch, tag or commit of --model")
    add("--dtype", default="auto", help="ask: of the weights (default: the files' on a GPU, float32 otherwise)")
    add("--device", default="auto", help="ask: for example cuda:1 (default: a GPU if there is one)")
    add("--quantize", help="ask: bits of the weights of --model: 4bit, 8bit, int4 or int8")
    add("--attn", help="ask: implementation of attention of --model, for example flash_attention_2")
    add("--root", help="ask: folder of the images; without it that of the file")
    add("--contrast", action="store_true", help="ask: first let the model compare the images (CoCoT)")
    add("--tokens", type=int, default=128, help="ask: most tokens of an answer (default: 128)")
    options = arguments.parse_args(given[1:])
    letters = options.letters.lower()
    if len(set(letters)) < 2 or not letters.isascii() or not letters.isalpha():
        raise ConfigError(f"--letters {options.letters!r}: expected at least two different letters, such as abcd")
    return _ask(options) if options.what == "ask" else _score(options, letters)


def _ask(options: argparse.Namespace) -> int:
    from lightning_idc.data.benchmarks.questions import read_questions

    if options.out is None:
        raise ConfigError("questions ask writes its answers; name a file with --out answers.jsonl")
    if (options.checkpoint is None) == (options.model is None):
        raise ConfigError("questions ask needs either --checkpoint FILE or --model ID")
    if options.tokens < 1:
        raise ConfigError(f"--tokens {options.tokens}: an answer has at least one")
    by_images: dict[tuple[Path, Path], list[Question]] = {}
    questions = read_questions(options.file, options.root)
    for question in questions:
        by_images.setdefault((question.before, question.after), []).append(question)
    ask = _asker(options)
    target = Path(options.out)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        for images, about in by_images.items():
            for record in _answered(ask, images, about, options.contrast):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
    print(f"{len(questions)} answers: {target}; now: lightning-idc questions score {target}")
    return 0


def _answered(ask: Asker, images: tuple[Path, Path], about: list[Question], contrast: bool) -> list[dict[str, Any]]:
    from lightning_idc.metrics.paired_accuracy import ask_with_contrast

    texts = [question.text for question in about]
    differences, answers = ask_with_contrast(ask, images, texts) if contrast else (None, ask(images, texts))
    records: list[dict[str, Any]] = [
        {"pair": question.pair, "question": question.text, "answer": question.answer, "said": said}
        for question, said in zip(about, answers, strict=True)
    ]
    return records if differences is None else [{**record, "differences": differences} for record in records]


def _asker(options: argparse.Namespace) -> Asker:
    from lightning_idc.methods.vlm.asking import Asker
    from lightning_idc.methods.vlm.module import VLMCaptioner
    from lightning_idc.methods.vlm.opening import open_captioner

    captioner = open_captioner(
        options.model,
        options.checkpoint,
        options.revision,
        options.dtype,
        options.device,
        options.quantize,
        options.attn,
    )
    if not isinstance(captioner, VLMCaptioner):
        raise ConfigError(
            f"{options.checkpoint} holds a {type(captioner).__name__}, which only says what changed; questions need a "
            "VLMCaptioner"
        )
    return Asker(captioner, options.tokens)


def _score(options: argparse.Namespace, letters: str) -> int:
    from lightning_idc.files import save
    from lightning_idc.metrics.paired_accuracy import paired_accuracy, read_answers

    found = paired_accuracy(read_answers(options.file), letters)
    text = json.dumps({"file": Path(options.file).name, "letters": letters, **found.as_dict()}, indent=1)
    if options.out and not save(Path(options.out), lambda path: path.write_text(text + "\n", encoding="utf-8")):
        return 1
    if options.json:
        print(text)
        return 0
    print(f"pairs with both answers right: {found.pairs:.1f} % of {found.counted}")
    print(f"questions answered rightly:    {found.questions:.1f} % of {2 * found.counted}")
    if found.unparsed:
        print(f"{found.unparsed} answers choose nothing, or several things; they count as wrong", file=sys.stderr)
    return 0

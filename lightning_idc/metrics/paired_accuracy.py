"""Accuracy of answers to questions about images (MMVP, Tong et al. 2024; SpatialEval), contrastive prompts (CoCoT)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lightning_idc.metrics.captions import first_ids
from lightning_idc.metrics.content import AnnotationFile
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import short

Images = TypeVar("Images")
CONTRAST = "Please identify the similarities and differences between these two images"
"""The first question of contrastive chain-of-thought, as Img-Diff's supplement words it (section 12)."""
CORRECTED = {99: ("tusks", "b"), 100: ("tusks", "a"), 279: ("elderly", "b"), 280: ("elderly", "a")}
"""MMVP's four wrong answer keys, swapped within two pairs: by row, a word of the question and the right letter.

Issues 14 and 30 of the repository tsb0601/MMVP report them; the table of lmms-lab-eval/MMVP has corrected them.
"""


@dataclass(frozen=True)
class ModelAnswer:
    """Answer of a model to one question of a pair.

    Args:
        pair: id of the pair, which two questions share.
        answer: letter of the right choice.
        response: text of the model.
        words: the right choice in words; "" if unknown.
    """

    pair: str
    answer: str
    response: str
    words: str = ""


@dataclass(frozen=True)
class PairedAccuracy:
    """Accuracy, times 100.

    Args:
        pairs: percentage of pairs with two correct answers, which is MMVP's score.
        questions: percentage of questions with a correct answer.
        unparsed: number of answers without a choice, which count as wrong.
        counted: number of pairs.
    """

    pairs: float
    questions: float
    unparsed: int
    counted: int

    def as_dict(self) -> dict[str, float | int]:
        """Plain values."""
        return dict(vars(self))


def choice(response: str, letters: str = "ab") -> str | None:
    """The letter that an answer chooses; None unless it chooses exactly one.

    Recognised are "(a)", "a)", "a." and a line "a" at the beginning, and "answer is a" or "(a)" anywhere, also in bold;
    an "a" within a sentence is an article.

    Args:
        response: text of the model.
        letters: letters of the choices.
    """
    letter_class = f"[{letters}{letters.upper()}]"
    text = response.replace("*", "").strip()  # chat models emphasise what they choose
    at_start = re.match(rf"(?:\(({letter_class})\)|({letter_class})(?:[).:,]|[^\S\n]*(?:\n|$)))", text)
    marked = re.findall(
        rf"(?:\(({letter_class})\)|\banswer(?:\s+is)?\s*:?\s*\(?({letter_class})\b(?!\s+\w))", text, re.IGNORECASE
    )
    letters_chosen = {letter.lower() for groups in marked for letter in groups if letter}
    if at_start:
        letters_chosen |= {letter.lower() for letter in at_start.groups() if letter}
    return letters_chosen.pop() if len(letters_chosen) == 1 else None


def paired_accuracy(answers: Iterable[ModelAnswer], letters: str = "ab") -> PairedAccuracy:
    """Accuracy over pairs with two correct answers, so that random guesses score a quarter.

    Args:
        answers: answers, two per pair, in any order.
        letters: letters of the choices.

    Raises:
        DataError: a pair does not have two questions, a right answer is not a letter, or there are no questions.
    """
    right, unparsed = _marks(answers, letters, lambda question: question.pair)
    incomplete = [pair for pair, marks in right.items() if len(marks) != 2]
    if incomplete:
        raise DataError(f"{len(incomplete)} pairs do not have two questions each: {first_ids(incomplete)}")
    marks = [mark for of_pair in right.values() for mark in of_pair]
    both_right = [all(of_pair) for of_pair in right.values()]
    return PairedAccuracy(
        100 * sum(both_right) / len(both_right), 100 * sum(marks) / len(marks), unparsed, len(both_right)
    )


def accuracy_by_task(answers: Iterable[ModelAnswer], letters: str = "abcd") -> dict[str, dict[str, float | int]]:
    """Percentage of correct answers to questions about single images, by task, as in SpatialEval.

    An answer is correct if it chooses the right letter, or consists of the right choice in words.

    Args:
        answers: answers whose ``pair`` starts with the task, up to the first full stop.
        letters: letters of the choices.

    Raises:
        DataError: a right answer is not a letter, or there are no answers.

    Example:
        >>> answers = [ModelAnswer("spatialmap.0.0", "a", "A. Northeast"), ModelAnswer("spatialmap.0.1", "b", "a")]
        >>> accuracy_by_task(answers)
        {'spatialmap': {'questions': 50.0, 'counted': 2}, 'all': {'questions': 50.0, 'counted': 2, 'unparsed': 0}}
    """
    right, unparsed = _marks(answers, letters, lambda question: question.pair.partition(".")[0])
    all_marks = [mark for marks in right.values() for mark in marks]
    accuracy: dict[str, dict[str, float | int]] = {
        task: {"questions": 100 * sum(marks) / len(marks), "counted": len(marks)} for task, marks in right.items()
    }
    accuracy["all"] = {
        "questions": 100 * sum(all_marks) / len(all_marks),
        "counted": len(all_marks),
        "unparsed": unparsed,
    }
    return accuracy


def _marks(
    answers: Iterable[ModelAnswer], letters: str, group: Callable[[ModelAnswer], str]
) -> tuple[dict[str, list[bool]], int]:
    """Whether each answer is correct, by group, and the number of answers without a choice."""
    right: dict[str, list[bool]] = {}
    unparsed = 0
    for question in answers:
        if len(question.answer) != 1 or question.answer.lower() not in letters:
            raise DataError(
                f"pair {question.pair!r}: the right answer is {question.answer!r}; expected one of {letters}"
            )
        chosen = choice(question.response, letters)
        in_words = bool(question.words) and _bare_words(question.response) == _bare_words(question.words)
        unparsed += chosen is None and not in_words
        right.setdefault(group(question), []).append(chosen == question.answer.lower() or (chosen is None and in_words))
    if not right:
        raise DataError("there are no questions to score")
    return right, unparsed


def _bare_words(text: str) -> str:
    return " ".join(text.lower().strip(" .\n").split())


def corrected_key(row: int, question: str, answer: str) -> str:
    """Right answer to a question of MMVP, with the four wrong keys of :data:`CORRECTED` replaced.

    Args:
        row: row of the question in MMVP's table, from 1.
        question: text of the question; keys are replaced only if it is the published question of the row.
        answer: published key.

    Example:
        >>> corrected_key(279, "Is the elderly person standing or sitting in the picture?", "(a)")
        '(b)'
    """
    word, letter = CORRECTED.get(row, ("", ""))
    return f"({letter})" if word and word in question.lower() else answer


def with_contrast(question: str, differences: str) -> str:
    """Second prompt of contrastive chain-of-thought: the model's comparison of the images, then the question."""
    return f"{differences.strip()}\n\nBased on the similarities and differences above, answer the question.\n{question}"


def ask_with_contrast(
    ask: Callable[[Images, Sequence[str]], Sequence[str]],
    images: Images,
    questions: Sequence[str],
    compared: Images | None = None,
) -> tuple[str, list[str]]:
    """Let a model compare two images, then answer questions; returns the comparison and the answers.

    Args:
        ask: function that answers prompts about images.
        images: images that the questions are about.
        questions: questions about the images.
        compared: the two images to compare; ``images`` when None.
    """
    (differences,) = ask(images if compared is None else compared, [CONTRAST])
    return differences, list(ask(images, [with_contrast(question, differences) for question in questions]))


def read_answers(path: str | Path, published_keys: bool = False) -> list[ModelAnswer]:
    """Read answers from a file of records, JSON or JSONL.

    A record has ``pair``, ``answer`` and ``response``. Records of MMVP's script have ``question_id`` in place of
    ``pair``: questions 1 and 2 are a pair, 3 and 4 the next one, and wrong keys are corrected if the record has the
    ``prompt`` (:func:`corrected_key`).

    Args:
        path: path of the file.
        published_keys: leave MMVP's published keys uncorrected.

    Raises:
        DataError: the file has no records, a record lacks a field, or a question appears twice.
    """
    answers, question_ids = [], set()
    content = AnnotationFile(path)
    # a single line looks like a map
    is_single_record = content.form == "map" and "answer" in content.items
    for where, record in [(content.name, content.items)] if is_single_record else content.records():
        fields = record if isinstance(record, dict) else {}
        is_mmvp = "question_id" in fields
        names = ("question_id", "answer", "response") if is_mmvp else ("pair", "answer", "response")
        absent = [name for name in names if name not in fields]
        if absent:
            raise DataError(
                f"{where} has no {absent[0]}; "
                "expected pair, answer and response (or MMVP's question_id, answer, response)"
            )
        first, answer, response = (fields[name] for name in names)
        if is_mmvp:
            if type(first) is not int or first < 1 or first in question_ids:
                raise DataError(f"{where}: question_id is {short(first)}; expected a number from 1 that appears once")
            question_ids.add(first)
            if not published_keys and isinstance(answer, str):
                answer = corrected_key(first, str(fields.get("prompt", "")), answer)
            first = str((first + 1) // 2)
        first = str(first) if type(first) is int else first
        if not all(isinstance(text, str) for text in (first, answer, response)):
            raise DataError(f"{where}: {', '.join(names)} must be texts")
        words = fields.get("words", "")
        answers.append(ModelAnswer(first, without_brackets(answer), response, words if isinstance(words, str) else ""))
    return answers


def without_brackets(letter: str) -> str:
    """A letter without brackets: "a" for "(a)"."""
    return letter.strip().removeprefix("(").removesuffix(")").strip().lower()

"""A language model as judge of captions: fixed prompts and strict parsing of answers.

An answer without exactly one score in the requested form is unparsed. Its prompt is repeated a few times; captions
without a parsed answer have no score and are counted separately. Scores depend on the judge, so a result names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lightning_idc.metrics.captions import check_ids
from lightning_idc.utils.answers import cut_off, decode_answers, read_answer, whole_words
from lightning_idc.utils.errors import DataError, loading_model

TextModel = Callable[[Sequence[str], int], list[str]]
"""Function from prompts and the number of the attempt, from 0, to answers; retries may sample other answers."""
Prompt = TypeVar("Prompt")
Read = TypeVar("Read")
_NUMBER = r"\d{1,3}(?:\.\d{1,3})?"
_OUT_OF = r"(?:/|(?:out\s+)?of\b)"
_ABOUT = r"(?:(?:~|≈|about|around|approximately|roughly)\s*)?"
_BEFORE_SCORE = (
    r"\b(?:(?:score|rating)\b(?:\s+(?:is|of))?|rate\s+(?:it|this)\b(?:\s+(?:at|as))?)"
    rf"(?:\s*[:=]|\s+[-–—](?=\s))?\s*{_ABOUT}"
)
"""Words before a score; a minus sign belongs to the number, and a negative number is not a score."""
_FRACTION = rf"(?:(?P<part>\d{{1,3}})\s*/\s*(?P<whole>\d{{1,3}})\s*[=≈]\s*{_ABOUT})?"


def fill(prompt: str, **texts: str) -> str:
    """Put texts into a prompt, each in place of its name in braces.

    str.format would interpret braces in captions.

    Example:
        >>> fill("{caption} / {reference}", caption="a {reference}", reference="b")
        'a {reference} / b'
    """
    return re.sub(r"\{(\w+)\}", lambda mark: texts.get(mark[1], mark[0]), prompt)


@dataclass(frozen=True)
class Rubric:
    """A prompt and the parser of its answers.

    Args:
        name: name in results.
        prompt: template with ``{reference}`` and ``{caption}``.
        max_score: highest score; the lowest is 0.
    """

    name: str
    prompt: str
    max_score: float

    def format_prompt(self, caption: str, reference: str) -> str:
        """Prompt for one caption."""
        return fill(self.prompt, reference=reference, caption=caption)

    def read(self, answer: str) -> float | None:
        """Score of an answer; None unless the answer contains exactly one within the scale.

        A score follows "score", "rating" or "rate it", precedes "/" or "of" and the maximum, or is the first word of
        the answer. A fraction of the aspects may precede it, as in "Score: 1/3 = 33".
        """
        text = answer.replace("*", "")
        maximum = f"{self.max_score:g}"
        # the scale itself, copied from the prompt, is not a score
        text = re.sub(rf"\(?\b0\s*(?:-|–|to)\s*{maximum}\b\)?", " ", text)
        # a number on another scale or the end of a range is not a score either
        not_of_this_scale = rf"(?!\s*{_OUT_OF}\s*(?!{maximum}(?!\.?\d))\d)(?!(?:[-–]|\s+(?:to|or)\s+)\d)"
        marked = re.finditer(
            rf"{_BEFORE_SCORE}{_FRACTION}(?P<score>{_NUMBER})(?!\.?\d){not_of_this_scale}", text, re.IGNORECASE
        )
        scores = {float(match["score"]) for match in marked if self._matches_fraction(match)}
        scores |= {
            float(score) for score in re.findall(rf"(?<![\d.])({_NUMBER})\s*{_OUT_OF}\s*{maximum}(?!\.?\d)", text)
        }
        if not scores:
            alone = re.match(rf"\s*({_NUMBER})(?=\s*(?:[.,;:!\n)]|$|-\s))(?!\.\d)", text)
            scores = {float(alone.group(1))} if alone else set()
        if len(scores) != 1:
            return None
        (score,) = scores
        return score if 0 <= score <= self.max_score else None

    def _matches_fraction(self, match: re.Match[str]) -> bool:
        """Whether a score equals the fraction before it on this scale, as 33 does for 1/3; true without a fraction."""
        if match["part"] is None:
            return True
        whole = int(match["whole"])
        return (
            whole > 0
            and abs(self.max_score * int(match["part"]) / whole - float(match["score"])) <= self.max_score / 100
        )


OMNIDIFF = Rubric(
    "omnidiff-figure-6",
    # the prompt of the paper, unchanged, since scores depend on it
    "You are an impartial judge evaluating text similarity. Your job is to evaluate a model-generated caption for the "
    "difference between two images against a human-annotated Ground Truth caption. Follow these guidelines: (1) "
    "Carefully read the Ground Truth caption and model-generated caption. (2) Identify aspects in the Ground Truth "
    "caption and calculate the percentage covered (through exact or partial matches) in the model-generated caption. "
    "(3) Score from 0 to 100, where each aspect contributes equally to the score. (4) Provide your score (0-100) and a "
    "short justification. Standard answer: {reference} Assistant's response: {caption}",
    100,
)
IMG_DIFF = Rubric(
    "img-diff-0-3",
    # the supplement defines the scale but no prompt, so this one is ours
    "Two texts say how two images differ. Rate how well the second agrees with the first: 0 for not at all, 1 for a "
    "little, 2 for mostly, 3 for fully. Answer with 'Score:' and the number.\n"
    "First text: {reference}\nSecond text: {caption}",
    3,
)


@dataclass
class Judgement:
    """Answers of a judge about captions.

    Args:
        rubric: name of the rubric.
        scores: score by pair id, None where no answer could be parsed.
        answers: last answer by pair id.
        num_answers: number of answers, retries included.
    """

    rubric: str
    scores: dict[str, float | None]
    answers: dict[str, str] = field(default_factory=dict)
    num_answers: int = 0

    @property
    def unparsed(self) -> list[str]:
        """Ids of the captions without a score."""
        return [id for id, score in self.scores.items() if score is None]

    @property
    def mean(self) -> float | None:
        """Mean over captions with a score; None if there are none."""
        parsed = [score for score in self.scores.values() if score is not None]
        return sum(parsed) / len(parsed) if parsed else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rubric": self.rubric,
            "mean": self.mean,
            "scored": len(self.scores) - len(self.unparsed),
            "unparsed": len(self.unparsed),
            "num_answers": self.num_answers,
        }


def judge_captions(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    model: TextModel,
    rubric: Rubric = OMNIDIFF,
    retries: int = 2,
    batch_size: int = 8,
) -> Judgement:
    """Let a language model score captions against their references.

    Args:
        captions: caption by pair id.
        references: references by pair id; those of a pair are joined to one text.
        model: function that answers prompts.
        rubric: prompt and scale.
        retries: number of retries for unparsed answers.
        batch_size: number of prompts per call of the model.

    Raises:
        DataError: ids differ, or the model does not return one answer per prompt.
    """
    check_ids(captions, references)
    ids = list(captions)
    prompts = [rubric.format_prompt(captions[id], " ".join(references[id])) for id in ids]
    scores, answers, num_answers = ask_with_retries(
        model, prompts, read=lambda index, answer: rubric.read(answer), retries=retries, batch_size=batch_size
    )
    last_answers = {id: answer for id, answer in zip(ids, answers, strict=True) if answer is not None}
    return Judgement(rubric.name, dict(zip(ids, scores, strict=True)), last_answers, num_answers)


def ask_with_retries(
    model: Callable[[Sequence[Prompt], int], list[str]],
    prompts: Sequence[Prompt],
    read: Callable[[int, str], Read | None],
    retries: int,
    batch_size: int,
) -> tuple[list[Read | None], list[str | None], int]:
    """Send prompts to a model, and repeat those whose answers cannot be parsed.

    Args:
        model: function from prompts and the number of the attempt to answers.
        prompts: prompts, one per question.
        read: parser of an answer, given the index of its prompt; None for an unreadable answer. It does not see the
            last word of a truncated answer.
        retries: number of retries.
        batch_size: number of prompts per call of the model.

    Returns:
        Parsed values, None where no answer could be parsed; the last answer to each prompt; and the number of answers.

    Raises:
        DataError: the model does not return one answer per prompt.
    """
    values: list[Read | None] = [None] * len(prompts)
    answers: list[str | None] = [None] * len(prompts)
    num_answers = 0
    for attempt in range(retries + 1):
        unread = [index for index, value in enumerate(values) if value is None]
        for start in range(0, len(unread), batch_size):
            indices = unread[start : start + batch_size]
            new_answers = model([prompts[index] for index in indices], attempt)
            if len(new_answers) != len(indices):
                raise DataError(
                    f"the judge returned {len(new_answers)} answers to {len(indices)} prompts; expected one each"
                )
            num_answers += len(indices)
            for index, answer in zip(indices, new_answers, strict=True):
                answers[index], values[index] = answer, read(index, whole_words(answer))
    return values, answers, num_answers


@dataclass
class PromptedModel:
    """A language model that is asked with one prompt per pair.

    Args:
        model: function that answers prompts.
        retries: number of retries for unreadable answers.
        batch_size: prompts per call of the model.
    """

    model: TextModel
    retries: int = 2
    batch_size: int = 8

    def ask(self, prompts: Sequence[str], read: Callable[[int, str], Read | None]) -> list[Read | None]:
        """Parsed answers; see :func:`ask_with_retries`."""
        return ask_with_retries(self.model, prompts, read, self.retries, self.batch_size)[0]


class CausalJudge:
    """A causal language model of transformers as :data:`TextModel`: greedy at the first attempt, sampled in retries.

    Args:
        path: folder of the model and its tokenizer.
        gguf_file: name of a GGUF file in the folder.
        max_new_tokens: maximum number of tokens of an answer.
        temperature: sampling temperature of retries.
        device: device of the model.
    """

    def __init__(
        self,
        path: str,
        gguf_file: str | None = None,
        max_new_tokens: int = 64,
        temperature: float = 0.7,
        device: str = "cpu",
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options: dict[str, Any] = {"trust_remote_code": False}
        options |= {} if gguf_file is None else {"gguf_file": gguf_file}
        self.name = path
        with loading_model(path):
            self._tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", **options)
            model: Any = AutoModelForCausalLM.from_pretrained(path, **options)
        self._model = model.to(device).eval()
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._max_new_tokens, self._temperature = max_new_tokens, temperature

    def __call__(self, prompts: Sequence[str], attempt: int) -> list[str]:
        """Answers to prompts, without thoughts; a :class:`CutOff` for a truncated answer."""
        import torch

        texts = [self._with_template(prompt) for prompt in prompts]
        # a chat template writes its own special tokens
        chat = self._tokenizer.chat_template is not None
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=not chat)
        inputs = inputs.to(self._model.device)
        sampling = {"do_sample": True, "temperature": self._temperature} if attempt else {"do_sample": False}
        with torch.inference_mode(), torch.random.fork_rng(devices=self._devices()):
            torch.manual_seed(attempt)
            output = self._model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=self._max_new_tokens,
                pad_token_id=self._tokenizer.pad_token_id,
                **sampling,
            )
        ids = output[:, inputs["input_ids"].shape[1] :].tolist()
        is_cut = cut_off(self._model, ids, self._max_new_tokens)
        return list(map(read_answer, decode_answers(self._tokenizer, ids), is_cut))

    def _with_template(self, prompt: str) -> str:
        if self._tokenizer.chat_template is None:
            return prompt + "\n"
        message = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def _devices(self) -> list[int]:
        device = self._model.device
        return [device.index or 0] if device.type == "cuda" else []

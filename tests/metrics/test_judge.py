"""Judges: answers are read strictly, retried and counted; questions on pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.metrics.judge import IMG_DIFF, OMNIDIFF, CausalJudge, ask_with_retries, judge_captions
from lightning_idc.metrics.paired_accuracy import (
    CONTRAST,
    ModelAnswer,
    ask_with_contrast,
    choice,
    paired_accuracy,
    read_answers,
)
from lightning_idc.utils.answers import CutOff
from lightning_idc.utils.errors import DataError


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Score: 85\nThe caption covers most.", 85),
        ("85", 85),
        ("90. Most aspects are covered.", 90),
        ("85/100 because 3 of 4 aspects are there", 85),
        ("**Score: 70**/100", 70),
        ("My score is 40 out of 100.", 40),
        ("Score (0-100): 60", 60),
        ("Score: 66.7", 66.7),
        ("Score: 85%", 85),
        ("I count 3 aspects", None),
        ("2 cubes moved", None),
        ("Score: 85. Or rather score: 20.", None),
        ("Score: 0-100", None),
        ("Score: 3/4", None),
        ("Score: 3/4, which is 75/100", 75),
        ("Score: 3 out of 4", None),
        ("Score: 80-90", None),
        ("Score: 80 to 90", None),
        ("Score: 80 - 3 of 4 aspects", 80),
        ("75/100. The caption covers most aspects.", 75),
        ("I would give this a score of 40 because one aspect is missing.", 40),
        ("Rating: 80", 80),
        ("I'd rate it 45.", 45),
        ("I rate this at 45 of 100", 45),
        ("Score – 50", 50),
        ("Score: ~50", 50),
        ("Score: Approximately 60", 60),
        ("Score: 1/3 = 33", 33),
        ("Score: 2/3 ≈ 66.7, as one is missing", 66.7),
        ("Score: 1/3 = 0.33", None),
        ("Score: 1/0 = 33", None),
        ("Rating: 4/5", None),
        ("Score: 3 of 4", None),
        ("I'd rate it 3 of 4.", None),
        ("a score of 40 to 50", None),
        ("Score: 40 or 50", None),
        ("75/100.5", None),
        ("Score: 150", None),
        ("Score: 1000", None),
        ("-5", None),
        ("Score: -5", None),
        ("", None),
        ("excellent", None),
    ],
)
def test_answers_are_parsed_strictly(answer: str, score: float | None) -> None:
    assert OMNIDIFF.read(answer) == score


def test_the_other_scale() -> None:
    assert [IMG_DIFF.read(text) for text in ("Score: 2", "3/3", "2/30", "Score: 5", "Score: 2/10")] == [
        2, 3, None, None, None
    ]  # fmt: skip


@given(st.text())
def test_any_answer_is_parsed_or_none(answer: str) -> None:
    score = OMNIDIFF.read(answer)
    assert score is None or 0 <= score <= 100


def test_captions_with_braces_stay_as_they_are() -> None:
    prompt = OMNIDIFF.format_prompt("a {reference} b {0}", "c {caption} d")
    assert prompt.endswith("Standard answer: c {caption} d Assistant's response: a {reference} b {0}")


def test_unparsed_answers_are_retried_and_counted() -> None:
    asked: list[tuple[int, int]] = []

    def model(prompts: Sequence[str], attempt: int) -> list[str]:
        asked.append((attempt, len(prompts)))
        answers = []
        for prompt in prompts:
            if prompt.endswith("good"):
                answers.append("Score: 100")
            elif prompt.endswith("slow"):
                answers.append("Score: 50" if attempt else "let me think")
            else:
                answers.append("hm")
        return answers

    captions = {"1": "good", "2": "slow", "3": "never"}
    result = judge_captions(captions, {id: ["x", "y"] for id in captions}, model, retries=2, batch_size=2)
    assert result.scores == {"1": 100, "2": 50, "3": None}
    assert asked == [(0, 2), (0, 1), (1, 2), (2, 1)]
    assert result.as_dict() == {"rubric": "omnidiff-figure-6", "mean": 75, "scored": 2, "unparsed": 1, "num_answers": 6}
    nothing = judge_captions({"3": "never"}, {"3": ["x"]}, model, retries=0)
    assert nothing.mean is None and nothing.unparsed == ["3"]
    with pytest.raises(DataError, match="0 answers to 1 prompts"):
        judge_captions({"3": "x"}, {"3": ["x"]}, lambda prompts, attempt: [])
    with pytest.raises(DataError, match="have no caption"):
        judge_captions({"3": "x"}, {"3": ["x"], "4": ["y"]}, model)


def tiny_model(folder: Path, template: bool, first: str | None = None) -> None:
    """Save a random model, or one that repeats one word forever."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = [*([] if first is None else [first]), "<unk>", "<s>", "</s>", "score", "1", "2", "the", "cube"]
    words = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    if template:
        fast.chat_template = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {name: words[token] for name, token in (("bos_token_id", "<s>"), ("eos_token_id", "</s>"))}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **ends, **sizes))
    if first is not None:
        torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("template", [True, False])
def test_causal_model_answers_each_prompt_separately(tmp_path: Path, template: bool) -> None:
    tiny_model(tmp_path, template)
    judge = CausalJudge(str(tmp_path), max_new_tokens=5)
    prompts = ["the cube", "score 1 2 the cube score the cube 2 1"]
    together = judge(prompts, 0)
    assert together == [judge([prompt], 0)[0] for prompt in prompts], "padding changes nothing"
    assert judge(prompts, 0) == together
    state = torch.get_rng_state()
    again = judge(prompts, 1)
    assert again == judge(prompts, 1)
    assert torch.equal(state, torch.get_rng_state()), "the judge draws from a stream of its own"
    result = judge_captions({"1": "the cube"}, {"1": ["cube"]}, judge, retries=1)
    assert result.num_answers in (1, 2) and set(result.answers) == {"1"}


@pytest.mark.parametrize(("first", "expected"), [("<think>", ""), ("8", "8 8 8 8 8")])
def test_a_local_judge_returns_neither_thoughts_nor_half_a_number(tmp_path: Path, first: str, expected: str) -> None:
    """A model without a preference repeats the first word of its vocabulary until the token limit."""
    tiny_model(tmp_path, template=False, first=first)
    judge = CausalJudge(str(tmp_path), max_new_tokens=5)
    (answer,) = judge(["the cube"], 0)
    assert answer == expected and isinstance(answer, CutOff)
    seen: list[str] = []
    ask_with_retries(judge, ["the cube"], lambda index, text: seen.append(text), retries=0, batch_size=1)
    assert seen == [expected.removesuffix("8")], "the last word of a truncated answer may be half of one"


@pytest.mark.slow
def test_score_with_a_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_idc.cli import main

    tiny_model(tmp_path / "judge", template=False)
    captions, references = tmp_path / "said.json", tmp_path / "truth.json"
    captions.write_text(json.dumps({"a": "the cube", "b": "score"}))
    references.write_text(json.dumps({"a": ["the cube"], "b": ["the cube"]}))
    arguments = ["score", str(captions), "--references", str(references), "--metrics", "BLEU"]
    arguments += ["--judge", str(tmp_path / "judge")]
    assert main([*arguments, "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)["judge"]
    assert judged["model"] == "judge" and judged["scored"] + judged["unparsed"] == 2


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("(a)", "a"),
        ("A.", "a"),
        ("b) the door", "b"),
        ("b", "b"),
        ("The answer is (b)", "b"),
        ("Answer: B", "b"),
        ("B\n\nThe door is open.", "b"),
        ("**B**", "b"),
        ("**Answer:** B", "b"),
        ("The answer is **B**.", "b"),
        ("answer is a cat", None),
        ("a cat\nis seen", None),
        ("A cat is seen", None),
        ("(a) or (b)", None),
        ("", None),
        ("(c)", None),
    ],
)
def test_choices_are_parsed_strictly(said: str, letter: str | None) -> None:
    assert choice(said) == letter


def test_a_pair_counts_with_both_questions_right() -> None:
    answered = [
        ModelAnswer("1", "a", "(a)"),
        ModelAnswer("2", "b", "(b)"),
        ModelAnswer("1", "b", "(b)"),
        ModelAnswer("2", "a", "I do not know"),
    ]
    result = paired_accuracy(answered)
    assert result.as_dict() == {"pairs": 50, "questions": 75, "unparsed": 1, "counted": 2}
    with pytest.raises(DataError, match="1 pairs do not have two questions each: '3'"):
        paired_accuracy([*answered, ModelAnswer("3", "a", "a")])
    with pytest.raises(DataError, match="the right answer is 'x'"):
        paired_accuracy([ModelAnswer("1", "x", "a")])
    with pytest.raises(DataError, match="no questions"):
        paired_accuracy([])


def test_files_of_answers(tmp_path: Path) -> None:
    def read(*records: object) -> list[ModelAnswer]:
        (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, records)))
        return read_answers(tmp_path / "answers.jsonl")

    answer = {"pair": 1, "answer": "(A)", "response": "b", "question": "Which?"}
    assert read(answer, {**answer, "response": "a"}) == [ModelAnswer("1", "a", "b"), ModelAnswer("1", "a", "a")]
    theirs = [{"question_id": n, "prompt": "?", "answer": "(b)", "response": "(b)"} for n in (1, 2, 3, 4)]
    assert [answered.pair for answered in read(*theirs)] == ["1", "1", "2", "2"]
    assert paired_accuracy(read(*theirs)).pairs == 100
    for wrong, message in (
        ({"pair": "1"}, "line 2 has no answer; expected pair, answer and response"),
        ({**answer, "response": None}, "line 2: pair, answer, response must be texts"),
        ({**theirs[0], "question_id": "x"}, "line 2: question_id is 'x'"),
        ([], "line 2 has no pair"),
    ):
        with pytest.raises(DataError, match=message):
            read(answer, wrong)
    with pytest.raises(DataError, match="question_id is 1; expected a number from 1 that appears once"):
        read(theirs[0], theirs[0])


def test_contrast_is_prepended_to_every_question() -> None:
    asked: list[str] = []

    def ask(images: str, prompts: Sequence[str]) -> list[str]:
        asked.extend(prompts)
        return ["the left cup is gone " if prompt == CONTRAST else "(a)" for prompt in prompts]

    assert ask_with_contrast(ask, "two pictures", ["Which?", "Where?"]) == ("the left cup is gone ", ["(a)", "(a)"])
    assert asked[0] == CONTRAST and len(asked) == 3
    assert asked[1].startswith("the left cup is gone\n") and asked[1].endswith("\nWhich?")

"""Judges of captions from command-line options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_idc.utils.bounds import PositiveInt, check_fields
from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from lightning_idc.metrics.difference_list import DifferenceJudge
    from lightning_idc.metrics.diffspot import VerdictJudge
    from lightning_idc.metrics.judge import TextModel


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """A language model that also scores captions.

    Args:
        judge: folder of a causal language model, or URL of an OpenAI-compatible endpoint, which scores captions from 0
            to 100; for difference-list it decides which claim states which difference, and may also be lexical (the
            default) or exact (captions of rendered pairs); for diffspot it decides whether a caption is correct, in
            place of the exact facts of the pairs.
        judge_model: name of the model behind the endpoint.
        judge_gguf: name of the model's GGUF file in that folder.
        judge_cache: folder for the answers of the endpoint, so that an interrupted run does not repeat them.
        judge_tokens: maximum number of tokens of an answer; reasoning models need more, such as 16384.
    """

    judge: str | None = None
    judge_model: str | None = None
    judge_gguf: str | None = None
    judge_cache: str | None = None
    judge_tokens: PositiveInt = 512

    def __post_init__(self) -> None:
        check_fields(self)
        endpoint_options = {"--judge_model": self.judge_model, "--judge_cache": self.judge_cache}
        ignored = [name for name, value in endpoint_options.items() if value]
        if ignored and not _is_endpoint(self.judge):
            raise ConfigError(
                f"{' and '.join(ignored)} would be ignored: --judge is {self.judge!r}, and only an endpoint has "
                "them; name its URL with --judge"
            )

    def folders(self) -> list[str]:
        """Folders that are read: of the model, and of answers of an endpoint."""
        model = None if _is_endpoint(self.judge) else self.judge
        return [folder for folder in (model, self.judge_cache) if folder]


def _is_endpoint(judge: str | None) -> bool:
    return judge is not None and judge.startswith(("http://", "https://"))


def text_model(options: JudgeOptions) -> tuple[TextModel, str]:
    """A language model by folder or URL, and its name for results.

    Raises:
        ConfigError: the model of an endpoint is not named, or the folder does not exist.
    """
    assert options.judge is not None
    if _is_endpoint(options.judge):
        if not options.judge_model:
            from lightning_idc.utils.http import redact_url

            raise ConfigError(
                f"--judge is the endpoint {redact_url(options.judge)}; name the model that it runs with --judge_model"
            )
        from lightning_idc.synthesis.models.endpoint import Endpoint

        # at least ten tokens a second: a reasoning model must not be called again before it has answered
        timeout = max(120.0, options.judge_tokens / 10)
        endpoint = Endpoint(
            options.judge,
            options.judge_model,
            max_tokens=options.judge_tokens,
            timeout=timeout,
            cache=options.judge_cache,
        )

        def answers(prompts: Sequence[str], attempt: int) -> list[str]:
            # greedy decoding would repeat the answer
            sampled = replace(endpoint, temperature=0.7) if attempt else endpoint
            return sampled.ask(prompts, [attempt] * len(prompts))

        return answers, options.judge_model
    if not Path(options.judge).is_dir():
        raise ConfigError(
            f"--judge is {options.judge!r}; expected the folder of a causal language model or the URL of an endpoint "
            "(and of a difference-list: lexical, exact)"
        )
    from lightning_idc.metrics.judge import CausalJudge

    return CausalJudge(options.judge, options.judge_gguf, options.judge_tokens), Path(options.judge).name


def difference_judge(options: JudgeOptions) -> tuple[str, DifferenceJudge]:
    """The judge of a difference-list, and its name for results."""
    from lightning_idc.metrics.difference_list import LEXICAL, PROMPT_VERSION, PromptedJudge

    if options.judge in (None, "lexical"):
        return LEXICAL
    if options.judge == "exact":
        from lightning_idc.data.synthetic.judging import exact_judge

        return "exact, kind, object and value of rendered changes", exact_judge
    model, name = text_model(options)
    # truncated answers cannot be parsed, so the limit affects scores
    return f"{name}, {PROMPT_VERSION}, {options.judge_tokens} tokens", PromptedJudge(model)


def verdict_judge(options: JudgeOptions) -> tuple[str, VerdictJudge] | None:
    """The judge of the protocol diffspot, and its name for results; None for exact facts."""
    from lightning_idc.metrics.diffspot import PROMPT_VERSION, PromptedVerdict

    if options.judge in (None, "exact"):
        return None
    model, name = text_model(options)
    return f"{name}, {PROMPT_VERSION}, {options.judge_tokens} tokens", PromptedVerdict(model)

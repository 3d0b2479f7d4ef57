"""Judges of captions as they are named on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightning_idc.metrics.difference_list import LEXICAL, PROMPT_VERSION, DifferenceJudge, PromptedJudge
from lightning_idc.metrics.judge import CausalJudge, TextModel
from lightning_idc.utils.errors import ConfigError, check_number


def check(options: argparse.Namespace) -> None:
    """Refuse options of an endpoint without one.

    Raises:
        ConfigError: one is given.
    """
    given = {"--judge-model": options.judge_model, "--judge-cache": options.judge_cache}
    ignored = [name for name, value in given.items() if value]
    if ignored and not _is_endpoint(options.judge):
        raise ConfigError(
            f"{' and '.join(ignored)} would be ignored: --judge is {options.judge!r}, and only an endpoint has "
            "them; name its URL with --judge"
        )


def _is_endpoint(judge: str | None) -> bool:
    return judge is not None and judge.startswith(("http://", "https://"))


def text_model(options: argparse.Namespace) -> tuple[TextModel, str]:
    """A language model by folder or URL, and its name for results.

    Raises:
        ConfigError: the model behind an endpoint is not named, there is no such folder, or answers have no token.
    """
    check_number("--judge-tokens", options.judge_tokens, minimum=1)
    if _is_endpoint(options.judge):
        if not options.judge_model:
            raise ConfigError(
                f"--judge is the endpoint {options.judge}; name the model that it runs with --judge-model"
            )
        from lightning_idc.synthesis.models.base import CutOff
        from lightning_idc.synthesis.models.endpoint import Endpoint

        # 120 s, or as long as ten tokens a second take: a model that thinks is not asked again halfway
        timeout = max(120.0, options.judge_tokens / 10)
        endpoint = Endpoint(
            options.judge,
            options.judge_model,
            max_tokens=options.judge_tokens,
            timeout=timeout,
            cache=options.judge_cache,
        )

        def answers(prompts: Sequence[str], attempt: int) -> list[str]:
            # asked again, the most probable answer would come again
            drawn = replace(endpoint, temperature=0.7) if attempt else endpoint
            said = drawn.ask(prompts, [attempt] * len(prompts))
            # "score: 8" may be the beginning of "score: 85"
            return [re.sub(r"\S+\Z", "", answer) if isinstance(answer, CutOff) else answer for answer in said]

        return answers, options.judge_model
    if not Path(options.judge).is_dir():
        raise ConfigError(
            f"--judge is {options.judge!r}; expected the folder of a causal language model or the URL of an endpoint "
            "(and of a difference-list: lexical, exact)"
        )
    return CausalJudge(options.judge, options.judge_gguf, options.judge_tokens), Path(options.judge).name


def difference_judge(options: argparse.Namespace) -> tuple[str, DifferenceJudge]:
    """The judge of a difference-list, and its name for results."""
    if options.judge in (None, "lexical"):
        return LEXICAL
    if options.judge == "exact":
        from lightning_idc.data.synthetic.judging import exact_judge

        return "exact, kind, object and value of rendered changes", exact_judge
    model, name = text_model(options)
    # an answer that is cut off cannot be read, so its length decides scores
    return f"{name}, {PROMPT_VERSION}, {options.judge_tokens} tokens", PromptedJudge(model)

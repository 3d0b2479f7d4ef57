"""Judges of captions as they are named on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_idc.errors import ConfigError
from lightning_idc.metrics.captions import ScoringResources
from lightning_idc.metrics.difference_list import (
    PROMPT_VERSION,
    DifferenceJudge,
    Matches,
    PromptedJudge,
    agreement,
    lexical_judge,
)
from lightning_idc.metrics.floors import dealt
from lightning_idc.metrics.grouping import ReferenceRecord
from lightning_idc.metrics.judge import CausalJudge, TextModel
from lightning_idc.metrics.protocols import Protocol, evaluate

NOTHING = "there is no difference"


def text_model(options: argparse.Namespace) -> tuple[TextModel, str]:
    """A language model by folder or URL, and its name for results.

    Raises:
        ConfigError: the model behind an endpoint is not named, or there is no such folder.
    """
    if options.judge.startswith(("http://", "https://")):
        if not options.judge_model:
            raise ConfigError(
                f"--judge is the endpoint {options.judge}; name the model that it runs with --judge-model"
            )
        from lightning_idc.synthesis.slots.endpoint import Endpoint

        endpoint = Endpoint(options.judge, options.judge_model, max_tokens=512)

        def answers(prompts: Sequence[str], attempt: int) -> list[str]:
            # asked again, the most probable answer would come again
            drawn = replace(endpoint, temperature=0.7) if attempt else endpoint
            return drawn.ask(prompts, [attempt] * len(prompts))

        return answers, options.judge_model
    if not Path(options.judge).is_dir():
        raise ConfigError(
            f"--judge is {options.judge!r}; expected the folder of a causal language model or the URL of an endpoint "
            "(and of a difference-list: lexical, exact)"
        )
    return CausalJudge(options.judge, options.judge_gguf), Path(options.judge).name


def difference_judge(options: argparse.Namespace) -> tuple[str, DifferenceJudge]:
    """The judge of a difference-list, and its name for results."""
    if options.judge in (None, "lexical"):
        return "lexical, half of the words", lexical_judge
    if options.judge == "exact":
        from lightning_idc.data.synthetic.judging import exact_judge

        return "exact, kind, object and value of rendered changes", exact_judge
    model, name = text_model(options)
    return f"{name}, {PROMPT_VERSION}", PromptedJudge(model)


@dataclass
class Recorded:
    """A judge whose decisions are kept, to say how far another one agrees.

    Args:
        name: for results.
        judge: that decides.
    """

    name: str
    judge: DifferenceJudge
    pairs: list[tuple[Sequence[str], Sequence[str]]] = field(default_factory=list)
    matches: list[Matches | None] = field(default_factory=list)

    def __call__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Matches | None]:
        found = self.judge(pairs)
        self.pairs += pairs
        self.matches += found
        return found

    def as_dict(self) -> dict[str, Any]:
        """Name, and Cohen's kappa with the judge that compares words."""
        same = self.judge is lexical_judge
        kappa = None if same else agreement(self.matches, lexical_judge(self.pairs))
        unread = sum(matches is None for matches in self.matches)
        return {"judge": self.name, "pairs": len(self.pairs), "unread": unread, "kappa_with_words": kappa}


def floors(
    protocol: Protocol, captions: Mapping[str, str], truths: Sequence[ReferenceRecord], resources: ScoringResources
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores of captioners that do not see what changed: one that claims nothing, and captions of other pairs.

    Args:
        protocol: that is in force.
        captions: by pair.
        truths: references of the pairs.
        resources: with the judge.
    """
    blind = {"claims nothing": dict.fromkeys(captions, NOTHING)}
    if len(captions) > 1:
        blind["captions of other pairs"] = dealt(captions)
    return {
        name: {part: dict(scores.values) for part, scores in evaluate(protocol, said, truths, None, resources).items()}
        for name, said in blind.items()
    }

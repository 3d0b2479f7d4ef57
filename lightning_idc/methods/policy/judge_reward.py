"""JudgeReward: a language model behind an endpoint says how good captions are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.rewards import Reward, Texts, refuse_without_references
from lightning_idc.metrics.judge import IMG_DIFF, OMNIDIFF, Rubric, ask_until_read
from lightning_idc.synthesis.models.endpoint import Endpoint, image_part
from lightning_idc.utils.errors import ConfigError, DataError, check_number, check_positive

RUBRICS = {rubric.name: rubric for rubric in (IMG_DIFF, OMNIDIFF)}


class JudgeReward(Reward):
    """Score from 0 to 1 that a judge behind an OpenAI-compatible endpoint gives to each caption.

    Requests go side by side, wait, and are sent again as the endpoint says. A caption whose answer cannot be read, even
    when asked again, gets the mean of the pair's other captions, so that it counts neither for nor against.

    Args:
        endpoint: where the judge answers, and how it is asked.
        rubric: name of :data:`RUBRICS`; ``prompt`` and ``max_score`` take its place.
        prompt: of your own, with ``{expected}`` for the references and ``{said}`` for the caption.
        max_score: highest score of that prompt.
        images: also show the judge both pictures.
        tries: of a caption whose answer cannot be read.
        unreadable: share of captions without a score from which on a step is an error.

    Raises:
        ConfigError: there is no such rubric, the prompt lacks ``{said}``, or a number is out of range.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rubric: str = IMG_DIFF.name,
        prompt: str | None = None,
        max_score: float = 1.0,
        images: bool = False,
        tries: int = 2,
        unreadable: float = 0.5,
    ) -> None:
        super().__init__()
        if prompt is None and rubric not in RUBRICS:
            raise ConfigError(f"there is no rubric {rubric!r}; expected one of {', '.join(RUBRICS)}, or a prompt")
        if prompt is not None and "{said}" not in prompt:
            raise ConfigError("the judge's prompt has no {said}, where the caption to be judged stands; add it")
        check_number("tries", tries, minimum=1)
        check_number("unreadable", unreadable, minimum=0)
        check_positive("max_score", max_score)
        self.endpoint, self.images, self.tries, self.unreadable = endpoint, images, tries, unreadable
        self.rubric = RUBRICS[rubric] if prompt is None else Rubric("own", prompt, max_score)

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        if "{expected}" in self.rubric.prompt:
            refuse_without_references(pairs, "the judge")
        shown = [[image_part(image.cpu()) for image in pair] for pair in pairs.images] if self.images else None
        keys = [(b, k) for b, row in enumerate(texts) for k in range(len(row))]
        contents: list[Any] = [self.rubric.ask(texts[b][k], " ".join(pairs.references[b])) for b, k in keys]
        if shown is not None:
            contents = [
                [*shown[b], {"type": "text", "text": text}] for (b, _), text in zip(keys, contents, strict=True)
            ]
        scores, _, _ = ask_until_read(
            # another seed for another try, since what is kept or certain would come again
            lambda left, attempt: self.endpoint.ask(left, [attempt] * len(left)),
            contents,
            lambda place, answer: self.rubric.read(answer),
            self.tries - 1,
            max(1, len(contents)),
        )
        known = [float("nan") if score is None else score / self.rubric.max_score for score in scores]
        return self._filled(torch.tensor(known).view(len(texts), -1))

    def _filled(self, values: Tensor) -> Tensor:
        missing = values.isnan()
        share = float(missing.float().mean())
        self.parts = {"JudgeReward/unreadable": (float(missing.sum()), missing.numel())}
        if share > self.unreadable:
            raise DataError(
                f"{int(missing.sum())} of {missing.numel()} answers of the judge {self.endpoint.model!r} hold no score "
                f"from 0 to {self.rubric.max_score:g}; use a larger judge, or a prompt that asks for 'Score: <number>'"
            )
        return torch.where(missing, values.nanmean(1, keepdim=True).nan_to_num(0.0), values)

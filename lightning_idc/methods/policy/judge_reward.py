"""JudgeReward: a language model behind an endpoint scores captions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.policy.rewards import Reward, Texts, check_references
from lightning_idc.metrics.judge import IMG_DIFF, OMNIDIFF, Rubric, ask_with_retries
from lightning_idc.synthesis.models.endpoint import Endpoint, image_part
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError

RUBRICS = {rubric.name: rubric for rubric in (IMG_DIFF, OMNIDIFF)}


class JudgeReward(Reward):
    """Score from 0 to 1 that a judge behind an OpenAI-compatible endpoint gives to each caption.

    Requests run in parallel, with the endpoint's timeouts and retries. A caption whose score cannot be parsed after all
    tries gets the mean of the pair's other captions, which makes it neutral.

    Args:
        endpoint: endpoint of the judge.
        rubric: name of one of :data:`RUBRICS`; ignored if ``prompt`` is set.
        prompt: custom prompt with ``{reference}`` for the references and ``{caption}`` for the caption.
        max_score: highest score of the custom prompt.
        images: whether the judge also gets both images.
        tries: number of requests per caption until its score can be parsed.
        max_unreadable: largest fraction of captions without a score; above it a step raises a DataError.

    Raises:
        ConfigError: the rubric is unknown, the prompt lacks ``{caption}``, or a number is out of range.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rubric: str = IMG_DIFF.name,
        prompt: str | None = None,
        max_score: PositiveFloat = 1.0,
        images: bool = False,
        tries: PositiveInt = 2,
        max_unreadable: NonNegativeFloat = 0.5,
    ) -> None:
        check_arguments(JudgeReward.__init__, locals())
        super().__init__()
        if prompt is None and rubric not in RUBRICS:
            raise ConfigError(f"there is no rubric {rubric!r}; expected one of {', '.join(RUBRICS)}, or a prompt")
        if prompt is not None and "{caption}" not in prompt:
            raise ConfigError("the judge's prompt has no {caption}; expected it as the placeholder of the caption")
        self.endpoint, self.images, self.tries, self.max_unreadable = endpoint, images, tries, max_unreadable
        self.rubric = RUBRICS[rubric] if prompt is None else Rubric("custom", prompt, max_score)

    @property
    def reads_images(self) -> bool:
        return self.images

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        if "{reference}" in self.rubric.prompt:
            check_references(pairs, "the judge")
        image_parts = [[image_part(image.cpu()) for image in pair] for pair in pairs.images] if self.images else None
        keys = [(b, k) for b, row in enumerate(texts) for k in range(len(row))]
        contents: list[Any] = [self.rubric.format_prompt(texts[b][k], " ".join(pairs.references[b])) for b, k in keys]
        if image_parts is not None:
            contents = [
                [*image_parts[b], {"type": "text", "text": text}] for (b, _), text in zip(keys, contents, strict=True)
            ]
        scores, _, _ = ask_with_retries(
            # a new seed for each try, as a cached answer would be the same again
            lambda remaining, attempt: self.endpoint.ask(remaining, [attempt] * len(remaining)),
            contents,
            read=lambda index, answer: self.rubric.read(answer),
            retries=self.tries - 1,
            batch_size=max(1, len(contents)),
        )
        values = [float("nan") if score is None else score / self.rubric.max_score for score in scores]
        return self._fill_missing(torch.tensor(values).view(len(texts), -1))

    def _fill_missing(self, values: Tensor) -> Tensor:
        """Replace NaN in ``(B, K)`` by the mean of the pair's other captions."""
        missing = values.isnan()
        fraction = float(missing.float().mean())
        self.parts = {"JudgeReward/unreadable": (float(missing.sum()), missing.numel())}
        if fraction > self.max_unreadable:
            raise DataError(
                f"{int(missing.sum())} of {missing.numel()} answers of the judge {self.endpoint.model!r} hold no score "
                f"from 0 to {self.rubric.max_score:g}; use a larger model, or a prompt that asks for 'Score: <number>'"
            )
        return torch.where(missing, values.nanmean(1, keepdim=True).nan_to_num(0.0), values)

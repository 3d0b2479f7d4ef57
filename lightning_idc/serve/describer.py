"""Describer: the common interface of captioners and rules, which the commands and servers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_idc.callbacks.write_predictions import prediction_key
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.answers import answer_pairs


class Describer(Protocol):
    """Describes the change between two images."""

    @property
    def input_spec(self) -> InputSpec:
        """Preparation of images."""

    @property
    def takes_prompt(self) -> bool:
        """Whether prompts have an effect."""

    @property
    def scope(self) -> str:
        """Sentence about the images that it can describe, for clients of a server."""

    @property
    def decides_change(self) -> bool:
        """Whether a pair with differing pixels is unchanged if its description says so; the gate decides otherwise."""

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> Sequence[PairSample]:
        """Pairs with this prompt."""

    def answer(self, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
        """Answers for the pairs of one batch, from ``input_spec.read``.

        Args:
            samples: pairs of one size.
            where: whether to locate the change.
        """

    def prediction_key(self, settings: Sequence[str]) -> str:
        """Digest of everything that determines the answers: the describer, ids of the pairs, and further settings."""


@dataclass(frozen=True)
class CaptionerDescriber:
    """A captioner as a :class:`Describer`.

    Args:
        captioner: the captioner, in eval mode.
    """

    captioner: PairCaptioner
    decides_change = True

    @property
    def input_spec(self) -> InputSpec:
        return self.captioner.input_spec

    @property
    def takes_prompt(self) -> bool:
        return self.captioner.takes_prompt

    @property
    def scope(self) -> str:
        return f"Describes only {self.input_spec.domain or 'the kind of images it was trained on'}."

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> Sequence[PairSample]:
        return self.captioner.with_prompt(samples, prompt)

    def answer(self, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
        return answer_pairs(self.captioner, samples, where)

    def prediction_key(self, settings: Sequence[str]) -> str:
        return prediction_key(self.captioner, list(settings))

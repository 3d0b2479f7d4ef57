"""RulesCaptioner: rules without a network as a Describer."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.types import PairSample
from lightning_idc.rules import describe_changes
from lightning_idc.serve.answer import Answer, answer_of_rules
from lightning_idc.utils.files import digest

NAME = "rules"
"""Name of the rules in the place of a model."""


class RulesCaptioner:
    """Describes pairs by registration, changed regions and their kinds (`lightning_idc.rules`).

    Reads images at their own size.

    Args:
        options: value range, bands and page; defaults of 8-bit RGB images when None.
    """

    takes_prompt = False
    decides_change = False
    scope = "Compares pixels by rules, without a network."

    def __init__(self, options: ImageOptions | None = None) -> None:
        self.input_spec = InputSpec(options=options or ImageOptions())

    def answer(self, samples: Sequence[PairSample], where: bool = True) -> list[Answer]:
        """Answers about pairs from ``input_spec.read``, always with boxes."""
        return [
            answer_of_rules(sample.id, describe_changes(sample.before, sample.after, resize=True)) for sample in samples
        ]

    def prediction_key(self, settings: Sequence[str]) -> str:
        """Digest of the settings; rules have no weights."""
        return digest(NAME, *settings)

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> Sequence[PairSample]:
        """Return the pairs unchanged: rules ignore prompts."""
        return samples

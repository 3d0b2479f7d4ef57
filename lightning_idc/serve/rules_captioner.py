"""RulesCaptioner: rules without a network, where a captioner is expected."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.types import PairSample
from lightning_idc.rules import describe_changes
from lightning_idc.serve.answer import Answer, answer_of_rules

NAME = "rules"
"""Name of the rules in the place of a captioner's."""


class RulesCaptioner:
    """Describes pairs by registration, changed regions and their kinds (`lightning_idc.rules`).

    Reads images at their own size.

    Args:
        options: value range, bands and page; those of plain images when None.
    """

    takes_prompt = False

    def __init__(self, options: ImageOptions | None = None) -> None:
        self.input_spec = InputSpec(options=options or ImageOptions())

    def answer(self, samples: Sequence[PairSample]) -> list[Answer]:
        """Answers about pairs, as ``input_spec.read`` prepares them."""
        return [
            answer_of_rules(sample.id, describe_changes(sample.before, sample.after, resize=True)) for sample in samples
        ]

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> Sequence[PairSample]:
        """The pairs as they are: rules read no prompt."""
        return samples

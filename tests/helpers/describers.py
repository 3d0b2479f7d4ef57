"""A stand-in without weights for the description model of a recipe; it answers in the requested template."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from lightning_idc.synthesis.models.base import VisionLanguageModel


class InTemplate(VisionLanguageModel):
    """Fills the template that a prompt quotes with numbered objects, and adds a sentence to every third answer.

    Without a template in the prompt, the answer is the number of the prompt.
    """

    prompts: list[str] = []  # noqa: RUF012  shared with the test: a recipe makes the instance

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        answers = []
        for prompt in prompts:
            number = len(self.prompts)
            self.prompts.append(prompt)
            quoted = re.search(r"template: '(.*)'\.$", prompt)
            said = quoted[1].replace("[object description]", f"a No. {number} bus") if quoted else f"it is {number}."
            answers.append(f"{said} Both are similar." if number % 3 == 2 else said)
        return answers

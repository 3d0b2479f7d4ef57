"""Any question about any two images, put to a vision-language captioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lightning_idc.methods.vlm.families.base import TOKEN_TYPES
from lightning_idc.methods.vlm.module import VLMCaptioner


@dataclass(frozen=True)
class Asker:
    """Answers questions about a pair, greedily.

    Args:
        captioner: that answers.
        most: tokens of an answer, at most.
    """

    captioner: VLMCaptioner
    most: int = 128

    @torch.inference_mode()
    def __call__(self, images: tuple[str | Path, str | Path], questions: Sequence[str]) -> list[str]:
        """Answers to questions; the images are encoded once for all of them.

        Args:
            images: first and second, files.
            questions: about them; each is asked by itself.

        Raises:
            DataError: an image cannot be read.
        """
        captioner = self.captioner.eval()
        sample = captioner.fit(captioner.input_spec.read(*images))
        features = captioner.encode(captioner.collate([sample]).to(captioner.device))
        net = captioner.built_net
        answers = []
        for question in questions:
            inputs = captioner.prompt_inputs([question], [(sample.before.shape[1], sample.before.shape[2])])
            asked = {name: value.to(captioner.device) for name, value in inputs.items()}
            types = {name: asked[name] for name in TOKEN_TYPES if name in asked}
            behind = net.with_prompt(features, asked["prompt_ids"], asked["prompt_mask"], types)
            answers.append(captioner.generate(behind, max_length=self.most)[0].text)
        return answers

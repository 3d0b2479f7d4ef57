"""Any question about any two images, put to a vision-language captioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lightning_idc.core.images import as_pair
from lightning_idc.core.types import PairSample
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
        """Answers to questions.

        Args:
            images: first and second, files.
            questions: about them; each is asked by itself.

        Raises:
            PairError: an image cannot be read.
        """
        captioner = self.captioner.eval()
        size = captioner.hparams["image_size"]
        shown = as_pair(*images, size=None if size is None else (int(size[0]), int(size[1])))
        batch = captioner.collate([PairSample("pair", *shown)])
        answers = []
        for question in questions:
            ids = torch.tensor([captioner.prompt_ids(question, *shown[0].shape[1:])])
            batch.model_inputs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}
            features = captioner.encode(batch.to(captioner.device))
            answers.append(captioner.generate(features, max_length=self.most)[0].text)
        return answers

"""QuestionAnswerer: a vision-language captioner that answers questions about a pair or about a single image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_idc.images.read import read_image
from lightning_idc.images.resize import resize
from lightning_idc.models.vlm.families.base import TOKEN_TYPES
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.prompting import check_placeholders
from lightning_idc.models.vlm.sizes import fitting_size
from lightning_idc.utils.errors import ConfigError

ImageSource = str | Path | bytes
"""Path of an image file, or its bytes."""


@dataclass(frozen=True)
class QuestionAnswerer:
    """Answers questions about a pair or about a single image, by greedy decoding.

    Args:
        captioner: vision-language captioner.
        max_tokens: maximum number of tokens of an answer.
    """

    captioner: VLMCaptioner
    max_tokens: int = 128

    @torch.inference_mode()
    def __call__(self, images: Sequence[ImageSource], questions: Sequence[str]) -> list[str]:
        """Answers to questions; the images of a pair are encoded once for all of them.

        Args:
            images: the two images of a pair, or a single image.
            questions: independent questions about the images.

        Raises:
            DataError: an image cannot be read.
            ConfigError: the captioner has an adapter that needs two images.
        """
        if len(images) == 1:
            image = read_image(images[0], name="the image")
            return [self._answer_single(image, question) for question in questions]
        captioner = self.captioner.eval()
        before, after = images
        sample = captioner.resize_to_budget(captioner.input_spec.read(before, after))
        # the prompt is irrelevant, since only the image features are used
        sample.meta["question"] = ""
        features = captioner.encode(captioner.collate([sample]).to(captioner.device))
        net = captioner.built_net
        answers = []
        for question in questions:
            inputs = captioner.prompt_inputs([question], [(sample.before.shape[1], sample.before.shape[2])])
            prompt = {name: value.to(captioner.device) for name, value in inputs.items()}
            prompted_features = net.with_prompt(
                features,
                prompt_ids=prompt["prompt_ids"],
                prompt_mask=prompt["prompt_mask"],
                token_types={name: prompt[name] for name in TOKEN_TYPES if name in prompt},
                positions=prompt["positions"],
            )
            answers.append(captioner.generate(prompted_features, max_length=self.max_tokens)[0].text)
        return answers

    def _answer_single(self, image: Tensor, question: str) -> str:
        """Answer a question about one image, by ``generate`` of the stock model."""
        captioner = self.captioner.eval()
        installed = captioner.adapters.installed()
        others = [name for name, adapter in installed.items() if not isinstance(adapter, LoraAdapter)]
        if others:
            raise ConfigError(
                f"the captioner has the adapter {others[0]!r}, which compares two images; disable it for questions "
                "about single images, or leave out --single"
            )
        net, vocabulary, options = captioner.built_net, captioner.built_vocabulary, captioner.hparams
        check_placeholders(net, question)
        height, width = image.shape[1:]
        size = fitting_size(height, width, options["min_pixels"], options["max_pixels"])
        inputs = net.processor(
            text=[net.family.prompt(net.processor, question, images=1)],
            images=[[net.family.uncropped(net.processor, resize(image, size, "bicubic"))]],
            return_tensors="pt",
            **net.family.image_options,
        ).to(captioner.device)
        special = vocabulary.special
        with net.precision():
            out: Tensor = net.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=self.max_tokens,
                eos_token_id=list(special.ends),
                pad_token_id=special.pad,
                suppress_tokens=list(special.suppress_tokens),
            )
        return vocabulary.decode(out[0, inputs["input_ids"].shape[1] :].tolist())

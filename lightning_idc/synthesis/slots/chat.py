"""Slots with chat models of transformers, and captions by asking them. Every answer is the same in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.core.images import resize
from lightning_idc.synthesis.slots.base import DifferenceTeller, ImageCaptioner, TextModel, VisionLanguageModel
from lightning_idc.synthesis.slots.pretrained import Pretrained, as_pil


class ChatModel(Pretrained, TextModel):
    """A chat model of transformers; the paper edits captions with Vicuna-1.5-13B.

    Args:
        model: see `Pretrained`, as for the two arguments below.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: prompts per forward pass.
        max_new_tokens: of an answer.
        temperature: 0 for the most probable answer.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 16,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
    ) -> None:
        super().__init__(model, revision, dtype, batch_size)
        self.max_new_tokens, self.temperature = max_new_tokens, temperature

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "max_new_tokens": self.max_new_tokens, "temperature": self.temperature}

    def load(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.read(AutoModelForCausalLM, AutoTokenizer)
        _pad_left(self.processor)

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        texts = [self._chat(prompt) for prompt in prompts]
        sizes = [len(text) for text in texts]
        return self.in_batches(sizes, lambda part: self._answer([texts[n] for n in part], [seeds[n] for n in part]))

    @torch.inference_mode()
    def _answer(self, texts: list[str], seeds: list[int]) -> list[str]:
        inputs = self.processor(texts, padding=True, return_tensors="pt").to(self.device)
        inputs.pop("token_type_ids", None)
        drawn = [OwnDraws(seeds, self.temperature, self.device)] if self.temperature else []
        out = self.net.generate(**inputs, do_sample=False, logits_processor=drawn, max_new_tokens=self.max_new_tokens)
        return self.processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def _chat(self, prompt: str) -> str:
        if not self.processor.chat_template:
            return prompt
        return self.processor.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )


class OwnDraws:
    """Makes greedy decoding draw each answer with a seed of its own, whatever shares its batch.

    The largest of log-probabilities with Gumbel noise is a draw from the distribution.

    Args:
        seeds: of each row.
        temperature: of the distribution.
        device: of the scores.
    """

    def __init__(self, seeds: Sequence[int], temperature: float, device: torch.device) -> None:
        self.temperature = temperature
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = [
            torch.empty_like(row).exponential_(generator=own) for row, own in zip(scores, self.generators, strict=True)
        ]
        return scores / self.temperature - torch.stack(noise).log()


class ChatVisionModel(Pretrained, VisionLanguageModel):
    """A vision-language chat model of transformers, greedy.

    Args:
        model: see `Pretrained`, as for the two arguments below; for example ``Qwen/Qwen2-VL-7B-Instruct``.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: prompts per forward pass.
        max_new_tokens: of an answer.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 8,
        max_new_tokens: int = 128,
    ) -> None:
        super().__init__(model, revision, dtype, batch_size)
        self.max_new_tokens = max_new_tokens

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "max_new_tokens": self.max_new_tokens}

    def load(self) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.read(AutoModelForImageTextToText, AutoProcessor)
        _pad_left(self.processor.tokenizer)

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        # models that take pictures as they are have a token for each 28 x 28 pixels or so
        sizes = [
            len(prompt) // 4 + sum(image[0].numel() for image in shown) // 28**2
            for prompt, shown in zip(prompts, images, strict=True)
        ]
        return self.in_batches(sizes, lambda part: self._answer([images[n] for n in part], [prompts[n] for n in part]))

    @torch.inference_mode()
    def _answer(self, images: list[Sequence[Tensor]], prompts: list[str]) -> list[str]:
        texts = [
            self.processor.apply_chat_template(_asked(prompt, len(shown)), add_generation_prompt=True)
            for prompt, shown in zip(prompts, images, strict=True)
        ]
        pictures = [as_pil(shown) for shown in images]
        inputs = self.processor(text=texts, images=pictures, padding=True, return_tensors="pt").to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.net.dtype)
        out = self.net.generate(**inputs, do_sample=False, max_new_tokens=self.max_new_tokens)
        return self.processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def _asked(prompt: str, images: int) -> list[dict[str, Any]]:
    shown: list[dict[str, str]] = [{"type": "image"}] * images
    return [{"role": "user", "content": [*shown, {"type": "text", "text": prompt}]}]


def _pad_left(tokenizer: Any) -> None:
    tokenizer.padding_side = "left"  # answers follow their prompts at once
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


class PromptedCaptioner(ImageCaptioner):
    """Captions by a vision-language model.

    Args:
        model: is asked.
        prompt: about one picture.
        least_side: smaller pictures are enlarged, pixels; some models cannot see less.
    """

    def __init__(
        self, model: VisionLanguageModel, prompt: str = "Describe this image in one sentence.", least_side: int = 56
    ) -> None:
        super().__init__()
        self.model, self.prompt, self.least_side = model, prompt, least_side

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt}

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        return self.model.answer([[_enlarged(image, self.least_side)] for image in images], [self.prompt] * len(images))


def _enlarged(image: Tensor, least: int) -> Tensor:
    height, width = image.shape[1:]
    return resize(image, (max(height, least), max(width, least)))


class PromptedTeller(DifferenceTeller):
    """Difference sentences by a vision-language model that sees both pictures in one, with a bar between them.

    Args:
        model: is asked.
        prompt: with ``{first}`` and ``{second}`` for the captions of either box.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        prompt: str = (
            "The left and the right image are separated by a black bar; a red box marks the same place in both. In the "
            "left box there is: {first} In the right box there is: {second} Describe in one sentence how they differ."
        ),
    ) -> None:
        super().__init__()
        self.model, self.prompt = model, prompt

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt}

    def tell(self, before: Sequence[Tensor], after: Sequence[Tensor], captions: Sequence[tuple[str, str]]) -> list[str]:
        from lightning_idc.methods.img_diff.sentences import side_by_side

        prompts = [self.prompt.format(first=first, second=second) for first, second in captions]
        return self.model.answer([[side_by_side(*pair)] for pair in zip(before, after, strict=True)], prompts)

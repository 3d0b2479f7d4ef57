"""Chat models of transformers, and captioners that prompt them. Answers do not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.models.base import ImageCaptioner, TextModel, VisionLanguageModel
from lightning_idc.synthesis.models.loading import Loading
from lightning_idc.synthesis.models.pretrained import Pretrained, as_pil
from lightning_idc.utils.answers import cut_off, decode_answers, read_answer
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: {prompt} ASSISTANT:"
)
"""Template of Vicuna 1.1, for checkpoints without a template; the tokenizer adds the first token."""


class ChatModel(Pretrained, TextModel):
    """Chat model of transformers; the paper edits captions with Vicuna-1.5-13B.

    Args:
        model: see `Pretrained`.
        revision: commit or tag.
        dtype: dtype of the weights.
        batch_size: number of prompts per forward pass.
        max_new_tokens: largest number of tokens of an answer.
        temperature: sampling temperature; 0 for greedy decoding.
        stop: strings that end an answer.
        template: prompt template for checkpoints without one: ``vicuna``, as in LLaVA and FastChat, the default for
            models with this name; or ``none`` for the bare text.
        loading: see `Pretrained`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: PositiveInt = 16,
        max_new_tokens: PositiveInt = 128,
        temperature: NonNegativeFloat = 0.8,
        stop: Sequence[str] = (),
        template: Literal["vicuna", "none"] | None = None,
        loading: Loading | None = None,
    ) -> None:
        check_arguments(ChatModel.__init__, locals())
        super().__init__(model, revision, dtype, batch_size, loading)
        self.max_new_tokens, self.temperature, self.stop = max_new_tokens, temperature, tuple(stop)
        self.template = template or ("vicuna" if "vicuna" in model.lower() else None)

    def settings(self) -> dict[str, Any]:
        sampling = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "stop": list(self.stop)}
        return {**super().settings(), **sampling, "template": self.template}

    def requirements(self) -> list[str]:
        problems = super().requirements()
        if not problems and self.template is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.name, revision=self.revision, trust_remote_code=False)
            problems += [] if tokenizer.chat_template else [self._missing_template()]
        return problems

    def load(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.read(AutoModelForCausalLM, AutoTokenizer)
        _pad_left(self.processor)
        if not self.processor.chat_template and self.template is None:
            raise CheckpointError(self._missing_template())

    def _missing_template(self) -> str:
        return (
            f"the model {self.name!r} has no chat template, so its prompt format is unknown; "
            "set template to vicuna, or to none to send the bare text"
        )

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        texts = [self._chat(prompt) for prompt in prompts]
        sizes = [len(text) for text in texts]
        return self.in_batches(sizes, lambda part: self._answer([texts[n] for n in part], [seeds[n] for n in part]))

    @torch.inference_mode()
    def _answer(self, texts: list[str], seeds: list[int]) -> list[str]:
        special = not starts_with_bos(texts[0], self.processor)
        inputs = self.processor(texts, padding=True, add_special_tokens=special, return_tensors="pt").to(self.device)
        inputs.pop("token_type_ids", None)
        sampling = [GumbelSampling(seeds, self.temperature, self.device)] if self.temperature else []
        start = inputs["input_ids"].shape[1]
        stopping = {"stopping_criteria": [StopStrings(self.processor, self.stop, start)]} if self.stop else {}
        out = self.net.generate(
            **inputs, do_sample=False, logits_processor=sampling, max_new_tokens=self.max_new_tokens, **stopping
        )
        ids = out[:, start:].tolist()
        answers, is_cut = decode_answers(self.processor, ids), cut_off(self.net, ids, self.max_new_tokens)
        ended = [cut_at(answer, self.stop) for answer in answers]
        # a text that ends at a stop string is complete
        return [
            read_answer(text, cut and text == answer) for text, answer, cut in zip(ended, answers, is_cut, strict=True)
        ]

    def _chat(self, prompt: str) -> str:
        if self.processor.chat_template:
            return self.processor.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        return VICUNA.format(prompt=prompt) if self.template == "vicuna" else prompt


def starts_with_bos(text: str, tokenizer: Any) -> bool:
    """Whether a text begins with the BOS token, so that the tokenizer must not add another one."""
    return bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)


class StopStrings:
    """Stopping criterion that ends each answer of a batch at one of several strings.

    Args:
        tokenizer: tokenizer of the answers.
        stop: strings that end an answer.
        start: position of the first token of an answer.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], start: int) -> None:
        self.tokenizer, self.stop, self.start = tokenizer, tuple(stop), start

    def __call__(self, input_ids: Tensor, scores: Tensor, **unused: Any) -> Tensor:
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :], skip_special_tokens=True)
        return torch.tensor([any(sign in text for sign in self.stop) for text in texts], device=input_ids.device)


def cut_at(answer: str, stop: Sequence[str]) -> str:
    """Truncate an answer before the first of several strings.

    Example:
        >>> cut_at("a cat\\nand a dog", ["\\n"])
        'a cat'
    """
    ends = [index for sign in stop if (index := answer.find(sign)) >= 0]
    return answer[: min(ends)] if ends else answer


class GumbelSampling:
    """Logits processor that makes greedy decoding sample each answer with its own seed, independent of the batch.

    Uses the Gumbel-max trick: the argmax of log-probabilities plus Gumbel noise is a sample of the distribution.

    Args:
        seeds: seed of each row.
        temperature: sampling temperature.
        device: device of the scores.
    """

    def __init__(self, seeds: Sequence[int], temperature: float, device: torch.device) -> None:
        self.temperature = temperature
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        noise = [
            torch.empty_like(row).exponential_(generator=generator)
            for row, generator in zip(scores, self.generators, strict=True)
        ]
        return scores / self.temperature - torch.stack(noise).log()


class ChatVisionModel(Pretrained, VisionLanguageModel):
    """Vision-language chat model of transformers with greedy decoding.

    Args:
        model: see `Pretrained`; for example ``Qwen/Qwen2-VL-7B-Instruct``.
        revision: commit or tag.
        dtype: dtype of the weights.
        batch_size: number of prompts per forward pass.
        max_new_tokens: largest number of tokens of an answer.
        loading: see `Pretrained`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: PositiveInt = 8,
        max_new_tokens: PositiveInt = 128,
        loading: Loading | None = None,
    ) -> None:
        check_arguments(ChatVisionModel.__init__, locals())
        super().__init__(model, revision, dtype, batch_size, loading)
        self.max_new_tokens = max_new_tokens

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "max_new_tokens": self.max_new_tokens}

    def load(self) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.read(AutoModelForImageTextToText, AutoProcessor)
        _pad_left(self.processor.tokenizer)
        if not self.processor.chat_template:
            raise CheckpointError(
                f"the processor of {self.name!r} has no chat template, so its prompt format is unknown; use a "
                "checkpoint with a template, such as those of llava-hf"
            )

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        # models with native resolution have about one token per 28 x 28 pixels
        sizes = [
            len(prompt) // 4 + sum(image[0].numel() for image in prompt_images) // 28**2
            for prompt, prompt_images in zip(prompts, images, strict=True)
        ]
        return self.in_batches(sizes, lambda part: self._answer([images[n] for n in part], [prompts[n] for n in part]))

    @torch.inference_mode()
    def _answer(self, images: list[Sequence[Tensor]], prompts: list[str]) -> list[str]:
        texts = [
            self.processor.apply_chat_template(_chat_message(prompt, len(prompt_images)), add_generation_prompt=True)
            for prompt, prompt_images in zip(prompts, images, strict=True)
        ]
        pil_images = [as_pil(prompt_images) for prompt_images in images]
        special = not starts_with_bos(texts[0], self.processor.tokenizer)
        inputs = self.processor(
            text=texts, images=pil_images, padding=True, add_special_tokens=special, return_tensors="pt"
        ).to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.net.dtype)
        out = self.net.generate(**inputs, do_sample=False, max_new_tokens=self.max_new_tokens)
        ids = out[:, inputs["input_ids"].shape[1] :].tolist()
        answers = decode_answers(self.processor.tokenizer, ids)
        return list(map(read_answer, answers, cut_off(self.net, ids, self.max_new_tokens)))


def _chat_message(prompt: str, images: int) -> list[dict[str, Any]]:
    image_parts: list[dict[str, str]] = [{"type": "image"}] * images
    return [{"role": "user", "content": [*image_parts, {"type": "text", "text": prompt}]}]


def _pad_left(tokenizer: Any) -> None:
    tokenizer.padding_side = "left"  # the answer must directly follow the prompt
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


class PromptedCaptioner(ImageCaptioner):
    """Captioner that prompts a vision-language model.

    Args:
        model: vision-language model.
        prompt: prompt about one image.
        min_side: minimum side in pixels; smaller images are enlarged, as some models require.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        prompt: str = "Describe this image in one sentence.",
        min_side: NonNegativeInt = 56,
    ) -> None:
        check_arguments(PromptedCaptioner.__init__, locals())
        super().__init__()
        self.model, self.prompt, self.min_side = model, prompt, min_side

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt, "min_side": self.min_side}

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        return self.model.answer([[_enlarge(image, self.min_side)] for image in images], [self.prompt] * len(images))


def _enlarge(image: Tensor, min_side: int) -> Tensor:
    height, width = image.shape[1:]
    return resize(image, (max(height, min_side), max(width, min_side)))

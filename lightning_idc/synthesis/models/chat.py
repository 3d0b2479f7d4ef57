"""Slots with chat models of transformers, and captions by asking them. Every answer is the same in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.models.base import CutOff, ImageCaptioner, TextModel, VisionLanguageModel
from lightning_idc.synthesis.models.loading import Loading
from lightning_idc.synthesis.models.pretrained import Pretrained, as_pil
from lightning_idc.utils.errors import CheckpointError

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: {prompt} ASSISTANT:"
)
"""Version 1.1 of Vicuna's template, for checkpoints that bring none; the tokenizer adds the first token."""
"""Of the pictures that a model is asked about, pixels."""


class ChatModel(Pretrained, TextModel):
    """A chat model of transformers; the paper edits captions with Vicuna-1.5-13B.

    Args:
        model: see `Pretrained`, as for the two arguments below.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: prompts per forward pass.
        max_new_tokens: of an answer.
        temperature: 0 for the most probable answer.
        stop: an answer ends before the first of these.
        template: of the prompt where the checkpoint brings none: ``vicuna``, as LLaVA and FastChat write it, which is
            taken for models with that name; ``none`` sends the text as it is.
        loading: see `Pretrained`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 16,
        max_new_tokens: int = 128,
        temperature: float = 0.8,
        stop: Sequence[str] = (),
        template: Literal["vicuna", "none"] | None = None,
        loading: Loading | None = None,
    ) -> None:
        super().__init__(model, revision, dtype, batch_size, loading)
        self.max_new_tokens, self.temperature, self.stop = max_new_tokens, temperature, tuple(stop)
        self.template = template or ("vicuna" if "vicuna" in model.lower() else None)

    def settings(self) -> dict[str, Any]:
        drawn = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "stop": list(self.stop)}
        return {**super().settings(), **drawn, "template": self.template}

    def requirements(self) -> list[str]:
        problems = super().requirements()
        if not problems and self.template is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self.name, revision=self.revision, trust_remote_code=False)
            problems += [] if tokenizer.chat_template else [self._bare()]
        return problems

    def load(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.read(AutoModelForCausalLM, AutoTokenizer)
        _pad_left(self.processor)
        if not self.processor.chat_template and self.template is None:
            raise CheckpointError(self._bare())

    def _bare(self) -> str:
        return (
            f"the model {self.name!r} has no chat template, so it would be asked without the form that it was trained "
            "on; set template to vicuna, or to none to send the bare text"
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
        drawn = [GumbelSampling(seeds, self.temperature, self.device)] if self.temperature else []
        start = inputs["input_ids"].shape[1]
        stopped = {"stopping_criteria": [StopStrings(self.processor, self.stop, start)]} if self.stop else {}
        out = self.net.generate(
            **inputs, do_sample=False, logits_processor=drawn, max_new_tokens=self.max_new_tokens, **stopped
        )
        answers = self.processor.batch_decode(out[:, start:], skip_special_tokens=True)
        return [cut_at(answer, self.stop) for answer in answers]

    def _chat(self, prompt: str) -> str:
        if self.processor.chat_template:
            return self.processor.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        return VICUNA.format(prompt=prompt) if self.template == "vicuna" else prompt


def starts_with_bos(text: str, tokenizer: Any) -> bool:
    """Whether a template wrote the first token itself, so that the tokenizer must not add another."""
    return bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)


class StopStrings:
    """Ends each answer of a batch as soon as it holds one of some strings.

    Args:
        tokenizer: of the answers.
        stop: the strings.
        start: position of the first token of an answer.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], start: int) -> None:
        self.tokenizer, self.stop, self.start = tokenizer, tuple(stop), start

    def __call__(self, input_ids: Tensor, scores: Tensor, **unused: Any) -> Tensor:
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :], skip_special_tokens=True)
        return torch.tensor([any(sign in text for sign in self.stop) for text in texts], device=input_ids.device)


def cut_at(answer: str, stop: Sequence[str]) -> str:
    """The part of an answer before the first of some strings.

    Example:
        >>> cut_at("a cat\\nand a dog", ["\\n"])
        'a cat'
    """
    ends = [place for sign in stop if (place := answer.find(sign)) >= 0]
    return answer[: min(ends)] if ends else answer


class GumbelSampling:
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
        loading: see `Pretrained`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 8,
        max_new_tokens: int = 128,
        loading: Loading | None = None,
    ) -> None:
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
                f"the processor of {self.name!r} has no chat template, so it is unknown how a picture is asked about; "
                "use a checkpoint that brings one, such as those of llava-hf"
            )

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
        special = not starts_with_bos(texts[0], self.processor.tokenizer)
        inputs = self.processor(
            text=texts, images=pictures, padding=True, add_special_tokens=special, return_tensors="pt"
        ).to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.net.dtype)
        out = self.net.generate(**inputs, do_sample=False, max_new_tokens=self.max_new_tokens)
        new = out[:, inputs["input_ids"].shape[1] :]
        answers = self.processor.batch_decode(new, skip_special_tokens=True)
        return [
            CutOff(answer) if cut else answer for answer, cut in zip(answers, self._cut_off(new).tolist(), strict=True)
        ]

    def _cut_off(self, tokens: Tensor) -> Tensor:
        """Which answers fill all the tokens that they may have without a token that ends them, bool ``(N,)``."""
        ends = self.net.generation_config.eos_token_id
        known = torch.tensor([] if ends is None else ends, device=tokens.device).flatten()
        return ~torch.isin(tokens, known).any(1) & (tokens.shape[1] >= self.max_new_tokens)


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
        self,
        model: VisionLanguageModel,
        prompt: str = "Describe this image in one sentence.",
        least_side: int = 56,
    ) -> None:
        super().__init__()
        self.model, self.prompt, self.least_side = model, prompt, least_side

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "prompt": self.prompt, "least_side": self.least_side}

    def caption(self, images: Sequence[Tensor]) -> list[str]:
        return self.model.answer([[_enlarged(image, self.least_side)] for image in images], [self.prompt] * len(images))


def _enlarged(image: Tensor, min_side: int) -> Tensor:
    height, width = image.shape[1:]
    return resize(image, (max(height, min_side), max(width, min_side)))

"""Slots with pretrained models of transformers. Weights come from a local folder or from the hub's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images import resize
from lightning_idc.pairs import PairError
from lightning_idc.synthesis.slots.base import (
    DifferenceTeller,
    ImageCaptioner,
    ImageEncoder,
    ImageTextMatcher,
    Region,
    Segmenter,
    Slot,
    TextEncoder,
    TextModel,
    VisionLanguageModel,
)


class Pretrained(Slot):
    """A slot whose weights are read by name.

    Args:
        model: folder or name on the hub.
        revision: commit or tag on the hub; kept with every record.
        dtype: of the weights, as torch names it.
        batch_size: pictures or texts per forward pass.
    """

    def __init__(self, model: str, revision: str | None = None, dtype: str = "float32", batch_size: int = 32) -> None:
        super().__init__()
        self.name, self.revision, self.dtype, self.batch_size = model, revision, dtype, batch_size
        self.net: Any = None
        self.processor: Any = None

    def settings(self) -> dict[str, Any]:
        return {"model": self.name, "revision": self.revision, "dtype": self.dtype}

    def read(self, kind: Any, processor: Any) -> None:
        """Load a model and what prepares its inputs, with everything that the checkpoint should hold.

        Raises:
            PairError: it is not there, or weights are missing from it.
        """
        try:
            net, about = kind.from_pretrained(
                self.name, revision=self.revision, dtype=getattr(torch, self.dtype), output_loading_info=True
            )
            self.processor = processor.from_pretrained(self.name, revision=self.revision)
        except (OSError, ValueError) as error:
            raise PairError(
                f"the model {self.name!r} cannot be read ({error}); fetch it where there is a network, with "
                f"`hf download {self.name}`, or name a local folder"
            ) from error
        if about["missing_keys"]:
            # transformers would go on with random weights
            raise PairError(f"the model {self.name!r} lacks weights: {', '.join(sorted(about['missing_keys'])[:5])}")
        self.net = net.eval().requires_grad_(False)

    def batches(self, count: int) -> Iterator[slice]:
        """Parts of a list that go through the model at once."""
        return (slice(start, start + self.batch_size) for start in range(0, count, self.batch_size))


def _pil(images: Sequence[Tensor]) -> list[Any]:
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()) for image in images]


class ClipImages(Pretrained, ImageEncoder):
    """CLIP's image tower; the paper filters with ``openai/clip-vit-base-patch32``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, CLIPModel

        self.read(CLIPModel, AutoImageProcessor)

    @torch.inference_mode()
    def encode(self, images: Sequence[Tensor]) -> Tensor:
        found = []
        for part in self.batches(len(images)):
            inputs = self.processor(images=_pil(images[part]), return_tensors="pt").to(self.device)
            pooled = self.net.get_image_features(pixel_values=inputs["pixel_values"].to(self.net.dtype)).pooler_output
            found.append(F.normalize(pooled.float(), dim=1).cpu())
        return torch.cat(found)


class ClipTexts(Pretrained, TextEncoder):
    """CLIP's text tower."""

    def load(self) -> None:
        from transformers import AutoTokenizer, CLIPModel

        self.read(CLIPModel, AutoTokenizer)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        found = []
        for part in self.batches(len(texts)):
            inputs = self.processor(
                list(texts[part]), padding=True, truncation=True, max_length=77, return_tensors="pt"
            ).to(self.device)
            pooled = self.net.get_text_features(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ).pooler_output
            found.append(F.normalize(pooled.float(), dim=1).cpu())
        return torch.cat(found)


class DinoImages(Pretrained, ImageEncoder):
    """DINOv2: the class token of the last layer; NAMC mines with ``facebook/dinov2-large``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.read(AutoModel, AutoImageProcessor)

    @torch.inference_mode()
    def encode(self, images: Sequence[Tensor]) -> Tensor:
        found = []
        for part in self.batches(len(images)):
            inputs = self.processor(images=_pil(images[part]), return_tensors="pt").to(self.device)
            hidden = self.net(pixel_values=inputs["pixel_values"].to(self.net.dtype)).last_hidden_state
            found.append(F.normalize(hidden[:, 0].float(), dim=1).cpu())
        return torch.cat(found)


class BlipMatcher(Pretrained, ImageTextMatcher):
    """BLIP's image-text matching; the paper's is ``Salesforce/blip-itm-large-coco``.

    Args:
        model: see `Pretrained`, as for the three arguments below.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: pictures per forward pass.
        score: cosine of picture and text, as the ImgDiff scripts take it, or the matching head's probability, as
            data-juicer does; the paper does not say which.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: int = 32,
        score: Literal["cosine", "probability"] = "cosine",
    ) -> None:
        super().__init__(model, revision, dtype, batch_size)
        self.score = score

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "score": self.score}

    def load(self) -> None:
        from transformers import AutoProcessor, BlipForImageTextRetrieval

        self.read(BlipForImageTextRetrieval, AutoProcessor)

    @torch.inference_mode()
    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        found = []
        for part in self.batches(len(images)):
            inputs = self.processor(
                images=_pil(images[part]), text=list(texts[part]), padding=True, truncation=True, return_tensors="pt"
            ).to(self.device)
            head = self.score == "probability"
            out = self.net(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                pixel_values=inputs["pixel_values"].to(self.net.dtype),
                use_itm_head=head,
            ).itm_score.float()
            # without the head every picture is compared with every text
            found.append((out.softmax(1)[:, 1] if head else out.diagonal()).cpu())
        return torch.cat(found)


class SamSegmenter(Pretrained, Segmenter):
    """SAM's masks of everything in either picture, in place of FastSAM, whose licence and package do not fit here.

    Args:
        model: see `Pretrained`, as for the three arguments below; for example ``facebook/sam-vit-huge``.
        revision: commit or tag.
        dtype: of the weights.
        batch_size: points per forward pass.
        overlap: IoU from which on two masks of one pair count as one.
        thresholds: least predicted IoU and stability of a mask; SAM's own are 0.88 and 0.95.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: int = 64,
        overlap: float = 0.5,
        thresholds: tuple[float, float] = (0.88, 0.95),
    ) -> None:
        super().__init__(model, revision, dtype, batch_size)
        self.overlap, self.thresholds = overlap, tuple(thresholds)
        self._generate: Any = None

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "overlap": self.overlap, "thresholds": list(self.thresholds)}

    def load(self) -> None:
        from transformers import AutoImageProcessor, SamModel

        self.read(SamModel, AutoImageProcessor)

    def regions(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[list[Region]]:
        from transformers import MaskGenerationPipeline

        if self._generate is None:
            self._generate = MaskGenerationPipeline(model=self.net, image_processor=self.processor, device=self.device)
        return [self._merged(first, second) for first, second in zip(before, after, strict=True)]

    def _merged(self, before: Tensor, after: Tensor) -> list[Region]:
        found = [region for image in (before, after) for region in self._of(image)]
        kept: list[Region] = []
        for region in sorted(found, key=lambda region: -region.confidence):
            if all(_mask_iou(region.mask, other.mask) <= self.overlap for other in kept):
                kept.append(region)
        return kept

    def _of(self, image: Tensor) -> list[Region]:
        least_iou, least_stability = self.thresholds
        out = self._generate(
            _pil([image])[0],
            points_per_batch=self.batch_size,
            pred_iou_thresh=least_iou,
            stability_score_thresh=least_stability,
        )
        found = []
        for mask, score in zip(out["masks"], out["scores"], strict=True):
            inside = torch.as_tensor(mask).bool().cpu()
            rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
            if len(rows):
                box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
                found.append(Region(box, float(score), inside))
        return found


def _mask_iou(a: Tensor, b: Tensor) -> float:
    return float((a & b).sum() / (a | b).sum().clamp(min=1))


class ChatModel(Pretrained, TextModel):
    """A chat model of transformers; the paper edits captions with Vicuna-1.5-13B.

    Args:
        model: see `Pretrained`, as for the three arguments below.
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

    @torch.inference_mode()
    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        found: list[str] = []
        for part in self.batches(len(prompts)):
            texts = [self._chat(prompt) for prompt in prompts[part]]
            inputs = self.processor(texts, padding=True, return_tensors="pt").to(self.device)
            inputs.pop("token_type_ids", None)
            options = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
            with _seeded(seeds[part], self.device):
                out = self.net.generate(**inputs, **options, max_new_tokens=self.max_new_tokens)
            answers = out[:, inputs["input_ids"].shape[1] :]
            found += self.processor.batch_decode(answers, skip_special_tokens=True)
        return found

    def _chat(self, prompt: str) -> str:
        if not self.processor.chat_template:
            return prompt
        return self.processor.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )


class ChatVisionModel(Pretrained, VisionLanguageModel):
    """A vision-language chat model of transformers, greedy.

    Args:
        model: see `Pretrained`, as for the three arguments below; for example ``Qwen/Qwen2-VL-7B-Instruct``.
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

    @torch.inference_mode()
    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        found: list[str] = []
        for part in self.batches(len(prompts)):
            texts = [
                self.processor.apply_chat_template(_asked(prompt, len(shown)), add_generation_prompt=True)
                for prompt, shown in zip(prompts[part], images[part], strict=True)
            ]
            pictures = [_pil(shown) for shown in images[part]]
            inputs = self.processor(text=texts, images=pictures, padding=True, return_tensors="pt").to(self.device)
            inputs["pixel_values"] = inputs["pixel_values"].to(self.net.dtype)
            out = self.net.generate(**inputs, do_sample=False, max_new_tokens=self.max_new_tokens)
            answers = out[:, inputs["input_ids"].shape[1] :]
            found += self.processor.batch_decode(answers, skip_special_tokens=True)
        return found


def _asked(prompt: str, images: int) -> list[dict[str, Any]]:
    shown: list[dict[str, str]] = [{"type": "image"}] * images
    return [{"role": "user", "content": [*shown, {"type": "text", "text": prompt}]}]


def _pad_left(tokenizer: Any) -> None:
    tokenizer.padding_side = "left"  # answers follow their prompts at once
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


@contextmanager
def _seeded(seeds: Sequence[int], device: torch.device) -> Iterator[None]:
    """Sampling that depends on the first seed of the batch and leaves torch's own generator as it was."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seeds[0])
        yield


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
        from lightning_idc.synthesis.img_diff.sentences import side_by_side

        prompts = [self.prompt.format(first=first, second=second) for first, second in captions]
        return self.model.answer([[side_by_side(*pair)] for pair in zip(before, after, strict=True)], prompts)

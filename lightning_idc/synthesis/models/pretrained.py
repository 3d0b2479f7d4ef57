"""Slots with pretrained encoders and matchers of transformers; weights are in a folder or in the hub's cache."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.synthesis.memory import halving
from lightning_idc.synthesis.models.base import ImageEncoder, ImageTextMatcher, ModelInterface, TextEncoder
from lightning_idc.synthesis.models.loading import Loading, missing_weights, unreadable, weight_bytes
from lightning_idc.synthesis.provenance import model_provenance
from lightning_idc.utils.errors import CheckpointError, check_choice

Answer = TypeVar("Answer")


class Pretrained(ModelInterface):
    """A model of transformers whose weights are read by name.

    Args:
        model: folder or name on the hub.
        revision: commit or tag on the hub; kept with every record.
        dtype: of the weights, as torch names it.
        batch_size: pictures or texts per forward pass; where memory runs out it is halved.
        loading: device map, quantisation and attention of a large model.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: int = 32,
        loading: Loading | None = None,
    ) -> None:
        super().__init__()
        self.name, self.revision, self.dtype, self.batch_size = model, revision, dtype, batch_size
        self.loading = loading or Loading()
        self.net: Any = None
        self.processor: Any = None
        self._read: dict[str, Any] = {}

    def settings(self) -> dict[str, Any]:
        own = {"model": self.name, "revision": self.revision, "dtype": self.dtype}
        return {**own, **self.loading.settings()}

    def requirements(self) -> list[str]:
        absent = missing_weights(self.name, self.revision)
        return [*self.loading.requirements(), *([absent] if absent else [])]

    def weight_bytes(self) -> int:
        share = {"int8": 0.5, "int4": 0.25, None: 1.0}[self.loading.quantization]
        return 0 if self.loading.device_map else int(share * weight_bytes(self.name, self.revision))

    def provenance(self) -> dict[str, Any]:
        return self._read

    @property
    def device(self) -> torch.device:
        return self.net.device if self.loading.keeps_device and self.net is not None else super().device

    def read(self, kind: Any, processor: Any) -> None:
        """Load a model and what prepares its inputs, with everything that the checkpoint should hold.

        Args:
            kind: class with ``from_pretrained``.
            processor: the same, of its inputs.

        Raises:
            CheckpointError: it is not there, or weights are missing from it.
        """
        if self.net is not None:
            return  # a stage may be made ready more than once
        dtype = getattr(torch, self.dtype)
        try:
            where = {"revision": self.revision, "trust_remote_code": False}
            net, about = kind.from_pretrained(
                self.name, dtype=dtype, output_loading_info=True, **where, **self.loading.options(dtype)
            )
            self.processor = processor.from_pretrained(self.name, **where)
        except (OSError, ValueError, pickle.UnpicklingError) as error:
            raise CheckpointError(unreadable(self.name, error)) from error
        if about["missing_keys"]:
            # transformers would go on with random weights
            raise CheckpointError(
                f"the model {self.name!r} lacks weights: {', '.join(sorted(about['missing_keys'])[:5])}"
            )
        net = net.eval().requires_grad_(False)
        self._read = model_provenance(self.name, self.revision) | {"dtype": str(net.dtype)}
        if self.loading.keeps_device:
            object.__setattr__(self, "net", net)  # not a sub-module, which would be moved with the stage
        else:
            self.net = net

    def in_batches(self, sizes: Sequence[int], work: Callable[[list[int]], Sequence[Answer]]) -> list[Answer]:
        """Answers to many inputs in their order, found batch by batch; inputs of like sizes share one.

        What is padded to the longest of a batch, or waits for its last word, then does so for little. The largest come
        first: what does not fit into memory shows at once, and is then done in halves.

        Args:
            sizes: of each input, on any scale.
            work: answers of the inputs with these numbers, in their order.
        """
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        found: dict[int, Answer] = {}
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            found.update(zip(part, halving(work, part), strict=True))
        return [found[number] for number in range(len(sizes))]


def as_pil(images: Sequence[Tensor]) -> list[Any]:
    """Pictures as the processors of transformers take them."""
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()) for image in images]


class ClipImages(Pretrained, ImageEncoder):
    """CLIP's image tower; the paper filters with ``openai/clip-vit-base-patch32``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, CLIPModel

        self.read(CLIPModel, AutoImageProcessor)

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack(self.in_batches([0] * len(images), lambda part: self._encode([images[n] for n in part])))

    @torch.inference_mode()
    def _encode(self, images: list[Tensor]) -> list[Tensor]:
        inputs = self.processor(images=as_pil(images), return_tensors="pt").to(self.device)
        pooled = self.net.get_image_features(pixel_values=inputs["pixel_values"].to(self.net.dtype)).pooler_output
        return list(F.normalize(pooled.float(), dim=1).cpu())


class ClipTexts(Pretrained, TextEncoder):
    """CLIP's text tower."""

    def load(self) -> None:
        from transformers import AutoTokenizer, CLIPModel

        self.read(CLIPModel, AutoTokenizer)

    def encode(self, texts: Sequence[str]) -> Tensor:
        sizes = [len(text) for text in texts]
        return torch.stack(self.in_batches(sizes, lambda part: self._encode([texts[n] for n in part])))

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> list[Tensor]:
        inputs = self.processor(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
        inputs = inputs.to(self.device)
        pooled = self.net.get_text_features(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).pooler_output
        return list(F.normalize(pooled.float(), dim=1).cpu())


class DinoImages(Pretrained, ImageEncoder):
    """DINOv2: the class token of the last layer; NAMC mines with ``facebook/dinov2-large``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.read(AutoModel, AutoImageProcessor)

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack(self.in_batches([0] * len(images), lambda part: self._encode([images[n] for n in part])))

    @torch.inference_mode()
    def _encode(self, images: list[Tensor]) -> list[Tensor]:
        inputs = self.processor(images=as_pil(images), return_tensors="pt").to(self.device)
        hidden = self.net(pixel_values=inputs["pixel_values"].to(self.net.dtype)).last_hidden_state
        return list(F.normalize(hidden[:, 0].float(), dim=1).cpu())


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
        check_choice("score", score, ("cosine", "probability"))
        self.score = score

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "score": self.score}

    def load(self) -> None:
        from transformers import AutoProcessor, BlipForImageTextRetrieval

        self.read(BlipForImageTextRetrieval, AutoProcessor)

    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        sizes = [len(text) for text in texts]
        found = self.in_batches(sizes, lambda part: self._match([images[n] for n in part], [texts[n] for n in part]))
        return torch.tensor(found)

    @torch.inference_mode()
    def _match(self, images: list[Tensor], texts: list[str]) -> list[float]:
        inputs = self.processor(
            images=as_pil(images), text=texts, padding=True, truncation=True, return_tensors="pt"
        ).to(self.device)
        head = self.score == "probability"
        out = self.net(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            pixel_values=inputs["pixel_values"].to(self.net.dtype),
            use_itm_head=head,
        ).itm_score.float()
        # without the head every picture is compared with every text
        return (out.softmax(1)[:, 1] if head else out.diagonal()).tolist()

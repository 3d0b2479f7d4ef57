"""Pretrained encoders and matchers of transformers, with weights in a folder or in the hub's cache."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.synthesis.memory import map_with_halving
from lightning_idc.synthesis.models.base import ImageEncoder, ImageTextMatcher, ModelInterface, TextEncoder
from lightning_idc.synthesis.models.loading import Loading, cannot_load, missing_weights, weight_bytes
from lightning_idc.synthesis.provenance import model_provenance
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import CheckpointError

Answer = TypeVar("Answer")


class Pretrained(ModelInterface):
    """Base of models that wrap a model of transformers.

    Args:
        model: folder or name on the hub.
        revision: commit or tag on the hub; stored in each record.
        dtype: dtype of the weights, by its name in torch.
        batch_size: number of images or texts per forward pass; halved if memory runs out.
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
        settings = {"model": self.name, "revision": self.revision, "dtype": self.dtype}
        return {**settings, **self.loading.settings()}

    def requirements(self) -> list[str]:
        problem = missing_weights(self.name, self.revision)
        return [*self.loading.requirements(), *([problem] if problem else [])]

    def weight_bytes(self) -> int:
        ratio = {"int8": 0.5, "int4": 0.25, None: 1.0}[self.loading.quantization]
        return 0 if self.loading.device_map else int(ratio * weight_bytes(self.name, self.revision))

    def provenance(self) -> dict[str, Any]:
        return self._read

    @property
    def device(self) -> torch.device:
        return self.net.device if self.loading.keeps_device and self.net is not None else super().device

    def read(self, kind: Any, processor: Any) -> None:
        """Load a model and its processor, and check that the checkpoint is complete.

        Args:
            kind: model class with ``from_pretrained``.
            processor: processor or tokenizer class with ``from_pretrained``.

        Raises:
            CheckpointError: the model is missing, or the checkpoint lacks weights.
        """
        if self.net is not None:
            return  # a stage may be set up more than once
        dtype = getattr(torch, self.dtype)
        try:
            source = {"revision": self.revision, "trust_remote_code": False}
            net, loading_info = kind.from_pretrained(
                self.name, dtype=dtype, output_loading_info=True, **source, **self.loading.options(dtype)
            )
            self.processor = processor.from_pretrained(self.name, **source)
        except (OSError, ValueError, pickle.UnpicklingError) as error:
            raise CheckpointError(cannot_load(self.name, error)) from error
        if loading_info["missing_keys"]:
            # transformers would initialise them randomly
            raise CheckpointError(
                f"the model {self.name!r} lacks weights: {', '.join(sorted(loading_info['missing_keys'])[:5])}"
            )
        net = net.eval().requires_grad_(False)
        self._read = model_provenance(self.name, self.revision) | {"dtype": str(net.dtype)}
        if self.loading.keeps_device:
            object.__setattr__(self, "net", net)  # not a sub-module, which would move with the stage
        else:
            self.net = net

    def in_batches(self, sizes: Sequence[int], work: Callable[[list[int]], Sequence[Answer]]) -> list[Answer]:
        """Process inputs in batches of similar size, and return the outputs in input order.

        Similar sizes reduce padding and waiting for the longest output of a batch. The largest inputs come first, so
        that batches which do not fit into memory, and are halved, show early.

        Args:
            sizes: size of each input, on any scale.
            work: function from the indices of inputs to their outputs, in order.
        """
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        outputs: dict[int, Answer] = {}
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            outputs.update(zip(indices, map_with_halving(work, indices), strict=True))
        return [outputs[number] for number in range(len(sizes))]


def as_pil(images: Sequence[Tensor]) -> list[Any]:
    """Convert images to PIL for the processors of transformers."""
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()) for image in images]


class ClipImages(Pretrained, ImageEncoder):
    """CLIP image encoder; the paper filters with ``openai/clip-vit-base-patch32``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, CLIPModel

        self.read(CLIPModel, AutoImageProcessor)

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            self.in_batches([0] * len(images), lambda indices: self._encode([images[n] for n in indices]))
        )

    @torch.inference_mode()
    def _encode(self, images: list[Tensor]) -> list[Tensor]:
        inputs = self.processor(images=as_pil(images), return_tensors="pt").to(self.device)
        pooled = self.net.get_image_features(pixel_values=inputs["pixel_values"].to(self.net.dtype)).pooler_output
        return list(F.normalize(pooled.float(), dim=1).cpu())


class ClipTexts(Pretrained, TextEncoder):
    """CLIP text encoder."""

    def load(self) -> None:
        from transformers import AutoTokenizer, CLIPModel

        self.read(CLIPModel, AutoTokenizer)

    def encode(self, texts: Sequence[str]) -> Tensor:
        sizes = [len(text) for text in texts]
        return torch.stack(self.in_batches(sizes, lambda indices: self._encode([texts[n] for n in indices])))

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> list[Tensor]:
        inputs = self.processor(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
        inputs = inputs.to(self.device)
        pooled = self.net.get_text_features(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        ).pooler_output
        return list(F.normalize(pooled.float(), dim=1).cpu())


class DinoImages(Pretrained, ImageEncoder):
    """DINOv2 image encoder: class token of the last layer; NAMC mines with ``facebook/dinov2-large``."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.read(AutoModel, AutoImageProcessor)

    def encode(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            self.in_batches([0] * len(images), lambda indices: self._encode([images[n] for n in indices]))
        )

    @torch.inference_mode()
    def _encode(self, images: list[Tensor]) -> list[Tensor]:
        inputs = self.processor(images=as_pil(images), return_tensors="pt").to(self.device)
        hidden = self.net(pixel_values=inputs["pixel_values"].to(self.net.dtype)).last_hidden_state
        return list(F.normalize(hidden[:, 0].float(), dim=1).cpu())


class BlipMatcher(Pretrained, ImageTextMatcher):
    """BLIP image-text matching; the paper uses ``Salesforce/blip-itm-large-coco``.

    Args:
        model: see `Pretrained`.
        revision: commit or tag.
        dtype: dtype of the weights.
        batch_size: number of images per forward pass.
        score: ``cosine`` of image and text, as in the ImgDiff scripts, or ``probability`` of the matching head, as in
            data-juicer; the paper does not specify it.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float32",
        batch_size: PositiveInt = 32,
        score: Literal["cosine", "probability"] = "cosine",
    ) -> None:
        check_arguments(BlipMatcher.__init__, locals())
        super().__init__(model, revision, dtype, batch_size)
        self.score = score

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "score": self.score}

    def load(self) -> None:
        from transformers import AutoProcessor, BlipForImageTextRetrieval

        self.read(BlipForImageTextRetrieval, AutoProcessor)

    def match(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        sizes = [len(text) for text in texts]
        scores = self.in_batches(
            sizes, lambda indices: self._match([images[n] for n in indices], [texts[n] for n in indices])
        )
        return torch.tensor(scores)

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
        # without the head, the model scores all combinations of images and texts
        return (out.softmax(1)[:, 1] if head else out.diagonal()).tolist()

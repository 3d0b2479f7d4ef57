"""Data types of the library: a pair, a batch of pairs, the features of a batch and a generated caption.

A pair always has two images, index 0 = before and 1 = after. A pair is encoded once for its K captions, so everything
that scores text takes ``(B, K, T)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.reprs import fields_repr


@dataclass(slots=True, repr=False)
class PairSample:
    """Pair of images with its annotations.

    Args:
        id: unique name of the pair within its split.
        before: uint8 image, ``(C, H, W)``; C is 3 unless bands are chosen.
        after: uint8 image of the same shape, ``(C, H, W)``.
        captions: all reference captions; may be empty.
        change_type: label of the change, as named by the benchmark.
        boxes: changed regions in pixels, ``(N, 2, 4)`` as x1 y1 x2 y2, ``[:, 0]`` in the before image and
            ``[:, 1]`` in the after image; NaN where a change has no extent on that side.
        masks: changed pixels, bool ``(2, H, W)``, before and after.
        meta: further information; ``meta["seed"]`` seeds every random choice for this sample.
        prompt: question about this pair, for captioners with prompts; None for their default prompt.

    Raises:
        DataError: an image is not uint8 ``(C, H, W)``, the two differ in size or channels, or captions is a string.
    """

    id: str
    before: Tensor
    after: Tensor
    captions: list[str] = field(default_factory=list)
    change_type: str | None = None
    boxes: Tensor | None = None
    masks: Tensor | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None

    __repr__ = fields_repr

    def __post_init__(self) -> None:
        if isinstance(self.captions, str):  # a string is also a sequence, and its letters would become captions
            raise DataError(
                f"pair {self.id!r}: captions is {self.captions!r}; expected a list of texts, such as "
                f"[{self.captions!r}]"
            )
        for side, image in (("before", self.before), ("after", self.after)):
            if not isinstance(image, Tensor):
                raise DataError(
                    f"pair {self.id!r}: the {side} image is a {type(image).__name__}; expected a uint8 tensor (C, H, W)"
                )
            if image.dtype != torch.uint8 or image.ndim != 3 or not image.shape[0]:
                raise DataError(
                    f"pair {self.id!r}: the {side} image is {image.dtype} {tuple(image.shape)}; "
                    "expected uint8 (C, H, W)"
                )
        if len(self.before) != len(self.after):
            raise DataError(
                f"pair {self.id!r}: before has {len(self.before)} channels and after has {len(self.after)}; choose the "
                "same channels of both with `bands`"
            )
        if self.before.shape != self.after.shape:
            raise DataError(
                f"pair {self.id!r}: before is {tuple(self.before.shape)} and after is "
                f"{tuple(self.after.shape)}; expected one size (set `image_size`, for example)"
            )


@dataclass(slots=True, repr=False)
class NoiseMask:
    """Noise that an add-on detected in the images and captions of a batch.

    Args:
        patches: masked patches of both images, bool ``(B, 2, h, w)``.
        descriptions: encoded denoised descriptions of both images, ``(B, 2, S, D)``; None without any.
        description_mask: bool ``(B, 2, S)``, True at valid tokens of ``descriptions``.
        unpainted: original images, uint8 ``(B, 2, 3, H, W)``; None if masked patches are not filled.
    """

    patches: Tensor
    descriptions: Tensor | None = None
    description_mask: Tensor | None = None
    unpainted: Tensor | None = None

    __repr__ = fields_repr

    def map(self, move: Callable[[Tensor], Tensor]) -> NoiseMask:
        """Copy with ``move`` applied to every tensor."""
        optional = {name: getattr(self, name) for name in ("descriptions", "description_mask", "unpainted")}
        moved = {name: None if tensor is None else move(tensor) for name, tensor in optional.items()}
        return NoiseMask(move(self.patches), **moved)


@dataclass(slots=True, repr=False)
class PairBatch:
    """Batch of pairs that a captioner's ``collate`` builds.

    Args:
        images: uint8 ``(B, 2, C, H, W)``, 0 = before and 1 = after; captioners normalise on the device.
        tokens: int64 ``(B, K, T)``, K captions per pair, each as begin token, words, end token, padding.
        caption_mask: bool ``(B, K, T)``, True at tokens to predict: words and the end token, not the begin token or
            padding. A row without any True is an absent caption.
        ids: B pair ids.
        references: all reference captions of each pair.
        change_types: labels of the changes; None if unknown.
        model_inputs: further outputs of a processor, batched along dimension 0.
        chosen: captions in ``tokens``, at most K per pair.
        meta: ``meta`` of each sample.
        pixels: outputs of a processor for all images, of any shape, computed in the loader's workers; use
            :attr:`prepared` to read them.
        pixels_of: images from which ``pixels`` were computed.
        sizes: values known without a device synchronisation, such as numbers of tokens; never moved to a
            device.
        noise: masks of an add-on that detects noise; None without such an add-on.
        prompts: ``prompt`` of each sample.
        boxes: ``boxes`` of each sample, on the CPU.
    """

    images: Tensor
    tokens: Tensor
    caption_mask: Tensor
    ids: list[str]
    references: list[list[str]]
    change_types: list[str | None]
    model_inputs: dict[str, Tensor] = field(default_factory=dict)
    chosen: list[list[str]] = field(default_factory=list)
    meta: list[dict[str, Any]] = field(default_factory=list)
    pixels: dict[str, Tensor] = field(default_factory=dict)
    pixels_of: Tensor | None = field(default=None, repr=False)
    sizes: dict[str, Any] = field(default_factory=dict)
    noise: NoiseMask | None = None
    prompts: list[str | None] = field(default_factory=list)
    boxes: list[Tensor | None] = field(default_factory=list)

    __repr__ = fields_repr

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def prepared(self) -> dict[str, Tensor] | None:
        """:attr:`pixels`; None if empty, or outdated because an add-on replaced the images."""
        return self.pixels if self.pixels and self.pixels_of is self.images else None

    def _map(self, move: Callable[[Tensor], Tensor]) -> PairBatch:
        tensors = {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        tensors.pop("pixels_of", None)
        inputs = {name: move(value) for name, value in self.model_inputs.items()}
        pixels = {name: move(value) for name, value in (self.prepared or {}).items()}
        changed: dict[str, Any] = {name: move(value) for name, value in tensors.items()}
        noise = None if self.noise is None else self.noise.map(move)
        return replace(self, **changed, model_inputs=inputs, pixels=pixels, pixels_of=changed["images"], noise=noise)

    def plain(self) -> dict[str, Any]:
        """Convert the batch to tensors and plain types for a checkpoint."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        noise = self.noise
        return {**values, "noise": None if noise is None else {f.name: getattr(noise, f.name) for f in fields(noise)}}

    @classmethod
    def of_plain(cls, values: dict[str, Any]) -> PairBatch:
        """Inverse of :meth:`plain`."""
        noise = values["noise"]
        return cls(**{**values, "noise": None if noise is None else NoiseMask(**noise)})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PairBatch:
        """Copy of the batch with every tensor on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PairBatch:
        """Copy of the batch in page-locked memory; called by the data loader."""
        return self._map(lambda tensor: tensor.pin_memory())


@dataclass(slots=True, repr=False)
class PairFeatures:
    """Encoding of a batch of pairs.

    Args:
        memory: tokens that a decoder attends to, ``(B, N, D)``.
        mask: bool ``(B, N)``, True at valid tokens of ``memory``; None if all are valid.
        extras: named intermediate tensors, batched along dimension 0, for add-ons.
        sizes: values known without a device synchronisation; may be empty.
    """

    memory: Tensor
    mask: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)

    __repr__ = fields_repr

    def __len__(self) -> int:
        return self.memory.shape[0]


@dataclass(slots=True)
class Caption:
    """Generated sentence with the captioner's confidence.

    Args:
        text: the sentence.
        log_prob: mean log-probability per token, including the end token.
        change_score: 1 minus the probability of the no-change sentences; None if there are no such sentences.
    """

    text: str
    log_prob: float
    change_score: float | None = None


def stack_images(samples: Sequence[PairSample]) -> Tensor:
    """Stack pairs into uint8 ``(B, 2, C, H, W)``.

    Raises:
        DataError: the pairs differ in size.
    """
    sizes = {tuple(sample.before.shape): sample.id for sample in samples}
    if len(sizes) > 1:
        listed = ", ".join(f"{size[1]}x{size[2]} ({name!r})" for size, name in sizes.items())
        raise DataError(f"a batch holds pairs of mixed sizes: {listed}; set the data module's `image_size`")
    return torch.stack([torch.stack([sample.before, sample.after]) for sample in samples])


@runtime_checkable
class ProvidesCaptions(Protocol):
    """Protocol of data modules that provide the captions and image size needed to build a module's layers."""

    image_size: tuple[int, int] | None

    def train_captions(self) -> list[str]: ...

    def no_change_captions(self) -> list[str]: ...


@runtime_checkable
class ProvidesInputSpec(Protocol):
    """Protocol of data modules that describe their images for `InputSpec`."""

    def input_spec(self) -> dict[str, Any]: ...

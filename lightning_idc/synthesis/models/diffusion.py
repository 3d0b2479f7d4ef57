"""Diffusion models of diffusers: pairs by prompt-to-prompt attention control, and inpainting."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.resize import resize
from lightning_idc.synthesis.memory import map_with_halving
from lightning_idc.synthesis.models.base import Inpainter, ModelInterface, PairPainter
from lightning_idc.synthesis.models.loading import cannot_load, missing_package, missing_weights
from lightning_idc.synthesis.provenance import model_provenance
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError


class Diffusion(ModelInterface):
    """Base of models that wrap a pipeline of diffusers.

    Args:
        model: folder or name on the hub.
        revision: commit or tag on the hub; stored in each record.
        dtype: dtype of the weights, by its name in torch.
        steps: number of denoising steps.
        batch_size: number of images or pairs per run; halved if memory runs out.
        offload: whether to keep only the running part of the pipeline on the GPU; requires the package accelerate.
    """

    def __init__(
        self, model: str, revision: str | None, dtype: str, steps: int, batch_size: int, offload: bool
    ) -> None:
        super().__init__()
        self.offload = offload
        self._read: dict[str, Any] = {}
        self.name, self.revision, self.dtype = model, revision, dtype
        self.steps, self.batch_size = steps, batch_size
        self.unet: Any = None  # registered as a sub-module, so that Lightning moves it to the device
        self._pipe: Any = None

    def settings(self) -> dict[str, Any]:
        return {"model": self.name, "revision": self.revision, "dtype": self.dtype, "steps": self.steps}

    def requirements(self) -> list[str]:
        if find_spec("diffusers") is None:
            return [missing_package("diffusers", "synthesis")]
        problem = missing_weights(self.name, self.revision, "model_index.json")
        return [problem] if problem else []

    def provenance(self) -> dict[str, Any]:
        return self._read

    def read(self, kind: str) -> None:
        """Load the pipeline.

        Args:
            kind: class name of the pipeline in diffusers.

        Raises:
            ConfigError: the package diffusers is missing.
            CheckpointError: the model is missing or cannot be loaded.
        """
        if self._pipe is not None:
            return  # a stage may be set up more than once
        if find_spec("diffusers") is None:
            raise ConfigError(missing_package("diffusers", "synthesis"))
        import diffusers

        dtype = getattr(torch, self.dtype)
        try:
            pipe = getattr(diffusers, kind).from_pretrained(self.name, revision=self.revision, torch_dtype=dtype)
        except (OSError, ValueError, AttributeError, ImportError, pickle.UnpicklingError) as error:
            raise CheckpointError(cannot_load(self.name, error)) from error
        self.set_pipeline(pipe)
        self._read = model_provenance(self.name, self.revision) | {"dtype": str(self.unet.dtype)}

    def set_pipeline(self, pipe: Any) -> None:
        """Use an existing pipeline."""
        pipe.set_progress_bar_config(disable=True)
        # decode one image at a time: eight images of 1,024 x 1,024 pixels in float32 do not fit into memory
        pipe.vae.enable_slicing()
        if self.offload:
            pipe.enable_model_cpu_offload()
        self._pipe = [pipe]  # in a list, so that its sub-modules are not registered twice
        self.unet = pipe.unet.eval().requires_grad_(False)

    @property
    def pipe(self) -> Any:
        """The pipeline, on the device of this model."""
        return self._pipe[0] if self.offload else self._pipe[0].to(self.device)


class PromptToPrompt(Diffusion, PairPainter):
    """Generates pairs with SDXL and prompt-to-prompt: both images share the noise and attention of the first.

    Implements the refinement variant: words in both captions use the cross-attention of the first image, new words
    their own cross-attention. Self-attention with at most 32 x 32 positions is shared in the first part of the steps.

    Args:
        model: folder or name on the hub; the paper uses ``stabilityai/stable-diffusion-xl-base-1.0``.
        revision: commit or tag.
        dtype: dtype of the weights.
        steps: number of denoising steps; data-juicer's recipe uses 50.
        batch_size: number of pairs per run.
        guidance: scale of classifier-free guidance.
        cross_replace_steps: fraction of steps with shared cross-attention; the scripts use 1.
        self_replace_steps: fraction of steps with shared self-attention; the scripts use 0.4.
        size: height and width in pixels; None for the default of the model.
        offload: see `Diffusion`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float16",
        steps: PositiveInt = 50,
        batch_size: PositiveInt = 4,
        guidance: NonNegativeFloat = 7.5,
        cross_replace_steps: Share = 1.0,
        self_replace_steps: Share = 0.4,
        size: PositiveInt | None = None,
        offload: bool = False,
    ) -> None:
        check_arguments(PromptToPrompt.__init__, locals())
        super().__init__(model, revision, dtype, steps, batch_size, offload)
        self.guidance, self.cross_replace_steps, self.self_replace_steps, self.size = (
            guidance,
            cross_replace_steps,
            self_replace_steps,
            size,
        )

    def settings(self) -> dict[str, Any]:
        options = {
            "guidance": self.guidance,
            "cross_replace_steps": self.cross_replace_steps,
            "self_replace_steps": self.self_replace_steps,
            "size": self.size,
        }
        return {**super().settings(), **options, "control": "prompt-to-prompt, refine"}

    def load(self) -> None:
        self.read("StableDiffusionXLPipeline")

    @torch.inference_mode()
    def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        def work(part: list[int]) -> list[tuple[Tensor, Tensor]]:
            return self._paint([captions[n] for n in part], [seeds[n] for n in part])

        indices = list(range(len(captions)))
        parts = (indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size))
        return [pair for part in parts for pair in map_with_halving(work, part)]

    def _paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        pipe = self.pipe
        control = _Control(pipe.tokenizer, captions, self.steps, self.cross_replace_steps, self.self_replace_steps)
        original_processors = pipe.unet.attn_processors
        pipe.unet.set_attn_processor({name: _SharedAttention(control, "attn2" in name) for name in original_processors})
        side = (self.size or pipe.default_sample_size * pipe.vae_scale_factor) // pipe.vae_scale_factor
        shape = (1, pipe.unet.config.in_channels, side, side)
        noise = torch.cat([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        try:
            out = pipe(
                prompt=[text for pair in captions for text in pair],
                latents=noise.repeat_interleave(2, 0).to(self.device, self.unet.dtype),
                height=side * pipe.vae_scale_factor,
                width=side * pipe.vae_scale_factor,
                num_inference_steps=self.steps,
                guidance_scale=self.guidance,
                callback_on_step_end=control.advance,
                output_type="pt",
            ).images
        finally:
            pipe.unet.set_attn_processor(original_processors)
        images = (out.float() * 255).round().clamp(0, 255).to(torch.uint8).cpu()
        return [(images[2 * number], images[2 * number + 1]) for number in range(len(captions))]


class _Control:
    """Alignment of the tokens of both captions, and the current denoising step."""

    def __init__(
        self,
        tokenizer: Any,
        captions: Sequence[tuple[str, str]],
        steps: int,
        cross_replace_steps: float,
        self_replace_steps: float,
    ) -> None:
        length = tokenizer.model_max_length
        rows = [[tokenizer(text, padding="max_length", truncation=True, max_length=length).input_ids for text in pair]
                for pair in captions]  # fmt: skip
        aligned = [align(first, second) for first, second in rows]
        self.positions = torch.tensor([positions for positions, _ in aligned])
        self.shared = torch.tensor([shared for _, shared in aligned])
        self.cross_steps, self.self_steps = cross_replace_steps * steps, self_replace_steps * steps
        self.step = 0

    def advance(self, pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        self.step = step + 1
        return values


def align(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Align two captions: position of each second token in the first caption, and whether it occurs there.

    Args:
        first: token ids of the first caption.
        second: token ids of the second caption, of the same length.
    """
    positions, shared = list(range(len(second))), [False] * len(second)
    matcher = difflib.SequenceMatcher(None, list(first), list(second), autojunk=False)
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            positions[block.b + offset], shared[block.b + offset] = block.a + offset, True
    return positions, shared


class _SharedAttention:
    """Attention processor that applies the weights of the first image of each pair to the second.

    A batch contains the unguided images, then the guided ones, each half as first, second, first, second and so on.
    Attention is shared in the guided half only, as in prompt-to-prompt.
    """

    def __init__(self, control: _Control, cross: bool) -> None:
        self.control, self.cross = control, cross

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **unused: Any,
    ) -> Tensor:
        memory = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = attn.to_q(hidden_states), attn.to_k(memory), attn.to_v(memory)
        query, key, value = (attn.head_to_batch_dim(part).contiguous() for part in (query, key, value))
        shape = attention_mask[:, None] if attention_mask is not None and attention_mask.ndim == 3 else attention_mask
        per_head = [part.unflatten(0, (-1, attn.heads)) for part in (query, key, value)]
        out = F.scaled_dot_product_attention(
            per_head[0], per_head[1], per_head[2], attn_mask=shape, scale=attn.scale
        ).flatten(0, 1)
        if self._is_shared(query.shape[1]):
            self._share_attention(attn, out, query, key, value)
        out = attn.batch_to_head_dim(out)
        return attn.to_out[1](attn.to_out[0](out))

    def _is_shared(self, positions: int) -> bool:
        if self.cross:
            return self.control.step < self.control.cross_steps
        return self.control.step < self.control.self_steps and positions <= 32 * 32

    def _share_attention(self, attn: Any, out: Tensor, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Overwrite the outputs of the second images in the guided half; only their attention matrices are computed.

        Args:
            attn: attention layer.
            out: outputs of the batch, ``(batch * heads, N, d)``; modified in place.
            query: queries ``(batch * heads, N, d)``.
            key: keys ``(batch * heads, M, d)``.
            value: values ``(batch * heads, M, d)``.
        """
        control, heads = self.control, attn.heads
        pairs = len(control.positions)
        # the last 2 * pairs entries are the guided half, or all entries without guidance
        parts = [part.unflatten(0, (-1, 2, heads))[-pairs:] for part in (query, key, value, out)]
        queries, keys, values, outs = parts
        first = (queries[:, 0] @ keys[:, 0].transpose(-1, -2) * attn.scale).softmax(-1)
        if self.cross:
            second = (queries[:, 1] @ keys[:, 1].transpose(-1, -2) * attn.scale).softmax(-1)
            positions = control.positions.to(out.device)[:, None, None].expand_as(second)
            first = torch.where(control.shared.to(out.device)[:, None, None], first.gather(3, positions), second)
        outs[:, 1] = first @ values[:, 1]


class DiffusionInpainter(Diffusion, Inpainter):
    """Removes objects with a diffusion model; pixels outside of the mask do not change.

    Args:
        model: SDXL text-to-image or inpainting model; the paper uses ``stabilityai/sdxl-turbo``.
        revision: commit or tag.
        dtype: dtype of the weights.
        steps: number of denoising steps; the scripts use 4.
        batch_size: number of images per run.
        prompt: description of the filled area.
        strength: strength of the noise added to the image; the scripts use 0.85.
        guidance: scale of classifier-free guidance; the scripts use 0.
        size: height and width in pixels at which the model works.
        offload: see `Diffusion`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float16",
        steps: PositiveInt = 4,
        batch_size: PositiveInt = 4,
        prompt: str = "background, nothing, 8k",
        strength: Share = 0.85,
        guidance: NonNegativeFloat = 0.0,
        size: PositiveInt = 512,
        offload: bool = False,
    ) -> None:
        check_arguments(DiffusionInpainter.__init__, locals())
        super().__init__(model, revision, dtype, steps, batch_size, offload)
        self.prompt, self.strength, self.guidance, self.size = prompt, strength, guidance, size

    def settings(self) -> dict[str, Any]:
        options = {"prompt": self.prompt, "strength": self.strength, "guidance": self.guidance, "size": self.size}
        return {**super().settings(), **options}

    def load(self) -> None:
        self.read("StableDiffusionXLInpaintPipeline")

    @torch.inference_mode()
    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        def work(part: list[int]) -> list[Tensor]:
            return self._fill([images[n] for n in part], [masks[n] for n in part], [seeds[n] for n in part])

        indices = list(range(len(images)))
        parts = (indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size))
        return [image for part in parts for image in map_with_halving(work, part)]

    def _fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        size = (self.size, self.size)
        small = torch.stack([resize(image, size) for image in images]).float() / 255
        mask_images = torch.stack([resize(_as_image(mask), size)[:1] for mask in masks]).float() / 255
        out = self.pipe(
            prompt=[self.prompt] * len(small),
            image=small.to(self.device, self.unet.dtype),
            mask_image=(mask_images > 0.5).to(self.device, self.unet.dtype),
            height=self.size,
            width=self.size,
            num_inference_steps=self.steps,
            strength=self.strength,
            guidance_scale=self.guidance,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            output_type="pt",
        ).images
        painted = (out.float() * 255).round().clamp(0, 255).to(torch.uint8).cpu()
        return [
            torch.where(mask.cpu(), resize(inpainted, (image.shape[1], image.shape[2])), image)
            for image, mask, inpainted in zip(images, masks, painted, strict=True)
        ]


def _as_image(mask: Tensor) -> Tensor:
    return (mask.to(torch.uint8) * 255)[None].expand(3, -1, -1)

"""Slots with diffusion models of diffusers: pairs by prompt-to-prompt attention control, and inpainting."""

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
from lightning_idc.synthesis.memory import halving
from lightning_idc.synthesis.models.base import Inpainter, ModelInterface, PairPainter
from lightning_idc.synthesis.models.loading import missing_package, missing_weights, unreadable
from lightning_idc.synthesis.provenance import model_provenance
from lightning_idc.utils.errors import CheckpointError, ConfigError


class Diffusion(ModelInterface):
    """A slot with a pipeline of diffusers.

    Args:
        model: folder or name on the hub.
        revision: commit or tag on the hub; kept with every record.
        dtype: of the weights, as torch names it.
        steps: of denoising.
        batch_size: pictures or pairs per run; where memory runs out it is halved.
        offload: keeps on the GPU only the part of the pipeline that is at work; needs the package accelerate.
    """

    def __init__(
        self, model: str, revision: str | None, dtype: str, steps: int, batch_size: int, offload: bool
    ) -> None:
        super().__init__()
        self.offload = offload
        self._read: dict[str, Any] = {}
        self.name, self.revision, self.dtype = model, revision, dtype
        self.steps, self.batch_size = steps, batch_size
        self.unet: Any = None  # a sub-module, which Lightning moves to the device
        self._pipe: Any = None

    def settings(self) -> dict[str, Any]:
        return {"model": self.name, "revision": self.revision, "dtype": self.dtype, "steps": self.steps}

    def requirements(self) -> list[str]:
        if find_spec("diffusers") is None:
            return [missing_package("diffusers", "synthesis")]
        absent = missing_weights(self.name, self.revision, "model_index.json")
        return [absent] if absent else []

    def provenance(self) -> dict[str, Any]:
        return self._read

    def read(self, kind: str) -> None:
        """Load the pipeline.

        Args:
            kind: name of its class in diffusers.

        Raises:
            ConfigError: the package diffusers is missing.
            CheckpointError: the model is not there, or cannot be read.
        """
        if self._pipe is not None:
            return  # a stage may be made ready more than once
        if find_spec("diffusers") is None:
            raise ConfigError(missing_package("diffusers", "synthesis"))
        import diffusers

        dtype = getattr(torch, self.dtype)
        try:
            pipe = getattr(diffusers, kind).from_pretrained(self.name, revision=self.revision, torch_dtype=dtype)
        except (OSError, ValueError, AttributeError, ImportError, pickle.UnpicklingError) as error:
            raise CheckpointError(unreadable(self.name, error)) from error
        self.use(pipe)
        self._read = model_provenance(self.name, self.revision) | {"dtype": str(self.unet.dtype)}

    def use(self, pipe: Any) -> None:
        """Take a pipeline that was made already."""
        pipe.set_progress_bar_config(disable=True)
        # one picture at a time: eight of 1,024 pixels in full precision do not fit beside the model
        pipe.vae.enable_slicing()
        if self.offload:
            pipe.enable_model_cpu_offload()
        self._pipe = [pipe]  # in a list, so that its parts are not registered twice
        self.unet = pipe.unet.eval().requires_grad_(False)

    @property
    def pipe(self) -> Any:
        """The pipeline, on the device of this slot."""
        return self._pipe[0] if self.offload else self._pipe[0].to(self.device)


class PromptToPrompt(Diffusion, PairPainter):
    """SDXL paints a caption and its twin from one noise; the twin takes over the attention of the first.

    The refinement form of prompt-to-prompt: words that both captions have keep the first picture's cross-attention, a
    word that is new keeps its own; self-attention of at most 32 x 32 places is shared in the first part of the steps.

    Args:
        model: the paper's is ``stabilityai/stable-diffusion-xl-base-1.0``.
        revision: commit or tag.
        dtype: of the weights.
        steps: of denoising; data-juicer's recipe takes 50.
        batch_size: pairs per run.
        guidance: of the text.
        cross: share of the steps in which cross-attention is shared; the scripts take 1.
        own: share of the steps in which self-attention is shared; the scripts take 0.4.
        size: height and width, pixels; None for the model's own.
        offload: see `Diffusion`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float16",
        steps: int = 50,
        batch_size: int = 4,
        guidance: float = 7.5,
        cross: float = 1.0,
        own: float = 0.4,
        size: int | None = None,
        offload: bool = False,
    ) -> None:
        super().__init__(model, revision, dtype, steps, batch_size, offload)
        self.guidance, self.cross, self.own, self.size = guidance, cross, own, size

    def settings(self) -> dict[str, Any]:
        shares = {"guidance": self.guidance, "cross": self.cross, "own": self.own, "size": self.size}
        return {**super().settings(), **shares, "control": "prompt-to-prompt, refine"}

    def load(self) -> None:
        self.read("StableDiffusionXLPipeline")

    @torch.inference_mode()
    def paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        def work(part: list[int]) -> list[tuple[Tensor, Tensor]]:
            return self._paint([captions[n] for n in part], [seeds[n] for n in part])

        numbers = list(range(len(captions)))
        parts = (numbers[start : start + self.batch_size] for start in range(0, len(numbers), self.batch_size))
        return [pair for part in parts for pair in halving(work, part)]

    def _paint(self, captions: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        pipe = self.pipe
        control = _Control(pipe.tokenizer, captions, self.steps, self.cross, self.own)
        usual = pipe.unet.attn_processors
        pipe.unet.set_attn_processor({name: _SharedAttention(control, "attn2" in name) for name in usual})
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
            pipe.unet.set_attn_processor(usual)
        pictures = (out.float() * 255).round().clamp(0, 255).to(torch.uint8).cpu()
        return [(pictures[2 * number], pictures[2 * number + 1]) for number in range(len(captions))]


class _Control:
    """Which words of the twins stand where in the first captions, and at which step of denoising we are."""

    def __init__(
        self, tokenizer: Any, captions: Sequence[tuple[str, str]], steps: int, cross: float, own: float
    ) -> None:
        length = tokenizer.model_max_length
        rows = [[tokenizer(text, padding="max_length", truncation=True, max_length=length).input_ids for text in pair]
                for pair in captions]  # fmt: skip
        aligned = [align(first, second) for first, second in rows]
        self.places = torch.tensor([places for places, _ in aligned])
        self.shared = torch.tensor([shared for _, shared in aligned])
        self.cross_steps, self.own_steps = cross * steps, own * steps
        self.step = 0

    def advance(self, pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        self.step = step + 1
        return values


def align(first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[bool]]:
    """For each token of the twin its place in the first caption, and whether it has one.

    Args:
        first: token ids.
        second: token ids, equally many.
    """
    places, shared = list(range(len(second))), [False] * len(second)
    matcher = difflib.SequenceMatcher(None, list(first), list(second), autojunk=False)
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            places[block.b + offset], shared[block.b + offset] = block.a + offset, True
    return places, shared


class _SharedAttention:
    """Attention in which the second picture of each pair uses the weights of the first.

    The batch is unguided pictures, then guided ones, each half first, twin, first, twin and so on; only the guided half
    is controlled, as in prompt-to-prompt.
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
        if self._shares(query.shape[1]):
            self._share(attn, out, query, key, value)
        out = attn.batch_to_head_dim(out)
        return attn.to_out[1](attn.to_out[0](out))

    def _shares(self, places: int) -> bool:
        if self.cross:
            return self.control.step < self.control.cross_steps
        return self.control.step < self.control.own_steps and places <= 32 * 32

    def _share(self, attn: Any, out: Tensor, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Write the outcome of the twins of the guided half anew; only their weights are held as a matrix.

        Args:
            attn: the layer.
            out: outcome for the whole batch, ``(batch * heads, N, d)``, which is changed.
            query: the same, before attention.
            key: ``(batch * heads, M, d)``.
            value: ``(batch * heads, M, d)``.
        """
        control, heads = self.control, attn.heads
        pairs = len(control.places)
        # the last 2 * pairs are the guided half, or all without guidance
        parts = [part.unflatten(0, (-1, 2, heads))[-pairs:] for part in (query, key, value, out)]
        queries, keys, values, outs = parts
        first = (queries[:, 0] @ keys[:, 0].transpose(-1, -2) * attn.scale).softmax(-1)
        if self.cross:
            twin = (queries[:, 1] @ keys[:, 1].transpose(-1, -2) * attn.scale).softmax(-1)
            places = control.places.to(out.device)[:, None, None].expand_as(twin)
            first = torch.where(control.shared.to(out.device)[:, None, None], first.gather(3, places), twin)
        outs[:, 1] = first @ values[:, 1]


class DiffusionInpainter(Diffusion, Inpainter):
    """Erases with a diffusion model; outside of the mask the picture stays as it was.

    Args:
        model: an SDXL text-to-image or inpainting model; the paper's is ``stabilityai/sdxl-turbo``.
        revision: commit or tag.
        dtype: of the weights.
        steps: of denoising; the scripts take 4.
        batch_size: pictures per run.
        prompt: what is painted.
        strength: how much of the picture's own noise is kept; the scripts take 0.85.
        guidance: of the text; the scripts take 0.
        size: height and width that the model paints at, pixels.
        offload: see `Diffusion`.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        dtype: str = "float16",
        steps: int = 4,
        batch_size: int = 4,
        prompt: str = "background, nothing, 8k",
        strength: float = 0.85,
        guidance: float = 0.0,
        size: int = 512,
        offload: bool = False,
    ) -> None:
        super().__init__(model, revision, dtype, steps, batch_size, offload)
        self.prompt, self.strength, self.guidance, self.size = prompt, strength, guidance, size

    def settings(self) -> dict[str, Any]:
        more = {"prompt": self.prompt, "strength": self.strength, "guidance": self.guidance, "size": self.size}
        return {**super().settings(), **more}

    def load(self) -> None:
        self.read("StableDiffusionXLInpaintPipeline")

    @torch.inference_mode()
    def fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        def work(part: list[int]) -> list[Tensor]:
            return self._fill([images[n] for n in part], [masks[n] for n in part], [seeds[n] for n in part])

        numbers = list(range(len(images)))
        parts = (numbers[start : start + self.batch_size] for start in range(0, len(numbers), self.batch_size))
        return [picture for part in parts for picture in halving(work, part)]

    def _fill(self, images: Sequence[Tensor], masks: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        size = (self.size, self.size)
        small = torch.stack([resize(image, size) for image in images]).float() / 255
        where = torch.stack([resize(_as_image(mask), size)[:1] for mask in masks]).float() / 255
        out = self.pipe(
            prompt=[self.prompt] * len(small),
            image=small.to(self.device, self.unet.dtype),
            mask_image=(where > 0.5).to(self.device, self.unet.dtype),
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
            torch.where(mask.cpu(), resize(picture, (image.shape[1], image.shape[2])), image)
            for image, mask, picture in zip(images, masks, painted, strict=True)
        ]


def _as_image(mask: Tensor) -> Tensor:
    return (mask.to(torch.uint8) * 255)[None].expand(3, -1, -1)

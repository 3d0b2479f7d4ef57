"""The part of a vision-language model that depends on its family.

Every model is the stock transformers class, composed and never subclassed: ``from_pretrained`` of a subclass skips
the renaming of weights and leaves parts of the model random, with no more than a line in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_idc.utils.errors import ConfigError

TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
"""What processors say of each token of a prompt beside its id, under the names of the models' arguments."""

INDICATORS = "visual_indicator_features"
"""Features of tokens that frame images (Ovis2), the same for all images."""


@runtime_checkable
class ComputesRopeIndex(Protocol):
    """A model whose positions have three parts, computed from ids and grids of images."""

    def get_rope_index(self, input_ids: Tensor) -> Any: ...


class Family:
    """How a model of this family sees a pair; the defaults fit any model that takes ``mm_encoder_outputs``.

    Images are a sequence of B pairs, uint8 ``(2, 3, H, W)`` each, of one size or of several.
    """

    vision: tuple[str, ...] = ("model.vision_tower",)
    """Paths of the vision tower, whose learning rate is the one of the group ``vision``."""
    language: tuple[str, ...] = ("model.language_model", "lm_head")
    """Paths of the language model: what LoRA freezes."""
    blocks: str = "model.vision_tower.encoder.layers"
    """Path of the list of the tower's layers."""
    gate: str = "model.multi_modal_projector"
    """Path of the module whose input is the features of the tower."""
    gate_is_output: bool = False
    """Whether the features are the output of the gate instead."""
    image_text: str
    """How a prompt without a chat template shows one image."""
    special_tokens: ClassVar[dict[str, str]] = {}
    """Tokens that a tokenizer made for a random model needs, by the name that the processor expects."""
    images_per_pair: int = 2
    rows_of_places: bool = True
    """Whether the tower takes images and gives their places row by row, perhaps behind a class token."""
    image_options: ClassVar[dict[str, Any]] = {}
    """Options of the image processor that keep each image one grid."""
    only_embeds: bool = False
    """Whether the language model reads features of images at its first layer alone, in place of embeddings; they are
    then put there without the model's own look at the device."""
    listed: bool | None = None
    """Whether the model gives its image features as a list; known after the first images."""

    # ---- what MDP and training need ---------------------------------------------------------------------

    def depth(self, model: Any) -> int:
        """Number of layers before the gate."""
        return len(model.get_submodule(self.blocks))

    def width(self, model: Any) -> int:
        """Channels of the features at the gate."""
        return model.config.vision_config.hidden_size

    def unused(self, model: Any) -> list[str]:
        """Paths of parts that no pair ever runs through; trained, they would stop distributed training."""
        return []

    def places(self, pixels: dict[str, Tensor]) -> list[int] | None:
        """Number of the tower's places per pair; None where it is the same for all pairs."""
        return None

    def vision_parts(self, model: Any) -> tuple[str, ...]:
        """Paths of :attr:`vision` without the mergers that some towers hold: those are projectors."""
        found: list[str] = []
        for path in self.vision:
            tower: nn.Module = model.get_submodule(path)
            children = [name for name, _ in tower.named_children()]
            kept = [name for name in children if "merger" not in name]
            own = [name for name, _ in tower.named_parameters(recurse=False)]
            found += [path] if kept == children else [f"{path}.{name}" for name in (*kept, *own)]
        return tuple(found)

    # ---- what goes in -----------------------------------------------------------------------------------

    def processor(self, config: Any, tokenizer: Any) -> Any:
        """Processor for a model that was made from a configuration; fills in the configuration's token ids.

        Raises:
            ConfigError: random models of this family cannot be made.
        """
        raise ConfigError(
            f"a random {config.model_type} cannot be made by `architecture`; save one with transformers, processor "
            "included, and name its folder as `model`"
        )

    def prompt(self, processor: Any, question: str, images: int | None = None) -> str:
        """Text of a prompt: the images of a pair, or as many as named, and the question, in the chat template."""
        count = self.images_per_pair if images is None else images
        if not processor.chat_template:
            return self.image_text * count + f"\n{question}\n"
        parts = [{"type": "image"}] * count + [{"type": "text", "text": question}]
        talk = [{"role": "user", "content": parts}]
        return processor.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)

    def shown(self, images: Sequence[Tensor]) -> list[list[Tensor]]:
        """Images of each pair as the processor takes them, ``(3, H, W)`` each."""
        return [list(pair) for pair in images]

    def inputs(self, processor: Any, questions: Sequence[str], images: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the processor makes of questions about pairs, padded on the left."""
        texts = [self.prompt(processor, question) for question in questions]
        # the processor itself puts in the placeholders: their number and framing differ between families
        found = processor(
            text=texts,
            images=self.shown(images),
            padding=True,
            padding_side="left",
            return_tensors="pt",
            **self.image_options,
        )
        return dict(found)

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Arguments of the model's ``get_image_features``, on the device of the images."""
        accepted = signature(model.model.get_image_features).parameters
        found = self.inputs(processor, [""] * len(images), images)
        return {name: value for name, value in found.items() if name in accepted}

    def tower_arguments(self, model: Any, pixels: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the tower works out from the sizes of images, made once in the data loader instead.

        Args:
            model: the model.
            pixels: of :meth:`pixels`, on the CPU.

        Returns:
            Further arguments of ``get_image_features``, and those, or replacements of pixels, that stay on the CPU.
        """
        return {}, {}

    # ---- what comes out of the tower, and goes on to the words ------------------------------------------

    def image_features(
        self, model: Any, pixels: dict[str, Tensor], rows: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Features of B pairs, ``(B, N, D)``, their mask where N differs, and what else must be kept of them.

        Args:
            model: the model.
            pixels: of :meth:`pixels`.
            rows: number of features of each pair, which is that of the placeholders in its prompt.
        """
        output = model.model.get_image_features(**pixels, return_dict=True)
        self.listed = not isinstance(output.pooler_output, Tensor)
        memory, mask = by_pair(output.pooler_output, rows)
        extras = {}
        if "image_grid_thw" in pixels:
            extras["grid"] = pixels["image_grid_thw"].view(len(rows), -1, 3)
        for index, layer in enumerate(output.get("deepstack_features") or []):
            extras[f"deepstack{index}"], _ = by_pair(layer, rows)
        if output.get(INDICATORS) is not None:
            extras[INDICATORS] = output[INDICATORS].expand(len(rows), *output[INDICATORS].shape)
        return memory, mask, extras

    def feature_arguments(
        self, memory: Tensor, mask: Tensor | None, extras: dict[str, Tensor], repeats: int = 1
    ) -> dict[str, Any]:
        """Arguments by which the model takes features in place of pixels, those of each pair ``repeats`` times."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        output = BaseModelOutputWithPooling(pooler_output=self._as_given(memory, mask, repeats))
        deep = [
            self._as_given(extras[f"deepstack{i}"], mask, repeats)
            for i in range(sum(name.startswith("deepstack") for name in extras))
        ]
        if deep:
            output["deepstack_features"] = deep
        if INDICATORS in extras:
            output[INDICATORS] = extras[INDICATORS][0]
        return {"mm_encoder_outputs": {"image": output}}

    def _as_given(self, memory: Tensor, mask: Tensor | None, repeats: int) -> Any:
        if self.listed is None:
            raise ConfigError("features of images that this model has not encoded itself; call encode first")
        pairs = list(memory) if mask is None else [rows[kept] for rows, kept in zip(memory, mask, strict=True)]
        pieces = [rows for rows in pairs for _ in range(repeats)]
        return pieces if self.listed else torch.cat(pieces)[None]

    # ---- words ------------------------------------------------------------------------------------------

    def positions(self, model: Any, ids: Tensor, mask: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Positions of the prompt's tokens: ``(B, P)``, or ``(B, 3, P)`` where they have three parts."""
        if not isinstance(model.model, ComputesRopeIndex):
            return (mask.long().cumsum(-1) - 1).clamp(min=0)
        known = {
            "mm_token_type_ids": (ids == image_token(model.config)).int(),
            "image_grid_thw": extras["grid"].flatten(0, 1) if "grid" in extras else None,
            "attention_mask": mask,
        }
        accepted = signature(model.model.get_rope_index).parameters
        found, _ = model.model.get_rope_index(ids, **{k: v for k, v in known.items() if k in accepted})
        return found.transpose(0, 1)


def media_tokens(config: Any) -> list[int]:
    """Ids of a configuration that stand for features of images, videos or sound."""
    known = config.to_dict()
    # LLaVA's files have names of their own for them
    names = [config.attribute_map.get(name, name) for name in ("image_token_id", "video_token_id", "audio_token_id")]
    return [known[name] for name in names if isinstance(known.get(name), int)]


def image_token(config: Any) -> int:
    """Id of the placeholder of one feature of an image."""
    return int(config.image_token_id)


def by_pair(features: Any, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Features of all images as ``(B, N, D)``, padded, with the mask ``(B, N)`` where pairs differ in N.

    Args:
        features: tensor ``(..., D)`` or tensors of one image each, in the order of the pairs.
        rows: number of features of each pair.

    Raises:
        ConfigError: there are more or fewer features than placeholders.
    """
    flat = torch.cat([part.reshape(-1, part.shape[-1]) for part in features])
    if len(flat) != sum(rows):
        raise ConfigError(
            f"the model gives {len(flat)} features of images for {sum(rows)} placeholders in the prompts; it does not "
            "take two images in one prompt, or its processor and configuration disagree"
        )
    if len(set(rows)) == 1:
        return flat.unflatten(0, (len(rows), -1)), None
    pieces = flat.split(list(rows))
    mask = torch.arange(max(rows), device=flat.device) < torch.tensor(rows, device=flat.device)[:, None]
    return nn.utils.rnn.pad_sequence(list(pieces), batch_first=True), mask

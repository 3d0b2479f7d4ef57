"""Family: the code that depends on the type of a vision-language model.

Every model is the stock transformers class, composed and never subclassed: ``from_pretrained`` of a subclass skips
the renaming of weights and leaves parts of the model random, which only a line in the log reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_idc.models.vlm.chat_template import render, template_of
from lightning_idc.utils.errors import ConfigError

TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
"""Names of per-token inputs besides the ids, equal in processors and models."""

INDICATORS = "visual_indicator_features"
"""Features of tokens that frame images (Ovis2), the same for all images."""


@runtime_checkable
class ComputesRopeIndex(Protocol):
    """A model whose positions have three parts, computed from ids and grids of images."""

    def get_rope_index(self, input_ids: Tensor) -> Any: ...


class Family:
    """Inputs and structure of models of one type; the defaults fit any model with the argument ``mm_encoder_outputs``.

    Images are a sequence of B pairs, uint8 ``(2, 3, H, W)`` each, of one size or of several.
    """

    vision: tuple[str, ...] = ("model.vision_tower",)
    """Paths of the vision tower, the parameter group ``vision``."""
    language: tuple[str, ...] = ("model.language_model", "lm_head")
    """Paths of the language model, which LoRA freezes."""
    blocks: str = "model.vision_tower.encoder.layers"
    """Path of the list of the tower's layers."""
    gate: str = "model.multi_modal_projector"
    """Path of the module whose input is the output of the tower."""
    gate_is_output: bool = False
    """Whether the tower features are the output of the gate instead of its input."""
    image_text: str
    """Text of one image in a prompt without a chat template."""
    special_tokens: ClassVar[dict[str, str]] = {}
    """Special tokens of the tokenizer of a random model, by their names in the processor."""
    images_per_pair: int = 2
    is_row_major: bool = True
    """Whether the tower returns the patches of an image row by row, possibly after a class token."""
    image_options: ClassVar[dict[str, Any]] = {}
    """Options of the image processor that prevent tiling, so that each image is one grid."""
    only_embeds: bool = False
    """Whether image features only replace embeddings at the first layer of the language model; the library then inserts
    them without the device sync of the model."""
    returns_list: bool | None = None
    """Whether the model returns its image features as a list; None before the first call."""

    # ---- structure, for MDP and training ----------------------------------------------------------------

    def depth(self, model: Any) -> int:
        """Number of layers before the gate."""
        return len(model.get_submodule(self.blocks))

    def width(self, model: Any) -> int:
        """Channels of the features at the gate."""
        return model.config.vision_config.hidden_size

    def unused(self, model: Any) -> list[str]:
        """Paths of modules without gradients, which would make DDP fail if they were trainable."""
        return []

    def patches_per_pair(self, pixels: dict[str, Tensor]) -> list[int] | None:
        """Number of patches in the tower per pair; None if it is equal for all pairs."""
        return None

    def vision_parts(self, model: Any) -> tuple[str, ...]:
        """Paths of :attr:`vision` without the mergers that are part of some towers, which are projectors."""
        paths: list[str] = []
        for path in self.vision:
            tower: nn.Module = model.get_submodule(path)
            children = [name for name, _ in tower.named_children()]
            parts = [name for name in children if "merger" not in name]
            parameters = [name for name, _ in tower.named_parameters(recurse=False)]
            paths += [path] if parts == children else [f"{path}.{name}" for name in (*parts, *parameters)]
        return tuple(paths)

    # ---- inputs -----------------------------------------------------------------------------------------

    def processor(self, config: Any, tokenizer: Any) -> Any:
        """Processor for a random model; sets the token ids in the configuration.

        Raises:
            ConfigError: the family does not support random models.
        """
        raise ConfigError(
            f"a random {config.model_type} cannot be built from `architecture`; save one with transformers, processor "
            "included, and set `model` to its folder"
        )

    def prompt(self, processor: Any, question: str, images: int | None = None) -> str:
        """Text of a prompt in the chat template: ``images`` images, by default those of a pair, and the question."""
        count = self.images_per_pair if images is None else images
        if not template_of(processor):
            return self.image_text * count + f"\n{question}\n"
        return render(processor, question, count)

    def processor_images(self, processor: Any, images: Sequence[Tensor]) -> list[list[Tensor]]:
        """Images of each pair in the form that the processor expects, ``(3, H, W)`` each."""
        return [[self.uncropped(processor, image) for image in pair] for pair in images]

    def uncropped(self, processor: Any, image: Tensor) -> Tensor:
        """An image of which the processor hides no edge: padded to a square if the processor crops the centre."""
        crops = getattr(processor.image_processor, "do_center_crop", False)
        return pad_to_square(image, processor.image_processor.image_mean) if crops else image

    def inputs(self, processor: Any, questions: Sequence[str], images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Model inputs for questions about pairs, from the processor, padded on the left."""
        texts = [self.prompt(processor, question) for question in questions]
        # the processor inserts the placeholders: their number and framing differ between families
        batch = processor(
            text=texts,
            images=self.processor_images(processor, images),
            padding=True,
            padding_side="left",
            return_tensors="pt",
            **self.image_options,
        )
        return dict(batch)

    def pixels(self, model: Any, processor: Any, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Arguments of the model's ``get_image_features``, on the device of the images."""
        accepted = signature(model.model.get_image_features).parameters
        inputs = self.inputs(processor, [""] * len(images), images)
        return {name: value for name, value in inputs.items() if name in accepted}

    def tower_arguments(self, model: Any, pixels: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tower inputs that depend on image sizes only, computed in the data loader instead of the tower.

        Args:
            model: the model.
            pixels: result of :meth:`pixels`, on the CPU.

        Returns:
            Further arguments of ``get_image_features``, and arguments that stay on the CPU, also in place of pixels.
        """
        return {}, {}

    # ---- image features ---------------------------------------------------------------------------------

    def image_features(
        self, model: Any, pixels: dict[str, Tensor], rows: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Features of B pairs, ``(B, N, D)``, their mask if N differs, and further tensors for the language model.

        Args:
            model: the model.
            pixels: result of :meth:`pixels`.
            rows: number of features of each pair, equal to the number of placeholders in its prompt.
        """
        output = model.model.get_image_features(**pixels, return_dict=True)
        self.returns_list = not isinstance(output.pooler_output, Tensor)
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
        """Model arguments with features in place of pixels; those of each pair are repeated ``repeats`` times."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        output = BaseModelOutputWithPooling(pooler_output=self._image_outputs(memory, mask, repeats))
        deep = [
            self._image_outputs(extras[f"deepstack{i}"], mask, repeats)
            for i in range(sum(name.startswith("deepstack") for name in extras))
        ]
        if deep:
            output["deepstack_features"] = deep
        if INDICATORS in extras:
            output[INDICATORS] = extras[INDICATORS][0]
        return {"mm_encoder_outputs": {"image": output}}

    def _image_outputs(self, memory: Tensor, mask: Tensor | None, repeats: int) -> Any:
        if self.returns_list is None:
            raise ConfigError("the image features come from another model; call encode of this one first")
        pairs = list(memory) if mask is None else [rows[is_valid] for rows, is_valid in zip(memory, mask, strict=True)]
        pieces = [rows for rows in pairs for _ in range(repeats)]
        return pieces if self.returns_list else torch.cat(pieces)[None]

    # ---- positions --------------------------------------------------------------------------------------

    def positions(self, model: Any, ids: Tensor, mask: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Positions of the prompt's tokens: ``(B, P)``, or ``(B, 3, P)`` where they have three parts."""
        if not isinstance(model.model, ComputesRopeIndex):
            return (mask.long().cumsum(-1) - 1).clamp(min=0)
        arguments = {
            "mm_token_type_ids": (ids == image_token(model.config)).int(),
            "image_grid_thw": extras["grid"].flatten(0, 1) if "grid" in extras else None,
            "attention_mask": mask,
        }
        accepted = signature(model.model.get_rope_index).parameters
        positions, _ = model.model.get_rope_index(ids, **{k: v for k, v in arguments.items() if k in accepted})
        return positions.transpose(0, 1)


def pad_to_square(image: Tensor, mean: Sequence[float]) -> Tensor:
    """A uint8 image ``(3, H, W)`` in the middle of a square of the mean colour, as LLaVA's authors do.

    Args:
        image: the image.
        mean: mean of each channel of images in [0, 1]; a normalised pixel of the border is 0.

    Example:
        >>> pad_to_square(torch.zeros(3, 1, 3, dtype=torch.uint8), [1.0, 1.0, 1.0])[0].tolist()
        [[255, 255, 255], [0, 0, 0], [255, 255, 255]]
    """
    height, width = image.shape[-2:]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = image.new_tensor([round(255 * value) for value in mean])[:, None, None].repeat(1, side, side)
    square[:, top : top + height, left : left + width] = image
    return square


def media_tokens(config: Any) -> list[int]:
    """Ids of the placeholders of images, videos and sound."""
    values = config.to_dict()
    # LLaVA's configuration files use other names
    names = [config.attribute_map.get(name, name) for name in ("image_token_id", "video_token_id", "audio_token_id")]
    return [values[name] for name in names if isinstance(values.get(name), int)]


def image_token(config: Any) -> int:
    """Id of the placeholder of one feature of an image."""
    return int(config.image_token_id)


def by_pair(features: Any, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Features of all images as ``(B, N, D)``, padded, with the mask ``(B, N)`` where pairs differ in N.

    Args:
        features: tensor ``(..., D)``, or a sequence with one tensor per image, in the order of the pairs.
        rows: number of features of each pair.

    Raises:
        ConfigError: the numbers of features and placeholders differ.
    """
    flat = torch.cat([part.reshape(-1, part.shape[-1]) for part in features])
    if len(flat) != sum(rows):
        raise ConfigError(
            f"the model returns {len(flat)} image features for {sum(rows)} placeholders in the prompts; it does not "
            "take two images in one prompt, or its processor and configuration disagree"
        )
    if len(set(rows)) == 1:
        return flat.unflatten(0, (len(rows), -1)), None
    pieces = flat.split(list(rows))
    mask = torch.arange(max(rows), device=flat.device) < torch.tensor(rows, device=flat.device)[:, None]
    return nn.utils.rnn.pad_sequence(list(pieces), batch_first=True), mask

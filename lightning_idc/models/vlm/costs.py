"""Cost of one pair in a training step: tokens, floating-point operations and bytes of activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.vlm.chunked import CHUNK_SIZE
from lightning_idc.models.vlm.families.base import image_token
from lightning_idc.models.vlm.net import VLMNet

ACTIVATION_FACTOR = 1.5
"""Activation bytes of a transformer layer, as a multiple of the inputs and outputs of its linear layers."""


@dataclass(frozen=True)
class PairCost:
    """Tokens, operations and activations of one pair.

    Args:
        num_patches: number of patches in the vision tower, of both images together.
        num_image_features: number of image features in the prompt.
        num_prompt_tokens: number of prompt tokens, image features included.
        num_caption_tokens: number of tokens of all captions together.
        forward_flops: operations of a forward pass, by part of the model.
        step_flops: operations of the forward and the backward pass.
        activation_bytes: bytes of activations for the backward pass.
        logit_bytes: bytes of the logits in memory at one time, independent of the batch size.
    """

    num_patches: int
    num_image_features: int
    num_prompt_tokens: int
    num_caption_tokens: int
    forward_flops: dict[str, float]
    step_flops: float
    activation_bytes: int
    logit_bytes: int


def cost_of_pair(
    net: VLMNet,
    adapters: Iterable[Adapter],
    image_size: tuple[int, int],
    prompt: str,
    num_caption_tokens: int,
    is_mixed_precision: bool,
    activation_checkpointing: bool,
) -> PairCost:
    """Cost of a pair for a network on the ``meta`` device, with its adapters installed.

    Args:
        net: the network.
        adapters: adapters of the network.
        image_size: height and width of both images.
        prompt: question about the images.
        num_caption_tokens: number of tokens of all captions of the pair.
        is_mixed_precision: whether matrix products are computed in 16 bits.
        activation_checkpointing: whether layers recompute their activations in the backward pass.
    """
    images = torch.zeros(1, 2, 3, *image_size, dtype=torch.uint8)
    inputs = net.family.inputs(net.processor, [prompt], list(images))
    ids = inputs["input_ids"][0]
    num_image_features = int((ids == image_token(net.model.config)).sum())
    num_patches = _num_patches(net, images)
    tokens = {
        "tower": num_patches,
        "projector": num_image_features,
        "language": len(ids) + num_caption_tokens,
        "head": num_caption_tokens,
    }
    bytes_per_value = 2 if is_mixed_precision else 4
    parts = _linear_parts(net)
    flops = {name: sum(2.0 * w.numel() for w in weights) * tokens[name] for name, weights in parts.items()}
    flops["tower"] += _tower_attention(net, num_patches)
    config = net.model.config.get_text_config()
    flops["language"] += 4.0 * config.num_hidden_layers * tokens["language"] ** 2 * config.hidden_size
    adapter_costs = [adapter.forward_cost(num_patches, bytes_per_value) for adapter in adapters]
    if adapter_flops := sum(operations for operations, _ in adapter_costs):
        flops["adapters"] = adapter_flops
    adapter_bytes = sum(size for _, size in adapter_costs)
    trained = {name: _trained_fraction(weights) for name, weights in parts.items()} | {"adapters": 1.0}
    step_flops, is_backward = 0.0, False
    for name in ("tower", "adapters", "projector", "language", "head"):
        if name in flops:
            trained_fraction = trained[name]
            is_backward = is_backward or trained_fraction > 0
            # forward; input gradients, if an earlier part trains; weight gradients; recomputation
            is_recomputed = activation_checkpointing and is_backward and name in ("tower", "language", "adapters")
            step_flops += flops[name] * (1 + is_backward + trained_fraction + is_recomputed)
    stored_bytes, largest_layer = 0, adapter_bytes
    trains_tower = trained["tower"] > 0
    for path, unit in net.model.named_modules():
        if type(unit).__name__ in (net.model._no_split_modules or ()):
            in_tower = path.startswith(net.family.vision)
            linear = [part for part in unit.modules() if isinstance(part, nn.Linear)]
            if not linear or (in_tower and not trains_tower):
                continue
            num_tokens = tokens["tower" if in_tower else "language"]
            layer_bytes = int(
                ACTIVATION_FACTOR
                * num_tokens
                * bytes_per_value
                * sum(part.in_features + part.out_features for part in linear)
                / 2
            )
            input_bytes = num_tokens * bytes_per_value * linear[0].in_features
            stored_bytes += input_bytes if activation_checkpointing else layer_bytes
            largest_layer = max(largest_layer, layer_bytes)
    # with activation checkpointing, only one layer is expanded in memory at a time
    vocabulary_size = net.lm_head.weight.shape[0]
    return PairCost(
        num_patches=num_patches,
        num_image_features=num_image_features,
        num_prompt_tokens=len(ids),
        num_caption_tokens=num_caption_tokens,
        forward_flops=flops,
        step_flops=step_flops,
        activation_bytes=stored_bytes + (largest_layer if activation_checkpointing else adapter_bytes),
        # float32 logits and their gradients
        logit_bytes=2 * 4 * vocabulary_size * min(num_caption_tokens, CHUNK_SIZE),
    )


def _trained_fraction(weights: list[nn.Parameter]) -> float:
    """Fraction of the elements of ``weights`` that are trainable."""
    return sum(w.numel() for w in weights if w.requires_grad) / max(1, sum(w.numel() for w in weights))


def _num_patches(net: VLMNet, images: Tensor) -> int:
    pixels = net.family.pixels(net.model, net.processor, list(images))
    patches_per_pair = net.family.patches_per_pair(pixels)
    if patches_per_pair is not None:
        return patches_per_pair[0]
    patch = net.model.config.vision_config.patch_size
    patch = patch if isinstance(patch, int) else patch[0]
    return pixels["pixel_values"].numel() // (3 * patch**2)


def _linear_parts(net: VLMNet) -> dict[str, list[nn.Parameter]]:
    """Weights of linear and convolution layers, by part of the model."""
    weights: dict[str, list[nn.Parameter]] = {"tower": [], "projector": [], "language": [], "head": []}
    for path, part in net.model.named_modules():
        if not isinstance(part, nn.Linear | nn.Conv2d | nn.Conv3d):
            continue
        if part is net.lm_head:
            name = "head"
        elif path.startswith(net.family.language):
            name = "language"
        elif path.startswith(net.family.vision) and "merger" not in path:
            name = "tower"
        else:
            name = "projector"
        weights[name].append(part.weight)
    return weights


def _tower_attention(net: VLMNet, num_patches: int) -> float:
    config = net.model.config.vision_config.to_dict()
    depth = config.get("num_hidden_layers") or config.get("depth") or 0
    width = config.get("embed_dim") or config["hidden_size"]
    patches_per_image = num_patches // net.family.images_per_pair
    full_attention_layers = config.get("fullatt_block_indexes")
    if full_attention_layers is None:
        return 4.0 * depth * num_patches * patches_per_image * width
    window = (config["window_size"] // config["patch_size"]) ** 2
    num_full = len(full_attention_layers)
    keys = num_full * patches_per_image + (depth - num_full) * min(window, patches_per_image)
    return 4.0 * num_patches * width * keys

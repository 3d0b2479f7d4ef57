"""What one pair takes in a training step: tokens, floating-point operations, bytes of activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.vlm.chunked import ROWS
from lightning_idc.models.vlm.families.base import image_token
from lightning_idc.models.vlm.net import VLMNet

BLOCK = 1.5
"""Bytes that a transformer layer keeps, by those of what goes into and comes out of its linear layers."""


@dataclass(frozen=True)
class PairCost:
    """Tokens, operations and activations of one pair.

    Args:
        places: of the tower, both images together.
        features: that stand for the images in the prompt.
        prompt: its tokens, features included.
        answers: tokens of all captions together.
        flops: of a forward pass by part.
        step: operations of forward and backward pass.
        activations: bytes that the backward pass needs.
        logits: bytes of logits that are in memory at once, whatever the batch.
    """

    places: int
    features: int
    prompt: int
    answers: int
    flops: dict[str, float]
    step: float
    activations: int
    logits: int


def cost_of_pair(
    net: VLMNet,
    adapters: Iterable[Adapter],
    size: tuple[int, int],
    prompt: str,
    answers: int,
    low: bool,
    recomputes: bool,
) -> PairCost:
    """Cost of a pair for a network that has no memory of its own (``meta``), its adapters installed.

    Args:
        net: the network.
        adapters: on it.
        size: height and width of both images.
        prompt: question about them.
        answers: tokens of all captions of the pair.
        low: whether products have 16 bits.
        recomputes: whether layers are computed twice instead of being kept.
    """
    images = torch.zeros(1, 2, 3, *size, dtype=torch.uint8)
    inputs = net.family.inputs(net.processor, [prompt], list(images))
    ids = inputs["input_ids"][0]
    features = int((ids == image_token(net.model.config)).sum())
    places = _places(net, images)
    tokens = {"tower": places, "projector": features, "language": len(ids) + answers, "head": answers}
    width = 2 if low else 4
    parts = _linear_parts(net)
    flops = {name: sum(2.0 * w.numel() for w in weights) * tokens[name] for name, weights in parts.items()}
    flops["tower"] += _tower_attention(net, places)
    config = net.model.config.get_text_config()
    flops["language"] += 4.0 * config.num_hidden_layers * tokens["language"] ** 2 * config.hidden_size
    adapter_costs = [adapter.forward_cost(places, width) for adapter in adapters]
    if adapter_flops := sum(operations for operations, _ in adapter_costs):
        flops["adapters"] = adapter_flops
    adapter_bytes = sum(size for _, size in adapter_costs)
    trained = {name: _trained_share(weights) for name, weights in parts.items()} | {"adapters": 1.0}
    step, below = 0.0, False
    for name in ("tower", "adapters", "projector", "language", "head"):
        if name in flops:
            own = trained[name]
            below = below or own > 0
            # forward; gradients of what goes in, where anything before learns; gradients of weights; again
            again = recomputes and below and name in ("tower", "language", "adapters")
            step += flops[name] * (1 + below + own + again)
    layers, largest = 0, adapter_bytes
    tower = trained["tower"] > 0
    for path, unit in net.model.named_modules():
        if type(unit).__name__ in (net.model._no_split_modules or ()):
            seen = path.startswith(net.family.vision)
            linear = [part for part in unit.modules() if isinstance(part, nn.Linear)]
            if not linear or (seen and not tower):
                continue
            count = tokens["tower" if seen else "language"]
            whole = int(BLOCK * count * width * sum(part.in_features + part.out_features for part in linear) / 2)
            layers += count * width * linear[0].in_features if recomputes else whole
            largest = max(largest, whole)
    # what is computed again is in memory one at a time
    kept = layers + (largest if recomputes else adapter_bytes)
    vocabulary = net.lm_head.weight.shape[0]
    logits = 2 * 4 * vocabulary * min(answers, ROWS)
    return PairCost(places, features, len(ids), answers, flops, step, kept, logits)


def _trained_share(weights: list[nn.Parameter]) -> float:
    """Share of the operations of products with ``weights`` that those which train have."""
    return sum(w.numel() for w in weights if w.requires_grad) / max(1, sum(w.numel() for w in weights))


def _places(net: VLMNet, images: Tensor) -> int:
    pixels = net.family.pixels(net.model, net.processor, list(images))
    found = net.family.places(pixels)
    if found is not None:
        return found[0]
    patch = net.model.config.vision_config.patch_size
    patch = patch if isinstance(patch, int) else patch[0]
    return pixels["pixel_values"].numel() // (3 * patch**2)


def _linear_parts(net: VLMNet) -> dict[str, list[nn.Parameter]]:
    """Weights of products with every token, by the part whose tokens they meet."""
    found: dict[str, list[nn.Parameter]] = {"tower": [], "projector": [], "language": [], "head": []}
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
        found[name].append(part.weight)
    return found


def _tower_attention(net: VLMNet, places: int) -> float:
    config = net.model.config.vision_config.to_dict()
    depth = config.get("num_hidden_layers") or config.get("depth") or 0
    width = config.get("embed_dim") or config["hidden_size"]
    image = places // net.family.images_per_pair
    whole = config.get("fullatt_block_indexes")
    if whole is None:
        return 4.0 * depth * places * image * width
    window = (config["window_size"] // config["patch_size"]) ** 2
    return 4.0 * places * width * (len(whole) * image + (depth - len(whole)) * min(window, image))

"""Which way of scoring several answers a model allows: found by comparing with the stock model, once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_idc.errors import ConfigError
from lightning_idc.methods.vlm.families.base import TOKEN_TYPES, image_token
from lightning_idc.methods.vlm.precision import is_quantized
from lightning_idc.methods.vlm.scoring import SCORING_METHODS

if TYPE_CHECKING:
    from lightning_idc.methods.vlm.net import VLMNet

SIDE = 64
"""Height and width of the made-up images."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""Differences in log-probability that are rounding, by the coarsest precision among the weights."""


ROUNDING, MOST = 4.0, 1.0
"""How often the rounding that the stock model shows itself may be exceeded, and the most that counts as rounding."""


def stock_log_probs(net: VLMNet, question: str, pair: Tensor, answers: Sequence[Sequence[int]]) -> Tensor:
    """Log-probabilities ``(K, T)`` of answers from the model's own forward pass over pixels, as one batch.

    Args:
        net: the model.
        question: about the pair.
        pair: uint8 ``(2, 3, H, W)``.
        answers: K times T token ids.
    """
    model = net.model
    device = next(model.parameters()).device
    count = len(answers)
    given = net.family.inputs(net.processor, [question] * count, [pair] * count)
    inputs = {name: value.to(device) for name, value in given.items()}
    inputs.pop("labels", None)
    prompt = inputs["input_ids"].shape[1]
    said = torch.tensor([list(answer) for answer in answers], device=device)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], said], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in TOKEN_TYPES:
        if name in inputs:
            types = inputs[name]
            marks_images = bool((types[inputs["input_ids"][:, :prompt] == image_token(model.config)] != 0).all())
            inputs[name] = torch.cat([types, torch.full_like(said, 0 if marks_images else 1)], 1)
    with net.precision():
        logits = model(**inputs).logits[:, prompt - 1 : -1]
    return logits.float().log_softmax(-1).gather(-1, said[..., None])[..., 0]


@torch.no_grad()
def scoring_errors(net: VLMNet, ways: Sequence[str] = tuple(SCORING_METHODS)) -> dict[str, float]:
    """Largest difference in log-probability to the stock model on one made-up pair with three answers, by way.

    A way that the model cannot run has the difference infinity. The contract of a family of your own: each way that
    it is used with stays below 1e-4 in float32.

    Args:
        net: the model.
        ways: of :data:`~lightning_idc.methods.vlm.scoring.SCORING_METHODS`.
    """
    device = next(net.model.parameters()).device
    pair, answers = _made_up(net)
    inputs = net.family.inputs(net.processor, ["What changed?"], [pair])
    ids = inputs["input_ids"].to(device)
    types = {name: inputs[name].to(device) for name in TOKEN_TYPES if name in inputs}
    tokens = torch.tensor([[[0, *answer] for answer in answers]], device=device)
    was_training = net.training
    net.eval()
    try:
        with net.stock_features():
            expected = torch.cat([stock_log_probs(net, "What changed?", pair, [answer]) for answer in answers])
            features = net.encode(pair[None].to(device), ids, torch.ones_like(ids, dtype=torch.bool), types)
            return {way: _difference(net, way, features, tokens, expected) for way in ways}
    finally:
        net.train(was_training)


def _made_up(net: VLMNet) -> tuple[Tensor, list[list[int]]]:
    """A pair ``(2, 3, H, W)`` and three answers of one length."""
    generator = torch.Generator().manual_seed(0)
    pair = torch.randint(0, 256, (2, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    words = net.processor.tokenizer("The first image differs from the second one here", add_special_tokens=False)
    return pair, [words.input_ids[start : start + 4] for start in range(3)]


@torch.no_grad()
def stock_rounding(net: VLMNet) -> float:
    """Largest difference between the stock model's log-probabilities of answers one by one and as a batch.

    Products of 16 bits depend on how they are cut up, the more the deeper the model: 36 layers of random weights in
    bfloat16 on a GPU differ by 0.2 nats from themselves.
    """
    pair, answers = _made_up(net)
    was_training = net.training
    net.eval()
    try:
        with net.stock_features():
            alone = [stock_log_probs(net, "What changed?", pair, [answer]) for answer in answers]
            return float((torch.cat(alone) - stock_log_probs(net, "What changed?", pair, answers)).abs().max())
    finally:
        net.train(was_training)


def _difference(net: VLMNet, way: str, features: object, tokens: Tensor, expected: Tensor) -> float:
    try:
        logits = net.lm_logits(SCORING_METHODS[way](net, features, tokens[..., :-1], None))  # type: ignore[arg-type]
    except (RuntimeError, ValueError, AttributeError, TypeError, NotImplementedError, IndexError):
        return float("inf")  # a model may refuse a mask or a cache in any of these words
    found = logits[0].float().log_softmax(-1).gather(-1, tokens[0, :, 1:, None])[..., 0]
    return float((found - expected).abs().max())


def pick_scoring(net: VLMNet) -> str:
    """The fastest way of scoring that gives what the stock model gives; a warning says which where it is not the first.

    Raises:
        ConfigError: none of them does.
    """
    low = torch.is_autocast_enabled(next(net.model.parameters()).device.type) or net.autocast_dtype is not None
    # products with quantized weights are rounded, too
    low = low or any(is_quantized(p) for p in net.model.parameters())
    kinds = {torch.bfloat16} if low else {p.dtype for p in net.model.parameters()} & TOLERANCE.keys()
    tolerance = max((TOLERANCE[kind] for kind in kinds), default=TOLERANCE[torch.bfloat16])
    if tolerance > TOLERANCE[torch.float32]:
        tolerance = max(tolerance, min(MOST, ROUNDING * stock_rounding(net)))
    # activation checkpointing turns off the cache that answers would share
    ways = [way for way in SCORING_METHODS if way != "cached" or not net.model.is_activation_checkpointing]
    found: dict[str, float] = {}
    for way in ways:
        found |= scoring_errors(net, [way])
        if found[way] <= tolerance:
            if way != ways[0]:
                off = ", ".join(f"{name} {error:.2g}" for name, error in found.items())
                warnings.warn(
                    f"a {net.model.config.model_type} scores several answers by `{way}`: log-probabilities are off "
                    f"from the stock model's by {off} nats on a made-up pair",
                    stacklevel=2,
                )
            return way
    raise ConfigError(
        f"no way of scoring answers gives what the stock {net.model.config.model_type} gives: largest differences "
        f"{found} nats, expected at most {tolerance}; register a family of your own (register_family)"
    )

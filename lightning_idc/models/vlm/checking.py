"""pick_scoring: the fastest scoring method that agrees with the stock model, chosen once per network."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_idc.images.types import PairFeatures
from lightning_idc.models.vlm.families.base import TOKEN_TYPES, image_token
from lightning_idc.models.vlm.precision import is_quantized
from lightning_idc.models.vlm.scoring import SCORING_METHODS
from lightning_idc.models.vlm.vision_language import VisionLanguageModel
from lightning_idc.utils.errors import ConfigError

SIDE = 64
"""Height and width of the random images."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""Tolerated differences in log-probability due to rounding, by the lowest precision among the weights."""
ROUNDING_FACTOR, MAX_TOLERANCE = 4.0, 1.0
"""Tolerance as a multiple of the stock model's own rounding error, and its upper bound."""


def stock_log_probs(net: VisionLanguageModel, question: str, pair: Tensor, answers: Sequence[Sequence[int]]) -> Tensor:
    """Log-probabilities ``(K, T)`` of answers from the model's own forward pass over pixels, as one batch.

    Args:
        net: the model.
        question: question about the pair.
        pair: uint8 ``(2, 3, H, W)``.
        answers: K times T token ids.
    """
    model = net.model
    device = next(model.parameters()).device
    count = len(answers)
    inputs = net.family.inputs(net.processor, [question] * count, [pair] * count)
    inputs = {name: value.to(device) for name, value in inputs.items()}
    inputs.pop("labels", None)
    prompt_length = inputs["input_ids"].shape[1]
    answer_ids = torch.tensor([list(answer) for answer in answers], device=device)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer_ids], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in TOKEN_TYPES:
        if name in inputs:
            types = inputs[name]
            marks_images = bool((types[inputs["input_ids"][:, :prompt_length] == image_token(model.config)] != 0).all())
            inputs[name] = torch.cat([types, torch.full_like(answer_ids, 0 if marks_images else 1)], 1)
    with net.precision():
        logits = model(**inputs).logits[:, prompt_length - 1 : -1]  # (K, T, V)
    return logits.float().log_softmax(-1).gather(-1, answer_ids[..., None])[..., 0]  # (K, T)


@torch.no_grad()
def scoring_errors(net: VisionLanguageModel, methods: Sequence[str] = tuple(SCORING_METHODS)) -> dict[str, float]:
    """Largest difference in log-probability to the stock model on a random pair with three answers, by scoring method.

    A method that the model cannot run has the difference infinity. A new family must stay below 1e-4 in float32 with
    each method in use.

    Args:
        net: the model.
        methods: names in :data:`~lightning_idc.models.vlm.scoring.SCORING_METHODS`.
    """
    device = next(net.model.parameters()).device
    pair, answers = _random_pair(net)
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
            return {method: _difference(net, method, features, tokens, expected) for method in methods}
    finally:
        net.train(was_training)


def _random_pair(net: VisionLanguageModel) -> tuple[Tensor, list[list[int]]]:
    """Random images ``(2, 3, H, W)`` and three answers of equal length."""
    generator = torch.Generator().manual_seed(0)
    pair = torch.randint(0, 256, (2, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    words = net.processor.tokenizer("The first image differs from the second one here", add_special_tokens=False)
    return pair, [words.input_ids[start : start + 4] for start in range(3)]


@torch.no_grad()
def stock_rounding(net: VisionLanguageModel) -> float:
    """Largest difference between the stock model's log-probabilities of answers one by one and as a batch.

    Products in 16 bits depend on their tiling, and the error grows with depth: with 36 layers of random weights in
    bfloat16 on a GPU it is 0.2 nats.
    """
    pair, answers = _random_pair(net)
    was_training = net.training
    net.eval()
    try:
        with net.stock_features():
            one_by_one = [stock_log_probs(net, "What changed?", pair, [answer]) for answer in answers]
            return float((torch.cat(one_by_one) - stock_log_probs(net, "What changed?", pair, answers)).abs().max())
    finally:
        net.train(was_training)


def _difference(
    net: VisionLanguageModel, method: str, features: PairFeatures, tokens: Tensor, expected: Tensor
) -> float:
    try:
        score = SCORING_METHODS[method]
        logits = net.lm_logits(score(net, features, tokens[..., :-1], None, None))  # (1, K, T, V)
    except (RuntimeError, ValueError, AttributeError, TypeError, NotImplementedError, IndexError):
        return float("inf")  # models reject masks or caches with any of these exceptions
    log_probs = logits[0].float().log_softmax(-1).gather(-1, tokens[0, :, 1:, None])[..., 0]
    return float((log_probs - expected).abs().max())


def pick_scoring(net: VisionLanguageModel) -> str:
    """Choose the fastest exact scoring method, with a warning if it is not the first one.

    Raises:
        ConfigError: no method agrees with the stock model.
    """
    has_autocast = torch.is_autocast_enabled(next(net.model.parameters()).device.type) or net.autocast_dtype is not None
    # products with quantized weights are rounded, too
    is_rounded = has_autocast or any(is_quantized(p) for p in net.model.parameters())
    dtypes = {torch.bfloat16} if is_rounded else {p.dtype for p in net.model.parameters()} & TOLERANCE.keys()
    tolerance = max((TOLERANCE[dtype] for dtype in dtypes), default=TOLERANCE[torch.bfloat16])
    if tolerance > TOLERANCE[torch.float32]:
        tolerance = max(tolerance, min(MAX_TOLERANCE, ROUNDING_FACTOR * stock_rounding(net)))
    # activation checkpointing disables the shared cache
    methods = [method for method in SCORING_METHODS if method != "cached" or not net.model.is_activation_checkpointing]
    errors: dict[str, float] = {}
    for method in methods:
        errors |= scoring_errors(net, [method])
        if errors[method] <= tolerance:
            if method != methods[0]:
                differences = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
                warnings.warn(
                    f"{net.model.config.model_type} scores several answers by `{method}`: log-probabilities differ "
                    f"from the stock model's by {differences} nats on a random pair",
                    stacklevel=2,
                )
            return method
    raise ConfigError(
        f"no scoring method reproduces the log-probabilities of the stock {net.model.config.model_type}: largest "
        f"differences {errors} nats, expected at most {tolerance}; register your own family with register_family"
    )

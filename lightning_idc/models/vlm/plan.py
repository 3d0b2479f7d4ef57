"""Memory and operations of training a published model, computed from its configuration alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.vlm.costs import PairCost, cost_of_pair
from lightning_idc.models.vlm.families import family_for, family_of
from lightning_idc.models.vlm.known_models import KNOWN_MODELS
from lightning_idc.models.vlm.loading import configured, train_tokenizer
from lightning_idc.models.vlm.net import VLMNet
from lightning_idc.models.vlm.prompting import PROMPT
from lightning_idc.models.vlm.published import Source, find_model, is_local, read_config
from lightning_idc.models.vlm.rates import MEASURED_ON, PEAK_TFLOPS, pairs_per_second
from lightning_idc.models.vlm.static_cache import cache_bytes
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of

GIB = 2**30
SHARDING = ("ShardedStrategy", "ModelParallelStrategy")
QUANTIZED_BITS = {"4bit": 4.127, "int4": 5.0, "8bit": 8.0, "int8": 8.0}
"""Bits per quantized weight, scales included: blocks of 64 weights with double quantization in bitsandbytes' NF4,
blocks of 32 in torchao's int4; scales per row in 8 bits are negligible."""


@dataclass(frozen=True)
class StepShape:
    """Sizes of the images and captions of one training step.

    Args:
        image_size: height and width of both images of a pair.
        prompt: question about the images.
        captions_per_pair: number of captions per pair.
        max_caption_tokens: maximum number of tokens of a caption.
        batch_size: number of pairs per device.
        activation_checkpointing: whether layers recompute their activations in the backward pass.
        static_rows: number of captions per pair that are decoded at a time with a static cache; 0 without one.
    """

    image_size: tuple[int, int]
    prompt: str
    captions_per_pair: int = 1
    max_caption_tokens: int = 64
    batch_size: int = 1
    activation_checkpointing: bool = False
    static_rows: int = 0


@dataclass(frozen=True)
class Plan:
    """Parameters by part, and their memory during training.

    Args:
        num_trained: trainable parameters by group: ``vision``, ``language`` (the projector included), adapters by name.
        num_frozen: number of frozen parameters.
        bits: bits of a frozen weight that is not quantized; trainable weights have 32.
        num_quantized: number of quantized frozen parameters: weights of linear layers except the head.
        quantized_bits: bits of a quantized parameter.
        optimizer_states: optimizer states per trainable weight; 2 for Adam.
        num_shards: number of processes that weights are sharded over; 1 without sharding.
        num_loaders: number of processes per machine that load the weights; only the first one with sharding.
        cost: cost of one pair; None without images.
        batch_size: number of pairs per device and step.
        compiled: whether the layers are compiled.
        num_devices: number of devices that train.
        epochs: number of passes over the data; None if it is not limited.
        decoding_bytes: bytes of the static cache, which stays in memory after the first captions.
    """

    num_trained: dict[str, int]
    num_frozen: int
    bits: int = 32
    num_quantized: int = 0
    quantized_bits: float = 0.0
    optimizer_states: int = 2
    num_shards: int = 1
    num_loaders: int = 1
    cost: PairCost | None = None
    batch_size: int = 1
    compiled: bool = False
    num_devices: int = 1
    epochs: int | None = None
    decoding_bytes: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Bytes per device by purpose, without activations and logits."""
        num_trained = sum(self.num_trained.values())
        parts = {
            "frozen weights": self._frozen_bits // 8 // self.num_shards,
            "trained weights": 4 * num_trained // self.num_shards,
            "gradients": 4 * num_trained // self.num_shards,
            "optimizer": 4 * self.optimizer_states * num_trained // self.num_shards,
        }
        return parts | ({"static cache": self.decoding_bytes} if self.decoding_bytes else {})

    @property
    def _frozen_bits(self) -> int:
        return (self.num_frozen - self.num_quantized) * self.bits + int(self.num_quantized * self.quantized_bits)

    @property
    def states(self) -> int:
        """Bytes per device without activations."""
        return sum(self.parts.values())

    @property
    def host(self) -> int:
        """Bytes of host memory per machine while the weights are loaded."""
        return (self.num_frozen * self.bits // 8 + 4 * sum(self.num_trained.values())) * self.num_loaders

    @property
    def activations(self) -> int:
        """Estimated bytes per device of activations and logits."""
        return 0 if self.cost is None else self.batch_size * self.cost.activation_bytes + self.cost.logit_bytes

    def time_table(self, pairs: int) -> list[str]:
        """Lines with the estimated speed on each GPU, and the time for ``pairs`` training pairs."""
        if self.cost is None:
            return []
        epochs = self.epochs or 1
        source = f"measured on an {MEASURED_ON}, scaled by data sheet to others"
        lines = [f"{'speed':<24}estimated for supervised training; {source}"]
        for gpu in PEAK_TFLOPS:
            rate = self.num_devices * pairs_per_second(self.cost.step_flops, gpu, self.compiled)
            hours = pairs * epochs / rate / 3600
            name = gpu if self.num_devices == 1 else f"{self.num_devices} x {gpu}"
            lines.append(f"  {name:<22}{rate:>12.3g} pairs/s, {hours:.2g} h for {pairs:,} pairs, epochs: {epochs}")
        return lines

    def table(self) -> str:
        """Table for the terminal."""
        lines = [f"{name:<24}{count:>16,} parameters, trained" for name, count in self.num_trained.items()]
        lines += [f"{'frozen':<24}{self.num_frozen - self.num_quantized:>16,} parameters, {self.bits} bits"]
        if self.num_quantized:
            lines += [f"{'quantized':<24}{self.num_quantized:>16,} parameters, {self.quantized_bits:g} bits"]
        lines += [f"{name:<24}{size / GIB:>12.2f} GiB per device" for name, size in self.parts.items()]
        lines += [f"{'total':<24}{self.states / GIB:>12.2f} GiB per device, without activations"]
        if self.cost is not None:
            cost = self.cost
            lines.append(
                f"{'activations':<24}{self.activations / GIB:>12.2f} GiB per device, estimated, {self.batch_size} pairs"
            )
            tokens = (
                f"{cost.num_patches:,} patches, {cost.num_prompt_tokens:,} prompt tokens, "
                f"{cost.num_caption_tokens:,} caption tokens"
            )
            lines.append(f"{'one pair':<24}{cost.step_flops / 1e12:>12.3g} TFLOP per step: {tokens}")
            lines += [f"  {name:<22}{flops / 1e12:>12.3g} TFLOP forward" for name, flops in cost.forward_flops.items()]
        return "\n".join([*lines, f"{'loading':<24}{self.host / GIB:>12.2f} GiB of host memory"])


def plan_of(
    model: str,
    adapters: Mapping[str, Adapter],
    precision: str = "32-true",
    quantize: str | None = None,
    optimizer_states: int = 2,
    num_shards: int = 1,
    revision: str | None = None,
    step_shape: StepShape | None = None,
    num_loaders: int = 1,
) -> Plan:
    """Compute the plan of a published model, whose weights are neither read nor allocated.

    A model of :data:`~lightning_idc.models.vlm.known_models.KNOWN_MODELS` needs no files and no network; without its
    tokenizer, the tokens of the prompt are counted as words.

    Args:
        model: folder or hub id.
        adapters: adapters by name, not yet installed.
        precision: precision of the Trainer.
        quantize: see :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        optimizer_states: optimizer states per trainable weight.
        num_shards: number of processes that FSDP2 shards weights over.
        revision: branch, tag or commit of ``model``.
        step_shape: images and captions of one step; None leaves out activations and operations.
        num_loaders: number of processes per machine that load the weights.

    Raises:
        ConfigError: the model does not exist or is not a vision-language model.
    """
    from transformers import AutoModelForImageTextToText

    config, processor = _config_and_processor(model, revision, step_shape.prompt if step_shape else PROMPT)
    with torch.device("meta"):
        stock_model = AutoModelForImageTextToText.from_config(config)
        family = family_for(stock_model, processor)
        for path in [""] if quantize else family.unused(stock_model):
            stock_model.get_submodule(path).requires_grad_(False)
        net = VLMNet(stock_model, processor, family)
        for adapter in adapters.values():
            adapter.install(net)
    num_trained: Counter[str] = Counter()
    num_frozen = 0
    vision = tuple(f"model.{path}." for path in family.vision_parts(stock_model))
    adapter_of = {id(p): name for name, adapter in adapters.items() for p in adapter.trained_parameters(net)}
    adapter_parameters = [
        (f"adapters.{name}.{path}", p) for name, a in adapters.items() for path, p in a.named_parameters()
    ]
    for path, parameter in [*net.named_parameters(), *adapter_parameters]:
        if not parameter.requires_grad:
            num_frozen += parameter.numel()
        elif id(parameter) in adapter_of:
            num_trained[adapter_of[id(parameter)]] += parameter.numel()
        else:
            num_trained["vision" if path.startswith(vision) else "language"] += parameter.numel()
    num_quantized = 0
    if quantize:
        modules = list(stock_model.modules())
        linear = [part for part in modules if isinstance(part, torch.nn.Linear) and part is not net.lm_head]
        num_quantized = sum(part.weight.numel() for part in linear if not part.weight.requires_grad)
    is_mixed_precision = precision.endswith("-mixed")
    cost, decoding_bytes = None, 0
    if step_shape is not None:
        cost = cost_of_pair(
            net,
            adapters.values(),
            image_size=step_shape.image_size,
            prompt=step_shape.prompt,
            num_caption_tokens=step_shape.captions_per_pair * step_shape.max_caption_tokens,
            is_mixed_precision=is_mixed_precision,
            activation_checkpointing=step_shape.activation_checkpointing,
        )
        decoding_bytes = cache_bytes(
            stock_model.config.get_text_config(),
            num_rows=step_shape.static_rows * step_shape.batch_size,
            num_tokens=cost.num_prompt_tokens + step_shape.max_caption_tokens,
            bytes_per_value=2 if is_mixed_precision else 4,
        )
    return Plan(
        num_trained=dict(num_trained),
        num_frozen=num_frozen,
        bits=16 if is_mixed_precision else 32,
        num_quantized=num_quantized,
        quantized_bits=QUANTIZED_BITS.get(quantize or "", 0.0),
        optimizer_states=optimizer_states,
        num_shards=num_shards,
        num_loaders=num_loaders,
        cost=cost,
        batch_size=step_shape.batch_size if step_shape else 1,
        decoding_bytes=decoding_bytes,
    )


def _config_and_processor(model: str, revision: str | None, prompt: str) -> tuple[Any, Any]:
    """Configuration and processor of a model: of its folder, the cache, the library or the hub, in this order."""
    from transformers import AutoProcessor

    if model in KNOWN_MODELS and not is_local(model, revision):
        architecture = KNOWN_MODELS[model]
        special_tokens = family_of(architecture["model_type"]).special_tokens.values()
        tokenizer = train_tokenizer([prompt] * 2, 1000, special_tokens)  # merges every word into one token
        config, processor, _ = configured(architecture, tokenizer)
        return config, processor
    find_model(model, revision)
    source = Source(model, revision)
    return read_config(source), AutoProcessor.from_pretrained(model, **source.options())


def plan_of_stage(config: Mapping[str, Any]) -> Plan:
    """Compute the plan of a training stage of a recipe.

    Args:
        config: configuration with ``trainer`` and ``model``.

    Raises:
        ConfigError: the stage does not train a published vision-language model.
    """
    model_config, trainer = config.get("model") or {}, config.get("trainer") or {}
    options = model_config.get("init_args") or {}
    if not str(model_config.get("class_path", "")).endswith("VLMCaptioner") or not options.get("model"):
        raise ConfigError("plan needs a stage that trains a VLMCaptioner of a published `model`; this one does not")
    adapters: dict[str, Adapter] = {}
    samples = [1]
    for entry in trainer.get("callbacks") or []:
        callback_class = class_of(str(entry["class_path"]))
        samples.append(_samples(callback_class, entry.get("init_args") or {}))
        if isinstance(callback_class, type) and issubclass(callback_class, AdapterCallback):
            callback = callback_class(**(entry.get("init_args") or {}))
            adapters[callback.name] = callback.adapter_class(**callback.options)
    devices, num_nodes = trainer.get("devices", 1), int(trainer.get("num_nodes", 1))
    num_devices = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdigit() else 1
    is_sharded = any(name in str(trainer.get("strategy", "")) for name in SHARDING)
    optimizer = str((options.get("optimizer") or {}).get("class_path", "AdamW"))
    momentum = ((options.get("optimizer") or {}).get("init_args") or {}).get("momentum")
    plan = plan_of(
        options["model"],
        adapters,
        precision=str(trainer.get("precision", "32-true")),
        quantize=options.get("quantize"),
        optimizer_states=2 if "Adam" in optimizer else 1 if momentum else 0,
        num_shards=num_devices * num_nodes if is_sharded else 1,
        revision=options.get("revision"),
        step_shape=_step_shape(options, (config.get("data") or {}).get("init_args") or {}, max(samples)),
        num_loaders=1 if is_sharded and not options.get("quantize") else num_devices,
    )
    epochs = trainer.get("max_epochs")
    return replace(
        plan,
        compiled=bool(options.get("compile")),
        num_devices=num_devices * num_nodes,
        epochs=int(epochs) if epochs else None,
    )


def _samples(callback_class: Any, arguments: Mapping[str, Any]) -> int:
    """Number of captions per pair that a callback samples at a time, by its argument ``samples``; 1 without one."""
    parameter = signature(callback_class).parameters.get("samples")
    return 1 if parameter is None else int(arguments.get("samples", parameter.default))


def _step_shape(options: Mapping[str, Any], data: Mapping[str, Any], samples: int) -> StepShape:
    """Shape of a step: images of the data's ``image_size``, else of ``max_pixels``, else of 448 x 448 pixels."""
    side = int(math.sqrt(options["max_pixels"])) if options.get("max_pixels") else 448
    size = data.get("image_size") or side
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return StepShape(
        image_size=(height, width),
        prompt=str(options.get("prompt") or PROMPT),
        captions_per_pair=int(options.get("captions_per_pair", 2)),
        max_caption_tokens=int(options.get("max_length") or 64),
        batch_size=int(data.get("batch_size", 32)),
        activation_checkpointing=bool(options.get("activation_checkpointing", False)),
        static_rows=max(samples, int(options.get("num_beams") or 1))
        if options.get("cache_implementation") == "static"
        else 0,
    )

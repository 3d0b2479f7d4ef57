"""Memory and operations of training a published model, computed from its configuration alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of

GIB = 2**30
SHARDING = ("ShardedStrategy", "ModelParallelStrategy")
PACKED_BITS = {"4bit": 4.127, "int4": 5.0, "8bit": 8.0, "int8": 8.0}
"""Bits per quantized weight, scales included: blocks of 64 weights with double quantization in bitsandbytes' NF4,
blocks of 32 in torchao's int4; scales per row in 8 bits are negligible."""


@dataclass(frozen=True)
class Images:
    """Images and captions of one training step.

    Args:
        size: height and width of both images of a pair.
        prompt: question about the images.
        captions: number of captions per pair.
        longest: number of tokens of a caption.
        batch: number of pairs per device.
        recomputes: whether activation checkpointing is on.
    """

    size: tuple[int, int]
    prompt: str
    captions: int = 1
    longest: int = 64
    batch: int = 1
    recomputes: bool = False


@dataclass(frozen=True)
class Plan:
    """Parameters by part, and their memory during training.

    Args:
        trained: trainable parameters by group: ``vision``, ``language`` (the projector included), adapters by name.
        frozen: number of frozen parameters.
        bits: bits of a frozen weight that is not quantized; trainable weights have 32.
        packed: number of quantized frozen parameters: weights of linear layers except the head.
        packed_bits: bits of a quantized parameter.
        moments: optimizer states per trainable weight; 2 for Adam.
        processes: number of processes that weights are sharded over; 1 without sharding.
        loaders: number of processes per machine that load the weights; only the first one with sharding.
        cost: cost of one pair; None without images.
        batch: number of pairs per device and step.
        compiled: whether the layers are compiled.
        devices: number of devices that train.
        epochs: number of passes over the data; None if it is not limited.
    """

    trained: dict[str, int]
    frozen: int
    bits: int = 32
    packed: int = 0
    packed_bits: float = 0.0
    moments: int = 2
    processes: int = 1
    loaders: int = 1
    cost: PairCost | None = None
    batch: int = 1
    compiled: bool = False
    devices: int = 1
    epochs: int | None = None

    @property
    def parts(self) -> dict[str, int]:
        """Bytes per device by purpose, without activations and logits."""
        trained = sum(self.trained.values())
        return {
            "frozen weights": self._frozen_bits // 8 // self.processes,
            "trained weights": 4 * trained // self.processes,
            "gradients": 4 * trained // self.processes,
            "optimizer": 4 * self.moments * trained // self.processes,
        }

    @property
    def _frozen_bits(self) -> int:
        return (self.frozen - self.packed) * self.bits + int(self.packed * self.packed_bits)

    @property
    def states(self) -> int:
        """Bytes per device without activations."""
        return sum(self.parts.values())

    @property
    def host(self) -> int:
        """Bytes of host memory per machine while the weights are loaded."""
        return (self.frozen * self.bits // 8 + 4 * sum(self.trained.values())) * self.loaders

    @property
    def activations(self) -> int:
        """Estimated bytes per device of activations and logits."""
        return 0 if self.cost is None else self.batch * self.cost.activations + self.cost.logits

    def time_table(self, pairs: int) -> list[str]:
        """Lines with the estimated speed on each GPU, and the time for ``pairs`` training pairs."""
        if self.cost is None:
            return []
        epochs = self.epochs or 1
        source = f"measured on an {MEASURED_ON}, scaled by data sheet to others"
        lines = [f"{'speed':<24}estimated for supervised training; {source}"]
        for gpu in PEAK_TFLOPS:
            rate = self.devices * pairs_per_second(self.cost.step, gpu, self.compiled)
            hours = pairs * epochs / rate / 3600
            name = gpu if self.devices == 1 else f"{self.devices} x {gpu}"
            lines.append(f"  {name:<22}{rate:>12.3g} pairs/s, {hours:.2g} h for {pairs:,} pairs, epochs: {epochs}")
        return lines

    def table(self) -> str:
        """Table for the terminal."""
        lines = [f"{name:<24}{count:>16,} parameters, trained" for name, count in self.trained.items()]
        lines += [f"{'frozen':<24}{self.frozen - self.packed:>16,} parameters, {self.bits} bits"]
        if self.packed:
            lines += [f"{'quantized':<24}{self.packed:>16,} parameters, {self.packed_bits:g} bits"]
        lines += [f"{name:<24}{size / GIB:>12.2f} GiB a device" for name, size in self.parts.items()]
        lines += [f"{'together':<24}{self.states / GIB:>12.2f} GiB a device, without activations"]
        if self.cost is not None:
            cost = self.cost
            lines.append(
                f"{'activations':<24}{self.activations / GIB:>12.2f} GiB a device, estimated, {self.batch} pairs"
            )
            tokens = f"{cost.patches:,} patches, {cost.prompt:,} tokens of prompt, {cost.answers:,} of captions"
            lines.append(f"{'a pair':<24}{cost.step / 1e12:>12.3g} TFLOP a step: {tokens}")
            lines += [f"  {name:<22}{flops / 1e12:>12.3g} TFLOP forward" for name, flops in cost.flops.items()]
        return "\n".join([*lines, f"{'loading':<24}{self.host / GIB:>12.2f} GiB of the host"])


def plan_of(
    model: str,
    adapters: Mapping[str, Adapter],
    precision: str = "32-true",
    quantize: str | None = None,
    moments: int = 2,
    processes: int = 1,
    revision: str | None = None,
    images: Images | None = None,
    loaders: int = 1,
) -> Plan:
    """Plan for a published model; its weights are neither read nor allocated.

    A model of :data:`~lightning_idc.models.vlm.known_models.KNOWN_MODELS` needs no files and no network; without its
    tokenizer, the tokens of the prompt are counted as words.

    Args:
        model: folder or hub id.
        adapters: adapters by name, not yet installed.
        precision: precision of the Trainer.
        quantize: see :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        moments: optimizer states per trainable weight.
        processes: number of processes that FSDP2 shards weights over.
        revision: branch, tag or commit of ``model``.
        images: images of one step; None leaves out activations and operations.
        loaders: number of processes per machine that load the weights.

    Raises:
        ConfigError: the model does not exist or is not a vision-language model.
    """
    from transformers import AutoModelForImageTextToText

    config, processor = _config_and_processor(model, revision, images.prompt if images else PROMPT)
    with torch.device("meta"):
        inner = AutoModelForImageTextToText.from_config(config)
        family = family_for(inner, processor)
        for path in [""] if quantize else family.unused(inner):
            inner.get_submodule(path).requires_grad_(False)
        net = VLMNet(inner, processor, family)
        for adapter in adapters.values():
            adapter.install(net)
    trained: Counter[str] = Counter()
    frozen = 0
    vision = tuple(f"model.{path}." for path in family.vision_parts(inner))
    lora = {id(p): name for name, adapter in adapters.items() for p in adapter.trained(net)}
    adapter_parameters = [
        (f"adapters.{name}.{path}", p) for name, a in adapters.items() for path, p in a.named_parameters()
    ]
    for path, parameter in [*net.named_parameters(), *adapter_parameters]:
        if not parameter.requires_grad:
            frozen += parameter.numel()
        elif id(parameter) in lora:
            trained[lora[id(parameter)]] += parameter.numel()
        else:
            trained["vision" if path.startswith(vision) else "language"] += parameter.numel()
    packed = 0
    if quantize:
        linear = [part for part in inner.modules() if isinstance(part, torch.nn.Linear) and part is not net.lm_head]
        packed = sum(part.weight.numel() for part in linear if not part.weight.requires_grad)
    cost = None
    if images is not None:
        low = precision.endswith("-mixed")
        tokens = images.captions * images.longest
        cost = cost_of_pair(net, adapters.values(), images.size, images.prompt, tokens, low, images.recomputes)
    return Plan(
        dict(trained),
        frozen,
        16 if precision.endswith("-mixed") else 32,
        packed,
        PACKED_BITS.get(quantize or "", 0.0),
        moments,
        processes,
        loaders,
        cost,
        images.batch if images else 1,
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
    """Plan for a training stage of a recipe.

    Args:
        config: configuration with ``trainer`` and ``model``.

    Raises:
        ConfigError: the stage does not train a published vision-language model.
    """
    model_config, trainer = config.get("model") or {}, config.get("trainer") or {}
    options = model_config.get("init_args") or {}
    if not str(model_config.get("class_path", "")).endswith("VLMCaptioner") or not options.get("model"):
        raise ConfigError("plan reads stages that train a VLMCaptioner of a published `model`; this one does not")
    adapters: dict[str, Adapter] = {}
    for entry in trainer.get("callbacks") or []:
        kind = class_of(str(entry["class_path"]))
        if isinstance(kind, type) and issubclass(kind, AdapterCallback):
            callback = kind(**(entry.get("init_args") or {}))
            adapters[callback.name] = callback.kind(**callback.options)
    devices, nodes = trainer.get("devices", 1), int(trainer.get("num_nodes", 1))
    loaders = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdigit() else 1
    sharded = any(name in str(trainer.get("strategy", "")) for name in SHARDING)
    processes = loaders * nodes if sharded else 1
    optimizer = str((options.get("optimizer") or {}).get("class_path", "AdamW"))
    momentum = ((options.get("optimizer") or {}).get("init_args") or {}).get("momentum")
    moments = 2 if "Adam" in optimizer else 1 if momentum else 0
    planned = plan_of(
        options["model"],
        adapters,
        str(trainer.get("precision", "32-true")),
        options.get("quantize"),
        moments,
        processes,
        options.get("revision"),
        _images(options, (config.get("data") or {}).get("init_args") or {}),
        1 if sharded and not options.get("quantize") else loaders,
    )
    epochs = trainer.get("max_epochs")
    return replace(
        planned, compiled=bool(options.get("compile")), devices=loaders * nodes, epochs=int(epochs) if epochs else None
    )


def _images(options: Mapping[str, Any], data: Mapping[str, Any]) -> Images:
    """Images of a stage: of the data's ``image_size``, else within ``max_pixels``, else 448 pixels wide and high."""
    side = int(math.sqrt(options["max_pixels"])) if options.get("max_pixels") else 448
    size = data.get("image_size") or side
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return Images(
        (height, width),
        str(options.get("prompt") or PROMPT),
        int(options.get("captions_per_pair", 2)),
        int(options.get("max_length") or 64),
        int(data.get("batch_size", 32)),
        bool(options.get("activation_checkpointing", False)),
    )

"""What training a published model takes, computed from its configuration alone: memory and operations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.vlm.costs import PairCost, cost_of_pair
from lightning_idc.models.vlm.families import family_for
from lightning_idc.models.vlm.net import VLMNet
from lightning_idc.models.vlm.prompting import PROMPT
from lightning_idc.models.vlm.published import Source, find_model, read_config
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of

GIB = 2**30
SHARDING = ("ShardedStrategy", "ModelParallelStrategy")
PACKED_BITS = {"4bit": 4.127, "int4": 5.0, "8bit": 8.0, "int8": 8.0}
"""Of a quantized weight, with the scales of its block: 64 weights of bitsandbytes' NF4 with scales that are quantized
themselves, 32 of torchao's int4; those of a row count for nothing."""


@dataclass(frozen=True)
class Images:
    """What one step is shown.

    Args:
        size: height and width of both images of a pair.
        prompt: question about them.
        captions: per pair.
        longest: tokens of a caption.
        batch: pairs per device.
        recomputes: whether layers are computed twice instead of being kept.
    """

    size: tuple[int, int]
    prompt: str
    captions: int = 1
    longest: int = 64
    batch: int = 1
    recomputes: bool = False


@dataclass(frozen=True)
class Plan:
    """Parameters by part, and the bytes that they take while they train.

    Args:
        trained: trainable parameters by group: ``vision``, ``language`` (the projector included), adapters by name.
        frozen: parameters that are not.
        bits: of a frozen weight that is not quantized; those that train have 32.
        packed: how many of the frozen ones are quantized: weights of linear layers, without those of the head.
        packed_bits: of one of them.
        moments: numbers that the optimizer keeps per trained weight; 2 for Adam.
        processes: that sharded weights are dealt to; 1 where every process holds all.
        loaders: processes of one machine that load the weights; of sharded ones the first alone does.
        cost: of one pair; None where the images are not known.
        batch: pairs per device and step.
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

    @property
    def parts(self) -> dict[str, int]:
        """Bytes on one device by what they are for; activations and logits come on top."""
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
        """Bytes on one device without activations."""
        return sum(self.parts.values())

    @property
    def host(self) -> int:
        """Bytes of weights that processes of one machine load on the host."""
        return (self.frozen * self.bits // 8 + 4 * sum(self.trained.values())) * self.loaders

    @property
    def activations(self) -> int:
        """Bytes on one device that a step needs beside the states, estimated."""
        return 0 if self.cost is None else self.batch * self.cost.activations + self.cost.logits

    def table(self) -> str:
        """Lines for the terminal."""
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
            tokens = f"{cost.places:,} places, {cost.prompt:,} tokens of prompt, {cost.answers:,} of captions"
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
    """Plan of a published model; its weights are not read, and no memory is taken for them.

    Args:
        model: folder or hub id.
        adapters: by name, not yet installed.
        precision: of the Trainer.
        quantize: of :class:`~lightning_idc.models.vlm.module.VLMCaptioner`.
        moments: numbers that the optimizer keeps per trained weight.
        processes: that FSDP2 deals weights to.
        revision: branch, tag or commit of ``model``.
        images: what one step is shown; activations and operations are not computed without.
        loaders: processes of one machine that load the weights.

    Raises:
        ConfigError: the model is not there or not a vision-language model.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    find_model(model, revision)
    source = Source(model, revision)
    config = read_config(source)
    processor = AutoProcessor.from_pretrained(model, **source.options())
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
    own = [(f"adapters.{name}.{path}", p) for name, a in adapters.items() for path, p in a.named_parameters()]
    for path, parameter in [*net.named_parameters(), *own]:
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


def plan_of_stage(config: Mapping[str, Any]) -> Plan:
    """Plan of a stage of a recipe.

    Args:
        config: ``trainer`` and ``model`` as a configuration file has them.

    Raises:
        ConfigError: the stage does not train a published vision-language model.
    """
    given, trainer = config.get("model") or {}, config.get("trainer") or {}
    options = given.get("init_args") or {}
    if not str(given.get("class_path", "")).endswith("VLMCaptioner") or not options.get("model"):
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
    return plan_of(
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


def _images(options: Mapping[str, Any], data: Mapping[str, Any]) -> Images:
    """What a stage shows: images of the size that its data has, or that ``max_pixels`` allows; 448 otherwise."""
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

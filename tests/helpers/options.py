"""Non-default values for every option of every part from the papers."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from helpers.captioners import CAPTIONERS, CLIP, ENCODER, LORA, SIDE, dual_encoder, image_tokenizer, preference
from helpers.one_step import BATCH, MixedPairs
from helpers.training import fit
from lightning_idc import callbacks
from lightning_idc.images.types import PairBatch
from lightning_idc.methods import MovingAverage, NoReference
from lightning_idc.methods.adpo.negatives import RandomCaption
from lightning_idc.methods.adpo.preference_losses import hinge
from lightning_idc.methods.adpo.reinforce import NoBaseline
from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval
from lightning_idc.methods.namc.losses import info_nce
from lightning_idc.methods.namc.noise import random_probabilities
from lightning_idc.methods.policy.policy_addon import PolicyGradient
from lightning_idc.methods.policy.rewards import Reward, Texts
from lightning_idc.methods.policy.rollout import SampledCaptions, sample_captions
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.synthesis.models.base import TextEncoder

FOREIGN = frozenset({"another LightningModule"})
EVERYWHERE = frozenset(CAPTIONERS) - FOREIGN
VLMS = frozenset({"Qwen2.5-VL", "LLaVA-OneVision", "LLaVA-1.5"})


Where = Callable[[str], Mapping[str, Any]]
"""Makes further options for a captioner."""


def nothing(captioner: str) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Try:
    """A non-default value of an option.

    Args:
        value: makes the value for a captioner.
        where: makes the other options that the value needs to have an effect.
        steps: number of training steps until the effect is visible.
        refused: captioners that refuse the value; the message names the option or the value.
    """

    value: Callable[[str], Any]
    where: Where = nothing
    steps: int = 1
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """A part and the values to try for its options.

    Args:
        kind: class of the callback.
        make: makes all callbacks, for a captioner and options of that class.
        tries: values by option; ``bool`` and ``Literal`` options without an entry get all non-default values.
        without_effect: options without a visible effect in one process, each with the reason.
        captioners: captioners that the part works on.
    """

    kind: type[Callback]
    make: Callable[..., list[Callback]]
    tries: dict[str, list[Try]]
    without_effect: dict[str, str] = field(default_factory=dict)
    captioners: frozenset[str] = EVERYWHERE

    def all_tries(self) -> list[tuple[str, Try]]:
        """Values to try for all options; an option without any raises KeyError."""
        tries = []
        for option, (hint, default) in options_of(self.kind).items():
            if option in self.without_effect:
                continue
            others = self.tries.get(option) or [Try(lambda _, value=value: value) for value in choices(hint, default)]
            if not others:
                raise KeyError(f"{self.kind.__name__}: no value is tried for {option!r}")
            tries += [(option, other) for other in others]
        return tries


def options_of(kind: type) -> dict[str, tuple[Any, Any]]:
    """Type and default of every option of a callback, by name, in the order of its constructor."""
    constructor, options = kind.__init__, {}
    hints = get_type_hints(constructor)
    for name, parameter in list(inspect.signature(constructor).parameters.items())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            options[name] = hints[name], parameter.default
        elif (fields := kind.options_class) is not None:
            field_hints = get_type_hints(fields)
            options |= {f.name: (field_hints[f.name], f.default) for f in dataclasses.fields(fields)}
        else:
            inherited = options_of(kind.__mro__[1])
            options |= {name: option for name, option in inherited.items() if name not in {*options, "surrogate"}}
    return options


def choices(hint: Any, default: Any) -> list[Any]:
    """All non-default values of a ``bool`` or ``Literal`` type; none for other types."""
    if hint is bool:
        return [not default]
    return [value for value in get_args(hint) if value != default] if get_origin(hint) is Literal else []


def other(*values: Any, **options: Any) -> list[Try]:
    return [Try(lambda _, value=value: value, **options) for value in values]


def new(make: Callable[[], Any], **options: Any) -> list[Try]:
    return [Try(lambda _: make(), **options)]


def refused(value: Any, where: Where = nothing) -> list[Try]:
    return other(value, where=where, refused=frozenset(CAPTIONERS))


class LettersOf(Reward):
    """Reward derived from the length of a caption; it is 0 for all captions of the first pair."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def __call__(self, pairs: PairBatch, texts: Texts) -> Tensor:
        rewards = torch.tensor([[float(len(text) % 7) for text in row] for row in texts]) * self.factor
        rewards[0] = 0.0
        return rewards


class ShorterSamples(Callback):
    """Cuts the k-th sample of each pair to k + 2 tokens, since untrained captioners only generate full length."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for addon in addons_of(pl_module).values():
            assert isinstance(addon, PolicyGradient)
            addon.sampler = self.sample

    def sample(self, step: TrainingStep[PairCaptioner], samples: int, **options: Any) -> SampledCaptions:
        sampled = sample_captions(step, samples, **options)
        lengths = torch.arange(samples) + 2
        return replace(sampled, mask=sampled.mask & (sampled.mask.cumsum(-1) <= lengths[:, None]))


class ByLetters(TextEncoder):
    """Encodes a text as a unit vector whose angle depends on its bytes."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        angles = torch.tensor([float(sum(text.encode())) for text in texts])
        return torch.stack([angles.cos(), angles.sin()], 1)


@cache
def retriever_encoder() -> str:
    """Checkpoint of a small CLIP4IDC."""
    folder = tempfile.TemporaryDirectory()
    FOLDERS.append(folder)
    model = Clip4IdcRetrieval(CLIP, intra_layers=1, vocabulary=None)
    fit([], Path(folder.name), model, data=MixedPairs(batch_size=BATCH, seed=1, image_size=SIDE), max_steps=1)
    model.trainer.save_checkpoint(Path(folder.name) / "retriever.ckpt")
    return str(Path(folder.name) / "retriever.ckpt")


FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def other_seed(make: Callable[[], nn.Module]) -> nn.Module:
    """The same module with its weights multiplied by -1.5."""
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(-1.5)
    return module


LAST_LAYER = {"PairTransformer": 4, "NAMC": 4, "CLIP4IDC": 2, "Qwen2.5-VL": 3, "LLaVA-OneVision": 4}
DECODER = {"CLIP4IDC": "decoder_layers", **dict.fromkeys(VLMS, "model.language_model.layers.0")}
HEAD = {"CLIP4IDC": "transform", **dict.fromkeys(VLMS, "lm_head")}
OFF_POLICY: Where = lambda _: {"iterations": 2}  # noqa: E731
REFERENCE = [
    *new(lambda: MovingAverage(0.5), where=lambda _: {"beta": 0.5}, steps=2),
    *new(lambda: MovingAverage(0.5), refused=EVERYWHERE),
]
POLICY: dict[str, list[Try]] = {
    "reward": new(lambda: LettersOf(2.0)),
    "samples": other(3),
    "temperature": other(0.1),
    "top_p": other(0.1),
    "iterations": other(2, steps=2),
    "caption_weight": other(0.5),
    "name": other("other"),
    "weight": other(0.5),
}
ADDON = {"name": other("other"), "weight": other(0.5)}

OPTIONS: dict[str, Options] = {
    "PreferenceOptimization": Options(
        callbacks.PreferenceOptimization,
        lambda captioner, **options: [preference(**options)],
        {
            **ADDON,
            "negatives": new(RandomCaption),
            "reference": [*new(NoReference), *new(lambda: MovingAverage(0.5), steps=2)],
            "loss": other(hinge),
            "beta": other(0.5),
            "caption_weight": other(0.5),
            "displacement_threshold": other(-1.0),
            "image_weight": other(0.5),
            "other_images": [*other("swapped", where=lambda _: {"image_weight": 0.5}), *refused("swapped")],
            "anchor": [*other(0.0), *other(1.0, steps=2), *refused(1.0, where=lambda _: {"reference": NoReference()})],
        },
    ),
    "AdversarialRetriever": Options(
        callbacks.AdversarialRetriever,
        lambda captioner, **options: [
            preference(negatives=None, reference=NoReference()),
            callbacks.AdversarialRetriever(**{"candidates": 4, **options}),
        ],
        {
            **ADDON,
            "encoder": [*new(retriever_encoder), *refused("missing.ckpt")],
            "train_encoder": [*other(True, where=lambda _: {"encoder": retriever_encoder()}), *refused(True)],
            "candidates": other(3),
            "scale": other(1.0),
            "temperature": other(0.5),
            "baseline": new(NoBaseline),
            "alignment": other(0.0, 0.5),
            "fraction": other(0.5),
            "no_change_fraction": [*other(1.0), *refused(1.0, where=lambda _: {"weighting": "frequency"})],
            "too_similar": new(ByLetters),
            "threshold": [*other(0.99, where=lambda _: {"too_similar": ByLetters()}), *refused(0.5)],
            "weights": refused("missing.ckpt"),
        },
    ),
    "GroupRelative": Options(
        callbacks.GroupRelative,
        lambda captioner, **options: [
            callbacks.GroupRelative(**{"reward": LettersOf(), "samples": 2, **options}),
            ShorterSamples(),
        ],
        {
            **POLICY,
            "beta": other(0.5),
            "reference": REFERENCE,
            "clip": [*other(0.0, where=OFF_POLICY, steps=2), *refused(0.1)],
            "clip_high": [*other(0.0, where=OFF_POLICY, steps=2), *refused(0.28)],
            "level": [*other("sequence", where=OFF_POLICY, steps=2), *refused("sequence")],
        },
    ),
    "SelfCritical": Options(
        callbacks.SelfCritical,
        lambda captioner, **options: [callbacks.SelfCritical(**{"reward": LettersOf(), "samples": 2, **options})],
        {
            **POLICY,
            "beta": other(0.5),
            "reference": REFERENCE,
        },
    ),
    "NoiseMasking": Options(
        callbacks.NoiseMasking,
        lambda captioner, **options: [callbacks.NoiseMasking(**{"encoder": dual_encoder(), **options})],
        {
            **ADDON,
            "encoder": [*new(lambda: other_seed(dual_encoder)), *refused("missing.ckpt")],
            "image_mask_ratio": other(0.8),
            "word_mask_ratio": other(0.8),
            "probabilities": other(random_probabilities),
            "alignment_loss": other(info_nce),
            "fill_masked": other(False, refused=EVERYWHERE - {"NAMC"}),
            "align_masked": other((False, True), (True, False)),
        },
        without_effect={"gather": "one process has no other process to gather from"},
    ),
    "MaskedReconstruction": Options(
        callbacks.MaskedReconstruction,
        lambda captioner, **options: [
            callbacks.MaskedReconstruction(
                **{
                    **({} if "distance" in options else {"tokenizer": image_tokenizer()}),
                    **({"encoder": ENCODER[captioner]} if captioner in ENCODER else {"width": 8, "heads": 2}),
                    **({"at": "backbone"} if captioner in FOREIGN else {}),
                    **options,
                }
            )
        ],
        {
            **ADDON,
            "tokenizer": [*new(lambda: other_seed(image_tokenizer)), *refused("missing.ckpt")],
            "distance": [
                *other(nn.functional.l1_loss),
                *refused(nn.functional.l1_loss, where=lambda _: {"tokenizer": image_tokenizer()}),
            ],
            "encoder": refused("net.missing"),
            "mask_ratio": other(0.8),
            "width": other(16, refused=frozenset(ENCODER)),
            "layers": other(1, refused=frozenset(ENCODER)),
            "heads": other(4, refused=frozenset(ENCODER)),
            "extras": [*other(("after", "before"), refused=FOREIGN), *refused(("before", "missing"))],
            "at": [*refused("missing"), *refused("head")],
        },
        captioners=(EVERYWHERE | FOREIGN) - VLMS,
    ),
    "MDPAdapter": Options(
        callbacks.MDPAdapter,
        lambda captioner, **options: [callbacks.MDPAdapter(**{"stacked": 1, **options})],
        {
            "name": other("other"),
            "layers": [Try(lambda captioner: [LAST_LAYER[captioner]]), *refused(["missing"])],
            "at": refused("missing"),
            "heads": other(1),
            "hidden": other(8),
            "stacked": other(2),
            "shared": [
                *other(False),
                *refused(False, where=lambda captioner: {"layers": [LAST_LAYER[captioner]]}),
            ],
            "softmax": [
                *other(True),
                *refused(True, where=lambda captioner: {"layers": [LAST_LAYER[captioner]]}),
            ],
        },
        captioners=EVERYWHERE - {"ProCap", "LLaVA-1.5"},
    ),
    "StatefulEncoderAdapter": Options(
        callbacks.StatefulEncoderAdapter,
        lambda captioner, **options: [callbacks.StatefulEncoderAdapter(**options)],
        {
            "name": other("other"),
            "layers": [*other([1], refused=frozenset({"PairTransformer", "NAMC"})), *refused(["missing"])],
            "at": refused("missing"),
            "heads": other(1),
            "hidden": other(8),
            "detach_previous": other(False, steps=2),
        },
        captioners=EVERYWHERE - {"ProCap", "CLIP4IDC", "LLaVA-1.5"},
    ),
    "LoRA": Options(
        callbacks.LoRA,
        lambda captioner, **options: [
            callbacks.LoRA(**{"rank": 2, "alpha": 4, "freeze": LORA.get(captioner), **options})
        ],
        {
            "name": other("other"),
            "rank": other(3),
            "alpha": other(8),
            "dropout": other(0.5),
            "targets": [*other(r".*(query|q_proj)"), *refused("missing")],
            "freeze": [Try(lambda captioner: [DECODER.get(captioner, "decoder")]), *refused(["missing"])],
            "modules_to_save": [
                Try(lambda captioner: [HEAD.get(captioner, "decoder")]),
                *refused(["missing"]),
                *refused(["decoder_layers"]),
            ],
        },
    ),
}

"""Every public add-on and adapter of the library, each on the smallest host that meets its requirements."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from helpers.tiny import COLORS, TinyCaptioner, TinyNet, TinyPairs, TinySource
from helpers.training import fit
from lightning_idc import callbacks
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import NoiseMask, PairBatch, PairFeatures, PairSample
from lightning_idc.methods import AdaptersOff, FrozenCopy, MovingAverage, SmallDualEncoder
from lightning_idc.methods.adpo.negatives import FromData
from lightning_idc.methods.namc.dual_encoder import vocabulary_with_mask
from lightning_idc.methods.policy.rewards import LengthReward
from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.addon import Addon
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.nn.image_tokenizer import ImageTokenizer
from lightning_idc.nn.vocabulary import Vocabulary

PLUGIN_CLASSES = (AddonCallback, AdapterCallback, Addon, Adapter)


def public_plugins() -> set[str]:
    """Names of all exported add-ons, adapters and callbacks that attach them."""
    found = set()
    for package in ("lightning_idc.callbacks", "lightning_idc.methods", "lightning_idc.models"):
        module = importlib.import_module(package)
        kinds = {name: getattr(module, name) for name in module.__all__}
        found |= {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, PLUGIN_CLASSES)}
    return found


def library_callbacks() -> set[str]:
    """Names of all library callbacks that attach an add-on or an adapter, exported or not, without base classes."""
    public_plugins()  # for its imports
    known: list[type] = [AddonCallback, AdapterCallback]
    for kind in known:
        known += kind.__subclasses__()
    own = [kind for kind in known[2:] if kind.__module__.startswith("lightning_idc.")]
    return {kind.__name__ for kind in own if not any(kind in other.__mro__[1:] for other in own)}


# ---- the host -------------------------------------------------------------------------------------------


class Patches(nn.Module):
    """A grid backbone: one convolution with a cell for each 8 x 8 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.Conv2d(3, width, 8, 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.cells(images.float() / 64 - 2)


class GridNet(TinyNet):
    """The tiny network with a grid backbone, whose cells are in ``extras`` for add-ons."""

    def __init__(self, words: int, width: int, dropout: float) -> None:
        super().__init__(words, width, dropout)
        self.backbone = Patches(width)

    def encode(self, images: Tensor) -> PairFeatures:
        cells = self.backbone(images.flatten(0, 1)).flatten(2).mT.unflatten(0, (-1, 2))
        before, after = cells.unbind(1)
        return PairFeatures(self.dropout(cells.flatten(1, 2)), extras={"before": before, "after": after})


class GridCaptioner(TinyCaptioner):
    """The tiny captioner on a grid; images of 16 x 16 become 2 x 2 cells."""

    def __init__(self, width: int = 16, dropout: float = 0.0, **options: object) -> None:
        options.setdefault("image_size", (16, 16))
        options.setdefault("optimizer", lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9))
        super().__init__(width, dropout, **options)

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return GridNet(len(vocabulary), self.hparams["width"], self.hparams["dropout"])


class MaskedGridCaptioner(GridCaptioner):
    """Adds its own masks to the batch; they depend on the pair and hide a different number of cells in each image."""

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        batch = super().collate(samples)
        at = torch.tensor([int(sample.id) for sample in samples])[:, None] + torch.arange(8)
        batch.noise = NoiseMask((at % 5 < 2).view(-1, 2, 2, 2))
        return batch


class GridSource(TinySource):
    """Pairs of 16 x 16 images that also have a wrong caption, in ``meta["rejected"]``."""

    def load(self, index: int) -> PairSample:
        generator = torch.Generator().manual_seed(int(self.ids[index]))
        before = torch.randint(90, 160, (3, 16, 16), generator=generator, dtype=torch.uint8)
        after, color = before.clone(), self.color(index)
        after[COLORS[color]] += 80
        other = list(COLORS)[(COLORS[color] + 1) % 3]
        return PairSample(
            self.ids[index], before, after, self.captions(index), color, meta={"rejected": f"it turned {other}"}
        )


class GridPairs(TinyPairs):
    def source(self, split: str) -> PairSource:
        return GridSource(self.pairs if split == "train" else 5, 0 if split == "train" else 500)


# ---- the table ------------------------------------------------------------------------------------------

BATCHES, TWO = "accumulating four batches of one equals one of four", "two processes equal one"
OF_A_STEP = "draws anew for each step of each process and compares the pairs of a batch"


@dataclass(frozen=True)
class Plugin:
    """A way to use one plug-in.

    Args:
        covers: public names that this entry tests.
        own: makes the callbacks under test.
        beside: makes the callbacks that those require and that stay active when those have weight 0.
        host: makes the module.
        names: names of the add-ons in checkpoints; none for adapters.
        exempt: rules that do not hold, each with the reason.
        options: options of the trainer.
    """

    covers: tuple[str, ...]
    own: Callable[[], list[Callback]]
    names: tuple[str, ...] = ()
    beside: Callable[[], list[Callback]] = list
    host: Callable[..., GridCaptioner] = GridCaptioner
    exempt: dict[str, str] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)

    def callbacks(self, weight: float = 1.0) -> list[Callback]:
        """New instances of all callbacks, with this weight for the add-ons under test."""
        own = self.own()
        for callback in own:
            if isinstance(callback, AddonCallback):
                callback.weight = weight
        return [*self.beside(), *own]


def dual_encoder() -> SmallDualEncoder:
    torch.manual_seed(0)
    words = vocabulary_with_mask(Vocabulary.build(GridPairs().train_captions()).words)
    return SmallDualEncoder(words, (2, 2), (16, 16), width=8, heads=2)


def image_tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    return ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=4)


def rebuilding(**target: object) -> list[Callback]:
    return [callbacks.MaskedReconstruction(width=8, layers=1, heads=2, **target)]


def lora() -> AdapterCallback:
    return callbacks.LoRA(rank=2, alpha=4, freeze=["backbone", "look", "embed", "cell", "head"])


PLUGINS = {
    "preference": Plugin(
        ("PreferenceOptimization",),
        lambda: [callbacks.PreferenceOptimization(negatives=FromData(), reference=FrozenCopy())],
        ("preference",),
    ),
    "preference, moving reference": Plugin(
        ("PreferenceOptimization",),
        lambda: [
            callbacks.PreferenceOptimization(
                negatives=FromData(), reference=MovingAverage(0.5), caption_weight=0.5, validation=True
            )
        ],
        ("preference",),
        options={"limit_val_batches": 1},
    ),
    "preference, adapters off": Plugin(
        ("PreferenceOptimization", "LoRA"),
        lambda: [callbacks.PreferenceOptimization(negatives=FromData(), reference=AdaptersOff())],
        ("preference",),
        beside=lambda: [lora()],
    ),
    "retriever": Plugin(
        ("PreferenceOptimization", "AdversarialRetriever"),
        lambda: [callbacks.PreferenceOptimization(), callbacks.AdversarialRetriever(candidates=8)],
        ("preference", "retriever"),
        exempt={BATCHES: OF_A_STEP, TWO: OF_A_STEP},
    ),
    "group relative, moving reference": Plugin(
        ("GroupRelative",),
        lambda: [callbacks.GroupRelative(LengthReward(2, 8), samples=4, beta=0.5, reference=MovingAverage(0.5))],
        ("policy",),
    ),
    "self-critical": Plugin(
        ("SelfCritical",),
        lambda: [callbacks.SelfCritical(LengthReward(2, 8), samples=2, caption_weight=0.5)],
        ("policy",),
    ),
    "noise masking": Plugin(
        ("NoiseMasking",),
        lambda: [callbacks.NoiseMasking(dual_encoder())],
        ("noise_masking",),
        exempt={BATCHES: OF_A_STEP, TWO: OF_A_STEP},
    ),
    "masked reconstruction of tokens": Plugin(
        ("MaskedReconstruction",),
        lambda: rebuilding(tokenizer=image_tokenizer()),
        ("masked_reconstruction",),
        host=MaskedGridCaptioner,
    ),
    "masked reconstruction of features": Plugin(
        ("MaskedReconstruction",),
        lambda: rebuilding(distance=nn.functional.l1_loss),
        ("masked_reconstruction",),
        host=MaskedGridCaptioner,
    ),
    "MDP": Plugin(("MDPAdapter", "MDP"), lambda: [callbacks.MDPAdapter(heads=2, hidden=8, stacked=1)]),
    "MDP, control": Plugin(
        ("MDPAdapter", "MDP"), lambda: [callbacks.MDPAdapter(heads=2, hidden=8, stacked=1, control=True)]
    ),
    "stateful encoder": Plugin(
        ("StatefulEncoderAdapter", "StatefulEncoder"), lambda: [callbacks.StatefulEncoderAdapter(heads=2, hidden=8)]
    ),
    "stateful encoder, control": Plugin(
        ("StatefulEncoderAdapter", "StatefulEncoder"), lambda: [callbacks.StatefulEncoderAdapter(heads=2, control=True)]
    ),
    "LoRA": Plugin(("LoRA", "LoraAdapter"), lambda: [lora()]),
    "LoRA and MDP": Plugin(("LoRA", "MDPAdapter"), lambda: [callbacks.MDPAdapter(heads=2, stacked=1), lora()]),
}
NOT_YET: dict[str, str] = {}
"""Public names that have no entry, each with the reason."""
ADDONS = [name for name, plugin in PLUGINS.items() if plugin.names]
ADAPTERS = [name for name, plugin in PLUGINS.items() if not plugin.names]


def train(name: str, folder: Path, callbacks: list[Callback], model: Any = None, **options: Any) -> Any:
    """Train the host of a plug-in for two epochs of four steps, from the same seed."""
    plugin = PLUGINS[name]
    data = GridPairs(batch_size=options.pop("batch_size", 4), seed=1)
    return fit(callbacks, folder, model or plugin.host(), data=data, **{**plugin.options, **options})

"""The smallest captioner, add-on, adapter and data that a user can write; the contract tests run on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairFeatures, PairSample
from lightning_idc.models.adapter import Adapter
from lightning_idc.models.addon import Addon, TrainingStep
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.vocabulary import Vocabulary

COLORS = {"red": 0, "green": 1, "blue": 2}


# ---- a captioner: one network with four methods ----------------------------------------------------------


@dataclass
class TinyState:
    hidden: Tensor

    def select(self, rows: Tensor) -> TinyState:
        return TinyState(self.hidden[rows])


class TinyNet(nn.Module):
    """Encodes mean colours of a 2 x 2 grid of both images, and decodes with a recurrent cell."""

    def __init__(self, words: int, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.backbone = nn.Linear(3, width)
        self.dropout = nn.Dropout(dropout)
        self.look = nn.Sequential(nn.Linear(8 * width, width), nn.LayerNorm(width))
        self.embed = nn.Embedding(words, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, words)

    def encode(self, images: Tensor) -> PairFeatures:
        pooled = nn.functional.adaptive_avg_pool2d(images.flatten(0, 1).float() / 64 - 2, 2)
        cells = pooled.flatten(2).mT.reshape(len(images), 8, 3)
        return PairFeatures(self.dropout(self.backbone(cells)))

    def start(self, features: PairFeatures) -> TinyState:
        return TinyState(self.look(features.memory.flatten(1)))

    def step(self, state: TinyState, tokens: Tensor) -> Tensor:
        state.hidden = self.cell(self.embed(tokens), state.hidden)
        return self.head(state.hidden)

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        pairs, captions, length = tokens.shape
        state = self.start(features).select(torch.arange(pairs, device=tokens.device).repeat_interleave(captions))
        steps = [self.step(state, tokens.flatten(0, 1)[:, t]) for t in range(length)]
        return torch.stack(steps, 1).view(pairs, captions, length, -1)


class TinyCaptioner(PairCaptioner):
    def __init__(self, width: int = 16, dropout: float = 0.1, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return TinyNet(len(vocabulary), self.hparams["width"], self.hparams["dropout"])


# ---- an add-on: guess the colour of the change -----------------------------------------------------------


class GuessColor(Addon):
    def __init__(self, width: int, weight: float = 1.0, noise: float = 8.0) -> None:
        super().__init__(weight)
        self.noise = noise
        self.shift = nn.Parameter(torch.zeros(width))
        self.head = nn.Linear(width, len(COLORS))

    def batch(self, step: TrainingStep) -> object:
        batch = step.batch
        noisy = batch.images + self.noise * torch.rand_like(batch.images, dtype=torch.float32)
        return type(batch)(noisy.clamp(0, 255).to(torch.uint8), *(getattr(batch, f) for f in batch.__slots__[1:]))

    def features(self, step: TrainingStep) -> object:
        return PairFeatures(step.features.memory + self.shift)

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        target = torch.tensor([COLORS[kind] for kind in step.batch.change_types], device=step.batch.images.device)
        return {"color": nn.functional.cross_entropy(self.head(step.features.memory.mean(1)), target)}


class GuessColorCallback(AddonCallback):
    def build(self, host: LightningModule) -> Addon:
        return GuessColor(width=16)


class NoiselessCallback(AddonCallback):
    """Attaches the add-on without its noise, which is drawn per batch."""

    def build(self, host: LightningModule) -> Addon:
        return GuessColor(width=16, noise=0.0)


class CrudeObjective(Addon):
    def objective(self, step: TrainingStep) -> Tensor:
        return step.features.memory.square().mean()


class CrudeObjectiveCallback(AddonCallback):
    def build(self, host: LightningModule) -> Addon:
        return CrudeObjective()


# ---- an adapter -----------------------------------------------------------------------------------------


class Shift(Adapter):
    """Adds a learned vector to the output of ``backbone``."""

    def __init__(self, width: int = 16, merges: bool = False) -> None:
        super().__init__()
        self.merges, self.on = merges, True
        self.shift = nn.Parameter(torch.zeros(width))
        self.start = nn.Parameter(torch.rand(1))

    def install(self, net: nn.Module) -> None:
        net.get_submodule("backbone").register_forward_hook(self.add)

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.start - self.start.detach()) + self.shift

    def add(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return self(output) if self.on else output

    @contextmanager
    def disabled(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = True

    def merge(self, net: nn.Module) -> bool:
        if self.merges:
            net.get_submodule("backbone").bias.data += self.shift.data
            self.on = False
            return True
        return super().merge(net)


# ---- data ------------------------------------------------------------------------------------------------


class TinySource(PairSource):
    """Pairs of grayish images whose second image has a red, green or blue tint."""

    def __init__(self, size: int, start: int) -> None:
        self.ids = [f"{start + i:03d}" for i in range(size)]

    def __len__(self) -> int:
        return len(self.ids)

    def color(self, index: int) -> str:
        return list(COLORS)[int(self.ids[index]) % 3]

    def captions(self, index: int) -> list[str]:
        word = self.color(index)
        return [f"it turned {word}", f"now everything is {word}", f"{word} paint was used here"]

    def change_type(self, index: int) -> str:
        return self.color(index)

    def load(self, index: int) -> PairSample:
        generator = torch.Generator().manual_seed(int(self.ids[index]))
        before = torch.randint(90, 160, (3, 8, 8), generator=generator, dtype=torch.uint8)
        after = before.clone()
        after[COLORS[self.color(index)]] += 80
        return PairSample(self.ids[index], before, after, self.captions(index), self.color(index))


class TinyPairs(PairDataModule):
    def __init__(self, pairs: int = 16, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.pairs = pairs

    def source(self, split: str) -> PairSource:
        return TinySource(self.pairs if split == "train" else 7, 0 if split == "train" else 500)

"""A model and data that train in milliseconds, used by the configurations of these tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_idc.utils.errors import ConfigError, DataError

RECIPE = """
recipe: {title: Toy, smoke: {data.items: 4}}
base:
  trainer: {max_epochs: 2, accelerator: cpu, logger: false, enable_model_summary: false, num_sanity_val_steps: 0}
  model: {class: toy_idc.Toy, width: 3}
  data: {class: toy_idc.Numbers, items: 8}
stages:
  first: {run: fit, model: {class: toy_idc.Other, width: 2}}
  second: {run: fit}
  test: {of: second}
"""


class Base(LightningModule):
    def __init__(self, width: int = 2, optimizer: OptimizerCallable = torch.optim.SGD) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["optimizer"])
        self.optimizer = optimizer
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.net(batch[0]).square().mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test/loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


class Toy(Base):
    """Passes unknown arguments on to its parent.

    Args:
        fail_at: step that fails because of bad input.
        pause: seconds of sleep in each step.
        kwargs: arguments of Base.
    """

    def __init__(self, fail_at: int = -1, pause: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail_at, self.pause = fail_at, pause

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.fail_at:
            raise ConfigError(f"the training loss became nan at step {self.fail_at}")
        time.sleep(self.pause)
        return super().training_step(batch, batch_idx)


class Measured(Base):
    """Has a validation step."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.net(batch[0]).square().mean())


class OneRankFails(Base):
    """Fails because of bad input in the second of two processes."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.global_rank == 1 and batch_idx == 1:
            raise DataError("this process fails")
        return super().training_step(batch, batch_idx)


class OneRankWaits(Base):
    """Blocks forever in the second of two processes, before the two connect."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        rank = os.environ["SLURM_PROCID"]
        Path(f"begun-{rank}").touch()
        while rank == "1":
            time.sleep(1)


class Other(Base):
    """Another class, which no other stage trains."""


class InterruptAt(Callback):
    """Presses Ctrl-C at the start of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *unused: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


class Continuing(DataLoader[Any]):
    """Resumes in the middle of an epoch, as PairLoader does; a repeated or skipped batch would change the weights."""

    start = served = 0

    def __iter__(self) -> Iterator[Any]:
        self.served, self.start = self.start, 0
        for batch in list(super().__iter__())[self.served :]:
            self.served += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"served": self.served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["served"] % len(self)


class Numbers(LightningDataModule):
    def __init__(self, items: int = 8, batch_size: int = 2, hook: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.items, self.batch_size = items, batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        values = torch.linspace(-1, 1, self.items * 3).view(-1, 3)
        return Continuing(TensorDataset(values), self.batch_size)

    test_dataloader = val_dataloader = train_dataloader

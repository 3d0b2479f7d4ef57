"""Shared code of training benchmarks: random pairs, a stopwatch, and time and memory of steps on a device."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import quiet_trainer
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner

COUNTS_GROUPED_ATTENTION = torch.__version__ >= "2.12"
"""Whether torch's counter knows attention in which several queries share a key; that of 2.11 raises there."""


def now(device: str) -> float:
    """Current time in seconds: CPU time on a CPU; otherwise wall time after synchronising the device."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> int:
    """Peak memory in bytes: of the process, or of the device."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.cuda.max_memory_allocated()


def forget_peak(device: str) -> int:
    """Current memory in bytes; resets the peak of a device (that of a process cannot be reset)."""
    if device == "cpu":
        return peak(device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


class MadeUp(PairSource):
    """Pairs of random pixels with captions."""

    def __init__(self, side: int, texts: Sequence[Sequence[str]]) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 256, (len(texts), 2, 3, side, side), dtype=torch.uint8, generator=generator)
        self.texts = texts
        self.ids = [str(i) for i in range(len(texts))]

    def captions(self, index: int) -> list[str]:
        return list(self.texts[index])

    def change_type(self, index: int) -> None:
        return None

    def load(self, index: int) -> PairSample:
        return PairSample(self.ids[index], *self.images[index], captions=self.captions(index))


class MadeUpPairs(PairDataModule):
    """The same made-up pairs in every split."""

    def __init__(self, side: int, texts: Sequence[Sequence[str]], **options: Any) -> None:
        super().__init__(**options)
        self.made_up = MadeUp(side, texts)

    def source(self, split: str) -> PairSource:
        return self.made_up


class Stopwatch:
    """Seconds of every training step, and the floating-point operations of one step, which counting slows down.

    Operations are those of matrix products, convolutions and attention, as torch's FlopCounterMode counts them. They
    are counted in the second step, as the first also makes the optimizer's state and checks how a model is scored, and
    again after `recount`.

    Args:
        clock: gives seconds.
        counts: whether operations are counted, which compiled code does not allow.
    """

    def __init__(self, clock: Callable[[], float], counts: bool = True) -> None:
        self.clock, self.counts = clock, counts and COUNTS_GROUPED_ATTENTION
        self.seconds: list[float] = []
        self._count(1)

    def recount(self) -> None:
        """Count the operations of the next step instead, and judge seconds by those after it."""
        self._count(len(self.seconds))

    def _count(self, step: int) -> None:
        self.counted, self.counter = step, FlopCounterMode(display=False)

    def begin(self) -> None:
        if self.counts and len(self.seconds) == self.counted:
            self.counter.__enter__()
        self.began = self.clock()

    def end(self) -> None:
        self.seconds.append(self.clock() - self.began)
        if self.counts and len(self.seconds) == self.counted + 1:
            self.counter.__exit__(None, None, None)

    def measurements(self) -> dict[str, Any]:
        """Seconds of all steps, the median of those after the counted one (or of it), and the operations of a step."""
        typical = sorted(self.seconds[self.counted + 1 :] or self.seconds[self.counted :])
        tenth = len(typical) // 10
        return {
            "seconds": self.seconds,
            "seconds_per_step": statistics.median(typical),
            "spread": [typical[tenth], typical[-1 - tenth]],
            "flops": self.counter.get_total_flops() if self.counts else None,
        }


class Clock(Callback):
    """Stopwatch of everything between the hooks of a batch.

    Operations are counted again in the second epoch, if there is one, since its steps may use cached features.
    """

    def __init__(self, watch: Stopwatch, recounts: bool = True) -> None:
        self.watch, self.recounts = watch, recounts
        self.losses: list[torch.Tensor] = []

    def on_train_epoch_start(self, trainer: Trainer, *unused: Any) -> None:
        if self.recounts and trainer.current_epoch == 1:
            self.watch.recount()

    def on_train_batch_start(self, *unused: Any) -> None:
        self.watch.begin()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *unused: Any) -> None:
        self.watch.end()
        if not self.losses and isinstance(outputs, Mapping):
            self.losses.append(outputs["loss"].detach())


def matrix_rate(clock: Callable[[], float] = time.process_time) -> float:
    """Floating-point operations a second of a large float32 product on the CPU; `process_time` is for one thread."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / _fastest(lambda: torch.mm(a, b), clock)


def convolution_rate(clock: Callable[[], float] = time.process_time) -> float:
    """As :func:`matrix_rate`, of 3x3 convolutions of 96 channels, which another library of torch's computes."""
    images, weights = torch.randn(32, 96, 48, 48), torch.randn(96, 96, 3, 3)
    fastest = _fastest(lambda: torch.nn.functional.conv2d(images, weights, padding=1), clock)
    return 2 * images.numel() * 96 * 9 / fastest


def _fastest(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Minimum seconds of six runs."""
    seconds = []
    for _ in range(6):
        start = clock()
        run()
        seconds.append(clock() - start)
    return min(seconds)


def time_steps(
    captioner: PairCaptioner,
    data: PairDataModule,
    steps: int,
    device: str,
    precision: str,
    callbacks: Sequence[Callback],
    folder: Path,
    counts: bool = True,
    recounts: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Seconds and memory of training steps in a Trainer.

    Args:
        captioner: captioner to train.
        data: at least as many pairs as a batch has.
        steps: to train; the first one, which makes the state of the optimizer, does not count in the median.
        device: ``cpu`` or ``cuda``.
        precision: of the Trainer.
        callbacks: that train, too.
        folder: for what the Trainer writes.
        counts: whether operations are counted.
        recounts: whether they are counted again in the second epoch.
        options: of the Trainer.
    """
    clock = Clock(Stopwatch(partial(now, device), counts), recounts)
    trainer = quiet_trainer(
        accelerator=device,
        devices=1,
        precision=precision,
        max_steps=steps,
        max_epochs=-1,
        limit_val_batches=0,
        callbacks=[*callbacks, clock],
        default_root_dir=folder,
        **options,
    )
    before = forget_peak(device)
    trainer.fit(captioner, data)
    losses = {"first_loss": float(clock.losses[0])} if clock.losses else {}
    return {"bytes": peak(device), "growth": peak(device) - before, **losses, **clock.watch.measurements()}


def steps_of(seconds: Sequence[float]) -> dict[str, Any]:
    """Seconds of all steps, and the median of those after the first."""
    return {"seconds": list(seconds), "seconds_per_step": statistics.median(seconds[1:])}


def line(name: str, row: Mapping[str, Any], pairs: int) -> str:
    """One row of printed output."""
    seconds = row["seconds_per_step"]
    return (
        f"{name:<24} {seconds:8.3f} s a step  {pairs / seconds:8.2f} pairs/s  peak {row['bytes'] / 2**30:6.2f} GiB"
        f"  ({row['growth'] / 2**30:.2f} of it for training)"
    )

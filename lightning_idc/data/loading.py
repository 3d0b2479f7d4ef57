"""The data loader of pairs: seeded samples, and a position that a checkpoint can keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from lightning_idc.data.sampling import Draw, PairSampler, sample_seed
from lightning_idc.data.source import PairSource, position
from lightning_idc.images.types import PairSample

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[[PairSample, torch.Generator], PairSample]


class PairDataset(Dataset[PairSample]):
    """Pairs of a split as they are trained and tested on: a torch dataset whose items are :class:`PairSample`.

    Its indices are places, or draws, which say the epoch as well; a place is a draw of epoch 0.

    Args:
        source: where pairs come from.
        transforms: applied in order, each with the sample's own generator.
        seed: of the samples.
        drawn: let captions be drawn by the sample's seed, as in training; otherwise the first ones are taken.
    """

    def __init__(self, source: PairSource, transforms: Sequence[Transform], seed: int, drawn: bool) -> None:
        self.source, self.transforms, self.seed, self.drawn = source, list(transforms), seed, drawn

    def __len__(self) -> int:
        return len(self.source)

    @property
    def ids(self) -> Sequence[str]:
        """Names of the pairs."""
        return self.source.ids

    def __getitem__(self, index: int | Draw) -> PairSample:
        draw = index if isinstance(index, Draw) else Draw(0, position(index, len(self)))
        sample = self.source.load(draw.index)
        seed = sample_seed(self.seed, draw.epoch, draw.index)
        generator = torch.Generator().manual_seed(seed)
        for transform in self.transforms:
            sample = transform(sample, generator)
        if self.drawn:
            # a copy: what a source keeps must not be drawn in evaluation
            sample = replace(sample, meta={**sample.meta, "seed": seed})
        return sample

    def plot(self, index: int) -> Image:
        """Before, after, boxes and captions of a pair as one picture."""
        from lightning_idc.data.plotting import plot_pair

        return plot_pair(self[index])


class PairLoader(DataLoader[Any]):
    """Loads batches of pairs; draws nothing from torch's global random numbers.

    Args:
        dataset: gives samples.
        sampler: gives their order.
        batch_size: pairs per batch.
        drop_last: leave out a last, smaller batch.
        options: of torch's DataLoader.
    """

    def __init__(
        self, dataset: PairDataset, sampler: PairSampler, batch_size: int, drop_last: bool = False, **options: Any
    ) -> None:
        generator = torch.Generator().manual_seed(dataset.seed)
        super().__init__(
            dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last, generator=generator, **options
        )
        self.pair_sampler = sampler
        self._start = 0
        self._start_epoch = 0
        self._served = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # a generator: nothing below runs before the first batch is asked for, when the epoch has been set
        # a run that takes a part of each epoch has ended one whose batches are not all served: the next starts whole
        self._served = self._start if self._start_epoch == self.pair_sampler.epoch else 0
        self._start = 0
        self.pair_sampler.skip = self._served * (self.batch_size or 1)
        for batch in super().__iter__():
            self._served += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Where the epoch stands, for Lightning's checkpoints."""
        return {"epoch": self.pair_sampler.epoch, "served": self._served, "pairs_per_step": self._pairs_per_step}

    @property
    def _pairs_per_step(self) -> int:
        return (self.batch_size or 1) * self.pair_sampler.world

    def give_back(self) -> None:
        """Count the last batch as not served, since nothing came of it."""
        self._served -= 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches that were served already; at a finished epoch the next one starts whole."""
        self.pair_sampler.set_epoch(state["epoch"])
        self._start_epoch = state["epoch"]
        self._start = state["served"] if state["served"] < len(self) else 0
        self._tell_other_steps(state["epoch"], state["served"], state.get("pairs_per_step", self._pairs_per_step))

    def _tell_other_steps(self, epoch: int, served: int, before: int) -> None:
        """Say what a step of another size costs within an epoch: Lightning counts steps, not pairs."""
        now, size = self._pairs_per_step, self.pair_sampler.size
        if before == now or not 0 < served * before < size:
            return
        missed = min(self._start * now, size) - served * before
        warnings.warn(
            f"the checkpoint stands in epoch {epoch} after {served} steps of {before} pairs (batch_size times "
            f"processes), but a step has {now} now: {abs(missed)} pairs of that epoch are "
            f"{'left out' if missed > 0 else 'seen twice'}; go on with steps of {before}, or from a checkpoint between "
            "two epochs, where every pair shall be seen once",
            stacklevel=2,
        )


class Batches:
    """The batches of a loader, which Lightning takes as they come.

    To predict or to overfit it would make a DataLoader anew around a sampler of its own, and so lose the order and the
    epoch.

    Args:
        loader: gives the batches.
    """

    def __init__(self, loader: PairLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

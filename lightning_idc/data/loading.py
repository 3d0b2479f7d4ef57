"""Data loader of pairs: seeds each sample by epoch and index, and saves its position in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from lightning_idc.data.sampling import PairSampler, SampleIndex, sample_seed
from lightning_idc.data.source import PairSource, normalise_index
from lightning_idc.images.types import PairSample
from lightning_idc.utils.reprs import arguments_repr

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[[PairSample, torch.Generator], PairSample]


class PairDataset(Dataset[PairSample]):
    """Torch dataset of the transformed pairs of a split; its items are :class:`PairSample`.

    An index is an integer, or a :class:`SampleIndex` that also holds the epoch; an integer means epoch 0.

    Args:
        source: source of the pairs.
        transforms: transforms in order; each is called with the sample's generator.
        seed: seed from which the seeds of all samples are derived.
        sample_captions: whether captions are sampled by the seed of each sample, as in training; otherwise the first
            captions are used.
    """

    def __init__(self, source: PairSource, transforms: Sequence[Transform], seed: int, sample_captions: bool) -> None:
        self.source, self.transforms, self.seed, self.sample_captions = source, list(transforms), seed, sample_captions

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return arguments_repr(self)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the pairs."""
        return self.source.ids

    def __getitem__(self, index: int | SampleIndex) -> PairSample:
        draw = index if isinstance(index, SampleIndex) else SampleIndex(0, normalise_index(index, len(self)))
        sample = self.source.load(draw.index)
        seed = sample_seed(self.seed, draw.epoch, draw.index)
        generator = torch.Generator().manual_seed(seed)
        for transform in self.transforms:
            sample = transform(sample, generator)
        if self.sample_captions:
            # a copy, as the source may cache this sample and evaluation must not see the seed
            sample = replace(sample, meta={**sample.meta, "seed": seed})
        return sample

    def plot(self, index: int) -> Image:
        """Plot a pair with its boxes and captions as one image."""
        from lightning_idc.data.plotting import plot_pair

        return plot_pair(self[index])


class PairLoader(DataLoader[Any]):
    """Loader of batches of pairs; it leaves torch's global random state alone.

    Args:
        dataset: dataset of the samples.
        sampler: sampler that determines their order.
        batch_size: pairs per batch.
        drop_last: whether an incomplete last batch is left out.
        options: other arguments of torch's DataLoader.
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
        # this method is a generator, so the code below runs at the first batch, after set_epoch
        # with limit_train_batches an epoch ends before all batches are served; the next epoch starts at its first one
        self._served = self._start if self._start_epoch == self.pair_sampler.epoch else 0
        self._start = 0
        self.pair_sampler.skip = self._served * (self.batch_size or 1)
        for batch in super().__iter__():
            self._served += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Position within the epoch, for Lightning's checkpoints."""
        return {"epoch": self.pair_sampler.epoch, "served": self._served, "pairs_per_step": self._pairs_per_step}

    @property
    def _pairs_per_step(self) -> int:
        return (self.batch_size or 1) * self.pair_sampler.world_size

    def undo_last_batch(self) -> None:
        """Do not count the last batch as served, because its training step was not taken."""
        self._served -= 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the served batches; if the epoch was finished, start the next one at its first batch."""
        self.pair_sampler.set_epoch(state["epoch"])
        self._start_epoch = state["epoch"]
        self._start = state["served"] if state["served"] < len(self) else 0
        self._warn_of_changed_step_size(
            state["epoch"], state["served"], state.get("pairs_per_step", self._pairs_per_step)
        )

    def _warn_of_changed_step_size(self, epoch: int, served: int, saved: int) -> None:
        """Warn if the number of pairs per step changed within an epoch: Lightning restores steps, not pairs."""
        current, size = self._pairs_per_step, self.pair_sampler.size
        if saved == current or not 0 < served * saved < size:
            return
        missed = min(self._start * current, size) - served * saved
        warnings.warn(
            f"the checkpoint is in epoch {epoch} after {served} steps of {saved} pairs (batch_size times "
            f"processes), but a step now has {current}: {abs(missed)} pairs of that epoch are "
            f"{'skipped' if missed > 0 else 'repeated'}; to use each pair once, continue with {saved} pairs per step "
            "or from a checkpoint at the end of an epoch",
            stacklevel=2,
        )


class Batches:
    """Iterable over the batches of a loader, which Lightning uses unchanged.

    For prediction and overfitting, Lightning would replace a DataLoader by one with its own sampler and lose the order
    and the epoch.

    Args:
        loader: loader of the batches.
    """

    def __init__(self, loader: PairLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

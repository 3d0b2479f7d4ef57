"""Sampler of pairs: the order depends on seed and epoch only, not on the number of workers or processes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch.utils.data import DistributedSampler

from lightning_idc.models.distributed import get_rank_world_size
from lightning_idc.utils.errors import ConfigError

WINDOW = 50
"""Number of steps whose pairs are sorted by size or length together."""


class SampleIndex(NamedTuple):
    """Index of a pair and the epoch, from which the sample's seed is computed.

    Args:
        epoch: current epoch; persistent workers have no other way to know it.
        index: index of the pair in its source.
    """

    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used


class PairSampler(DistributedSampler[SampleIndex]):
    """Distributed sampler that splits one permutation per epoch over the processes in round-robin order.

    Lightning does not replace a DistributedSampler and calls its ``set_epoch``. The last round is padded with pairs
    from the start, since all processes must take the same number of steps; evaluation drops the duplicates by id.

    Args:
        size: number of pairs.
        shuffle: whether each epoch has a new order.
        seed: seed of the order.
        rank: rank of this process; taken from torch.distributed when None.
        world_size: number of processes; taken from torch.distributed when None.
    """

    def __init__(
        self, size: int, shuffle: bool, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        process_rank, self.world_size = get_rank_world_size()
        self.world_size = self.world_size if world_size is None else world_size
        process_rank = process_rank if rank is None else rank
        super().__init__(range(size), num_replicas=self.world_size, rank=process_rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]
        self.size = size
        self.skip = 0
        """Number of samples before the checkpoint, which the next pass skips; reset to 0 when it starts."""
        self._sort_keys: Sequence[tuple[int, ...]] | None = None
        self._batch_size = 1
        self._groups: list[list[int]] | None = None

    def group_by_size(self, sizes: Sequence[tuple[int, int]], batch_size: int) -> None:
        """Group pairs of similar size in each global step (over all processes).

        A shuffled order is sorted within windows of :data:`WINDOW` steps, which keeps most of the randomness;
        otherwise all pairs are sorted by size.

        Args:
            sizes: height and width of each pair.
            batch_size: pairs per process and step.

        Raises:
            ConfigError: :meth:`keep_together` was called before.
        """
        self._group([(height * width, height) for height, width in sizes], batch_size)

    def group_by_length(self, lengths: Sequence[int], batch_size: int) -> None:
        """Group pairs with captions of similar length, as :meth:`group_by_size`, to reduce padding.

        Args:
            lengths: caption length of each pair, in words.
            batch_size: pairs per process and step.

        Raises:
            ConfigError: :meth:`keep_together` was called before.
        """
        self._group([(length,) for length in lengths], batch_size)

    def _group(self, sort_keys: Sequence[tuple[int, ...]], batch_size: int) -> None:
        if self._groups is not None:
            raise ConfigError("group_by_size, group_by_length and keep_together exclude each other; use only one")
        self._sort_keys, self._batch_size = sort_keys, batch_size

    def keep_together(self, names: Sequence[Hashable]) -> None:
        """Keep pairs of one group, such as one scene, consecutive in a shuffled order.

        If all groups have the same number of pairs and the batch size is a multiple of it, each group falls into one
        step of one process.

        Args:
            names: group name of each pair.
        """
        groups: dict[Hashable, list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
        self._groups = list(groups.values())

    def _grouped(self, order: list[int]) -> list[int]:
        if self._sort_keys is None:
            return order
        sort_keys, step = self._sort_keys, self._batch_size * self.world_size

        def sort_key(index: int) -> tuple[tuple[int, ...], int]:
            return sort_keys[index], index

        window = step * WINDOW if self.shuffle else max(len(order), 1)
        windows = [sorted(order[start : start + window], key=sort_key) for start in range(0, len(order), window)]
        steps = [piece[start : start + step] for piece in windows for start in range(0, len(piece), step)]
        if self.shuffle:
            # an incomplete last step stays the last
            full = [indices for indices in steps if len(indices) == step]
            generator = torch.Generator().manual_seed(sample_seed(self.seed, self.epoch, 1))
            permutation = torch.randperm(len(full), generator=generator).tolist()
            steps = [full[position] for position in permutation] + [indices for indices in steps if len(indices) < step]
        return [index for indices in steps for index in indices]

    def __len__(self) -> int:
        return math.ceil(self.size / self.world_size)

    def __iter__(self) -> Iterator[SampleIndex]:
        order = self._grouped(self.order())
        total = len(self) * self.world_size
        order = (order * math.ceil(total / max(len(order), 1)))[:total]
        skip, self.skip = self.skip, 0
        # created lazily: a million SampleIndex objects at once would keep the garbage collector busy for seconds
        return map(
            partial(SampleIndex, self.epoch), order[self.rank + skip * self.world_size : total : self.world_size]
        )

    def order(self) -> list[int]:
        """Return the ``size`` indices of this epoch, in order, over all processes."""
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(sample_seed(self.seed, self.epoch, 0))
        if self._groups is None:
            return torch.randperm(self.size, generator=generator).tolist()
        drawn = [self._groups[group] for group in torch.randperm(len(self._groups), generator=generator).tolist()]
        # round-robin: the first pairs of ``world_size`` groups, then their second pairs, and so on
        rounds = (drawn[start : start + self.world_size] for start in range(0, len(drawn), self.world_size))
        return [index for groups in rounds for row in zip_longest(*groups) for index in row if index is not None]


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Compute the seed of all random choices for one sample: a 63-bit hash of the three numbers."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB + 1) & (2**64 - 1)
    mixed ^= mixed >> 31
    mixed = (mixed * 0xD6E8FEB86659FD93) & (2**64 - 1)
    return (mixed ^ (mixed >> 32)) & (2**63 - 1)

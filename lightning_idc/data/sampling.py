"""Which pairs come when: an order that depends on seed and epoch alone, not on workers or processes."""

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
"""Steps whose pairs are sorted by size, or by length, together."""


class Draw(NamedTuple):
    """One visit to a pair.

    Args:
        epoch: epoch of the visit, so that workers which outlive an epoch know it.
        index: position of the pair in its source.
    """

    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing here needs


class PairSampler(DistributedSampler[Draw]):
    """Deals one permutation per epoch to the processes, card by card, so that together they see what one would see.

    Being a DistributedSampler it is left alone by Lightning, which also tells it the epoch. The last round is
    filled up with pairs from the start, since all processes must take equally many steps; evaluation drops the
    duplicates by id.

    Args:
        size: number of pairs.
        shuffle: draw a new order each epoch.
        seed: of the order.
        rank: of this process; taken from torch.distributed when None.
        world_size: number of processes; taken from torch.distributed when None.
    """

    def __init__(
        self, size: int, shuffle: bool, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        own_rank, self.world = get_rank_world_size()
        self.world = self.world if world_size is None else world_size
        own_rank = own_rank if rank is None else rank
        super().__init__(range(size), num_replicas=self.world, rank=own_rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]
        self.size = size
        self.skip = 0
        """Draws of the next pass that were served before a checkpoint; back to 0 once it starts."""
        self._ranks: Sequence[tuple[int, ...]] | None = None
        self._batch = 1
        self._groups: list[list[int]] | None = None

    def group_by_size(self, sizes: Sequence[tuple[int, int]], batch_size: int) -> None:
        """Let the pairs of a step, on all processes together, be of nearly one size.

        In a shuffled order it is :data:`WINDOW` steps whose pairs change places, so that an epoch stays as random as
        that; otherwise all pairs come by size.

        Args:
            sizes: height and width of every pair.
            batch_size: pairs per process and step.

        Raises:
            ConfigError: pairs are kept together by name as well.
        """
        self._group([(height * width, height) for height, width in sizes], batch_size)

    def group_by_length(self, lengths: Sequence[int], batch_size: int) -> None:
        """As :meth:`group_by_size`, by the lengths of captions, so that a step is padded little.

        Args:
            lengths: of the captions of every pair, in words.
            batch_size: pairs per process and step.

        Raises:
            ConfigError: pairs are kept together by name as well.
        """
        self._group([(length,) for length in lengths], batch_size)

    def _group(self, ranks: Sequence[tuple[int, ...]], batch_size: int) -> None:
        if self._groups is not None:
            raise ConfigError(
                "pairs are grouped by size or length, or kept together by name, not both; leave out either"
            )
        self._ranks, self._batch = ranks, batch_size

    def keep_together(self, names: Sequence[Hashable]) -> None:
        """Let pairs of one name, such as those of one scene, follow each other in a shuffled order.

        Where all names have equally many pairs and a step of one process holds a multiple of that, they come in the
        same step of the same process.

        Args:
            names: one for every pair.
        """
        groups: dict[Hashable, list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
        self._groups = list(groups.values())

    def _grouped(self, order: list[int]) -> list[int]:
        if self._ranks is None:
            return order
        ranks, step = self._ranks, self._batch * self.world

        def place(index: int) -> tuple[tuple[int, ...], int]:
            return ranks[index], index

        window = step * WINDOW if self.shuffle else max(len(order), 1)
        windows = [sorted(order[start : start + window], key=place) for start in range(0, len(order), window)]
        steps = [piece[start : start + step] for piece in windows for start in range(0, len(piece), step)]
        if self.shuffle:
            # a last step that is not full stays the last
            full = [indices for indices in steps if len(indices) == step]
            generator = torch.Generator().manual_seed(sample_seed(self.seed, self.epoch, 1))
            mixed = torch.randperm(len(full), generator=generator).tolist()
            steps = [full[one] for one in mixed] + [indices for indices in steps if len(indices) < step]
        return [index for indices in steps for index in indices]

    def __len__(self) -> int:
        return math.ceil(self.size / self.world)

    def __iter__(self) -> Iterator[Draw]:
        order = self._grouped(self.order())
        total = len(self) * self.world
        order = (order * math.ceil(total / max(len(order), 1)))[:total]
        skip, self.skip = self.skip, 0
        # made one by one: a million of them at once would keep the garbage collector busy for seconds
        return map(partial(Draw, self.epoch), order[self.rank + skip * self.world : total : self.world])

    def order(self) -> list[int]:
        """Pairs of this epoch over all processes, ``size`` of them."""
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(sample_seed(self.seed, self.epoch, 0))
        if self._groups is None:
            return torch.randperm(self.size, generator=generator).tolist()
        drawn = [self._groups[group] for group in torch.randperm(len(self._groups), generator=generator).tolist()]
        # card by card: the first pairs of as many groups as there are processes, then their second ones
        hands = (drawn[start : start + self.world] for start in range(0, len(drawn), self.world))
        return [index for hand in hands for dealt in zip_longest(*hand) for index in dealt if index is not None]


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Seed of all random choices about one visit to a pair; a 63-bit mix of the three numbers."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB + 1) & (2**64 - 1)
    mixed ^= mixed >> 31
    mixed = (mixed * 0xD6E8FEB86659FD93) & (2**64 - 1)
    return (mixed ^ (mixed >> 32)) & (2**63 - 1)

"""Mixture: combines data modules, each with a fraction of every training epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.sampling import PairSampler, sample_seed
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.splits import Split
from lightning_idc.images.options import PLAIN
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class Mixture(PairDataModule):
    """Combine several data modules, for example for instruction tuning.

    The ids of pairs are ``PART/ID``. Evaluation uses every pair of every part. A training epoch has ``epoch_pairs``
    draws, divided among the parts in proportion to ``weights``: a small part is repeated within an epoch, a large one
    continues in the next epoch. ``image_size``, ``limit`` and the decoding options of the mixture apply to each part.

    M3Diff is tuned on 896k samples with one caption each of CLEVR-Change and CLEVR-DC: ``per_caption`` turns every
    caption of a part's training pairs into a separate pair with an id such as ``PART/ID/2``.

    Args:
        parts: data modules by name; their ``transform`` is replaced by that of the mixture.
        weights: sampling weight of each part in training; None for the number of its pairs.
        epoch_pairs: number of draws per epoch; None for the number of training pairs.
        per_caption: parts whose training pairs are split into one pair per caption.
        train_splits: splits of the parts that are used for training. With more than one, ids are ``PART/SPLIT/ID``;
            these splits are then no longer held out.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: there are no parts, a name is unknown, or a part has no positive weight.

    Example:
        >>> from lightning_idc.data import CLEVRDC, SpotTheDiff
        >>> data = Mixture({"rendered": CLEVRDC("data/clevr_dc"), "photos": SpotTheDiff("data/spot_the_diff")})
        >>> sorted({name.split("/")[0] for name in data.pairs_of("test").ids})
        ['photos', 'rendered']
    """

    def __init__(
        self,
        parts: Mapping[str, PairDataModule],
        weights: Mapping[str, PositiveFloat] | None = None,
        epoch_pairs: PositiveInt | None = None,
        per_caption: Sequence[str] = (),
        train_splits: Sequence[Split] = ("train",),
        **options: Any,
    ) -> None:
        check_arguments(Mixture.__init__, locals())
        super().__init__(**options)
        if not parts:
            raise ConfigError("a mixture needs at least one part")
        for argument, names in (("weights", weights or {}), ("per_caption", per_caption)):
            unknown = [name for name in names if name not in parts]
            if unknown:
                raise ConfigError(f"{argument} has the unknown part {unknown[0]!r}; the parts are {', '.join(parts)}")
        unweighted = [name for name in parts if weights and name not in weights]
        if unweighted:
            raise ConfigError(f"{unweighted[0]!r} has no weight; set a weight for every part or for none")
        invalid = [name for name in parts if "/" in name or not name]
        if invalid:
            raise ConfigError(f"the part name {invalid[0]!r} is invalid; expected a non-empty name without a slash")
        self.parts, self.weights = dict(parts), dict(weights or {})
        if not train_splits or len(set(train_splits)) < len(train_splits):
            raise ConfigError(f"train_splits is {list(train_splits)}; expected at least one split, each once")
        self.epoch_pairs, self.per_caption = epoch_pairs, list(per_caption)
        self.train_splits = tuple(train_splits)
        for part in self.parts.values():
            if self.image_size is not None:
                part.image_size, part.interpolation = self.image_size, self.interpolation
            if self.image_options != PLAIN:
                part.image_options = self.image_options
            part.limit = self.limit if self.limit is not None else part.limit
        self.domain = "; ".join(dict.fromkeys(part.domain for part in self.parts.values()))
        self.limit = None  # the first pairs of the concatenation would all come from the first part

    def prepare_data(self) -> None:
        for part in self.parts.values():
            part.prepare_data()

    def has_unique_ids(self) -> bool:
        return all(part.has_unique_ids() for part in self.parts.values())

    def source(self, split: Split) -> Concatenation:
        return Concatenation({name: self._part_source(name, split) for name in self.parts})

    def _part_source(self, name: str, split: Split) -> PairSource:
        """Pairs of a part; one pair per caption if the part is in ``per_caption``."""
        part = self.parts[name]
        if split == "train" and len(self.train_splits) > 1:
            source: PairSource = Concatenation(
                {train_split: part.pairs_of(train_split) for train_split in self.train_splits}
            )
        else:
            source = part.pairs_of(self.train_splits[0] if split == "train" else split)
        return OneCaption(source) if split == "train" and name in self.per_caption else source

    def sampler(self, split: Split, source: PairSource) -> PairSampler:
        if split != "train":
            return super().sampler(split, source)
        sizes = [len(self._part_source(name, "train")) for name in self.parts]
        weights = [self.weights[name] for name in self.parts] if self.weights else sizes
        return MixtureSampler(sizes, weights, self.epoch_pairs or sum(sizes), self.seed)

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        part, _, pair = id.partition("/")
        if split == "train" and len(self.train_splits) > 1:
            split_name, _, pair = pair.partition("/")
            split = next(name for name in self.train_splits if name == split_name)
        return self.parts[part].facts(split, pair, caption)


class Concatenation(PairSource):
    """Concatenation of several sources.

    Args:
        sources: sources by the prefix of their ids.
    """

    def __init__(self, sources: Mapping[str, PairSource]) -> None:
        self.sources = dict(sources)
        self.ids = [f"{name}/{pair}" for name, source in self.sources.items() for pair in source.ids]
        self._positions = [(name, index) for name, source in self.sources.items() for index in range(len(source))]

    def load(self, index: int) -> PairSample:
        name, pair = self._positions[index]
        sample = self.sources[name].load(pair)
        sample.id = self.ids[index]
        sample.meta = {**sample.meta, "part": name}
        return sample

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        name, pair = self._positions[index]
        return self.sources[name].original(pair)

    def captions(self, index: int) -> list[str]:
        name, pair = self._positions[index]
        return self.sources[name].captions(pair)

    def change_type(self, index: int) -> str | None:
        name, pair = self._positions[index]
        return self.sources[name].change_type(pair)

    def meta(self, index: int) -> dict[str, Any]:
        name, pair = self._positions[index]
        return {**self.sources[name].meta(pair), "part": name}

    def image_size(self, index: int) -> tuple[int, int]:
        name, pair = self._positions[index]
        return self.sources[name].image_size(pair)


class OneCaption(View):
    """View of a source in which every caption is a pair; the ids are ``ID``, ``ID/2``, ``ID/3``, ..."""

    def __init__(self, source: PairSource) -> None:
        positions = [(pair, number) for pair in range(len(source)) for number in range(len(source.captions(pair)))]
        super().__init__(source, [pair for pair, _ in positions])
        self._captions = [number for _, number in positions]
        self.ids = [f"{source.ids[pair]}/{number + 1}" if number else source.ids[pair] for pair, number in positions]

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.id, sample.captions = self.ids[index], self.captions(index)
        return sample

    def captions(self, index: int) -> list[str]:
        return [super().captions(index)[self._captions[index]]]


class MixtureSampler(PairSampler):
    """Sampler that draws a fixed number of pairs from each part per epoch; no pair repeats before all were drawn.

    Args:
        sizes: number of pairs of each part, in the order of the concatenation.
        weights: sampling weights of the parts.
        draws: number of draws per epoch.
        seed: seed of the order.
        rank: rank of this process; taken from torch.distributed when None.
        world_size: number of processes; taken from torch.distributed when None.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        draws: int,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(draws, shuffle=True, seed=seed, rank=rank, world_size=world_size)
        self.sizes = list(sizes)
        self.draws_per_part = largest_remainder(weights, draws)

    def order(self) -> list[int]:
        indices: list[int] = []
        start = 0
        for part, (size, draws) in enumerate(zip(self.sizes, self.draws_per_part, strict=True)):
            # each part is an endless sequence of permutations, and every epoch takes the next piece of it
            begin, end = self.epoch * draws, (self.epoch + 1) * draws
            for cycle in range(begin // size, -(-end // size) if draws else 0):
                permutation = torch.randperm(size, generator=_generator(self.seed, cycle, part + 1)).tolist()
                piece = permutation[max(0, begin - cycle * size) : max(0, end - cycle * size)]
                indices += [start + index for index in piece]
            start += size
        shuffled = torch.randperm(len(indices), generator=_generator(self.seed, self.epoch, 0)).tolist()
        return [indices[index] for index in shuffled]


def _generator(seed: int, epoch: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(sample_seed(seed, epoch, index))


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divide ``total`` into integers in proportion to the weights (largest remainder method)."""
    exact = [weight / sum(weights) * total for weight in weights]
    rounded = [int(value) for value in exact]
    # the remainder goes to the entries with the largest fractional parts; ties go to the first
    for index in sorted(range(len(exact)), key=lambda i: rounded[i] - exact[i])[: total - sum(rounded)]:
        rounded[index] += 1
    return rounded

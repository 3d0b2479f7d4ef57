"""Mixture: several data modules as one, each with its share of every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.sampling import PairSampler, sample_seed
from lightning_idc.data.source import PairSource, View
from lightning_idc.images.options import PLAIN
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class Mixture(PairDataModule):
    """Several data modules as one, for instruction tuning on all of them.

    Pairs are called ``PART/ID``. Evaluation sees every pair of every part that has the split. An epoch of training sees
    ``epoch_pairs`` draws, dealt out to the parts by ``weights``: a part that is smaller than its share comes round
    again, of one that is larger every epoch takes others. ``image_size``, ``limit`` and value ranges of the mixture
    hold for each part.

    M3Diff is tuned on 896k samples that have one caption each of CLEVR-Change and CLEVR-DC: ``per_caption`` makes every
    caption of a part's training pairs a pair of its own, called ``PART/ID/2``.

    Args:
        parts: data modules by name; their ``transform`` is not used, the mixture's is.
        weights: of every part in training; None for the numbers of their pairs.
        epoch_pairs: draws per epoch; None for as many as there are training pairs.
        per_caption: parts whose training pairs have one caption each.
        train_splits: splits of the parts that training draws from. With more than one, pairs are called
            ``PART/SPLIT/ID``; what is trained on is then not held out.
        options: of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Raises:
        ConfigError: there are no parts, a name is not that of a part, or a part has no weight above 0.

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
        for what, names in (("weights", weights or {}), ("per_caption", per_caption)):
            unknown = [name for name in names if name not in parts]
            if unknown:
                raise ConfigError(f"{what} names {unknown[0]!r}; the parts are {', '.join(parts)}")
        without = [name for name in parts if weights and name not in weights]
        if without:
            raise ConfigError(f"{without[0]!r} has no weight; give every part one, or none any")
        bad = [name for name in parts if "/" in name or not name]
        if bad:
            raise ConfigError(f"a part is called {bad[0]!r}; names hold no slash and are not empty")
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
        self.limit = None  # the first pairs of the whole would all be of the first part

    def prepare_data(self) -> None:
        for part in self.parts.values():
            part.prepare_data()

    def ids_are_names(self) -> bool:
        return all(part.ids_are_names() for part in self.parts.values())

    def source(self, split: Split) -> Concatenation:
        return Concatenation({name: self._one_caption(name, split) for name in self.parts})

    def _one_caption(self, name: str, split: Split) -> PairSource:
        """Pairs of a part, one for each caption where that is asked for."""
        part = self.parts[name]
        if split == "train" and len(self.train_splits) > 1:
            source: PairSource = Concatenation({own: part.pairs_of(own) for own in self.train_splits})
        else:
            source = part.pairs_of(self.train_splits[0] if split == "train" else split)
        return OneCaption(source) if split == "train" and name in self.per_caption else source

    def sampler(self, split: Split, source: PairSource) -> PairSampler:
        if split != "train":
            return super().sampler(split, source)
        sizes = [len(self._one_caption(name, "train")) for name in self.parts]
        weights = [self.weights[name] for name in self.parts] if self.weights else sizes
        return MixtureSampler(sizes, weights, self.epoch_pairs or sum(sizes), self.seed)

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        part, _, pair = id.partition("/")
        if split == "train" and len(self.train_splits) > 1:
            home, _, pair = pair.partition("/")
            split = next(name for name in self.train_splits if name == home)
        return self.parts[part].facts(split, pair, caption)


class Concatenation(PairSource):
    """Sources one after the other.

    Args:
        sources: by the name that their ids begin with.
    """

    def __init__(self, sources: Mapping[str, PairSource]) -> None:
        self.sources = dict(sources)
        self.ids = [f"{name}/{pair}" for name, source in self.sources.items() for pair in source.ids]
        self._homes = [(name, index) for name, source in self.sources.items() for index in range(len(source))]

    def load(self, index: int) -> PairSample:
        name, pair = self._homes[index]
        sample = self.sources[name].load(pair)
        sample.id = self.ids[index]
        sample.meta = {**sample.meta, "part": name}
        return sample

    def captions(self, index: int) -> list[str]:
        name, pair = self._homes[index]
        return self.sources[name].captions(pair)

    def change_type(self, index: int) -> str | None:
        name, pair = self._homes[index]
        return self.sources[name].change_type(pair)

    def meta(self, index: int) -> dict[str, Any]:
        name, pair = self._homes[index]
        return {**self.sources[name].meta(pair), "part": name}

    def image_size(self, index: int) -> tuple[int, int]:
        name, pair = self._homes[index]
        return self.sources[name].image_size(pair)


class OneCaption(View):
    """Another source with every caption as a pair of its own, called ``ID``, ``ID/2``, ``ID/3``, ..."""

    def __init__(self, source: PairSource) -> None:
        homes = [(pair, number) for pair in range(len(source)) for number in range(len(source.captions(pair)))]
        super().__init__(source, [pair for pair, _ in homes])
        self._captions = [number for _, number in homes]
        self.ids = [f"{source.ids[pair]}/{number + 1}" if number else source.ids[pair] for pair, number in homes]

    def load(self, index: int) -> PairSample:
        sample = super().load(index)
        sample.id, sample.captions = self.ids[index], self.captions(index)
        return sample

    def captions(self, index: int) -> list[str]:
        return [super().captions(index)[self._captions[index]]]


class MixtureSampler(PairSampler):
    """Deals each part its share of an epoch, every pair of a part once before any comes again.

    Args:
        sizes: pairs of each part, which stand one after the other.
        weights: of the parts.
        draws: per epoch.
        seed: of the order.
        rank: of this process; taken from torch.distributed when None.
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
        self.shares = largest_remainder(weights, draws)

    def order(self) -> list[int]:
        chosen: list[int] = []
        start = 0
        for part, (size, share) in enumerate(zip(self.sizes, self.shares, strict=True)):
            # one endless run of permutations per part, of which every epoch takes the next piece
            begin, end = self.epoch * share, (self.epoch + 1) * share
            for turn in range(begin // size, -(-end // size) if share else 0):
                permutation = torch.randperm(size, generator=_generator(self.seed, turn, part + 1)).tolist()
                piece = permutation[max(0, begin - turn * size) : max(0, end - turn * size)]
                chosen += [start + index for index in piece]
            start += size
        mixed = torch.randperm(len(chosen), generator=_generator(self.seed, self.epoch, 0)).tolist()
        return [chosen[place] for place in mixed]


def _generator(seed: int, epoch: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(sample_seed(seed, epoch, index))


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to weights that sum to ``total``."""
    exact = [weight / sum(weights) * total for weight in weights]
    shares = [int(share) for share in exact]
    # what rounding down left over goes to those that lost most, the first of equals first
    for index in sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])[: total - sum(shares)]:
        shares[index] += 1
    return shares

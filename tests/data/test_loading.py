"""Samplers and loaders. Oracle: the same pairs loaded in one process without workers."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from lightning_idc.data.checking import check
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.loading import PairLoader
from lightning_idc.data.sampling import PairSampler, sample_seed
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, DataError


class Numbers(PairSource):
    """Pair i is filled with i, except for one pixel that encodes its id."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def load(self, index: int) -> PairSample:
        if self.ids[index] == "broken":
            raise DataError("pair 'broken' is damaged")
        image = torch.full((3, 2, 2), index, dtype=torch.uint8)
        image[:, 0, 0] = torch.tensor([zlib.crc32(self.ids[index].encode()) >> shift & 255 for shift in (0, 8, 16)])
        return PairSample(self.ids[index], image, image.clone(), self.captions(index), self.change_type(index))

    def captions(self, index: int) -> list[str]:
        return [] if self.ids[index] == "mute" else [f"caption {index}"]

    def change_type(self, index: int) -> str | None:
        return "no_change" if index % 2 else "add"


def noisy(sample: PairSample, generator: torch.Generator) -> PairSample:
    """Write a drawn number into the captions, so that a sample shows its seed."""
    number = int(torch.randint(1_000_000, (), generator=generator))
    return replace(sample, captions=[f"{sample.id} drew {number}"])


class Counting(PairDataModule):
    def __init__(self, ids: dict[str, list[str]] | None = None, **options: Any) -> None:
        super().__init__(**{"batch_size": 4, "transform": noisy, **options})
        self.names = ids or {
            split: [f"{split}-{i}" for i in range(n)] for split, n in (("train", 19), ("val", 5), ("test", 6))
        }

    def source(self, split: Split) -> PairSource:
        return Numbers(self.names["test" if split == "predict" else split])


@pytest.mark.parametrize("world", [1, 2])
def test_group_by_size_gives_steps_of_one_size(world: int) -> None:
    """With three equally frequent image sizes, all pairs of a step have one size."""
    sizes = [((8, 8), (8, 16), (32, 8))[index % 3] for index in range(72)]

    def steps(epoch: int, skip: int = 0, shuffle: bool = True) -> list[list[int]]:
        ranks = []
        for rank in range(world):
            sampler = PairSampler(72, shuffle=shuffle, seed=1, rank=rank, world_size=world)
            sampler.group_by_size(sizes, 4)
            sampler.set_epoch(epoch)
            sampler.skip = skip
            ranks.append([draw.index for draw in sampler])
        return [[index for own in ranks for index in own[start : start + 4]] for start in range(0, len(ranks[0]), 4)]

    first, second = steps(0), steps(1)
    assert sorted(index for step in first for index in step) == list(range(72))
    assert all(len({sizes[index] for index in step}) == 1 for step in first + second)
    assert first != second and first == steps(0)
    assert steps(1, skip=8) == second[2:]
    in_order = [sizes[index] for step in steps(0, shuffle=False) for index in step]
    assert in_order == sorted(in_order, key=lambda size: size[0] * size[1])


class Lengths(Numbers):
    """One caption of 3 to 42 words per pair."""

    def captions(self, index: int) -> list[str]:
        return [" ".join(["word"] * (3 + 17 * index % 40))]


class Long(Counting):
    def source(self, split: Split) -> PairSource:
        return Lengths([f"{split}-{index}" for index in range(160)])


def padded(data: PairDataModule, epoch: int = 0) -> tuple[list[list[str]], float]:
    """Return the ids of each step of an epoch, and the fraction of word positions that would be padding."""
    loader = data.train_dataloader()
    loader.pair_sampler.set_epoch(epoch)
    source = data.pairs_of("train")
    steps, words, room = [], 0, 0
    for batch in loader:
        lengths = [len(source.captions(list(source.ids).index(id))[0].split()) for id in batch["ids"]]
        steps.append(batch["ids"])
        words, room = words + sum(lengths), room + max(lengths) * len(lengths)
    return steps, 1 - words / room


def test_group_by_length_gives_steps_of_similar_length() -> None:
    data = Long(group_by_length=True)
    (first, little), (second, _), (_, much) = padded(data), padded(data, 1), padded(Long())
    assert little < 0.03 < 0.3 < much
    assert sorted(id for step in first for id in step) == sorted(data.pairs_of("train").ids)
    assert first != second and first == padded(data)[0]
    # a step of two processes holds the same pairs as a step of one process with twice the batch size
    lengths = [len(data.pairs_of("train").captions(index)[0].split()) for index in range(160)]

    def steps(rank: int, world: int) -> list[list[int]]:
        sampler = PairSampler(160, shuffle=True, seed=3, rank=rank, world_size=world)
        sampler.group_by_length(lengths, 8 // world)
        drawn = [draw.index for draw in sampler]
        return [drawn[start : start + 8 // world] for start in range(0, len(drawn), 8 // world)]

    for whole, own, other in zip(steps(0, 1), steps(0, 2), steps(1, 2), strict=True):
        assert sorted(whole) == sorted(own + other)
    # evaluation keeps the order of the source
    test = [id for batch in data.test_dataloader() for id in batch["ids"]]
    assert test == list(data.pairs_of("test").ids)
    with pytest.raises(ConfigError, match="exclude each other"):
        Long(group_by_length=True, group_by_size=True)


def seen(loader: PairLoader) -> list[list[str]]:
    return [[caption for captions in batch["captions"] for caption in captions] for batch in loader]


def epochs(loader: PairLoader, count: int) -> Iterator[list[list[str]]]:
    for epoch in range(count):
        loader.pair_sampler.set_epoch(epoch)
        yield seen(loader)


@pytest.mark.slow
def test_samples_do_not_depend_on_workers_but_on_the_epoch() -> None:
    alone = list(epochs(Counting(num_workers=0).train_dataloader(), 3))
    helped = list(epochs(Counting(num_workers=2).train_dataloader(), 3))  # persistent: alive over all epochs
    assert helped == alone
    drawn = [sorted(caption for batch in epoch for caption in batch) for epoch in alone]
    assert drawn[0] != drawn[1] != drawn[2], "the same pair must draw something else in the next epoch"
    assert all(len({caption.split()[0] for caption in epoch}) == 19 for epoch in drawn)


def test_seed_determines_order_and_captions() -> None:
    first, same, other = (seen(Counting(seed=seed).train_dataloader()) for seed in (1, 1, 2))
    assert first == same != other


def test_global_random_state_is_unchanged() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    seen(Counting().train_dataloader())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_the_middle_of_an_epoch(stop: int, workers: int) -> None:
    whole = list(epochs(Counting().train_dataloader(), 3))
    first = Counting(num_workers=workers).train_dataloader()
    first.pair_sampler.set_epoch(1)
    batches = iter(first)
    served = [next(batches) for _ in range(stop)]
    state = first.state_dict()

    second = Counting(num_workers=workers).train_dataloader()
    second.load_state_dict(state)
    rest = seen(second)
    before = [[c for captions in batch["captions"] for c in captions] for batch in served]
    assert before + rest == whole[1] if stop < 5 else rest == whole[1]  # after a whole epoch, a new one starts
    second.pair_sampler.set_epoch(2)
    assert seen(second) == whole[2]


@pytest.mark.parametrize("size", [1, 2, 7, 12])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_interleave_to_the_order_of_one_process(size: int, world: int, shuffle: bool) -> None:
    one = list(PairSampler(size, shuffle, seed=5, rank=0, world_size=1))
    ranks = [list(PairSampler(size, shuffle, seed=5, rank=rank, world_size=world)) for rank in range(world)]
    assert {len(rank) for rank in ranks} == {-(-size // world)}, "all take equally many steps"
    dealt = [draw for together in zip(*ranks, strict=True) for draw in together]
    assert dealt[:size] == one
    assert set(dealt[size:]) <= set(one)


@pytest.mark.parametrize("size", [8, 24, 26])
def test_keep_together_puts_a_group_into_one_step(size: int) -> None:
    """Both pairs of a scene are in one step, and several processes together see the steps of one process."""

    def sampler(rank: int, world: int) -> PairSampler:
        made = PairSampler(size, True, seed=5, rank=rank, world_size=world)
        made.keep_together([index % (size // 2) for index in range(size)])
        return made

    def steps(rank: int, world: int) -> list[list[int]]:
        drawn = [draw.index for draw in sampler(rank, world)]
        return [drawn[start : start + 4 // world] for start in range(0, len(drawn), 4 // world)]

    one, two = steps(0, 1), [steps(rank, 2) for rank in (0, 1)]
    assert sorted(index for step in one for index in step) == list(range(size))
    assert size == 8 or one != sorted(one), "scenes are drawn"
    for ranks in (one, *two):
        assert all(sorted(Counter(i % (size // 2) for i in step).values()) in ([2], [2, 2]) for step in ranks[:-1])
    for step, own, other in zip(one[:-1], *two, strict=False):
        assert sorted(own + other) == sorted(step)
    with pytest.raises(ConfigError, match="exclude each other"):
        sampler(0, 1).group_by_size([(8, 8)] * size, 4)


def test_evaluation_is_in_order_and_unseeded() -> None:
    data = Counting()
    assert [name for batch in data.test_dataloader() for name in batch["ids"]] == data.names["test"]
    assert "seed" not in data.test_dataloader().dataset[next(iter(PairSampler(6, False)))].meta


def test_sample_seeds_are_distinct() -> None:
    seeds = {sample_seed(s, e, i) for s in range(4) for e in range(20) for i in range(500)}
    assert len(seeds) == 4 * 20 * 500 and min(seeds) >= 0 and max(seeds) < 2**63


def test_limit_and_captions() -> None:
    data = Counting(limit=3)
    assert data.train_captions() == ["caption 0", "caption 1", "caption 2"]
    assert data.no_change_captions() == ["caption 1"]
    assert len(data.train_dataloader()) == 1


def test_check_counts_problems() -> None:
    assert check(Counting(), print) == []
    data = Counting({"train": ["a", "broken", "b"], "val": ["c", "mute", "a"], "test": []})
    assert check(data, print) == [
        "val: 1 of 3 pairs have no caption: mute",
        "val: 1 of 3 ids are also in train: a",
        "Counting: the split 'test' has no pairs",
        "1 train pairs cannot be read: pair 'broken' is damaged",
    ]


def test_ids_are_unique() -> None:
    with pytest.raises(DataError, match=r"duplicates: a"):
        Counting({"train": ["a", "b", "a"]}).pairs_of("train")


IMAGE = torch.zeros(3, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"before": IMAGE.numpy()}, r"pair 'one': the before image is a ndarray; expected a uint8 tensor \(C, H, W\)"),
        ({"after": Image.new("RGB", (2, 2))}, r"the after image is a Image; expected a uint8 tensor"),
        ({"after": IMAGE.float()}, r"the after image is torch.float32 \(3, 2, 2\); expected uint8"),
        (
            {"captions": "it turned red"},
            r"pair 'one': captions is 'it turned red'; expected a list .*\['it turned red'\]",
        ),
    ],
)
def test_invalid_pair_is_an_error(options: dict[str, Any], says: str) -> None:
    """A string is also a sequence, of letters, which a captioner would learn as words."""
    with pytest.raises(DataError, match=says):
        PairSample(**{"id": "one", "before": IMAGE, "after": IMAGE, "captions": [], **options})

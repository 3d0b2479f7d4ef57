"""Data in a Trainer. Oracle: an uninterrupted run, and one process that loads everything."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_idc.data.datamodule import PairDataModule, stack_samples
from lightning_idc.data.loading import PairDataset, PairLoader
from lightning_idc.data.sampling import PairSampler, SampleIndex, sample_seed
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.data.transforms.pairs import Compose, Flip, Jitter, RandomCrop
from lightning_idc.images.types import PairSample

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 3,
}
TRANSFORMS = Compose([Flip(), RandomCrop(0.5), Jitter()])


class Grey(PairSource):
    """Pairs of grey images with one bright column, which reveals a flip."""

    def __init__(self, size: int) -> None:
        self.ids = [f"pair-{index}" for index in range(size)]

    def captions(self, index: int) -> list[str]:
        return [f"left {index}", f"right {index}"]

    def change_type(self, index: int) -> None:
        return None

    def load(self, index: int) -> PairSample:
        image = torch.full((3, 8, 8), index, dtype=torch.uint8)
        image[:, :, 0] = 255
        return PairSample(self.ids[index], image, image.clone(), self.captions(index))


class GreyPairs(PairDataModule):
    def source(self, split: Split) -> Grey:
        return Grey({"train": 23, "val": 5}[split])


class Watching(LightningModule):
    """Fits one parameter to the pixels and records the ids of the pairs in each batch."""

    def __init__(self, steps: int = 18) -> None:
        super().__init__()
        self.steps = steps
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[str, list[str]]] = []

    @property
    def trained(self) -> list[list[str]]:
        return [ids for kind, ids in self.seen if kind == "train"]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(("train", batch["ids"]))
        return (self.weight - batch["images"].float().mean() / 255) ** 2

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.seen.append(("val", batch["ids"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Scheduled(Watching):
    """Queries the number of steps, as every schedule does, so Lightning creates the loader before it resumes."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        assert self.trainer.estimated_stepping_batches == self.steps
        return super().configure_optimizers()


class BreakOff(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Watching, Scheduled])
@pytest.mark.parametrize(("step", "workers"), [(4, 0), (4, 1), (6, 0), (9, 0), (9, 1)])
def test_a_resumed_run_sees_the_same_batches(tmp_path: Path, step: int, workers: int, kind: type[Watching]) -> None:
    """Stop in the middle of the first epoch of 6 batches, after its last batch, and in the middle of the second."""

    def data() -> GreyPairs:
        return GreyPairs(batch_size=4, num_workers=workers, transform=TRANSFORMS)

    straight, first, second = kind(), kind(), kind()
    Trainer(enable_checkpointing=False, num_sanity_val_steps=0, **QUIET).fit(straight, data())
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    with pytest.raises(InterruptedError):
        Trainer(num_sanity_val_steps=0, callbacks=[keep, BreakOff(step + 1)], **QUIET).fit(first, data())
    # with the sanity check, whose validation must not move the training data
    trainer = Trainer(enable_checkpointing=False, num_sanity_val_steps=1, **QUIET)
    trainer.fit(second, data(), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True)

    assert len(straight.trained) == 18
    assert first.trained[:step] + second.trained == straight.trained
    assert torch.equal(second.weight, straight.weight)  # the same pixels, too


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Watching, Scheduled])
@pytest.mark.parametrize("step", [3, 5, 6])
def test_resuming_with_limit_train_batches(tmp_path: Path, step: int, kind: type[Watching]) -> None:
    """With 3 of 6 batches per epoch, resume after the first epoch, within the second, and after the second."""
    options: dict[str, Any] = dict(num_sanity_val_steps=0, limit_train_batches=3, **QUIET)
    straight, second = kind(9), kind(9)
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    Trainer(callbacks=[keep], **options).fit(straight, GreyPairs(batch_size=4))
    trainer = Trainer(enable_checkpointing=False, **options)
    trainer.fit(second, GreyPairs(batch_size=4), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True)
    assert len(straight.trained) == 9
    assert straight.trained[step:] == second.trained


@pytest.mark.parametrize(
    ("batch_size", "says"),
    [(8, "8 pairs of that epoch are skipped"), (2, "4 pairs of that epoch are repeated"), (12, "8 .* repeated")],
)
def test_changed_step_size_within_an_epoch_warns(batch_size: int, says: str) -> None:
    """Lightning counts steps, so the position in the epoch changes; 2 steps of 4 pairs of 23 were taken."""
    before, after = (GreyPairs(batch_size=size).loader("train") for size in (4, batch_size))
    batches = iter(before)
    next(batches), next(batches)
    with pytest.warns(UserWarning, match=f"2 steps of 4 pairs.*a step now has {batch_size}: {says}"):
        after.load_state_dict(before.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GreyPairs(batch_size=4).loader("train").load_state_dict(before.state_dict())
        list(batches)
        after.load_state_dict(before.state_dict())  # between two epochs nothing is lost


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", [2, 0.5])
def test_a_run_that_overfits_sees_the_same_batches_in_every_epoch(share: int | float) -> None:
    model = Watching()
    options = dict(overfit_batches=share, enable_checkpointing=False, num_sanity_val_steps=0, **QUIET)
    Trainer(**options).fit(model, GreyPairs(batch_size=4, transform=TRANSFORMS))
    steps = len(model.trained) // 3
    assert steps == (2 if share == 2 else 3)
    assert model.trained == model.trained[:steps] * 3
    assert any(kind == "val" for kind, _ in model.seen)


def with_seeds(samples: list[PairSample]) -> dict[str, Any]:
    return stack_samples(samples) | {"seeds": [sample.meta["seed"] for sample in samples]}


def loader(workers: int = 0, batch: int = 4, rank: int = 0, world: int = 1) -> PairLoader:
    dataset = PairDataset(Grey(24), [TRANSFORMS], seed=7, sample_captions=True)
    sampler = PairSampler(24, shuffle=True, seed=7, rank=rank, world_size=world)
    return PairLoader(
        dataset, sampler, batch, num_workers=workers, collate_fn=with_seeds, persistent_workers=workers > 0
    )


def test_cached_samples_are_not_modified() -> None:
    """A sample that a source caches and returns again is not modified by drawing captions."""

    class Kept(Grey):
        def __init__(self) -> None:
            super().__init__(1)
            self.sample = super().load(0)

        def load(self, index: int) -> PairSample:
            return self.sample

    source = Kept()
    assert "seed" in PairDataset(source, [], seed=0, sample_captions=True)[SampleIndex(0, 0)].meta
    assert "seed" not in PairDataset(source, [], seed=0, sample_captions=False)[SampleIndex(0, 0)].meta


def epoch_of(given: PairLoader, epoch: int) -> list[dict[str, Any]]:
    given.pair_sampler.set_epoch(epoch)
    return list(given)


@pytest.mark.slow
def test_persistent_workers_give_equal_images() -> None:
    alone, helped = loader(), loader(2)
    processes = set()
    seeds = []
    for epoch in (0, 1, 5):
        for one, other in zip(epoch_of(alone, epoch), epoch_of(helped, epoch), strict=True):
            assert torch.equal(one["images"], other["images"])
            assert [one[key] for key in ("ids", "captions", "seeds")] == [
                other[key] for key in ("ids", "captions", "seeds")
            ]
            seeds += one["seeds"]
        processes.add(tuple(worker.pid for worker in helped._iterator._workers))  # type: ignore[union-attr]
    assert len(processes) == 1
    assert len(set(seeds)) == 3 * 24  # every visit has its own seed


def test_two_processes_load_the_pixels_of_one() -> None:
    """Batches of 2 from two processes, interleaved, equal the batches of 4 of one process."""
    ranks = [epoch_of(loader(batch=2, rank=rank, world=2), 2) for rank in range(2)]
    for whole, *parts in zip(epoch_of(loader(), 2), *ranks, strict=True):
        assert torch.equal(torch.stack([part["images"] for part in parts], 1).flatten(0, 1), whole["images"])
        assert [name for both in zip(*(part["ids"] for part in parts), strict=True) for name in both] == whole["ids"]


def test_seeds_of_adjacent_samples_differ() -> None:
    """Seeds of neighbouring samples give independent draws."""
    bits = [(sample_seed(0, 0, i) ^ sample_seed(0, 0, i + 1)).bit_count() for i in range(2000)]
    assert 29 < sum(bits) / 2000 < 34  # half of 63
    draws = torch.stack(
        [torch.rand(2, generator=torch.Generator().manual_seed(sample_seed(0, 0, i))) for i in range(2000)]
    )
    assert abs(float(draws.mean()) - 0.5) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([draws[:-1, 0], draws[1:, 0]]))[0, 1])) < 0.1

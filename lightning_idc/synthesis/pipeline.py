"""Pipelines under Lightning's Trainer: its devices and processes share the shards of a store among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_idc.images.types import PairError
from lightning_idc.models.distributed import get_rank_world_size
from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.launchers import Launcher
from lightning_idc.synthesis.records import ImageFormat, KeepDropped
from lightning_idc.synthesis.stages import BasePipelineStage, RecordDataModule
from lightning_idc.synthesis.store import RecordSource, RecordStore


class Records(RecordDataModule):
    """Records of a source on their way into a store; see `ShardJob` for the arguments.

    Args:
        source: a finished store or its folder, or another source of records.
        target: folder of the store that is made; one that was begun is continued.
        batch_size: records per step.
        shard_size: records of the source per shard.
        num_workers: threads that read and decode images ahead.
        limit: only the first records of the source.
        keep_dropped: images that stay of dropped records.
        image_format: of images that the stage makes.
        max_failures: records that may fail before the run ends.
        launcher: makes the shards in place of the Trainer: Ray's workers, a task of a SLURM array; see `launchers`.
    """

    def __init__(
        self,
        source: str | RecordSource,
        target: str,
        batch_size: int = 16,
        shard_size: int = 128,
        num_workers: int = 0,
        limit: int | None = None,
        keep_dropped: KeepDropped = "all",
        image_format: ImageFormat = "png",
        max_failures: int = 100,
        launcher: Launcher | None = None,
    ) -> None:
        super().__init__()
        self.launcher = launcher
        self.prepare_data_per_node = False  # the target is one folder for all nodes
        self.job: ShardJob = ShardJob(
            source, target, batch_size, shard_size, num_workers, limit, keep_dropped, image_format, max_failures
        )

    def prepare_data(self) -> None:
        """See `ShardJob.begin`."""
        self.job.begin(self._stage())

    def predict_dataloader(self) -> DataLoader[int]:
        """Numbers of the shards that are to be made."""
        pending, shards = self.job.pending(), self.job.shards
        done = shards - len(pending)
        if done and self.trainer is not None and self.trainer.is_global_zero:
            print(f"{self.job.target}: {done} of {shards} shards are there already", flush=True)
        return DataLoader(_Shards(shards), batch_size=None, sampler=ShardSampler(pending))

    def _stage(self) -> BasePipelineStage:
        stage = self.trainer.lightning_module if self.trainer is not None else None
        if not isinstance(stage, BasePipelineStage):
            raise PairError(f"Records are read by a pipeline stage; this is a {type(stage).__name__}")
        return stage


class _Shards(Dataset[int]):
    """Numbers of shards; -1 is a step without work."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


class ShardSampler(DistributedSampler[int]):
    """Deals shards to the processes; each takes one empty step at the end.

    The empty step lets a process without any shard left take part. Being a DistributedSampler it is left alone by
    Lightning.

    Args:
        pending: shards that are still to be made.
    """

    def __init__(self, pending: Sequence[int]) -> None:
        rank, world = get_rank_world_size()
        super().__init__(range(len(pending)), num_replicas=world, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self.numbers = [*pending[rank::world], -1]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def run(
    stage: BasePipelineStage,
    source: str | Path | RecordSource,
    target: str | Path,
    batch_size: int = 16,
    shard_size: int = 128,
    num_workers: int = 0,
    limit: int | None = None,
    keep_dropped: KeepDropped = "all",
    image_format: ImageFormat = "png",
    max_failures: int = 100,
    **trainer: Any,
) -> RecordStore:
    """Run one stage from a script under a Trainer and return what it made; `launchers` has other ways.

    Args:
        stage: what is done.
        source: see `Records`, as for the eight arguments below.
        target: folder of the store.
        batch_size: records per step.
        shard_size: records per shard.
        num_workers: threads that read images ahead.
        limit: only the first records.
        keep_dropped: images that stay of dropped records.
        image_format: of images that the stage makes.
        max_failures: records that may fail.
        trainer: options of the Trainer.
    """
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    source = str(source) if isinstance(source, Path) else source
    data = Records(
        source, str(target), batch_size, shard_size, num_workers, limit, keep_dropped, image_format, max_failures
    )
    Trainer(**{**quiet, **trainer}).predict(stage, datamodule=data, return_predictions=False)
    return RecordStore(target)

"""Run pipelines with Lightning's Trainer, whose devices and processes share the shards of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from lightning_idc.models.distributed import get_rank_world_size
from lightning_idc.synthesis.launchers import Launcher
from lightning_idc.synthesis.run import Job
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RecordSource
from lightning_idc.utils.errors import ConfigError


class Records(Job, LightningDataModule):
    """Data module of a stage: a job that transforms the records of a source into a store.

    Args:
        source: a finished store or its folder, or another source of records.
        target: folder of the new store; an unfinished store is resumed.
        launcher: launcher that processes the shards instead of the Trainer, such as Ray or a SLURM array task.
        options: further arguments of `Job`.
    """

    def __init__(
        self, source: str | Path | RecordSource, target: str | Path, launcher: Launcher | None = None, **options: Any
    ) -> None:
        LightningDataModule.__init__(self)
        super().__init__(source, target, **options)
        self.launcher = launcher
        self.prepare_data_per_node = False  # the target is one folder for all nodes

    @property
    def job(self) -> Job:
        """The job, for launchers."""
        return self

    def prepare_data(self) -> None:
        """See `Job.begin`."""
        stage = self.trainer.lightning_module if self.trainer is not None else None
        if not isinstance(stage, BasePipelineStage):
            raise ConfigError(f"expected a pipeline stage as the module of Records; found {type(stage).__name__}")
        self.begin(stage)

    def predict_dataloader(self) -> _ShardNumbers:
        """Return the numbers of missing shards, then -1: every process needs at least one step."""
        rank, world = get_rank_world_size()
        return _ShardNumbers([*self.pending()[rank::world], -1])


class _ShardNumbers:
    """Iterable of shard numbers; Lightning would add a distributed sampler to a `DataLoader`."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

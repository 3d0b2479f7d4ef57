"""Ways to make the shards of a store besides Lightning's Trainer: in this process, or as one task of an array.

They all end in `ShardJob.make_shard`, so the bytes are the same and any number of them may work on one target at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from lightning_idc.errors import ConfigError
from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore


def ready(stage: BasePipelineStage, job: ShardJob, device: str | torch.device = "cpu") -> BasePipelineStage:
    """Load the models of a stage, move it to a device and let it see the source.

    Args:
        stage: as it was made.
        job: that it will work on, which was begun.
        device: of the models.
    """
    stage.setup("predict")
    stage.to(device)
    job.open(stage)
    return stage


def run_in_process(
    stage: BasePipelineStage,
    source: str | RecordSource,
    target: str | Path,
    device: str = "cpu",
    **options: Any,
) -> RecordStore:
    """Make everything that is not there in this process, and the reports.

    Args:
        stage: what is done.
        source: see `ShardJob`, as for ``options``.
        target: folder of the store.
        device: of the models.
        options: of `ShardJob`.
    """
    job = ShardJob(source, target, **options)
    job.begin(stage)
    if job.pending():
        job.make_pending(ready(stage, job, device))
    job.finish(stage)
    return RecordStore(target)


def run_share(
    stage: BasePipelineStage,
    source: str | RecordSource,
    target: str | Path,
    task: int | None = None,
    tasks: int | None = None,
    device: str = "cpu",
    **options: Any,
) -> ShardJob:
    """Make every ``tasks``-th shard, beginning with number ``task``: one task of a SLURM array.

    The store is completed afterwards, when all tasks are done, by `run_in_process` or `ShardJob.finish`.

    Args:
        stage: what is done.
        source: see `ShardJob`, as for ``options``.
        target: folder of the store.
        task: number of this task from 0; ``SLURM_ARRAY_TASK_ID`` less ``SLURM_ARRAY_TASK_MIN`` when None.
        tasks: of the array; ``SLURM_ARRAY_TASK_COUNT`` when None.
        device: of the models.
        options: of `ShardJob`.

    Raises:
        ConfigError: neither the arguments nor SLURM say which task this is.
    """
    if task is None or tasks is None:
        task, tasks = array_task()
    if not 0 <= task < tasks:
        raise ConfigError(f"task is {task} of {tasks}; expected 0 to {tasks - 1}")
    job = ShardJob(source, target, **options)
    job.begin(stage)
    own = [number for number in job.pending() if number % tasks == task]
    if own:
        ready(stage, job, device)
    for number in own:
        job.make_shard(stage, number)
    return job


def array_task() -> tuple[int, int]:
    """Number of this task, from 0, and number of tasks, as SLURM tells them.

    Raises:
        ConfigError: this process is not a task of an array.
    """
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")
    found = [os.environ.get(name, "") for name in names]
    if not all(text.isdigit() for text in found):
        raise ConfigError(f"this is not a task of a SLURM array: {', '.join(names)} are not set; name task and tasks")
    number, first, count = map(int, found)
    return number - first, count

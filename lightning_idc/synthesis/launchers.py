"""Ways to make the shards of a store besides Lightning's Trainer: in this process, or as one task of an array.

They all end in `ShardJob.make_shard`, so the bytes are the same and any number of them may work on one target at once.
A launcher is an argument of `pipeline.Records`; the functions are for scripts.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore
from lightning_idc.utils.errors import ConfigError, DataError


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


class Launcher(ABC):
    """Makes the shards of a job in place of the Trainer."""

    @abstractmethod
    def launch(self, stage: BasePipelineStage, job: ShardJob) -> None:
        """Make what is to be made.

        Args:
            stage: as it was built, its models not loaded.
            job: not begun.
        """


class InProcess(Launcher):
    """Makes everything that is not there in this process, and the reports.

    Args:
        device: of the models.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def launch(self, stage: BasePipelineStage, job: ShardJob) -> None:
        job.begin(stage)
        if job.pending():
            job.make_pending(ready(stage, job, self.device))
        job.finish(stage)


class ArrayTask(Launcher):
    """Makes every ``tasks``-th shard, beginning with number ``task``: one task of a SLURM array.

    `Complete` finishes the store and writes the reports when all tasks are done.

    Args:
        task: number of this task from 0; ``SLURM_ARRAY_TASK_ID`` less ``SLURM_ARRAY_TASK_MIN`` when None.
        tasks: of the array; ``SLURM_ARRAY_TASK_COUNT`` when None.
        device: of the models.

    Raises:
        ConfigError: neither the arguments nor SLURM say which task this is, or the array has gaps.
    """

    def __init__(self, task: int | None = None, tasks: int | None = None, device: str = "cpu") -> None:
        self.task, self.tasks, self.device = task, tasks, device

    def launch(self, stage: BasePipelineStage, job: ShardJob) -> None:
        given = self.task, self.tasks
        found = array_task() if None in given else given
        task, tasks = (told if own is None else own for own, told in zip(given, found, strict=True))
        if task is None or tasks is None or not 0 <= task < tasks:
            raise ConfigError(f"task is {task} of {tasks}; expected 0 to {(tasks or 1) - 1}")
        job.begin(stage)
        own = [number for number in job.pending() if number % tasks == task]
        if own:
            ready(stage, job, self.device)
        for number in own:
            job.make_shard(stage, number)


class Complete(Launcher):
    """Completes a store whose shards are all there, and writes the reports; makes nothing and loads no model.

    Raises:
        DataError: shards are missing; which.
    """

    def launch(self, stage: BasePipelineStage, job: ShardJob) -> None:
        job.begin(stage)
        if not job.finish(stage):
            missing = job.pending()
            named = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            raise DataError(
                f"{job.target}: {len(missing)} of {job.shards} shards are missing ({named}); run the tasks that make "
                "them again"
            )


def run_in_process(
    stage: BasePipelineStage, source: str | RecordSource, target: str | Path, device: str = "cpu", **options: Any
) -> RecordStore:
    """Make everything that is not there in this process, and the reports; see `InProcess`.

    Args:
        stage: what is done.
        source: see `ShardJob`, as for ``options``.
        target: folder of the store.
        device: of the models.
        options: of `ShardJob`.
    """
    InProcess(device).launch(stage, ShardJob(source, target, **options))
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
    """Make the shards of one task of a SLURM array; see `ArrayTask`.

    Args:
        stage: what is done.
        source: see `ShardJob`, as for ``options``.
        target: folder of the store.
        task: see `ArrayTask`.
        tasks: see `ArrayTask`.
        device: of the models.
        options: of `ShardJob`.
    """
    job = ShardJob(source, target, **options)
    ArrayTask(task, tasks, device).launch(stage, job)
    return job


def array_task() -> tuple[int, int]:
    """Number of this task, from 0, and number of tasks, as SLURM tells them.

    Raises:
        ConfigError: this process is not a task of an array, or the array has gaps.
    """
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")
    found = [os.environ.get(name, "") for name in names]
    if not all(text.isdigit() for text in found):
        raise ConfigError(f"this is not a task of a SLURM array: {', '.join(names)} are not set; name task and tasks")
    number, first, count = map(int, found)
    last = os.environ.get("SLURM_ARRAY_TASK_MAX", "")
    if last.isdigit() and int(last) - first + 1 != count:  # some were submitted again, or every second one
        raise ConfigError(
            f"the SLURM array has {count} tasks from {first} to {last}, so their numbers do not say which shards are "
            "theirs; name task and tasks, as in --engine.task $SLURM_ARRAY_TASK_ID --engine.tasks 8, with the number "
            "of tasks that the whole array had"
        )
    return number - first, count

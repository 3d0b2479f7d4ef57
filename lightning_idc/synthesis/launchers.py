"""Launchers that process shards without Lightning's Trainer: in this process, or as a task of a job array.

A launcher is an argument of `pipeline.Records`. All launchers write the same bytes, and several may share a target.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from lightning_idc.synthesis.run import Job
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


class Launcher(ABC):
    """Processes the shards of a job instead of the Trainer."""

    @abstractmethod
    def launch(self, stage: BasePipelineStage, job: Job) -> None:
        """Process the missing shards.

        Args:
            stage: stage whose models are not loaded yet.
            job: job that has not begun.
        """


class InProcess(Launcher):
    """Processes all missing shards and writes the reports in this process.

    Args:
        device: device of the models.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def launch(self, stage: BasePipelineStage, job: Job) -> None:
        job.run(stage, device=self.device)


class ArrayTask(Launcher):
    """Processes every ``tasks``-th shard, starting with shard ``task``, as one task of a SLURM array.

    The last task to finish completes the store and writes the reports, as does repeating any task.

    Args:
        task: number of this task from 0; None for ``SLURM_ARRAY_TASK_ID`` minus ``SLURM_ARRAY_TASK_MIN``.
        tasks: number of tasks of the array; None for ``SLURM_ARRAY_TASK_COUNT``.
        device: device of the models.

    Raises:
        ConfigError: neither the arguments nor SLURM define the task, or the array has gaps.
    """

    def __init__(
        self, task: NonNegativeInt | None = None, tasks: PositiveInt | None = None, device: str = "cpu"
    ) -> None:
        check_arguments(ArrayTask.__init__, locals())
        self.task, self.tasks, self.device = task, tasks, device

    def launch(self, stage: BasePipelineStage, job: Job) -> None:
        task, tasks = self.task, self.tasks
        if task is None or tasks is None:
            slurm_task, slurm_tasks = array_task()
            task, tasks = slurm_task if task is None else task, slurm_tasks if tasks is None else tasks
        job.run(stage, task=task, tasks=tasks, device=self.device)


def array_task() -> tuple[int, int]:
    """Read the number of this task, from 0, and the number of tasks from the environment of SLURM.

    Raises:
        ConfigError: this process is not a task of an array, or the array has gaps.
    """
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdigit() for value in values):
        raise ConfigError(f"this is not a task of a SLURM array: {', '.join(names)} are not set; set task and tasks")
    number, first, count = map(int, values)
    last = os.environ.get("SLURM_ARRAY_TASK_MAX", "")
    if last.isdigit() and int(last) - first + 1 != count:  # a partial resubmission, or a step other than 1
        raise ConfigError(
            f"the SLURM array has {count} tasks from {first} to {last}, so their shards cannot be derived from their "
            "numbers; set task, and set tasks to the size of the full array"
        )
    return number - first, count

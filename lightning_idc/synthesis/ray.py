"""Process shards on a Ray cluster or the cores of one machine, with actors that load the models of a stage once.

The shard of an actor that dies is processed again by another actor.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from lightning_idc.synthesis.actors import ActorPool, connect
from lightning_idc.synthesis.launchers import Launcher
from lightning_idc.synthesis.run import Job
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, check_arguments


class _Worker:
    """Processes shards in a Ray actor.

    Args:
        stage: stage whose models are loaded in the actor.
        job: job that has begun.
        device: device of the models.
    """

    def __init__(self, stage: BasePipelineStage, job: Job, device: str) -> None:
        self.stage, self.job, self.device = stage, job, device

    def prepare(self) -> None:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        self.job.open(self.stage, self.device)

    def work(self, number: int) -> None:
        # another launcher may be processing the shard; if it dies, this worker takes over
        self.job.process_shards(self.stage, [number], wait=True)


class RayPool(Launcher):
    """Processes all missing shards with a pool of actors, and writes the reports in this process.

    Args:
        workers: number of actors.
        num_cpus: CPUs per actor.
        num_gpus: GPUs per actor; a fraction lets several actors share one.
        retries: number of retries for a shard whose worker died.
        address: address of the cluster; None for the current connection, or a new local cluster.

    Raises:
        ConfigError: Ray is not installed or cannot be reached, or there are no workers.
        DataError: the workers of one shard died more often than ``retries``.
    """

    def __init__(
        self,
        workers: PositiveInt = 2,
        num_cpus: NonNegativeFloat = 1,
        num_gpus: NonNegativeFloat = 0,
        retries: NonNegativeInt = 3,
        address: str | None = None,
    ) -> None:
        check_arguments(RayPool.__init__, locals())
        self.workers, self.num_cpus, self.num_gpus = workers, num_cpus, num_gpus
        self.retries, self.address = retries, address

    def launch(self, stage: BasePipelineStage, job: Job) -> None:
        job.begin(stage)
        ray: Any = connect(self.address)
        actor_class = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus)(_Worker)
        device = "cuda" if self.num_gpus else "cpu"
        pending = job.pending()
        if pending:
            pool = ActorPool(
                ray,
                lambda: actor_class.remote(stage, job, device),
                size=self.workers,
                retries=self.retries,
                task_name="shard",
            )
            list(pool.results(pending))
        job.finish(stage)

"""Shards on a Ray cluster, or on the cores of one machine: a pool of actors, each with the stage's models loaded once.

An actor that dies costs the shard it was at, which another one makes again; what is on the disk is never made twice.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Any

import torch

from lightning_idc.errors import ConfigError, DataError
from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.launchers import Launcher, ready
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore


class _Worker:
    """Makes shards in a process of Ray's.

    Args:
        stage: whose models are loaded here.
        job: begun.
        on_gpu: whether Ray gave this process a GPU.
    """

    def __init__(self, stage: BasePipelineStage, job: ShardJob, on_gpu: bool) -> None:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        self.job, self.stage = job, ready(stage, job, "cuda" if on_gpu else "cpu")

    def make(self, number: int) -> bool:
        return self.job.make_shard(self.stage, number)


class RayPool(Launcher):
    """Makes everything that is not there with a pool of actors, and the reports in this process.

    Args:
        workers: actors.
        num_cpus: that each is given.
        num_gpus: that each is given; a fraction lets several share one.
        retries: of a shard whose worker died.
        address: of the cluster; None for the one that this process is connected to, or a new one on this machine.

    Raises:
        ConfigError: Ray is not installed, or there is no worker to be.
        DataError: the workers of one shard keep dying.
    """

    def __init__(
        self,
        workers: int = 2,
        num_cpus: float = 1,
        num_gpus: float = 0,
        retries: int = 3,
        address: str | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers is {workers}; expected at least 1")
        self.workers, self.num_cpus, self.num_gpus = workers, num_cpus, num_gpus
        self.retries, self.address = retries, address

    def launch(self, stage: BasePipelineStage, job: ShardJob) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise ConfigError("Ray is not installed: pip install 'lightning_idc[ray]'") from None
        job.target = job.target.resolve()  # workers have another current folder
        job.begin(stage)
        pending = job.pending()
        if pending:
            if not ray.is_initialized():
                # workers find what this process can import
                paths = os.pathsep.join(path for path in sys.path if path)
                ray.init(address=self.address, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
            kind = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus)(_Worker)
            arguments = (stage, job, self.num_gpus > 0)
            _make(ray, kind, arguments, pending, min(self.workers, len(pending)), self.retries)
            # what another launcher holds is waited for; nothing else is left
            job.make_pending(stage)
        job.finish(stage)


def run_on_ray(
    stage: BasePipelineStage,
    source: str | RecordSource,
    target: str | Path,
    workers: int = 2,
    num_cpus: float = 1,
    num_gpus: float = 0,
    retries: int = 3,
    address: str | None = None,
    **options: Any,
) -> RecordStore:
    """Make everything that is not there with Ray; see `RayPool` for the arguments.

    Args:
        stage: what is done; it is sent to the workers before its models are loaded.
        source: see `ShardJob`, as for ``options``.
        target: folder of the store, which all machines see under this name.
        workers: see `RayPool`.
        num_cpus: see `RayPool`.
        num_gpus: see `RayPool`.
        retries: see `RayPool`.
        address: see `RayPool`.
        options: of `ShardJob`.
    """
    RayPool(workers, num_cpus, num_gpus, retries, address).launch(stage, ShardJob(source, target, **options))
    return RecordStore(target)


def _make(ray: Any, kind: Any, arguments: tuple[Any, ...], shards: list[int], workers: int, retries: int) -> None:
    """Deal shards to actors until all are made, replacing those that die."""
    left, died = deque(shards), Counter[int]()
    idle = [kind.remote(*arguments) for _ in range(workers)]
    at_work: dict[Any, tuple[Any, int]] = {}
    while left or at_work:
        while left and idle:
            worker, number = idle.pop(), left.popleft()
            at_work[worker.make.remote(number)] = worker, number
        (done, *_), _ = ray.wait(list(at_work), num_returns=1)
        worker, number = at_work.pop(done)
        try:
            ray.get(done)
            idle.append(worker)
        except ray.exceptions.RayActorError as error:
            died[number] += 1
            if died[number] > retries:
                raise DataError(f"the workers of shard {number} died {died[number]} times ({error})") from error
            print(f"a worker died at shard {number}; another one makes it", file=sys.stderr, flush=True)
            left.appendleft(number)
            idle.append(kind.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
    for worker in idle:
        ray.kill(worker)

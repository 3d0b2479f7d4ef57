"""Shards on a Ray cluster, or on the cores of one machine: per stage a pool of actors that load its models once.

Stages that read what others make go on at the same time: a shard is dealt as soon as its records are there.
An actor that dies costs the shard it was at, which another one makes again; what is on the disk is never made twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_idc.data.store.store import MANIFEST, read_manifest
from lightning_idc.synthesis.actors import ActorPool, connected
from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.launchers import Launcher, ready
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import UnfinishedStore
from lightning_idc.utils.errors import ConfigError

_POLL = 0.5
"""Seconds between looks for what other launchers make."""


class _Worker:
    """Makes shards in a process of Ray's.

    Args:
        stage: whose models are loaded here.
        job: begun.
        on_gpu: whether Ray gives this process a GPU.
    """

    def __init__(self, stage: BasePipelineStage, job: ShardJob, on_gpu: bool) -> None:
        self.stage, self.job, self.device = stage, job, "cuda" if on_gpu else "cpu"

    def prepare(self) -> None:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        ready(self.stage, self.job, self.device)

    def work(self, number: int) -> bool:
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
        launch_stream([(stage, job, self)])

    def pool(self, ray: Any, stage: BasePipelineStage, job: ShardJob) -> ActorPool:
        """Actors for a stage, none of which is started.

        Args:
            ray: connected.
            stage: as it was built, its models not loaded.
            job: begun.
        """
        kind = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus)(_Worker)
        on_gpu = self.num_gpus > 0
        return ActorPool(ray, lambda: kind.remote(stage, job, on_gpu), self.workers, self.retries, "shard")


def launch_stream(steps: Sequence[tuple[BasePipelineStage, ShardJob, RayPool]]) -> None:
    """Make the stores of several stages, each stage beginning when a shard of the one that it reads is there.

    Args:
        steps: stage, job and pool of each; a job whose source is the target of an earlier one streams behind it.

    Raises:
        ConfigError: Ray is not installed.
        DataError: the workers of one shard keep dying, or too many records fail.
    """
    ray = connected(steps[0][2].address)
    lines: list[_Line] = []
    for stage, job, pool in steps:
        job.target = job.target.resolve()  # workers have another current folder
        earlier = next((line for line in lines if line.job.target == job.source_folder), None)
        lines.append(_Line(ray, stage, job, pool, earlier))
    try:
        while not all(line.done for line in lines):
            for line in lines:
                line.advance()
            _yield_to_earlier(lines)
            refs = {ref: line for line in lines for ref in line.refs()}
            for ref in ray.wait(list(refs), num_returns=1, timeout=_POLL)[0] if refs else ():
                refs[ref].take(ref)
    finally:
        for line in lines:
            line.close()


def _yield_to_earlier(lines: Sequence[_Line]) -> None:
    """Let actors go that have nothing to do while those of an earlier stage wait for a place."""
    waiting = False
    for line in lines:
        if line.pool is not None and waiting:
            line.pool.release()
        waiting = waiting or (line.pool is not None and bool(line.pool.starting))


class _Line:
    """One stage of a stream: what can be made of it now, and who makes it."""

    def __init__(
        self, ray: Any, stage: BasePipelineStage, job: ShardJob, launcher: RayPool, earlier: _Line | None
    ) -> None:
        self.ray, self.stage, self.job, self.launcher, self.earlier = ray, stage, job, launcher, earlier
        self.pool: ActorPool | None = None
        self.dealt: set[int] = set()
        self.done = False

    def refs(self) -> list[Any]:
        return [] if self.pool is None else self.pool.refs()

    def take(self, ref: Any) -> None:
        if self.pool is not None:
            self.pool.take(ref)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()

    def advance(self) -> None:
        """Deal what can be made by now, and finish when all is made."""
        if self.done or (self.pool is None and not self._begin()):
            return
        assert self.pool is not None
        if self.job.streamed:
            self._follow()
        self.pool.deal()
        if self.job.streamed or self.pool.busy:
            return
        pending = self.job.pending()
        if pending:
            time.sleep(_POLL)  # another launcher is at these; should it die, they are made here
            self.pool.deal(pending)
            return
        self.pool.close()
        self.job.finish(self.stage)
        self.done = True

    def _begin(self) -> bool:
        if self.earlier is not None and not self.earlier.done:
            if self.earlier.pool is None or not self.stage.streams or not _may_stream(self.job.target):
                return False
            self.job.streamed = True
        try:
            self.job.begin(self.stage)
        except ConfigError:
            if not self.job.streamed or _may_stream(self.job.target):
                raise
            self.job.streamed = False  # another launcher, which knows the whole source, settled it just now
            return False
        self.pool = self.launcher.pool(self.ray, self.stage, self.job)
        if not self.job.streamed:
            self._deal(self.job.pending())
        return True

    def _follow(self) -> None:
        """Deal the shards whose records have been made since; when all are there, the target gets its own name."""
        if self.earlier is not None and self.earlier.done:
            self.job.settle(self.stage)
            self._deal(self.job.pending())
            return
        source = self.job.source
        assert isinstance(source, UnfinishedStore)
        source.refresh()
        fresh = [number for number in range(self.job.shards) if number not in self.dealt]
        self._deal(number for number in fresh if not self.job.finished(number))
        self.dealt.update(fresh)

    def _deal(self, numbers: Any) -> None:
        assert self.pool is not None
        fresh = [number for number in numbers if number not in self.dealt]
        self.dealt.update(fresh)
        self.pool.deal(fresh)


def _may_stream(target: Path) -> bool:
    """Whether a target is new, or was begun while its source was being made."""
    return not (target / MANIFEST).exists() or read_manifest(target)["identity"]["records"] is None

"""One run in several processes that a scheduler started with the same command: SLURM's srun, torchrun, Kubernetes.

The first process makes the folder, holds its lock and decides which stage is next; the others run the same stages, and
Lightning joins the processes of a stage. They speak through a TCPStore of the first process.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning_idc.cli.records import digest_of
from lightning_idc.utils.errors import ConfigError

SECONDS_TO_JOIN = 600
"""Processes of a job may start minutes apart."""
SECONDS_TO_LEAVE = 60


@dataclass
class Place:
    """Where this process stands in its job.

    Args:
        rank: 0 for the one that leads.
        size: number of processes; None where only the recipe knows.
        host: of the first process.
        port: on which the first process may listen.
        listens: whether the first process must do so itself; torchrun's agent does it for its processes.
    """

    rank: int
    size: int | None
    host: str
    port: int
    listens: bool = True


def place_in_job() -> Place | None:
    """Place of this process among those that a scheduler started; None where it is alone.

    Raises:
        ConfigError: SLURM shall run several tasks, but this is not one of them.
    """
    has = os.environ
    if ("TORCHELASTIC_RUN_ID" in has or "KUBERNETES_PORT" in has) and int(has.get("WORLD_SIZE", "1")) > 1:
        agent = has.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Place(int(has["RANK"]), int(has["WORLD_SIZE"]), has["MASTER_ADDR"], int(has["MASTER_PORT"]), not agent)
    # Lightning leaves interactive jobs alone, and so do we
    if int(has.get("SLURM_NTASKS", "1")) > 1 and has.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        if "SLURM_STEP_ID" not in has:
            raise ConfigError(
                f"SLURM gave this job {has['SLURM_NTASKS']} tasks, but the command was started once; begin it with "
                "srun, or ask for one task"
            )
        from lightning.fabric.plugins.environments import SLURMEnvironment

        slurm = SLURMEnvironment()
        return Place(slurm.global_rank(), slurm.world_size(), slurm.main_address, slurm.main_port)
    if "NODE_RANK" in has and "MASTER_ADDR" in has and "LOCAL_RANK" not in has:
        return Place(int(has["NODE_RANK"]), None, has["MASTER_ADDR"], int(has.get("MASTER_PORT", "12910")))
    return None


class Peers:
    """What the processes of one run say to each other.

    Args:
        place: of this one.

    Raises:
        ConfigError: the first process cannot be reached.
    """

    def __init__(self, place: Place) -> None:
        from torch.distributed import DistError, PrefixStore, TCPStore

        self.place = place
        self._error = (DistError, RuntimeError)
        try:
            store = TCPStore(
                place.host,
                place.port,
                is_master=place.rank == 0 and place.listens,
                wait_for_workers=False,
                timeout=timedelta(seconds=SECONDS_TO_JOIN),
            )
        except self._error as error:
            raise ConfigError(
                f"process {place.rank} of this run cannot meet the first one at {place.host}:{place.port}: "
                f"{str(error).splitlines()[0]}; if another program uses the port, set MASTER_PORT"
            ) from error
        # torchrun starts the processes anew after a fault, with the same store
        self._store = PrefixStore(f"lightning_idc/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._turn = 0
        self._store.add("joined", 0 if self.leads else 1)

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.place.rank == 0

    def others(self) -> int:
        """Number of the other processes."""
        return self.place.size - 1 if self.place.size is not None else int(self._store.add("joined", 0))

    def announce(self, **turn: Any) -> dict[str, Any]:
        """Tell the others what comes next; what they are told, with a port at which this stage's processes meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            turn["port"] = free.getsockname()[1]
        self._turn += 1
        self._store.set(f"turn/{self._turn}", json.dumps(turn))
        return turn

    def next_turn(self) -> dict[str, Any]:
        """What the first process announces next.

        Raises:
            ConfigError: it has ended without a word.
        """
        self._turn += 1
        key = f"turn/{self._turn}"
        try:
            while not self._store.check([key]):
                time.sleep(0.2)
            return dict(json.loads(self._store.get(key)))
        except self._error as error:
            raise ConfigError("the first process of this run has ended; its output says why") from error

    def report(self, status: int) -> None:
        """Say how the stage ended here."""
        if status:
            self._store.set("failed", str(self.place.rank))
        self._store.add(f"done/{self._turn}", 1)

    def failed(self) -> bool:
        """Whether the stage ended badly in any process, or the first one is gone."""
        try:
            return bool(self._store.check(["failed"]))
        except self._error:
            return True

    def wait_for_others(self) -> bool:
        """Wait until the stage has ended in all other processes; whether it ended well."""
        while int(self._store.add(f"done/{self._turn}", 0)) < self.others():
            if self.failed():
                return False
            time.sleep(0.2)
        return not self.failed()

    def end(self, status: int) -> None:
        """Dismiss the others with this exit status, and wait until they have heard it."""
        self.announce(status=status)
        until = time.monotonic() + SECONDS_TO_LEAVE
        while int(self._store.add("left", 0)) < self.others() and time.monotonic() < until:
            time.sleep(0.1)

    def follow(self, run_stage: Callable[[str, Path, Path, dict[str, str]], int]) -> int:
        """Run the stages that the first process announces; the exit status of the run.

        Args:
            run_stage: takes the verb, the configuration, the file of the result and variables of the environment.
        """
        while True:
            turn = self.next_turn()
            if "status" in turn:
                self._store.add("left", 1)
                return int(turn["status"])
            config = Path(turn["config"])
            _wait_for(config, turn["digest"])
            self.report(run_stage(turn["verb"], config, Path(turn["result"]), variables(turn)))


def variables(turn: dict[str, Any]) -> dict[str, str]:
    """Environment of a stage: its processes meet at a port of their own, since that of the last stage is in use."""
    return {"MASTER_PORT": str(turn["port"]), "TORCHELASTIC_USE_AGENT_STORE": "False"}


def _wait_for(config: Path, digest: str) -> None:
    """Wait for what another machine wrote a moment ago.

    Raises:
        ConfigError: it does not come.
    """
    until = time.monotonic() + SECONDS_TO_LEAVE
    while not config.is_file() or digest_of(config) != digest:
        if time.monotonic() > until:
            raise ConfigError(
                f"the first process wrote {str(config)!r}, which is not here; the folder of a run in several processes "
                "must lie where all of them see it"
            )
        time.sleep(0.2)

"""Runs in several processes that a scheduler starts with the same command: SLURM's srun, torchrun, Kubernetes.

All processes compose the same stages and run them in the same order; Lightning connects the processes of a stage.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lightning_idc.utils.errors import ConfigError

_DEFAULT_PORT = 12910


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in a run.

    Args:
        rank: rank; 0 creates the folder and prints.
        port: first rendezvous port; None for a single process.
    """

    rank: int = 0
    port: int | None = None

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.port is not None

    def environment(self, stage: int) -> dict[str, str]:
        """Environment variables of a stage, with a separate port, since that of the previous stage may be in use.

        Args:
            stage: index of the stage in the recipe.
        """
        if self.port is None:
            return {}
        return {"MASTER_PORT": str(self.port + 1 + stage), "TORCHELASTIC_USE_AGENT_STORE": "False"}


def ranks_of_job() -> Ranks:
    """Rank of this process among those of a scheduler.

    Raises:
        ConfigError: SLURM has several tasks, but the process was not started by srun.
    """
    env = os.environ
    port = int(env.get("MASTER_PORT", _DEFAULT_PORT))
    if ("TORCHELASTIC_RUN_ID" in env or "KUBERNETES_PORT" in env) and int(env.get("WORLD_SIZE", "1")) > 1:
        return Ranks(int(env["RANK"]), port)
    # like Lightning, ignore interactive jobs
    if int(env.get("SLURM_NTASKS", "1")) > 1 and env.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        if "SLURM_STEP_ID" not in env:
            raise ConfigError(
                f"SLURM gave this job {env['SLURM_NTASKS']} tasks, but the command was started once; begin it with "
                "srun, or ask for one task"
            )
        # as in Lightning, jobs on one node get different ports
        from_job = 15000 + int(env["SLURM_JOB_ID"][-4:])
        return Ranks(int(env["SLURM_PROCID"]), port if "MASTER_PORT" in env else from_job)
    if "NODE_RANK" in env and "MASTER_ADDR" in env and "LOCAL_RANK" not in env:
        return Ranks(int(env["NODE_RANK"]), port)
    return Ranks()


class Watch:
    """Detects whether another process of a run has ended.

    Each process holds a lock that the system releases when it ends. Without it, other processes would wait for a killed
    process until the timeout of the backend, half an hour.

    Args:
        folder: folder of the run, shared by all processes.
        rank: rank of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder / ".ranks", str(rank)
        self._alive: set[str] = set()
        self._lock: IO[str] | None = None
        with suppress(ImportError, OSError):  # another system, or a file system without locks
            import fcntl

            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / self.rank).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def is_lost(self) -> bool:
        """Whether a process that was running before has ended."""
        with suppress(ImportError, OSError):
            import fcntl

            for path in self.folder.iterdir():
                if path.name == self.rank:
                    continue
                with path.open() as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        self._alive.add(path.name)
                        continue
                if path.name in self._alive:
                    return True
        return False

    def close(self) -> None:
        """End the watch."""
        if self._lock is not None:
            self._lock.close()

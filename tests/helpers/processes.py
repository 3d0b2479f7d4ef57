"""Scripts that tests run as one or several processes, and the strategies that these use."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from torch import distributed

from lightning_idc.models.distributed import destroy_process_group, is_distributed

TESTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "OMP_NUM_THREADS": "1"}
IMPORTED = ["lightning.pytorch", "torch.distributed.fsdp", "helpers.plugins", "helpers.procap_tiny", "helpers.vlm_tiny"]
"""What the process holds that all scripts are forked from: to import it takes longer than most scripts run."""
SECONDS = 240


@cache
def _forking() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    # a library that starts threads when it is imported would leave its children without them
    with patch.dict(os.environ, {**ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}):
        forkserver.ensure_running()
    return context


def launch(script: Path, *arguments: str | Path, processes: int = 1) -> None:
    """Run a script that lies among the tests to its end; it may import what lies beside it, and the helpers.

    Args:
        script: file of the script.
        arguments: its command line.
        processes: number of processes that run it side by side, as ``torchrun`` starts them; a script that runs as one
            may also let its Trainer start the others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environments = [{**os.environ, **ENVIRONMENT} for _ in range(processes)]
    if processes > 1:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
        for rank, environment in enumerate(environments):
            environment.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes))
    command = [str(script), *map(str, arguments)]
    output = Path(tempfile.gettempdir()) / f"launched-{os.getpid()}-{port}.log"
    started = [
        _forking().Process(target=_run, args=(command, environment, os.getcwd(), output))
        for environment in environments
    ]
    for process in started:
        process.start()
    end = time.monotonic() + SECONDS
    try:
        while any(process.exitcode is None for process in started) and not any(process.exitcode for process in started):
            assert time.monotonic() < end, f"no end within {SECONDS} seconds\n{output.read_text('utf-8')}"
            multiprocessing.connection.wait([p.sentinel for p in started if p.exitcode is None], timeout=1)
        codes = [process.exitcode for process in started]
        assert not any(codes), f"exit status {codes}\n{output.read_text('utf-8')}"
    finally:
        for process in started:
            process.kill()
            process.join()
        output.unlink(missing_ok=True)


def _run(command: list[str], environment: dict[str, str], folder: str, output: Path) -> None:
    """One process of a script."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")


def run_script(main: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run the main function of such a script, and end its process.

    What every process writes is there once the first has ended. The interpreter is not unloaded: DTensor's caches keep
    gloo's threads beyond the process group, and these may abort a process whose work is done.
    """
    main(*arguments)
    if is_distributed():
        distributed.barrier()
    destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def gloo(kind: str) -> Any:
    """Strategy of ``one`` process, or of two under ``ddp`` or ``fsdp2``.

    Under ``fsdp2-pieces`` every process writes its share of a checkpoint, which is then a folder.
    """
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    if kind == "one":
        return "auto"
    if kind == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    assert kind in ("fsdp2", "fsdp2-pieces")
    return ModelParallelStrategy(
        data_parallel_size=2,
        tensor_parallel_size=1,
        process_group_backend="gloo",
        save_distributed_checkpoint=kind == "fsdp2-pieces",
    )

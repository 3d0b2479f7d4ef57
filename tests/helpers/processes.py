"""Run scripts of tests in one or several processes, with the strategies that these use."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import torch
from lightning.fabric.utilities import registry
from torch import distributed, nn

from lightning_idc.models.distributed import destroy_process_group, is_distributed

HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "OMP_NUM_THREADS": "1"}
IMPORTED = [
    "lightning.pytorch.cli",
    "pandas",
    "pyarrow.compute",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "transformers.modeling_utils",
    "peft",
    "lightning_idc.cli.stage",
    "open_clip",
    "pytest",
    "torchvision.transforms.v2",
    "transformers.models.llava_onevision.modeling_llava_onevision",
    "transformers.models.llava_onevision.processing_llava_onevision",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "transformers.models.siglip.modeling_siglip",
    "helpers.captioners",
    "helpers.plugins",
    "helpers.procap_tiny",
    "helpers.processes",
    "helpers.vlm_tiny",
    "helpers.warm",
]
"""Modules imported by the process that scripts are forked from; importing them takes longer than most scripts."""
SECONDS = 240


@cache
def forking_python() -> str:
    """A replacement for ``sys.executable`` in tests that start processes but do not test their imports.

    Its processes are forked from one with torch and Lightning already imported, which saves ten seconds each; see
    fork_server.py. One server serves all processes of xdist. Its processes end with the tests. After SIGKILL, a
    process ends a moment later than its client.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    folder = Path(tempfile.gettempdir()) / f"fork-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "tests").exists():
            os.mkfifo(folder / "tests")
        # the server's standard input, which ends when no test process has it open for writing any more
        os.open(folder / "tests", os.O_RDWR)
        if not (folder / "socket").exists():
            start_fork_server(folder)
    return str(folder / "python")


def start_fork_server(folder: Path) -> None:
    """Start the server, which removes the folder when it exits, and wait until it listens."""
    address, executable = folder / "socket", folder / "python"
    client = [sys.executable, "-IS", str(HELPERS / "fork_client.py"), str(address)]
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
    executable.chmod(0o700)
    server = [sys.executable, str(HELPERS / "fork_server.py"), str(address), str(executable), *IMPORTED]
    # threads that a library starts on import would be missing in the forked processes
    environment = {**os.environ, **ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}
    with (folder / "tests").open("rb") as tests:
        process = subprocess.Popen(server, env=environment, stdin=tests, start_new_session=True)
    while not address.exists():
        assert process.poll() is None, "the server of forked processes has ended"
        time.sleep(0.01)


def launch(script: Path, *arguments: str | Path, processes: int = 1) -> None:
    """Run a script of the tests and wait for it; it can import its neighbours and the helpers.

    Args:
        script: file of the script.
        arguments: its command line.
        processes: number of parallel processes, started as ``torchrun`` does; with 1, the Trainer of the script may
            start the others itself.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environments = [{**os.environ, **ENVIRONMENT} for _ in range(processes)]
    if processes > 1:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
        for rank, environment in enumerate(environments):
            environment.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes))
    command = [forking_python(), str(script), *map(str, arguments)]
    with tempfile.TemporaryFile() as output:
        started = [
            subprocess.Popen(command, env=environment, stdout=output, stderr=output) for environment in environments
        ]

        def printed() -> str:
            output.seek(0)
            return output.read().decode("utf-8", "replace")

        end = time.monotonic() + SECONDS
        try:
            while any(process.poll() is None for process in started) and not any(p.returncode for p in started):
                assert time.monotonic() < end, f"no end within {SECONDS} seconds\n{printed()}"
                time.sleep(0.01)
            codes = [process.returncode for process in started]
            assert not any(codes), f"exit status {codes}\n{printed()}"
        finally:
            for process in started:
                process.kill()
                process.wait()


def run_script(main: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run the main function of such a script, and exit its process.

    All processes have written their files when the first one exits. Interpreter shutdown is skipped: DTensor's caches
    keep gloo's threads alive after the process group, and these may abort a process that has finished its work.
    """
    # listing all installed packages takes 30 ms per Trainer
    registry.entry_points = cache(registry.entry_points)
    main(*arguments)
    if is_distributed():
        distributed.barrier()
    destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def apart(model: nn.Module) -> list[str]:
    """Names of the parameters whose values differ from those of the first process in any process."""
    parameters = {name: parameter.detach().double().flatten() for name, parameter in model.named_parameters()}
    first = torch.cat(list(parameters.values()))
    distributed.broadcast(first, 0)
    others = first.split([parameter.numel() for parameter in parameters.values()])
    unequal = torch.tensor([not torch.equal(*pair) for pair in zip(parameters.values(), others, strict=True)]).int()
    distributed.all_reduce(unequal)
    return [name for name, differs in zip(parameters, unequal.tolist(), strict=True) if differs]


def gloo(kind: str) -> Any:
    """Strategy for ``one`` process, or for two with ``ddp`` or ``fsdp2``.

    With ``fsdp2-pieces``, a checkpoint is a folder to which every process writes its shard.
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

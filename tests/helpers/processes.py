"""Scripts that tests run as one or two processes, and the strategies that these use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed

from lightning_idc.models.distributed import destroy_process_group, is_distributed

TESTS = Path(__file__).resolve().parents[1]


def launch(script: Path, *arguments: str | Path) -> None:
    """Run a script that lies among the tests to its end; it may import what lies beside it, and the helpers."""
    paths = [TESTS.parent, TESTS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


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

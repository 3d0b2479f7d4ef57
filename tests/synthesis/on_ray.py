"""Makes the records of `test_ray` with Ray's workers, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from helpers.toy_stages import Numbers, Shade

from lightning_idc.synthesis.ray_launcher import run_on_ray


def killer(target: Path, kills: int) -> None:
    """Kill a worker that is at a shard, again and again."""
    draw = random.Random(3)
    made = 0
    while kills:
        time.sleep(0.02)
        now = len(list(target.glob("shard-*.json")))
        if now <= made:
            continue
        made = now + 1
        workers = [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _is_worker(path, os.getpid())
        ]
        if workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
            kills -= 1
            print("killed", flush=True)


def _is_worker(path: Path, driver: int) -> bool:
    try:
        command = (path / "cmdline").read_bytes()
        status = (path / "environ").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::_Worker") and f"SYNTHESIS_DRIVER={driver}".encode() in status


if __name__ == "__main__":
    os.environ["SYNTHESIS_DRIVER"] = str(os.getpid())
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path), "SYNTHESIS_DRIVER": str(os.getpid())}},
    )  # fmt: skip
    kills = int(sys.argv[2])
    threading.Thread(target=killer, args=(Path(sys.argv[1]), kills), daemon=True).start()
    run_on_ray(Shade(pause=0.1), Numbers(60), sys.argv[1], workers=2, retries=10, batch_size=4, shard_size=6)
    ray.shutdown()

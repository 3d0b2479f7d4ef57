"""Ray's workers make what this process makes, whoever of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.processes import TESTS
from helpers.toy_stages import Numbers, Shade, digests, everything, shards_of

from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("ray", reason="the extra ray is not installed")
KILLS = 2
SCRIPT = """
import sys
from helpers.toy_stages import Numbers, Shade
from lightning_idc.synthesis.ray import RayPool
from lightning_idc.synthesis.run import Job
sizes = {"batch_size": 4, "shard_size": 6}
RayPool(workers=2, num_cpus=0.5, retries=20).launch(Shade(pause=0.2), Job(Numbers(42), sys.argv[1], **sizes))
RayPool(workers=1, num_cpus=0.5).launch(Shade(seed=1), Job(sys.argv[1], sys.argv[2], **sizes))
"""


def kill_workers(target: Path, mark: str, killed: list[int]) -> None:
    """Kill both workers at once while they are at work, when a shard has been made."""
    while not killed:
        workers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and is_worker(path, mark)]
        if len(workers) < KILLS or not shards_of(target):
            time.sleep(0.05)
            continue
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        killed += workers


def is_worker(path: Path, mark: str) -> bool:
    try:
        command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::_Worker.work") and f"TEST_RUN={mark}".encode() in environment


@pytest.mark.dist
@pytest.mark.timeout(1500)
def test_killed_workers_do_not_change_the_bytes(tmp_path: Path) -> None:
    first, second, killed = tmp_path / "ray" / "first", tmp_path / "ray" / "second", list[int]()
    killer = threading.Thread(target=kill_workers, args=(first, str(tmp_path), killed), daemon=True)
    killer.start()
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(first), str(second)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TEST_RUN": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert len(killed) == KILLS == done.stderr.count("a worker died at"), done.stderr[-3000:]
    sizes = {"batch_size": 4, "shard_size": 6}
    run(Shade(), Numbers(42), tmp_path / "one" / "first", **sizes)
    run(Shade(seed=1), str(tmp_path / "one" / "first"), tmp_path / "one" / "second", **sizes)
    for name in ("first", "second"):
        ours, theirs = RecordStore(tmp_path / "ray" / name), RecordStore(tmp_path / "one" / name)
        assert digests(ours.folder) == digests(theirs.folder) and ours.fingerprint == theirs.fingerprint
        assert everything(ours) == everything(theirs)

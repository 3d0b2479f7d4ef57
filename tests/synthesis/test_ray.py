"""Ray workers make the same records as this process, even if some are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.processes import TESTS, forking_python
from helpers.toy_stages import Numbers, Shade, digests, everything, shards_of

from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("ray", reason="the extra ray is not installed")
KILLS = 2
SCRIPT = """
import sys
from helpers.toy_stages import Shade
from lightning_idc.synthesis.ray import RayPool
from lightning_idc.synthesis.run import Job
sizes = {"batch_size": 4, "shard_size": 6}
sys.executable = sys.argv[4]  # Ray's own processes are started as those of a user
pool = RayPool(workers=2, num_cpus=0.5, retries=20)
pool.launch(Shade(seed=1, wait_for=sys.argv[3]), Job(sys.argv[1], sys.argv[2], **sizes))
"""


def kill_workers(target: Path, folder: Path, killed: list[int]) -> None:
    """Kill both workers at once after the first shard has been made, then create a marker file."""
    while not killed:
        processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        workers = [int(path.name) for path in processes if is_worker(path, str(folder))]
        if len(workers) < KILLS or not shards_of(target):
            time.sleep(0.05)
            continue
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        killed += workers
    (folder / "killed").touch()


def is_worker(path: Path, mark: str) -> bool:
    try:
        command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::_Worker.work") and f"TEST_RUN={mark}".encode() in environment


@pytest.mark.dist
@pytest.mark.timeout(1500)
def test_killed_workers_do_not_change_the_bytes(tmp_path: Path) -> None:
    """The workers also read the store of an earlier stage."""
    source, target, killed = tmp_path / "source", tmp_path / "ray", list[int]()
    sizes = {"batch_size": 4, "shard_size": 6}
    run(Shade(), Numbers(42), source, **sizes)
    killer = threading.Thread(target=kill_workers, args=(target, tmp_path, killed), daemon=True)
    killer.start()
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [forking_python(), "-c", SCRIPT, str(source), str(target), str(tmp_path / "killed"), sys.executable],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TEST_RUN": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert len(killed) == KILLS == done.stderr.count("a worker died at"), done.stderr[-3000:]
    run(Shade(seed=1), str(source), tmp_path / "here", **sizes)
    ours, theirs = RecordStore(target), RecordStore(tmp_path / "here")
    assert digests(ours.folder) == digests(theirs.folder) and ours.fingerprint == theirs.fingerprint
    assert everything(ours) == everything(theirs)

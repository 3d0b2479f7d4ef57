"""Ray's workers make what the Trainer makes, whoever of them dies, and stages do not wait for each other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.processes import TESTS
from helpers.toy_stages import Numbers, Shade, digests, everything

from lightning_idc.synthesis.engine import ShardJob
from lightning_idc.synthesis.launchers import run_in_process
from lightning_idc.synthesis.pipeline import run
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError, DataError

pytest.importorskip("ray", reason="the extra ray is not installed")
RECIPE = """
stages:
  - name: first
    run: predict
    config:
      return_predictions: false
      model: {class_path: helpers.toy_stages.Shade, init_args: {pause: 0.2}}
      data:
        class_path: Records
        init_args:
          source: {class_path: helpers.toy_stages.Numbers, init_args: {count: 60}}
          target: ${run_dir}/first/records
          batch_size: 4
          shard_size: 6
  - name: second
    run: predict
    config:
      return_predictions: false
      model: {class_path: helpers.toy_stages.Shade, init_args: {seed: 1}}
      data:
        class_path: Records
        init_args:
          source: ${run_dir}/first/records
          target: ${run_dir}/second/records
          batch_size: 4
          shard_size: 5
"""


def kill_a_worker(target: Path, mark: str, killed: list[int]) -> None:
    """Kill a worker that is at a shard, when one shard has been made."""
    while not list(target.glob("shard-*.json")):
        time.sleep(0.05)
    workers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and is_worker(path, mark)]
    killed.append(random.Random(3).choice(workers))
    os.kill(killed[0], signal.SIGKILL)


def is_worker(path: Path, mark: str) -> bool:
    try:
        command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ray::_Worker") and f"TEST_RUN={mark}".encode() in environment


@pytest.mark.dist
@pytest.mark.timeout(400)
def test_a_recipe_on_ray_leaves_the_same_bytes_with_a_worker_killed_in_mid_shard(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    out, killed = tmp_path / "ray", list[int]()
    killer = threading.Thread(target=kill_a_worker, args=(out / "first" / "records", str(tmp_path), killed))
    killer.start()
    command = ["run", "recipe.yaml", "--run_dir", str(out), "--engine", "ray", "--engine.workers", "1"]
    given = ["--import", "helpers.toy_stages", "--stages.second.data.launcher.num_cpus", "0.5"]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-m", "lightning_idc", *command, *given],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TEST_RUN": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    killer.join()
    assert killed and done.stderr.count("a worker died at") == 1, done.stderr[-3000:]
    run(Shade(), Numbers(60), tmp_path / "one" / "first", batch_size=4, shard_size=6)
    run(Shade(seed=1), str(tmp_path / "one" / "first"), tmp_path / "one" / "second", batch_size=4, shard_size=5)
    for name in ("first", "second"):
        ours, theirs = RecordStore(out / name / "records"), RecordStore(tmp_path / "one" / name)
        assert digests(ours.folder) == digests(theirs.folder) and ours.fingerprint == theirs.fingerprint
        assert everything(ours) == everything(theirs)
    written = {name: shard_times(out / name / "records") for name in ("first", "second")}
    assert written["second"][0] < written["first"][-1], "the second stage does not wait for the end of the first"


def shard_times(folder: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted(folder.glob("shard-*.arrow"))]


def job(source: str | Numbers, target: Path) -> ShardJob:
    return ShardJob(source, target, batch_size=4, shard_size=5)


def test_a_stream_that_was_stopped_is_finished_by_another_launcher(tmp_path: Path) -> None:
    """What was made of an unfinished store is kept, whoever goes on, and is what a run without a stream makes."""
    first, second = tmp_path / "first", tmp_path / "second"
    begun = ShardJob(Numbers(60), first, shard_size=6)
    begun.begin(Shade())
    begun.open(stage := Shade())
    for number in (0, 1, 3):
        begun.make_shard(stage, number)
    following = job(str(first), second)
    following.streamed = True
    following.begin(Shade(seed=1))
    following.open(stage := Shade(seed=1))
    assert following.shards == 14 // 5, "of the 14 records before the shard that is missing"
    limited = ShardJob(str(first), tmp_path / "limited", shard_size=5, limit=12)
    limited.streamed = True
    assert limited.shards == 3, "a limit that is reached needs no more of the source"
    assert [following.make_shard(stage, number) for number in following.pending()] == [True, True]
    with pytest.raises(DataError, match="shard 2 cannot be made of 14 records"):
        following.make_shard(stage, 2)
    kept = shard_times(second)
    run_in_process(Shade(), Numbers(60), first, shard_size=6)
    store = run_in_process(Shade(seed=1), str(first), second, shard_size=5)
    assert shard_times(second)[:2] == kept, "they are not made again"
    run_in_process(Shade(), Numbers(60), tmp_path / "a", shard_size=6)
    assert everything(store) == everything(
        run_in_process(Shade(seed=1), str(tmp_path / "a"), tmp_path / "b", shard_size=5)
    )
    other = job(str(first), second)
    with pytest.raises(ConfigError, match="settings that are different"):
        other.begin(Shade(most=3, seed=1))

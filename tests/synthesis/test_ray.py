"""Ray's workers make what the Trainer makes, byte for byte, whoever of them dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.toy_stages import Numbers, Shade, digests, everything

from lightning_idc.synthesis.pipeline import run
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.mark.dist
@pytest.mark.timeout(400)
def test_bytes_are_equal_with_workers_killed_in_mid_shard(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    script = Path(__file__).with_name("on_ray.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "ray"), "1"],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.splitlines().count("killed") == 1 and "a worker died at shard" in done.stderr
    run(Shade(pause=0.0), Numbers(60), tmp_path / "one", batch_size=4, shard_size=6)
    assert digests(tmp_path / "ray") == digests(tmp_path / "one")
    assert everything(RecordStore(tmp_path / "ray")) == everything(RecordStore(tmp_path / "one"))

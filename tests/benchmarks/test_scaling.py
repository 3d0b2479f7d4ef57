"""Cost of pairs grows as the documentation says, at sizes that take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_no_part_grows_faster_than_n_log_n(tmp_path: Path) -> None:
    out, picture = tmp_path / "scaling.json", tmp_path / "scaling.svg"
    command = [sys.executable, "benchmarks/scaling.py", "--pairs", "1000", "8000", "--without-others"]
    done = subprocess.run(
        [*command, "--out", str(out), "--plot", str(picture)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    large = found["pairs"]["8000"]
    assert large["files of the report"] == 2, "a page holds 5,000 pairs"
    assert {"set up", "first batch", "scoring", "data check", "leaderboard", "report"} <= large.keys()
    # quadratic growth is 2; on a busy machine linear growth has been seen as 1.3
    assert all(slope < 1.6 for name, slope in found["exponents"].items() if large[name] > 0.2), found["exponents"]
    assert picture.read_text(encoding="utf-8").count("<polyline") == 8

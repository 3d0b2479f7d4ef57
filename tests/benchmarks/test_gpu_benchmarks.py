"""What is measured on a GPU runs at tiny size on a CPU, so that it works the first time that there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import gpu_tests

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = {
    1: {"vlm_decode", "vlm_scoring", "captioner_training", "namc_inference"},
    2: {"vlm_training"},
}


@pytest.mark.slow
@pytest.mark.parametrize("part", WRITTEN)
def test_a_part_of_the_gpu_benchmarks_runs_on_a_cpu(part: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTEST_ADDOPTS": "--collect-only -qq", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "benchmarks/gpu.py", "--part", str(part), "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    assert found.keys() == WRITTEN[part]
    if part == 1:
        assert found["vlm_decode"]["equal_tokens"] == 1.0
        assert all(row["largest_difference"] < 1e-3 for row in found["vlm_scoring"]["ways"].values())
        assert len(found["captioner_training"]["rows"]) == 4 and not found["captioner_training"]["failed"]
    else:
        rows = found["vlm_training"]["rows"]
        assert rows.keys() == {"sft x4", "adpo, CLIP", "grpo"}
        assert all(row["seconds_per_step"] > 0 and row["planned"]["states"] > 0 for row in rows.values())


def test_all_files_of_tests_for_a_gpu_are_named(request: pytest.FixtureRequest) -> None:
    found = {str(item.path.relative_to(ROOT)) for item in request.session.items if item.get_closest_marker("gpu")}
    named = gpu_tests()
    assert found <= set(named) and "tests/contract/test_gpu.py" in named and len(named) < 10


def test_without_a_gpu_the_full_size_is_refused() -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--part", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.strip() == "there is no GPU here; --tiny tries the same on the CPU"

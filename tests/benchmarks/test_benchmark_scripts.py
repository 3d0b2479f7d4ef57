"""Scripts in benchmarks/ start, and run on a CPU at their smallest size."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import forking_python

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if "def main()" in path.read_text(encoding="utf-8")
]
LIBRARY = {"benchmarks", "lightning_idc"}


def restore_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest restore variables that scripts set before they import torch, and that cv2 sets when imported."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_of_a_script(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    restore_environment(monkeypatch)
    try:
        script = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in LIBRARY:
            raise
        pytest.skip(f"needs {error.name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as caught:
        script.main()
    assert caught.value.code == 0 and "usage:" in capsys.readouterr().out


def run(name: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTEST_ADDOPTS": "--collect-only -qq", "HF_HUB_OFFLINE": "1"}
    # compiling for the CPU takes minutes and says nothing about a GPU; test_vlm_compiled.py tests the graphs
    environment["TORCHDYNAMO_DISABLE"] = "1"
    command = [forking_python(), "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


SMALLEST = {
    "mdp": "--train 8 --test 4 --size 32 --cells 1 --width 16 --epochs 1 --only none depths",
    "mdp_smollm2": "--train 8 --test 4 --size 32 --cells 1 --width 16 --warm_epochs 1 --epochs 1 --only none depths",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_run_of_a_study(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore_environment(monkeypatch)
    out = tmp_path / "out.json"
    folders = ["--work", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [name, *SMALLEST[name].split(), "--seeds", "1", *folders])
    # run as the main module, because its name and the first line of its docstring go into the result
    runpy.run_module(f"benchmarks.studies.{name}", run_name="__main__", alter_sys=True)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["question"] and result["commit"] and result["environment"]["versions"]["torch"]
    assert result["command"].startswith(f"python -m benchmarks.studies.{name} ")
    (world,) = result["worlds"].values()
    assert len(world["summary"]) == 2
    assert str(tmp_path) not in json.dumps(result), "a folder of this machine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("1", {"vlm_scoring", "captioner_training", "namc_inference"}),
        ("2", {"vlm_training"}),
        ("3", {"vlm_decode"}),
    ],
)
def test_gpu_benchmarks_run_on_a_cpu_at_tiny_size(part: str, files: set[str], tmp_path: Path) -> None:
    run("gpu", "--part", part, "--tiny", "--out", str(tmp_path))
    assert {path.stem for path in tmp_path.glob("*.json")} == files


@pytest.mark.slow
def test_cost_grows_no_faster_than_n_log_n(tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    run("scaling", "--pairs", "1000", "8000", "--repeats", "2", "--without-others", "--out", str(out))
    result = json.loads(out.read_text(encoding="utf-8"))
    large = result["pairs"]["8000"]
    # the exponent of quadratic growth is 2; on a busy machine, 1.3 has been measured for linear growth
    assert all(slope < 1.6 for name, slope in result["exponents"].items() if large[name] > 0.2), result["exponents"]

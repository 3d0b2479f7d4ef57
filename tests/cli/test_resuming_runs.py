"""A stopped run resumes from its last state, as the only run in its folder, with the outputs of its finished stages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from toy_idc import RECIPE

from lightning_idc.callbacks.resume import resume_point
from lightning_idc.cli import main
from lightning_idc.cli.recipes.run import DONE, _locked
from lightning_idc.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
FIT = RECIPE.split("  first:")[0] + "  second: {run: fit}\n"
MONITORED = """
recipe: {title: Toy}
base:
  trainer:
    max_epochs: 3
    accelerator: cpu
    logger: false
    enable_model_summary: false
    callbacks:
      ModelCheckpoint: {monitor: val/loss, mode: max, filename: best, save_last: true}
  model: {class: toy_idc.Measured}
  data: {class: toy_idc.Numbers, items: 8}
stages:
  train: {run: fit}
  test: {of: train}
"""


# ---- the last state, independent of the monitored metric -------------------------------------------------


@pytest.mark.slow
def test_the_last_state_is_saved_after_a_plateau(runs: Any, tmp_path: Path) -> None:
    """The loss falls under mode ``max``: the first checkpoint is the best, and Lightning's last.ckpt would equal it."""
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    folder = tmp_path / "out" / "train" / "checkpoints"
    steps = {path.stem: torch.load(path, weights_only=True)["global_step"] for path in folder.iterdir()}
    assert steps == {"best": 4, "last": 12}
    assert Path(runs[-1][1]["ckpt_path"]).name == "best.ckpt", "the best one is tested"
    (tmp_path / "out" / "train" / DONE).unlink()
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out", "--trainer.max_epochs", "4"]) == 0
    assert Path(runs[0][1]["ckpt_path"]).name == "last.ckpt"
    again = torch.load(folder / "best.ckpt", weights_only=True)
    assert again["global_step"] == 4, "the best of before is still known after resuming"


@pytest.mark.slow
def test_training_that_ends_before_the_first_validation_is_saved(runs: Any, tmp_path: Path) -> None:
    Path("toy.yaml").write_text(MONITORED.replace("max_epochs: 3", "max_epochs: 1\n    check_val_every_n_epoch: 4"))
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    assert Path(runs[-1][1]["ckpt_path"]).name == "last.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])
def test_ctrl_c_around_a_validation_changes_nothing(runs: Any, tmp_path: Path, step: int) -> None:
    """An epoch has four steps. If a validation were skipped, another checkpoint would be the best."""
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--out", "whole"]) == 0
    stopping = MONITORED.replace("  model:", f"      interrupt: {{class: toy_idc.InterruptAt, step: {step}}}\n  model:")
    Path("toy.yaml").write_text(stopping)
    assert main(["run", "toy.yaml", "--out", "out"]) == 130
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0
    for name in ("best", "last"):
        whole, result = (
            torch.load(tmp_path / folder / "train" / "checkpoints" / f"{name}.ckpt", weights_only=True)
            for folder in ("whole", "out")
        )
        assert result["global_step"] == whole["global_step"]
        torch.testing.assert_close(result["state_dict"], whole["state_dict"], rtol=0, atol=0)


def test_another_saver_of_last_states_is_enough() -> None:
    watched = ModelCheckpoint(monitor="val/loss", save_last=True)
    assert resume_point([]) is None
    assert resume_point([ModelCheckpoint()]) is None
    assert resume_point([watched, ModelCheckpoint(every_n_epochs=2)]) is None
    assert watched.save_last
    assert resume_point([ModelCheckpoint(save_top_k=0), watched]) is not None
    assert resume_point([ModelCheckpoint(save_weights_only=True)]) is not None
    assert not watched.save_last, "two savers of one file would get in each other's way"


@pytest.mark.slow
def test_a_damaged_last_state_costs_an_epoch_and_not_the_run(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    (tmp_path / "out" / "train" / DONE).unlink()
    last = tmp_path / "out" / "train" / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:2000])
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0
    printed = capsys.readouterr().out
    assert "skipping" in printed and "last.ckpt" in printed
    assert Path(runs[0][1]["ckpt_path"]).name == "best.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 12


# ---- outputs of finished stages --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.json", "second/stage.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00\xff"])
def test_damaged_records_raise_a_one_line_error(
    runs: Any, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    shutil.copytree(finished, "out")
    (tmp_path / "out" / name).write_text(text, encoding="latin-1")
    capsys.readouterr()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and name.split("/")[-1] in printed and "damaged" in printed
    assert len(printed.strip().splitlines()) == 1


# ---- one run in a folder at a time -----------------------------------------------------------------------


def test_a_folder_in_use_is_refused(
    runs: Any, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, "out")
    with _locked(tmp_path / "out"):
        assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    message = capsys.readouterr().err
    assert "is in use by another run" in message and len(message.strip().splitlines()) == 1
    assert not runs
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0, "the lock is given back"


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/out"])
@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
def test_a_file_instead_of_the_folder_raises_a_one_line_error(
    runs: Any, capsys: pytest.CaptureFixture[str], name: str, seeds: list[str]
) -> None:
    Path("notes.txt").write_text("mine")
    assert main(["run", "toy.yaml", "--out", name, *seeds]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()[:1]
    assert "notes.txt' is a file" in said and "choose another folder" in said
    assert runs == [] and Path("notes.txt").read_text() == "mine"


def test_a_read_only_folder_raises_a_one_line_error(tmp_path: Path) -> None:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    try:
        with pytest.raises(ConfigError, match="is not writable"), _locked(tmp_path):
            pass
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.dist
def test_a_killed_run_takes_its_stage_with_it(runs: Any) -> None:
    """The stage ends with its run; otherwise it would train in parallel with the resumed one."""
    Path("toy.yaml").write_text(FIT)
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    arguments = ["--out", "out", "--model.pause", "0.3", "--data.items", "4"]
    arguments += ["--trainer.max_epochs", "400", "--trainer.accelerator", "auto"]  # in a separate process
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_idc", "run", "toy.yaml", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        stage = wait_for(lambda: next(iter(below(process.pid)), None), 120)
        wait_for(lambda: next(Path("out").rglob("*.ckpt"), None), 120)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not alive(stage) or None, 30)
    finally:
        process.kill()


def wait_for(found: Any, seconds: float) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (value := found()) is not None:
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def below(pid: int) -> list[int]:
    """Ids of the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""A stopped run goes on from its last state, alone in its folder, and with what its stages left."""

from __future__ import annotations

import json
import multiprocessing
import os
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

import lightning_idc.cli
from lightning_idc.callbacks.resume import resume_point
from lightning_idc.cli import main, processes, stages
from lightning_idc.cli.locking import only_run_in
from lightning_idc.utils.errors import PairError

ROOT = Path(__file__).resolve().parents[2]
FIT = RECIPE.split("  - {name: first")[0] + "  - {name: second, run: fit}\n"
MONITORED = """
recipe: {title: Toy}
base:
  trainer:
    max_epochs: 3
    accelerator: cpu
    logger: false
    enable_model_summary: false
    callbacks:
      - class_path: lightning.pytorch.callbacks.ModelCheckpoint
        init_args: {monitor: val/loss, mode: max, filename: best, save_last: true}
  model: {class_path: toy_idc.Measured}
  data: {class_path: toy_idc.Numbers, init_args: {items: 8}}
stages:
  - {name: train, run: fit}
  - {name: test, run: test}
"""


# ---- a last state, whatever the best one is chosen by ----------------------------------------------------


@pytest.mark.slow
def test_the_last_state_is_kept_after_a_plateau(runs: Any, tmp_path: Path) -> None:
    """The loss falls and the greatest is watched: the best is the first, and Lightning's last.ckpt would be, too."""
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    folder = tmp_path / "out" / "train" / "checkpoints"
    steps = {path.stem: torch.load(path, weights_only=True)["global_step"] for path in folder.iterdir()}
    assert steps == {"best": 4, "last": 12}
    assert Path(runs[-1][1]["ckpt_path"]).name == "best.ckpt", "the best one is tested"
    (tmp_path / "out" / "train" / stages.DONE).unlink()
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out", "--trainer.max_epochs", "4"]) == 0
    assert Path(runs[0][1]["ckpt_path"]).name == "last.ckpt"
    again = torch.load(folder / "best.ckpt", weights_only=True)
    assert again["global_step"] == 4, "the best of before is still known after resuming"


def test_training_that_ends_before_the_first_validation_is_kept(runs: Any, tmp_path: Path) -> None:
    Path("toy.yaml").write_text(MONITORED.replace("max_epochs: 3", "max_epochs: 1\n    check_val_every_n_epoch: 4"))
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    assert Path(runs[-1][1]["ckpt_path"]).name == "last.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])
def test_ctrl_c_around_a_validation_changes_nothing(runs: Any, tmp_path: Path, step: int) -> None:
    """Four steps are an epoch. A validation that was left out would make another checkpoint the best."""
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--run_dir", "whole"]) == 0
    stopping = MONITORED.replace(
        "  model:", f"      - {{class_path: toy_idc.InterruptAt, init_args: {{step: {step}}}}}\n  model:"
    )
    Path("toy.yaml").write_text(stopping)
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 130
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0
    for name in ("best", "last"):
        whole, found = (
            torch.load(tmp_path / folder / "train" / "checkpoints" / f"{name}.ckpt", weights_only=True)
            for folder in ("whole", "out")
        )
        assert found["global_step"] == whole["global_step"]
        torch.testing.assert_close(found["state_dict"], whole["state_dict"], rtol=0, atol=0)


def test_another_saver_of_last_states_is_enough() -> None:
    watched = ModelCheckpoint(monitor="val/loss", save_last=True)
    assert resume_point([]) is None
    assert resume_point([ModelCheckpoint()]) is None
    assert resume_point([watched, ModelCheckpoint(every_n_epochs=2)]) is None
    assert watched.save_last
    assert resume_point([ModelCheckpoint(save_top_k=0), watched]) is not None
    assert resume_point([ModelCheckpoint(save_weights_only=True)]) is not None
    assert not watched.save_last, "two savers of one file would get in each other's way"


def test_a_damaged_last_state_costs_an_epoch_and_not_the_run(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("toy.yaml").write_text(MONITORED)
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    (tmp_path / "out" / "train" / stages.DONE).unlink()
    last = tmp_path / "out" / "train" / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:2000])
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0
    said = capsys.readouterr().out
    assert "passing over" in said and "last.ckpt" in said
    assert Path(runs[0][1]["ckpt_path"]).name == "best.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 12


# ---- what finished stages left ---------------------------------------------------------------------------


def test_a_checkpoint_that_was_changed_is_noticed(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    best = tmp_path / "out" / json.loads((tmp_path / "out/second" / stages.DONE).read_text())["best"]
    content = torch.load(best, weights_only=True)
    content["state_dict"]["net.0.bias"][0] += 1
    torch.save(content, best)
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    assert "is not the one it left" in capsys.readouterr().err and not runs


@pytest.mark.parametrize("name", ["run.json", "second/stage.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00\xff"])
def test_damaged_records_are_one_sentence(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    Path("toy.yaml").write_text(FIT)
    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    (tmp_path / "out" / name).write_text(text, encoding="latin-1")
    capsys.readouterr()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and name.split("/")[-1] in said and "damaged" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["run.json", "second/stage.json"])
def test_a_flipped_character_of_a_record_is_noticed(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path("toy.yaml").write_text(FIT)
    assert main(["run", "toy.yaml", "--run_dir", "out", "--model.width", "7"]) == 0
    path = tmp_path / "out" / name
    text = path.read_text()
    old, new = ('"model.width": 7', '"model.width": 5') if name == "run.json" else (".ckpt", ".ckpu")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    capsys.readouterr()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("error: ") and name.split("/")[-1] in said and "damaged" in said


# ---- one run in a folder at a time -----------------------------------------------------------------------


def test_a_folder_in_use_is_refused_with_its_owner(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    assert main(["run", "toy.yaml", "--run_dir", "out"]) == 0
    runs.clear()
    capsys.readouterr()
    with only_run_in(tmp_path / "out"):
        assert main(["run", "toy.yaml", "--resume", "out"]) == 1
    said = capsys.readouterr().err
    assert f"process {os.getpid()} on {socket.gethostname()}" in said and len(said.strip().splitlines()) == 1
    assert not runs
    assert main(["run", "toy.yaml", "--resume", "out"]) == 0, "the lock is given back"


def test_a_lock_is_held_while_forked_processes_come_and_go(tmp_path: Path) -> None:
    with only_run_in(tmp_path):
        child = multiprocessing.get_context("fork").Process(target=print)
        child.start()
        child.join()
        code = "import sys; from pathlib import Path; from lightning_idc.cli.locking import only_run_in\n"
        code += "with only_run_in(Path(sys.argv[1])): pass"
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert other.returncode and "is in use by a run" in other.stderr
    with only_run_in(tmp_path):
        pass


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/out"])
@pytest.mark.parametrize("seeds", [[], ["--seeds", "1,2"]])
def test_a_file_in_place_of_the_folder_is_one_sentence(
    runs: Any, capsys: pytest.CaptureFixture[str], name: str, seeds: list[str]
) -> None:
    Path("notes.txt").write_text("mine")
    assert main(["run", "toy.yaml", "--run_dir", name, *seeds]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()[:1]
    assert "'notes.txt' is a file" in said and "name another folder" in said
    assert runs == [] and Path("notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    try:
        with pytest.raises(PairError, match="cannot be written to"), only_run_in(tmp_path):
            pass
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.dist
@pytest.mark.parametrize("forked", [True, False])
def test_a_killed_run_takes_its_stage_with_it(runs: Any, forked: bool) -> None:
    """A stage that went on unseen would train beside the one that resumes it."""
    Path("toy.yaml").write_text(FIT)
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    arguments = ["--run_dir", "out", "--model.pause", "0.3", "--data.items", "400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_idc", "run", "toy.yaml", *arguments]
        + ([] if forked else ["--trainer.accelerator", "auto"]),
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        stage = wait_for(lambda: next(iter(below(process.pid)), None), 120)
        if not forked:
            time.sleep(8)  # until it has imported and asked to end with its parent; before that it looks for itself
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not alive(stage) or None, 30)
    finally:
        process.kill()


def test_an_interrupt_at_the_moment_of_forking_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints and forgets what is raised while it forks, and the stage would train on."""
    moments = [True]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job of the background
    os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT) if moments and moments.pop() else None)
    monkeypatch.setattr(lightning_idc.cli, "main", lambda arguments: time.sleep(20))
    began = time.monotonic()
    try:
        assert processes.run_process("fit", tmp_path / "x.yaml", tmp_path / "out", forked=True) == 130
        assert not moments and time.monotonic() - began < 10
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "later ones are heard"
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(found: Any, seconds: float) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (value := found()) is not None:
            return value
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def below(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Running recipes: outputs passed between stages, stages skipped on resuming, and the state left by a stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import forking_python
from helpers.stages_here import stages_here
from PIL import Image
from toy_idc import RECIPE

from lightning_idc.cli import guarded, main
from lightning_idc.cli.recipes.launch import run_in_process
from lightning_idc.cli.recipes.plan import Plan
from lightning_idc.cli.recipes.run import DONE, Run
from lightning_idc.cli.stage import run_stage

ROOT = Path(__file__).resolve().parents[2]
APART = ["--trainer.accelerator", "auto"]
"""Makes each stage run in a separate process."""


def names(runs: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [name for name, _ in runs]


@pytest.mark.slow
def test_every_stage_runs_once_and_the_test_gets_the_best_of_the_stage_that_it_names(runs: Any, tmp_path: Path) -> None:
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    assert names(runs) == ["first", "second", "test"]
    assert Path(runs[-1][1]["ckpt_path"]).is_relative_to(tmp_path / "out" / "second")
    record = json.loads((tmp_path / "out" / "test" / DONE).read_text())
    assert record["metrics"]["test/loss"] >= 0


@pytest.mark.slow
def test_a_stage_that_names_no_weights_gets_none(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A zero-shot test after training the same class does not use the trained weights."""
    Path("toy.yaml").write_text(RECIPE.replace("test: {of: second}", "test: {run: test}"))
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    assert "ckpt_path" not in runs[-1][1] and "weights: initial" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fit_without_a_checkpoint_stops_the_test_of_it(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "toy.yaml", "--out", "out", "--stages.second.trainer.enable_checkpointing", "false"]) == 1
    assert "stage that saves no checkpoint has no best one" in capsys.readouterr().err


@pytest.mark.slow
def test_the_smoke_size_and_the_command_line_both_count(runs: Any) -> None:
    assert main(["run", "toy.yaml", "--out", "out", "--smoke", "--trainer.max_epochs", "1"]) == 0
    assert {run["data"]["init_args"]["items"] for _, run in runs} == {4}
    assert {run["trainer"]["max_epochs"] for _, run in runs} == {1}


def test_nothing_runs_when_a_later_stage_is_wrong(
    runs: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(plan: Plan, followed: bool) -> int:
        """Run a stage as its own process would."""
        runs.append((Path(plan.record).parent.name, {}))
        return guarded(lambda: run_stage(plan))

    stages_here(monkeypatch, launch=launch)
    assert main(["run", "toy.yaml", "--stages.test.model.width", "wide"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: stage test: ") and "width" in message and "wide" in message
    assert "--resume" not in message and not (tmp_path / "runs").exists()
    assert names(runs) == ["first"], "its process checks the others before it begins"


@pytest.mark.slow
def test_a_failed_stage_stops_the_run_and_resuming_continues_it_with_the_same_keys(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--stages.second.model.fail_at", "5", "--model.width", "4"]
    assert main(["run", "toy.yaml", "--out", "out", *keys]) == 1
    printed = capsys.readouterr().err
    assert "became nan at step 5" in printed and "lightning-idc run toy.yaml --resume out" in printed
    assert names(runs) == ["first", "second"]
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out", "--stages.second.model.fail_at", "-1"]) == 0
    assert names(runs) == ["second", "test"], "what is finished is not run again"
    assert runs[0][1]["model"]["init_args"]["width"] == 4, "the keys that the run was started with still hold"
    assert "/second/checkpoints/" in runs[0][1]["ckpt_path"], "it continues after the first epoch"
    state = torch.load(sorted(Path("out/second").rglob("*.ckpt"))[-1], weights_only=True)
    assert state["global_step"] == 8


@pytest.mark.slow
def test_a_run_can_be_moved_and_resumed(runs: Any, tmp_path: Path) -> None:
    assert main(["run", "toy.yaml", "--out", "out", "--stages.test.trainer.limit_test_batches", "0"]) == 0
    (tmp_path / "out" / "test" / DONE).unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "moved"]) == 0
    assert names(runs) == ["test"] and "/moved/second/" in runs[0][1]["ckpt_path"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda: Path("out/run.json").unlink(), "there is no run in 'out' to resume"),
        (lambda: next(Path("out/second").rglob("*.ckpt")).unlink(), "stage second is finished but its checkpoint"),
        (lambda: Path("toy.yaml").rename("other.yaml"), "contains a run of toy.yaml, not of other.yaml"),
    ],
)
def test_resuming_what_is_not_there_is_an_error(
    runs: Any, finished: Path, capsys: pytest.CaptureFixture[str], break_it: Callable[[], Any], says: str
) -> None:
    shutil.copytree(finished, "out")
    break_it()
    recipe = "toy.yaml" if Path("toy.yaml").exists() else "other.yaml"
    assert main(["run", recipe, "--resume", "out"]) == 1
    assert says in capsys.readouterr().err and runs == []


@pytest.mark.slow
def test_a_folder_with_a_run_is_not_overwritten(runs: Any, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished, "out")
    assert main(["run", "toy.yaml", "--out", "out"]) == 1
    assert "already contains a run" in capsys.readouterr().err


def resumed(runs: Any, *arguments: str) -> list[str]:
    """Resume the run, and return the names of the stages that run."""
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out", *arguments]) == 0
    return [name for name, _ in runs]


@pytest.mark.slow
def test_a_stage_whose_recipe_was_changed_runs_again(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    Path("toy.yaml").write_text(RECIPE + "# a comment\n")
    assert resumed(runs) == []
    assert resumed(runs, "--model.width", "4") == [], "keys of the command are for what is not finished"
    best = json.loads((tmp_path / "out/first" / DONE).read_text())["best"]
    Path("toy.yaml").write_text(RECIPE.replace("class: toy_idc.Other, width: 2", "class: toy_idc.Other, width: 5"))
    capsys.readouterr()
    assert resumed(runs) == ["first"], "the test takes the weights of the second"
    assert "the recipe was changed" in capsys.readouterr().out
    assert (tmp_path / "out" / best.replace("first/", "first.1/", 1)).is_file(), "what it left is kept"
    assert resumed(runs) == []


@pytest.mark.slow
def test_a_changed_file_of_defaults_counts_and_so_do_weights_that_were_made_anew(runs: Any, tmp_path: Path) -> None:
    base, rest = RECIPE.split("stages:\n")
    recipe, base = base.split("base:\n")
    Path("shared.yaml").write_text(f"base:\n{base}")
    Path("toy.yaml").write_text(f"{recipe}defaults: [shared]\nstages:\n{rest}")
    assert main(["run", "toy.yaml", "--out", "out"]) == 0
    assert resumed(runs) == []
    Path("shared.yaml").write_text(f"base:\n{base}".replace("width: 3", "width: 6"))
    assert resumed(runs) == ["second", "test"], "the first stage names another class, and so other arguments"
    assert resumed(runs) == []


@pytest.mark.slow
def test_seeds_that_were_not_begun_go_on_with_the_keys_of_those_that_were(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """All seeds are compared in one table, so they must have the same settings."""
    keys = ["--model.width", "4", "--trainer.max_epochs", "1", "--stages.second.model.fail_at", "1"]
    assert main(["run", "toy.yaml", "--seeds", "1,2", "--out", "out", *keys]) == 1
    assert "lightning-idc run toy.yaml --seeds 1,2 --resume out" in capsys.readouterr().err
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out"]) == 1 and runs == []
    assert "found runs in out/seed_1; expected" in capsys.readouterr().err
    mended = ["--stages.second.model.fail_at", "-1"]
    assert main(["run", "toy.yaml", "--seeds", "1,2", "--resume", "out", *mended]) == 0
    assert names(runs) == ["second", "test", "first", "second", "test"]
    assert [config["seed_everything"] for _, config in runs] == [1, 1, 2, 2, 2]
    assert all(config["model"]["init_args"]["width"] == 4 for _, config in runs)


SHARES = """
recipe: {title: Hashes}
stages:
  hash:
    run: predict
    model: {class: ImageHashes, images: [image]}
    data: {class: Records, source: {class: ImageFolder, root: photos}, target: "${run_dir}/a", shard_size: 1}
  again: {like: hash, data: {source: "${run_dir}/a", target: "${run_dir}/b"}}
"""


@pytest.mark.slow
def test_the_share_of_one_task_of_an_array_does_not_finish_a_stage(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task that ends last completes the stage, and continues with its share of the next one."""
    Path("photos").mkdir()
    for number in range(3):
        Image.new("RGB", (24, 24), (50 * number, 0, 99)).save(f"photos/{number}.png")
    Path("shares.yaml").write_text(SHARES)
    share = ["--engine", "array", "--engine.tasks", "2", "--engine.task"]
    assert main(["run", "shares.yaml", "--out", "out", *share, "0"]) == 0
    printed = capsys.readouterr().out
    assert "stage hash is not finished: 2 of 3 shards" in printed and "--resume out" in printed
    assert main(["run", "shares.yaml", "--resume", "out", *share, "1"]) == 0
    assert "other tasks are running" in capsys.readouterr().out
    assert names(runs) == ["hash", "hash", "again"]


def test_an_unknown_recipe_is_refused_with_the_nearest(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "quickstrat"]) == 1
    assert "did you mean 'quickstart'?" in capsys.readouterr().err


FIT = RECIPE.split("  first:")[0] + "  second: {run: fit}\n"


def stop_in_the_second_epoch(folder: Path, *arguments: str, by: signal.Signals = signal.SIGINT) -> str:
    """Start a run in separate processes, send a signal, Ctrl-C by default, and return the output."""
    process = subprocess.Popen(
        [forking_python(), "-m", "lightning_idc", "run", "toy.yaml", *arguments],
        cwd=folder.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # background jobs of a shell ignore Ctrl-C, and so do processes that tests start there
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    began = time.monotonic()
    while not list(folder.rglob("*.ckpt")) and process.poll() is None and time.monotonic() - began < 240:
        time.sleep(0.1)
    time.sleep(0.7)  # past the first step of the second epoch
    process.send_signal(by)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    return said


@pytest.mark.dist
@pytest.mark.timeout(300)
def test_a_stage_in_two_processes_that_lightning_starts_hands_its_checkpoint_on(tmp_path: Path) -> None:
    """The second process runs a plain command and not a stage; both must finish successfully."""
    (tmp_path / "toy.yaml").write_text(FIT + "  test: {of: second}\n")
    ended = subprocess.run(
        [forking_python(), "-m", "lightning_idc", "run", "toy.yaml", "--out", "out", "--stages.second.trainer.devices",
         "2", "--stages.second.trainer.strategy", "ddp", "--trainer.accelerator", "cpu"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((tmp_path / "out" / "test" / DONE).read_text())["metrics"]


@pytest.mark.dist
@pytest.mark.parametrize("apart", [[], APART])
def test_ctrl_c_saves_after_the_step_and_resuming_gives_the_same_weights(
    runs: Any, tmp_path: Path, apart: list[str]
) -> None:
    """A real signal is sent to real processes; the oracle is an uninterrupted run."""
    Path("toy.yaml").write_text(FIT)
    said = stop_in_the_second_epoch(
        tmp_path / "stopped", "--out", "stopped", "--model.pause", "0.5", "--data.items", "16", *apart
    )
    assert "--resume stopped" in said and "stopping after this step" in said
    (saved,) = (tmp_path / "stopped").rglob("interrupted.ckpt")
    assert 8 < torch.load(saved, weights_only=True)["global_step"] < 16, "in the middle of the second epoch"
    assert main(["run", "toy.yaml", "--resume", "stopped", "--model.pause", "0.0"]) == 0
    assert main(["run", "toy.yaml", "--out", "whole", "--data.items", "16"]) == 0
    assert runs[0][1]["ckpt_path"] == str(saved)
    stopped, whole = (
        torch.load(next((tmp_path / run / "second").rglob("epoch=1-*.ckpt")), weights_only=True)
        for run in ("stopped", "whole")
    )
    assert stopped["global_step"] == whole["global_step"] == 16
    assert stopped["state_dict"].keys() == whole["state_dict"].keys()
    assert all(torch.equal(value, whole["state_dict"][name]) for name, value in stopped["state_dict"].items())


@pytest.mark.parametrize(
    ("arguments", "here"),
    [
        ([], True),
        (["--smoke"], True),
        (["--trainer.devices", "2"], False),  # Lightning starts the second process by the command line
        (["--trainer.accelerator", "auto"], False),  # may be several GPUs
    ],
)
def test_only_stages_on_one_cpu_run_in_the_process_of_the_runner(
    arguments: list[str], here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(RECIPE)
    launches: list[Any] = []
    monkeypatch.setattr(Run, "go", lambda run: launches.append(run.launch) or 0)
    assert main(["run", "toy.yaml", *arguments]) == 0
    assert [launch is run_in_process for launch in launches] == [here]


@pytest.mark.slow
def test_every_entry_of_a_matrix_has_a_folder_and_the_run_of_all_goes_on(runs: Any, tmp_path: Path) -> None:
    text = "matrix:\n  width: {small: {}, wide: {base: {model: {width: 9}}}}\n"
    Path("toy.yaml").write_text(RECIPE + text)
    failing = ["--stages.second.model.fail_at", "1"]
    assert main(["run", "toy.yaml", "--out", "out", *failing]) == 1
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out", "--stages.second.model.fail_at", "-1"]) == 0
    assert names(runs) == ["second", "test", "first", "second", "test"]
    assert [config["model"]["init_args"].get("width") for _, config in runs if "fail_at" in str(config)] == [3, 9]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"small", "wide"}
    runs.clear()
    assert main(["run", "toy.yaml", "--resume", "out/wide"]) == 0 and runs == [], "it knows which entry it is of"


@pytest.mark.dist
def test_stages_in_processes_give_what_they_give_in_this_one(runs: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from toy_idc import Toy as Mine\n")
    Path("toy.yaml").write_text(RECIPE.replace("class: toy_idc.Toy", "class: Mine"))
    command = [forking_python(), "-m", "lightning_idc", "run", "toy.yaml", "--import", "mine", "--out"]
    for out, options in (("apart", APART), ("here", [])):
        ended = subprocess.run(
            [*command, out, *options], env=environment(), capture_output=True, text=True, timeout=240
        )
        assert ended.returncode == 0, ended.stderr
    for stage in ("first", "second"):
        apart, here = (weights(tmp_path / run, stage) for run in ("apart", "here"))
        assert apart.keys() == here.keys() and all(torch.equal(value, here[name]) for name, value in apart.items())


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def weights(run: Path, stage: str) -> dict[str, torch.Tensor]:
    best = json.loads((run / stage / DONE).read_text())["best"]
    state: dict[str, torch.Tensor] = torch.load(run / best, weights_only=True)["state_dict"]
    return state


@pytest.mark.dist
def test_sigterm_saves_after_the_step_in_the_process_of_a_smoke_size(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(FIT)
    said = stop_in_the_second_epoch(
        tmp_path / "stopped", "--smoke", "--out", "stopped", "--model.pause", "0.5", "--data.items", "16",
        by=signal.SIGTERM,
    )  # fmt: skip
    assert "--resume stopped" in said and len(list((tmp_path / "stopped").rglob("interrupted.ckpt"))) == 1


@pytest.mark.slow
def test_a_misspelt_key_is_detected_without_importing_torch(tmp_path: Path) -> None:
    code = "import sys; from lightning_idc.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code, "run", "quickstart", "--model.widht", "3"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert ended.stdout.split() == ["1", "False"] and "did you mean 'width'?" in ended.stderr

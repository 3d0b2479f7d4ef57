"""One run in two processes started by SLURM or torchrun: they share one folder, and both run each stage."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import forking_python
from toy_idc import RECIPE

from lightning_idc.cli import main
from lightning_idc.cli.errors import readable
from lightning_idc.cli.recipes.ranks import Ranks, Watch, ranks_of_job
from lightning_idc.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TRAIN_AND_TEST = RECIPE.replace("  first: {run: fit, model: {class: toy_idc.Other, width: 2}}\n", "")
TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.use_distributed_sampler", "false"]
COMMAND = ["-m", "lightning_idc", "run", "toy.yaml", "--out", "out", *TWO]
IMPATIENT = """
import sys
from lightning_idc.cli import main
from lightning_idc.cli.recipes import launch
launch.SECONDS_TO_FOLLOW = 2
sys.exit(main())
"""
"""The command in a process that waits two seconds, instead of thirty, for the others to end by themselves."""
SCHEDULERS = ("SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "KUBERNETES_PORT")


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    free = {name: value for name, value in os.environ.items() if not name.startswith(SCHEDULERS)}
    return {**free, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def slurm_task(rank: int, port: int) -> dict[str, str]:
    """Variables that srun sets for a task of `--ntasks-per-node 2`, limited to those that are used."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "captions",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODELIST": "localhost",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        return int(result.getsockname()[1])


def tasks_of(folder: Path, *arguments: str, command: Sequence[str] = COMMAND) -> list[subprocess.Popen[str]]:
    """Start both tasks, and return their processes."""
    port = free_port()
    return [
        subprocess.Popen(
            [forking_python(), *command, *arguments],
            cwd=folder,
            env={**environment(), **slurm_task(rank, port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]


def srun(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Run both tasks, and return their exit status and output."""
    tasks = tasks_of(folder, *arguments)
    try:
        return [(task.wait(240), task.communicate()[0]) for task in tasks]
    finally:
        for task in tasks:
            task.kill()


def check_stages(run: Path, names: list[str]) -> None:
    for name in names:
        record = json.loads((run / name / "stage.json").read_text())
        assert record["metrics"] if name == "test" else (run / record["best"]).is_file()


@pytest.mark.slow
@pytest.mark.dist
def test_two_tasks_of_slurm_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TRAIN_AND_TEST)
    both = srun(tmp_path)
    assert [status for status, _ in both] == [0, 0], both
    check_stages(tmp_path / "out", ["second", "test"])
    assert "results:" in both[0][1] and "results:" not in both[1][1], "the first one alone speaks"
    assert "2 processes" in both[0][1], "both took part in the stages"


@pytest.mark.slow
@pytest.mark.dist
def test_two_processes_of_torchrun_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(TRAIN_AND_TEST)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [forking_python(), *launcher, *COMMAND],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_stages(tmp_path / "out", ["second", "test"])


@pytest.mark.slow
@pytest.mark.dist
def test_a_stage_that_fails_in_one_process_ends_the_run_in_both(tmp_path: Path) -> None:
    """The other process also ends, although its collective operation could wait until the backend's time limit."""
    (tmp_path / "toy.yaml").write_text(TRAIN_AND_TEST)
    both = srun(tmp_path, "--stages.second.model.class", "toy_idc.OneRankFails")
    assert all(status for status, _ in both), both
    assert "this process fails" in both[1][1]
    assert "--resume" in both[0][1]


@pytest.mark.slow
@pytest.mark.dist
def test_a_task_that_is_killed_before_the_processes_meet_ends_the_other(tmp_path: Path) -> None:
    """The other task ends early, and does not wait half an hour for the time limit of the backend."""
    (tmp_path / "toy.yaml").write_text(TRAIN_AND_TEST)
    impatient = ["-c", IMPATIENT, *COMMAND[2:]]
    first, second = tasks_of(tmp_path, "--stages.second.model.class", "toy_idc.OneRankWaits", command=impatient)
    try:
        begun = [tmp_path / f"begun-{rank}" for rank in (0, 1)]
        until = time.monotonic() + 60
        while not all(path.exists() for path in begun) and time.monotonic() < until:
            time.sleep(0.1)
        assert first.poll() is None and second.poll() is None
        time.sleep(1.5)  # the first task checks for the other one once a second
        second.kill()
        assert first.wait(120) == 1
        assert "another process of this run has ended" in first.communicate()[0]
    finally:
        first.kill()


def test_a_process_is_lost_once_it_was_there(tmp_path: Path) -> None:
    first, second = Watch(tmp_path, 0), Watch(tmp_path, 1)
    (tmp_path / ".ranks" / "2").touch()  # left by an earlier attempt
    assert not first.is_lost() and not second.is_lost()
    second.close()
    assert first.is_lost()
    first.close()


# ---- how a process detects the other processes of its job ------------------------------------------------


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith(SCHEDULERS)]:
        monkeypatch.delenv(name)

    def set_them(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_them


@pytest.mark.parametrize(
    "said", ["Connection closed by peer [127.0.0.1]", "Read error [::1]:27: Connection reset by peer"]
)
def test_a_killed_process_is_reported_in_one_line_by_the_others(said: str) -> None:
    """The messages are gloo's, which depend on the moment of the kill."""
    told = readable(RuntimeError(f"[/gloo/transport/tcp/pair.cc:545] {said}. This is typically caused by a worker"))
    assert told is not None and "another process of this run has ended" in told and "resume the run" in told


def test_a_process_alone_has_no_fellows(variables: Any) -> None:
    assert ranks_of_job() == Ranks()
    variables(SLURM_JOB_ID="1", SLURM_NTASKS="1", SLURM_PROCID="0")
    assert ranks_of_job() == Ranks()


def test_an_interactive_job_is_left_alone(variables: Any) -> None:
    variables(**{**slurm_task(0, 1), "SLURM_JOB_NAME": "bash"})
    assert ranks_of_job() == Ranks()


def test_several_tasks_without_srun_are_refused(variables: Any) -> None:
    variables(SLURM_JOB_ID="1", SLURM_NTASKS="4", SLURM_PROCID="0", SLURM_JOB_NAME="batch")
    with pytest.raises(ConfigError, match="begin it with srun"):
        ranks_of_job()


def test_ranks_are_read_from_each_scheduler(variables: Any) -> None:
    variables(**slurm_task(1, 1234))
    assert ranks_of_job() == Ranks(1, 1234)
    variables(TORCHELASTIC_RUN_ID="none", RANK="3", WORLD_SIZE="4", TORCHELASTIC_USE_AGENT_STORE="True")
    assert ranks_of_job() == Ranks(3, 1234)


def test_two_jobs_of_a_node_have_ports_of_their_own(variables: Any) -> None:
    variables(**{**slurm_task(0, 1), "SLURM_JOB_ID": "1234711"})
    os.environ.pop("MASTER_PORT")
    ranks = ranks_of_job()
    assert ranks == Ranks(0, 19711), "as Lightning has it"
    assert [ranks.environment(stage)["MASTER_PORT"] for stage in (0, 1)] == ["19712", "19713"]
    assert Ranks().environment(0) == {}


def test_several_processes_need_a_folder(
    variables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(TRAIN_AND_TEST)
    variables(**slurm_task(1, 1234))
    assert main(["run", "toy.yaml", *TWO]) == 1
    assert "expected --out or --resume" in capsys.readouterr().err


def test_nodes_that_lightning_joins_are_read(variables: Any) -> None:
    variables(NODE_RANK="1", MASTER_ADDR="10.0.0.1", MASTER_PORT="999")
    assert ranks_of_job() == Ranks(1, 999)
    variables(LOCAL_RANK="1")
    assert ranks_of_job() == Ranks(), "Lightning started this one by itself"

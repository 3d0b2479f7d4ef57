"""Faults that are done to runs of recipes: kills, signals, full and read-only disks, wrong clocks, damaged files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 180
"""A process that takes longer hangs."""


@dataclass
class Process:
    """A command of the library in a process of its own.

    Args:
        pid: of the process.
        output: what it has said.
    """

    pid: int
    output: Path
    status: int | None = None

    def running(self) -> bool:
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if found else None
        return self.status is None

    def wait(self) -> int:
        until = time.monotonic() + SECONDS
        while self.running():
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"still running after {SECONDS} s")
            time.sleep(0.01)
        assert self.status is not None
        return self.status

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def start(folder: Path, *arguments: str) -> Process:
    """Start ``lightning-idc`` in a folder."""
    output = folder / f"out{len(list(folder.glob('out*')))}.txt"
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Process(pid, output)
    try:
        os.setsid()
        number = os.open(output, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(number, stream)
        os.chdir(folder)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.default_int_handler if name == signal.SIGINT else signal.SIG_DFL)
        from lightning_idc.cli import main

        status = main(list(arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    os._exit(status)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in descendants(child)]


@dataclass
class Trial:
    """One run with one fault.

    Args:
        folder: of its own, with the data and the recipe.
        chance: draws moments and places.
        seconds: that a run takes when nothing happens.
        resumes: whether it begins when a part of the run is done.
    """

    folder: Path
    chance: random.Random
    seconds: float
    resumes: bool
    refused: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def begin(self) -> Process:
        return start(self.folder, "run", "faults.yaml", "--resume" if self.resumes else "--run_dir", "run")

    def wait_a_while(self, process: Process) -> None:
        """Until a random moment of the run."""
        until = time.monotonic() + self.chance.uniform(0.02, 1.0) * self.seconds
        while time.monotonic() < until and process.running():
            time.sleep(0.005)

    def refusal(self, process: Process) -> None:
        """Expect an end with one sentence."""
        status = process.wait()
        said = process.said()
        if not status:
            raise AssertionError("it ended as if nothing was wrong")
        if "Traceback" in said or "error: " not in said:
            raise AssertionError(f"no sentence, status {status}: {said[-600:]}")
        self.refused.append(next(line for line in said.splitlines() if line.startswith("error: ")))

    def finish(self) -> None:
        """Resume until the run has ended; a start that was killed before it had a folder is made again."""
        for _ in range(4):
            known = (self.run / "run.json").is_file()
            process = start(self.folder, "run", "faults.yaml", "--resume" if known else "--run_dir", "run")
            status = process.wait()
            if not status:
                return
            said = process.said()
            if "Traceback" in said or "error: " not in said:
                raise AssertionError(f"resuming failed without a sentence, status {status}: {said[-600:]}")
            sentence = next(line for line in said.splitlines() if line.startswith("error: "))
            self.refused.append(sentence)
            self.put_right(sentence)
        raise AssertionError(f"it cannot be resumed: {self.refused[-1]}")

    def put_right(self, sentence: str) -> None:
        """Do what the sentence advises."""
        stages = [path.name for path in self.run.iterdir() if path.is_dir()] if self.run.is_dir() else []
        named = [stage for stage in stages if f"run/{stage}" in sentence]
        if named and "stage.json" in sentence and "remove" in sentence:
            (self.run / named[0] / "stage.json").unlink(missing_ok=True)
        elif named and f"remove run/{named[0]} to train" in sentence:
            shutil.rmtree(self.run / named[0])
        elif "run.json" in sentence and self.resumes:  # from a copy: without it the run is over
            shutil.copy(self.folder.parent / "reference" / "run" / "run.json", self.run)
        elif "run.json" in sentence:  # start anew
            shutil.rmtree(self.run)
        elif ".part" in sentence:
            for part in self.run.rglob("*.part"):
                part.unlink()
        elif "cache" in sentence:
            shutil.rmtree(self.folder / "cache", ignore_errors=True)


def killed(trial: Trial) -> None:
    """kill -9 of the command"""
    process = trial.begin()
    trial.wait_a_while(process)
    if process.running():
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def killed_stage(trial: Trial) -> None:
    """kill -9 of the stage's process"""
    process = trial.begin()
    trial.wait_a_while(process)
    below = descendants(process.pid)
    if process.running() and below:
        os.kill(below[0], signal.SIGKILL)
    process.wait()


def asked_to_stop(trial: Trial) -> None:
    """SIGTERM or Ctrl-C"""
    process = trial.begin()
    trial.wait_a_while(process)
    if process.running():
        os.kill(process.pid, trial.chance.choice((signal.SIGTERM, signal.SIGINT)))
    process.wait()
    if "Traceback" in process.said():
        raise AssertionError(process.said()[-600:])


def asked_twice(trial: Trial) -> None:
    """Ctrl-C twice"""
    process = trial.begin()
    trial.wait_a_while(process)
    for _ in range(2):
        if process.running():
            os.kill(process.pid, signal.SIGINT)
            time.sleep(trial.chance.uniform(0.05, 0.5))
    process.wait()


def killed_twice(trial: Trial) -> None:
    """kill -9, then again while resuming"""
    killed(trial)
    if (trial.run / "run.json").is_file():
        process = start(trial.folder, "run", "faults.yaml", "--resume", "run")
        trial.wait_a_while(process)
        if process.running():
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def killed_worker(trial: Trial) -> None:
    """kill -9 of a loader's worker"""
    recipe = trial.folder / "faults.yaml"
    recipe.write_text(recipe.read_text().replace("num_workers: 0", "num_workers: 1"))
    process = trial.begin()
    trial.wait_a_while(process)
    until = time.monotonic() + trial.seconds
    while process.running() and time.monotonic() < until and len(descendants(process.pid)) < 2:
        time.sleep(0.005)
    workers = descendants(process.pid)[1:]
    if workers:
        os.kill(trial.chance.choice(workers), signal.SIGKILL)
    if process.wait():
        trial.refusal(process)


def clock_skew(trial: Trial) -> None:
    """kill -9, then times of files that are wrong by years"""
    killed(trial)
    for path in trial.folder.rglob("*"):
        moment = trial.chance.uniform(0, 4e9)
        if path.is_file() and "pairs" not in path.parts:
            os.utime(path, (moment, moment))


def two_starts(trial: Trial) -> None:
    """a second start while the first goes on"""
    process = trial.begin()
    while process.running() and not (trial.run / "run.json").is_file():
        time.sleep(0.005)
    trial.wait_a_while(process)
    second = start(trial.folder, "run", "faults.yaml", "--resume", "run")
    second.wait()
    process.wait()
    if second.status and process.status:
        raise AssertionError(f"neither ran: {process.said()[-600:]}")
    # either may come first where the run is resumed; what comes after the other has ended finds nothing to do
    for loser in (process, second):
        if loser.status:
            trial.refusal(loser)


def damaged_file(trial: Trial) -> None:
    """a file of the run cut or flipped after a kill"""
    killed(trial)
    files = [path for path in trial.run.rglob("*") if path.is_file() and path.suffix not in (".yaml", ".lock")]
    damage_one_of([path for path in files if _is_read_again(trial.run, path)], trial.chance)


def _is_read_again(run: Path, path: Path) -> bool:
    """Whether the library reads a file once more; what a finished stage leaves for the user it does not."""
    stage = run / path.relative_to(run).parts[0]
    if not (stage / "stage.json").is_file():
        return True
    return path.name in ("stage.json", "best.ckpt") or "records" in path.parts


def damaged_cache(trial: Trial) -> None:
    """a file of the cache cut or flipped between two runs"""
    killed(trial)
    damage_one_of([path for path in (trial.folder / "cache").rglob("*") if path.is_file()], trial.chance)


def damage_one_of(files: list[Path], chance: random.Random) -> None:
    files = sorted(path for path in files if path.stat().st_size)
    if files:
        _damage(chance.choice(files), chance)


def _damage(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        data = data[: chance.randrange(len(data))]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _mounted(trial: Trial, size: str, fault: Callable[[Process], None], cure: Callable[[], None]) -> None:
    before = trial.folder / "before"
    trial.run.mkdir(exist_ok=True)
    shutil.copytree(trial.run, before)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(trial.run)], check=True)
    shutil.copytree(before, trial.run, dirs_exist_ok=True)
    process = trial.begin()
    fault(process)
    status = process.wait()
    if status:
        said = process.said()
        if "Traceback" in said or "error: " not in said:
            raise AssertionError(f"no sentence, status {status}: {said[-600:]}")
        trial.refused.append(next(line for line in said.splitlines() if line.startswith("error: ")))
    cure()


def full_disk(trial: Trial) -> None:
    """a full disk under the run, enlarged afterwards"""

    def enlarge() -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(trial.run)], check=True)

    taken = sum(path.stat().st_size + 4096 for path in trial.run.rglob("*") if path.is_file()) // 1024
    _mounted(trial, f"{taken + trial.chance.randrange(64, 400)}k", lambda process: None, enlarge)


def read_only(trial: Trial) -> None:
    """a disk that becomes read-only, writable afterwards"""

    def lock(process: Process) -> None:
        trial.wait_a_while(process)
        # refused while a file is open for writing
        while (
            process.running()
            and subprocess.run(["mount", "-o", "remount,ro", str(trial.run)], capture_output=True).returncode
        ):
            time.sleep(0.01)

    _mounted(
        trial, "64m", lock, lambda: subprocess.run(["mount", "-o", "remount,rw", str(trial.run)], check=True) and None
    )


FAULTS: list[Callable[[Trial], None]] = [
    *(killed, killed_stage, asked_to_stop, asked_twice, killed_twice, killed_worker, clock_skew, two_starts),
    *(damaged_file, damaged_cache, full_disk, read_only),
]
NEED_MOUNT = (full_disk, read_only)

"""Running the stages of a recipe, one process each, in a folder that a stopped run can be resumed from."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.cli.recipe import Recipe, Stage, resolve
from lightning_idc.errors import PairError

RUN, DONE = "run.json", "stage.json"
OUTCOME = ".outcome.json"
"""What the process of a stage leaves for this one; the folder is also that of its callbacks, with files of theirs."""
PATIENT = "OMP_WAIT_POLICY", "PASSIVE"
"""Threads that spin while they wait gain a tenth on an idle machine and lose threefold on a busy one."""
SECONDS_TO_STOP = 60
"""A stage that was asked to stop may finish its step and save for so long."""


@dataclass
class Run:
    """One run of a recipe and the folder it lies in.

    Args:
        folder: one sub-folder per stage, and ``run.json``.
        overrides: keys of the command line.
        resuming: whether stages may have been run before.
        imported_only: whether this process has done nothing but import.
    """

    folder: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    resuming: bool = False
    imported_only: bool = False

    @classmethod
    def started(cls, recipe: Path, folder: Path | None) -> Run:
        """Make the folder of a new run.

        Raises:
            PairError: there is a run in it already.
        """
        if folder is None:
            home = Path("runs") / recipe.stem
            folder = first = home / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            number = 1
            while folder.exists():
                number += 1
                folder = first.with_name(f"{first.name}_{number}")
        elif (folder / RUN).exists():
            raise PairError(f"{folder} holds a run already; continue it with --resume {folder}, or name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder.resolve())

    @classmethod
    def resumed(cls, recipe: Path, folder: Path) -> Run:
        """Open the folder of a stopped run.

        Raises:
            PairError: there is no run in it.
        """
        record = folder / RUN
        if not record.is_file():
            raise PairError(
                f"there is no run in {str(folder)!r} to resume; runs of {recipe} lie in {Path('runs') / recipe.stem}"
            )
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["recipe"] != recipe.name:
            raise PairError(f"{folder} holds a run of {known['recipe']}, not of {recipe.name}")
        if known["sha256"] != _digest(recipe):
            print(f"note: {recipe} was changed after this run began; finished stages stay as they are", flush=True)
        return cls(folder.resolve(), known["overrides"], resuming=True)

    def go(self, recipe: Recipe) -> int:
        """Run all stages that are not finished; return the exit status."""
        record = {"recipe": recipe.path.name, "sha256": _digest(recipe.path), "overrides": self.overrides}
        _write_json(self.folder / RUN, record)
        shown = os.path.relpath(self.folder)
        print(f"{recipe.about.get('title', recipe.path.stem)}\nresults: {shown}", flush=True)
        began = time.monotonic()
        fits: list[tuple[Stage, str]] = []
        for number, stage in enumerate(recipe.stages, 1):
            result = self._finished(stage)
            if result is not None:
                print(f"\n== {stage.name}: already done", flush=True)
            else:
                print(f"\n== {stage.name} ({stage.run}, stage {number} of {len(recipe.stages)})", flush=True)
                started = time.monotonic()
                status = self._run(stage, fits)
                if status:
                    said = "stopped in" if status == 130 else "failed in"
                    resume = f"lightning-idc run {shlex.quote(str(recipe.path))} --resume {shlex.quote(shown)}"
                    print(f"\n{said} stage {stage.name}; continue with\n  {resume}", file=sys.stderr, flush=True)
                    return status
                result = self._finished(stage) or {}
                print(f"== {stage.name} took {_spent(started)}", flush=True)
            if stage.run == "fit":
                fits.append((stage, result.get("best", "")))
        print(f"\ndone in {_spent(began)}; results: {shown}", flush=True)
        return 0

    def _finished(self, stage: Stage) -> dict[str, Any] | None:
        record = self.folder / stage.name / DONE
        if not record.is_file():
            return None
        result = json.loads(record.read_text(encoding="utf-8"))
        if result["best"]:
            best = self.folder / result["best"]  # relative, so that a run may be moved
            if not best.is_file():
                raise PairError(
                    f"stage {stage.name} is finished but its checkpoint {str(best)!r} is gone; "
                    f"put it back, or remove {record} to run the stage again"
                )
            result["best"] = str(best)
        return result

    def _run(self, stage: Stage, fits: list[tuple[Stage, str]]) -> int:
        config = self._config(stage, fits)
        home = self.folder / stage.name
        home.mkdir(parents=True, exist_ok=True)
        file = home / "stage.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        forked = _may_fork(config["trainer"], self.imported_only)
        status = _run_process(stage.run, file, home / OUTCOME, forked)
        if status:
            return status
        if not (home / OUTCOME).is_file():
            return 1
        result = json.loads((home / OUTCOME).read_text(encoding="utf-8"))
        best = Path(result["best"]) if result["best"] else None
        if best is not None and best.resolve().is_relative_to(self.folder):
            result["best"] = str(best.resolve().relative_to(self.folder))
        _write_json(home / DONE, result)
        (home / OUTCOME).unlink()
        return 0

    def _config(self, stage: Stage, fits: list[tuple[Stage, str]]) -> dict[str, Any]:
        home = self.folder / stage.name
        config: dict[str, Any] = resolve(stage.config, self.folder, {fit.name: best for fit, best in fits})
        trainer = config["trainer"] = config.get("trainer") or {}
        trainer.setdefault("default_root_dir", str(home))
        if stage.run != "fit":
            same = [(fit, best) for fit, best in fits if _model(fit) == _model(stage)]
            if not config.get("ckpt_path") and same:
                fit, config["ckpt_path"] = same[-1]
                if not config["ckpt_path"]:
                    raise PairError(
                        f"stage {stage.name} needs what stage {fit.name} learned, which left no checkpoint: let its "
                        "ModelCheckpoint save one (save_last: true), or give this stage a ckpt_path"
                    )
            print(
                f"weights: {os.path.relpath(config['ckpt_path'])}" if config.get("ckpt_path") else "weights: as built"
            )
        elif self.resuming and home.is_dir():
            checkpoints = sorted(home.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
            if checkpoints:
                config["ckpt_path"] = str(checkpoints[-1])
                print(f"continuing from {os.path.relpath(checkpoints[-1])}", flush=True)
            else:
                print("it was stopped before its first checkpoint, so this stage begins anew", flush=True)
        return config


def _model(stage: Stage) -> str:
    return (stage.config.get("model") or {}).get("class_path", "")


class _Started:
    """A stage in a process of its own, started anew."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "lightning_idc", *arguments]
        # a group of its own: Ctrl-C reaches the stage and its workers once, through us
        self.process = subprocess.Popen(
            command, env={**dict([PATIENT]), **os.environ, **environment}, start_new_session=True
        )
        self.pid = self.process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Exit status, negative for a signal; None where it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


class _Forked:
    """A stage in a process of its own that has what this one has imported, which saves seconds per stage."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        sys.stdout.flush()
        self.process = multiprocessing.get_context("fork").Process(target=_stage, args=(arguments, environment))
        self.process.start()
        self.pid = self.process.pid or 0

    def wait(self, seconds: float | None = None) -> int | None:
        """Exit status, negative for a signal; None where it still runs."""
        self.process.join(seconds)
        return self.process.exitcode


def _stage(arguments: list[str], environment: dict[str, str]) -> None:
    from lightning_idc.cli import main

    os.setsid()
    os.environ.update(environment)
    sys.argv = ["lightning-idc", *arguments]
    sys.exit(main(arguments))


def _may_fork(trainer: dict[str, Any], imported_only: bool) -> bool:
    """Whether a stage may share what is imported: one process on the CPU, and nothing has been computed here yet.

    A fork of a process that has used threads or a GPU may hang, and Lightning starts further processes by the command
    that it was started with.
    """
    alone = all(trainer.get(key) in (None, 1) for key in ("devices", "num_nodes"))
    plain = trainer.get("accelerator") == "cpu" and trainer.get("strategy") in (None, "auto")
    return imported_only and alone and plain and sys.platform == "linux"


def _run_process(verb: str, config: Path, result: Path, forked: bool) -> int:
    from lightning_idc.cli.training import RESULT

    process = (_Forked if forked else _Started)([verb, "--config", str(config)], {RESULT: str(result)})
    with _stopping_is_an_interrupt():
        try:
            status = process.wait()
        except KeyboardInterrupt:
            print("\nstopping after the step in hand; once more to stop at once ...", file=sys.stderr, flush=True)
            _stop(process)
            return 130
    assert status is not None
    # a signal reads as a negative status
    return status if status >= 0 else 128 - status


def _stop(process: _Started | _Forked) -> None:
    # the stage alone, not its workers: they end with it, and without them it could not finish its step
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGINT)
    status = None
    with suppress(KeyboardInterrupt):
        status = process.wait(SECONDS_TO_STOP)
    if status is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever is left of the group
        process.wait()


@contextmanager
def _stopping_is_an_interrupt() -> Iterator[None]:
    """Treat being terminated, or losing the terminal, as Ctrl-C, so that no stage is left running alone."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _spent(since: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - since), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2), encoding="utf-8")
    os.replace(partial, path)

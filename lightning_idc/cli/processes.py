"""The processes of stages: started or forked, stopped in an orderly way, and never left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_idc.utils import children

RESULT = "LIGHTNING_IDC_RESULT"
"""Environment variable naming the file that a stage writes its best checkpoint and metrics to."""
PARENT = "LIGHTNING_IDC_PARENT"
"""Environment variable with the process that a stage must not outlive."""
PATIENT = "OMP_WAIT_POLICY", "PASSIVE"
"""Threads that spin while they wait gain a tenth on an idle machine and lose threefold on a busy one."""
SECONDS_TO_STOP = 60
"""A stage that was asked to stop may finish its step and save for so long."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Started:
    """A stage in a process of its own, started anew."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
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

    def __init__(
        self, arguments: list[str], environment: Mapping[str, str], handlers: Mapping[Any, Any], noted: list[int]
    ) -> None:
        sys.stdout.flush()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_stage, args=(arguments, environment, handlers, noted))
        self.process.start()
        self.pid = self.process.pid or 0

    def wait(self, seconds: float | None = None) -> int | None:
        """Exit status, negative for a signal; None where it still runs."""
        self.process.join(seconds)
        return self.process.exitcode


def _stage(arguments: list[str], environment: Mapping[str, str], handlers: Mapping[Any, Any], noted: list[int]) -> None:
    from lightning_idc.cli import main

    try:
        _set_handlers(handlers)
        if noted:  # asked to stop already
            raise KeyboardInterrupt
        os.setsid()
        os.environ.update(environment)
        sys.argv = ["lightning-idc", *arguments]
        sys.exit(main(arguments))
    except KeyboardInterrupt:  # before the command has begun, which treats it in its own way
        sys.exit(130)


def _set_handlers(handlers: Mapping[Any, Any]) -> None:
    for name, handler in handlers.items():
        signal.signal(name, handler)


def may_fork(trainer: dict[str, Any], imported_only: bool) -> bool:
    """Whether a stage may share what is imported: one process on the CPU, and nothing has been computed here yet.

    Importing takes seconds, which a recipe of many small stages would spend once per stage. A fork of a process that
    has used threads or a GPU may hang, and Lightning starts further processes by the command that it was started with.
    """
    alone = all(trainer.get(key) in (None, 1) for key in ("devices", "num_nodes"))
    plain = trainer.get("accelerator") == "cpu" and trainer.get("strategy") in (None, "auto")
    return imported_only and alone and plain and sys.platform == "linux"


def run_process(
    verb: str,
    config: Path | Sequence[Path],
    result: Path,
    forked: bool,
    environment: Mapping[str, str] | None = None,
    given_up: Callable[[], bool] | None = None,
) -> int:
    """Run a stage to its end and return its exit status, 128 and more for a signal.

    Args:
        verb: of LightningCLI.
        config: its file; several for stages that go on at the same time.
        result: where the stage says what it made.
        forked: share what is imported.
        environment: further variables.
        given_up: asked once a second whether the stage shall be stopped.
    """
    variables = {RESULT: str(result), PARENT: str(os.getpid()), **(environment or {})}
    arguments = [verb, "--config", str(config)] if isinstance(config, Path) else [verb, *map(str, config)]
    handlers = {name: signal.getsignal(name) for name in _STOPPING}
    process: _Started | _Forked | None = None if forked else _Started(arguments, variables)
    with _stopping_is_an_interrupt():
        try:
            if process is None:
                with _noting() as noted:
                    process = _Forked(arguments, variables, handlers, noted)
                if noted:
                    raise KeyboardInterrupt
            while (status := process.wait(None if given_up is None else 1.0)) is None:
                if given_up is not None and given_up():
                    _kill(process)
                    return 1
        except KeyboardInterrupt:
            print("\nstopping after the current step; once more to stop at once ...", file=sys.stderr, flush=True)
            if process is not None:
                _stop(process)
            return 130
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
        _kill(process)


def _kill(process: _Started | _Forked) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # whatever is left of the group
    process.wait()


@contextmanager
def _stopping_is_an_interrupt() -> Iterator[None]:
    """Treat being terminated, or losing the terminal, as Ctrl-C, so that no stage is left running alone."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in _STOPPING[1:]}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _noting() -> Iterator[list[int]]:
    """Note signals instead of raising: Python prints and forgets an interrupt that is raised while it forks."""
    noted: list[int] = []
    heard = [name for name in _STOPPING if signal.getsignal(name) is not signal.SIG_IGN]  # nohup ignores some
    before = {name: signal.signal(name, lambda number, frame: noted.append(number)) for name in heard}
    try:
        yield noted
    finally:
        _set_handlers(before)


def end_with_parent() -> None:
    """End this stage with the process that started it: it would train on unseen, beside the one that resumes it."""
    parent = os.environ.pop(PARENT, None)  # not that of the processes which Lightning starts from here
    children.end_with_parent(int(parent) if parent else None)

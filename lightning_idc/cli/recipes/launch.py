"""Launchers of stages: in this process, or in child processes that are stopped cleanly and never orphaned."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from types import FrameType

from lightning_idc.cli.recipes.plan import INTERRUPTED, STAGE, Plan
from lightning_idc.utils.children import end_with_parent

_PARENT = "LIGHTNING_IDC_PARENT"
SECONDS_TO_FOLLOW = 30
"""Maximum time for a stage to exit by itself after another process of the run has ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Launch = Callable[[Plan, bool], int]
"""Runs a stage; the second argument is whether another stage follows. Returns the exit status."""


def run_in_process(plan: Plan, followed: bool) -> int:
    """Run a stage in this process; imports in a new one take seconds, at smoke size longer than the stage."""
    from lightning_idc.cli import guarded, import_named_modules

    def run() -> int:
        import_named_modules()
        from lightning_idc.cli.stage import run_stage

        # a later stage begins within seconds, and is checked then
        return run_stage(replace(plan, later=[]))

    arguments, environment = sys.argv, dict(os.environ)
    os.environ.update({**plan.environment, STAGE: plan.record})
    frozen = gc.get_freeze_count()
    gc.freeze()  # collecting what the stage leaves is then a matter of that alone, and not of all that is imported
    try:
        with _handled(_interrupt, _SIGNALS[1:]):
            return guarded(run)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)
        gc.collect()
        if not frozen:
            gc.unfreeze()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Handle another signal like Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


class Processes:
    """Runs each stage in a child process.

    Args:
        early: whether to start the process of the next stage together with the current one, so that its imports
            overlap.
        is_lost: function called once a second; True if another process of the run has ended.
    """

    def __init__(self, early: bool = True, is_lost: Callable[[], bool] | None = None) -> None:
        self.early, self.is_lost = early, is_lost
        self._next: subprocess.Popen[str] | None = None

    def __call__(self, plan: Plan, followed: bool) -> int:
        """Run a stage; an interrupted stage finishes its step and saves, and a second interrupt kills it."""
        interrupts: list[int] = []

        def forward(signum: int, frame: FrameType | None) -> None:
            interrupts.append(signum)
            if len(interrupts) > 1:
                _kill(process)
                return
            # not the data loader workers, which the stage needs for finishing its step
            process.send_signal(signal.SIGINT)

        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # no signal may arrive before the handler is installed
        process, self._next = self._next or _start_process(), None
        with _handled(forward, _SIGNALS):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(asdict(plan), default=str) + "\n")
                    process.stdin.close()
                self._next = _start_process() if followed and self.early else None
                status = self._wait(process)
            finally:
                if self._next is not None and (interrupts or process.poll() != 0):
                    _kill(self._next)
        return INTERRUPTED if interrupts else status if status >= 0 else 128 - status

    def _wait(self, process: subprocess.Popen[str]) -> int:
        if self.is_lost is None:
            return process.wait()
        until = float("inf")
        while time.monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(1.0)
            if until == float("inf") and self.is_lost():
                until = time.monotonic() + SECONDS_TO_FOLLOW
        print("\nanother process of this run has ended, so this one is stopped", file=sys.stderr, flush=True)
        _kill(process)
        return 1


def _start_process() -> subprocess.Popen[str]:
    """Start a process that imports the modules of a stage and waits for a plan."""
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_idc", "stage"],
        env={**os.environ, _PARENT: str(os.getpid())},
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the stage once, through this process
    )


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with its workers
    process.wait()


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    handled = [
        name for name in signals if signal.getsignal(name) is not signal.SIG_IGN
    ]  # keep signals ignored, for nohup
    previous = {name: signal.signal(name, handler) for name in handled}
    try:
        yield
    finally:
        for name, previous_handler in previous.items():
            signal.signal(name, previous_handler)


def run() -> int:
    """Run the stage of a recipe with a plan from standard input."""
    end_with_parent(int(os.environ.pop(_PARENT)))  # an orphan would keep training next to a resumed run
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from lightning_idc.cli.stage import run_stage

    line = sys.stdin.readline()
    if not line:
        return 0
    plan = Plan(**json.loads(line))
    os.environ.update({**plan.environment, STAGE: plan.record})
    return run_stage(plan)

"""The process of a stage: this one, or one of its own that is stopped in an orderly way and never left behind."""

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
from dataclasses import asdict
from types import FrameType

from lightning_idc.cli.recipes.plan import INTERRUPTED, STAGE, Plan
from lightning_idc.utils.children import end_with_parent

_PARENT = "LIGHTNING_IDC_PARENT"
SECONDS_TO_FOLLOW = 30
"""How long a stage may take to end by itself after another process of the run has ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Launch = Callable[[Plan, bool], int]
"""Runs a stage to its end; the second argument tells whether another one follows. Returns the exit status."""


def run_here(plan: Plan, followed: bool) -> int:
    """Run a stage in this process: at smoke size, importing torch and Lightning would take longer than the stage."""
    from lightning_idc.cli import guarded, import_named_modules

    def run() -> int:
        import_named_modules()
        from lightning_idc.cli.stage import run_stage

        return run_stage(plan)

    arguments, environment = sys.argv, dict(os.environ)
    os.environ.update({**plan.environment, STAGE: plan.record})
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


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Treat another signal as Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


class Processes:
    """Runs each stage in a process of its own.

    Args:
        early: whether the process of the next stage is started with this one, so that it imports torch and Lightning
            meanwhile.
        is_lost: called once a second; True where another process of the run has ended.
    """

    def __init__(self, early: bool = True, is_lost: Callable[[], bool] | None = None) -> None:
        self.early, self.is_lost = early, is_lost
        self._next: subprocess.Popen[str] | None = None

    def __call__(self, plan: Plan, followed: bool) -> int:
        """Run a stage; one that was interrupted finishes its step and saves, unless it is interrupted once more."""
        interrupts: list[int] = []

        def forward(signum: int, frame: FrameType | None) -> None:
            interrupts.append(signum)
            if len(interrupts) > 1:
                _kill(process)
                return
            print("\nstopping after the current step; once more to stop at once ...", file=sys.stderr, flush=True)
            # the stage alone, not its workers: they end with it, and without them it could not finish its step
            process.send_signal(signal.SIGINT)

        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none may come between the start and its handler
        process, self._next = self._next or _started(), None
        with _handled(forward, _SIGNALS):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(asdict(plan), default=str) + "\n")
                    process.stdin.close()
                self._next = _started() if followed and self.early else None
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


def _started() -> subprocess.Popen[str]:
    """Process that imports what every stage needs, and waits for a plan."""
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
    heard = [name for name in signals if signal.getsignal(name) is not signal.SIG_IGN]  # nohup ignores some
    before = {name: signal.signal(name, handler) for name in heard}
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)


def run() -> int:
    """Run the stage of a recipe whose plan comes through the standard input."""
    end_with_parent(int(os.environ.pop(_PARENT)))  # it would train on unseen, beside the run that resumes it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from lightning_idc.cli.stage import run_stage

    line = sys.stdin.readline()
    if not line:
        return 0
    plan = Plan(**json.loads(line))
    os.environ.update({**plan.environment, STAGE: plan.record})
    return run_stage(plan)

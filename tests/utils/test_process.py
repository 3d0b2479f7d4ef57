"""Fast start and exit of a command."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from lightning_idc.utils.process import collect_as_usual, collect_rarely


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("status", [0, 3])
def test_leave_runs_the_functions_of_atexit_and_writes_everything(status: int) -> None:
    code = f"""
import atexit, sys
from lightning_idc.utils.process import leave
atexit.register(print, "closed")
print("x" * 100_000)
print("to the other stream", file=sys.stderr)
leave({status})
"""
    done = run(code)
    assert done.returncode == status
    assert done.stdout == "x" * 100_000 + "\nclosed\n"
    assert done.stderr == "to the other stream\n"


def test_leave_waits_for_threads() -> None:
    code = """
import threading, time
from lightning_idc.utils.process import leave
threading.Thread(target=lambda: (time.sleep(0.3), print("written"))).start()
leave(2)
"""
    done = run(code)
    assert (done.returncode, done.stdout) == (2, "written\n")


def test_leave_does_not_take_modules_apart() -> None:
    code = """
import sys
from lightning_idc.utils.process import leave
class Loud:
    def __del__(self):
        print("taken apart")
sys.modules["loud"] = Loud()
leave(0)
"""
    assert run(code).stdout == ""


def test_garbage_of_a_stage_is_collected_as_usual() -> None:
    usual = gc.get_threshold()
    frozen = gc.get_freeze_count()
    try:
        collect_rarely()
        assert gc.get_threshold()[0] > usual[0]
        collect_as_usual()
        assert gc.get_threshold() == usual
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_a_program_that_calls_the_library_keeps_its_settings() -> None:
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    collect_as_usual()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, frozen)


@pytest.mark.parametrize("arguments, status", [(["--version"], 0), (["describe", "absent.png", "absent.png"], 1)])
def test_the_command_has_the_status_of_its_verb(arguments: list[str], status: int) -> None:
    assert subprocess.run([sys.executable, "-m", "lightning_idc", *arguments], capture_output=True).returncode == status

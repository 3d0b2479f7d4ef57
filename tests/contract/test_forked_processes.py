"""Processes that are forked for tests behave like those that Python starts, which are the oracle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.processes import forking_python

pytestmark = pytest.mark.dist
SEEN = """
import json, os, signal, sys
names = ("A", "PYTHONPATH", "OMP_NUM_THREADS")
print(json.dumps([sys.argv, os.getcwd(), os.getppid(), {name: os.environ.get(name) for name in names}]))
print(json.dumps([sys.path, __name__, sys.stdin.read(), signal.getsignal(signal.SIGTERM)]), file=sys.stderr)
"""


def both(folder: Path, *command: str) -> list[subprocess.CompletedProcess[str]]:
    environment = {**os.environ, "A": "1", "PYTHONPATH": str(folder / "more")}
    return [
        subprocess.run(
            [python, *command], cwd=folder, env=environment, input="line", capture_output=True, text=True, timeout=120
        )
        for python in (sys.executable, forking_python())
    ]


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_command_line_folder_environment_and_path_are_equal(kind: str, tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    command = {"-c": ["-c", SEEN], "-m": ["-m", "seen"], "script": ["seen.py"]}[kind]
    expected, result = both(tmp_path, *command, "one", "--two")
    assert result.returncode == expected.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads(expected.stdout)
    # hooks of editable installations may be anywhere on the path
    (path, *rest), (expected_path, *expected_rest) = json.loads(result.stderr), json.loads(expected.stderr)
    assert rest == expected_rest and [folder for folder in path if folder in expected_path] == expected_path


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "raise SystemExit",
        "import atexit; atexit.register(print, 'at the end')",
        "import threading; threading.Timer(0.2, print, ['in a thread']).start()",
        "import os; os._exit(4)",
        "import os; os.kill(os.getpid(), 9)",
        "raise KeyboardInterrupt",
    ],
)
def test_ends_are_equal(code: str, tmp_path: Path) -> None:
    expected, result = both(tmp_path, "-c", code)
    assert (result.returncode, result.stdout) == (expected.returncode, expected.stdout)
    assert result.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


SLEEPS = """
import os, time
try:
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(60)
"""


def test_signals_arrive_and_a_killed_client_takes_its_process_with_it() -> None:
    for end, status in ((signal.SIGTERM, -15), (signal.SIGKILL, -9)):
        process = subprocess.Popen(
            [forking_python(), "-c", SLEEPS],
            stdout=subprocess.PIPE,
            text=True,
            # a shell starts background jobs, such as these tests, with this signal ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.send_signal(end)
        assert process.wait(60) == status
        process.communicate(timeout=60)  # the pipe ends when the forked process ends
        until = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until
            time.sleep(0.01)

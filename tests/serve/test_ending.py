"""An ordinary end of the server says nothing, although LitServe's monitor may be asking what is gone already."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

litserve = pytest.importorskip("litserve", reason="of the extra serve")

from lightning_idc.cli import main  # noqa: E402
from lightning_idc.cli.serve import _end_together  # noqa: E402


class Gone:
    """An event of a manager that has ended."""

    def is_set(self) -> bool:
        raise ConnectionResetError(104, "Connection reset by peer")


def monitor() -> None:
    litserve.LitServer._start_worker_monitoring(SimpleNamespace(_shutdown_event=Gone()), None, {})
    for thread in threading.enumerate():
        if thread.name == "litserve-monitoring":
            thread.join(10)


def test_the_monitor_is_silent_once_the_server_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: None)
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    level = logging.getLogger("litserve").level
    monkeypatch.setattr(logging.getLogger("litserve"), "propagate", True)
    try:
        monitor()
        assert "Monitoring worker crashed" in caplog.text, "this is what it says of it"
        caplog.clear()
        _end_together()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        monitor()
        assert not caplog.text
    finally:
        logging.getLogger("litserve").setLevel(level)
        for number, handler in kept.items():
            signal.signal(number, handler)


STOPPED_WHILE_IMPORTING = """
import os, signal, sys
class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == "lightning_idc.serve.server":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Stops())
from lightning_idc.cli import main
sys.exit(main(["serve", "--port", "18999"]))
"""


def test_a_server_that_is_stopped_before_it_listens_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED_WHILE_IMPORTING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "\nstopped\n")


@pytest.mark.parametrize("option", ["--max-mb=inf", "--timeout=nan", "--answer-timeout=inf", "--queue=0"])
def test_limits_are_numbers_above_0(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", option]) == 1
    assert "are numbers above 0" in capsys.readouterr().err

"""An ordinary end of the server says nothing, although LitServe's monitor may be asking what is gone already."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import SimpleNamespace

import pytest

litserve = pytest.importorskip("litserve", reason="of the extra serve")

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

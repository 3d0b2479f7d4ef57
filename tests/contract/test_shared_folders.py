"""Folders shared by the processes of xdist are filled once, and again after a failure."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.once import made_once


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """``tmp_path_factory`` of two processes of xdist."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    return [SimpleNamespace(getbasetemp=lambda name=name: tmp_path / name) for name in ("popen-gw0", "popen-gw1")]


def test_the_second_process_waits_for_the_first(processes: list[Any], tmp_path: Path) -> None:
    calls: list[Path] = []
    ends: list[str] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.05)
        (folder / "file").write_text("whole")

    def need(factory: Any) -> None:
        ends.append((made_once(factory, "shared", make) / "file").read_text())

    threads = [threading.Thread(target=need, args=(factory,)) for factory in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [tmp_path / "shared"] and ends == ["whole", "whole"]


def test_a_folder_whose_making_failed_is_made_anew(processes: list[Any]) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError

    with pytest.raises(ValueError):
        made_once(processes[0], "shared", fail)
    folder = made_once(processes[1], "shared", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]

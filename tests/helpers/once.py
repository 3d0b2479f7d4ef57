"""Folders shared by the processes of xdist, so that slow preparations run once per test session."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process to need it has filled; tests must not change it.

    xdist may divide the tests of a module between its processes, each of which would otherwise fill its own folder.

    Args:
        factory: fixture ``tmp_path_factory``.
        name: name of the folder, unique in the test session.
        make: fills the empty folder. When it fails, the next process tries again.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, complete = root / name, root / f"{name}.complete"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            complete.touch()
    return folder

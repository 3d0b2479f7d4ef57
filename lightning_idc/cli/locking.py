"""One process at a time in the folder of a run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lightning_idc.utils.errors import ConfigError

LOCK, OWNER = ".lock", ".owner.json"


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold the folder of a run; the system gives it back when this process ends, however it ends.

    Raises:
        ConfigError: another process holds it, or its folder cannot be written to.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if not os.access(folder, os.W_OK):  # a lock that cannot be made is waited for, too
            raise ConfigError(f"{str(folder)!r} cannot be written to; a run needs its folder") from None
        raise ConfigError(
            f"{str(folder)!r} is in use by a run that is going on{_owner(folder)}; wait for it, stop it, or name "
            "another folder"
        ) from None
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written to: {error.strerror}; a run needs its folder") from error
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        with suppress(OSError):  # a full disk: the lock counts, its sign does not
            (folder / OWNER).write_text(json.dumps(owner), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    with suppress(OSError, ValueError, TypeError, KeyError):
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f" (process {owner['pid']} on {owner['host']}, since {owner['since']})"
    return ""

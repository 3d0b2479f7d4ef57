"""A fast start and end of a command: torch and transformers make a million objects that are never garbage."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

_USUAL = gc.get_threshold()
_RARE = (100_000, 20, 50)


def collect_rarely() -> None:
    """Look for garbage less often, since there is none while torch and transformers are imported."""
    gc.set_threshold(*_RARE)


def collect_as_usual() -> None:
    """End `collect_rarely`: look for garbage as often as before, but not among the objects that exist now.

    Without `collect_rarely`, as in a program that calls the library, nothing changes.
    """
    if gc.get_threshold() != _RARE:
        return
    gc.set_threshold(*_USUAL)
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries complain of objects that are alive at the end


def leave(status: int) -> NoReturn:
    """End the process with an exit status, after the functions of `atexit`.

    Modules are not torn down, which takes more than a second after `import transformers`. While a thread that is not a
    daemon runs, the process ends in Python's usual way instead, which waits for it.

    Args:
        status: exit status.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(status)
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)

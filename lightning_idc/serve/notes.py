"""capture_warnings: prints each warning of this library as a one-line note on the command line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_idc.utils.text import printable

MAX_NOTES = 20
"""Maximum number of printed notes: thousands of pairs may cause thousands of warnings."""


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Print each warning once, as ``note: ...`` on standard error, and collect them in the list."""
    notes: list[str] = []

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, UserWarning) or str(message) in notes:
            return
        notes.append(str(message))
        if len(notes) <= MAX_NOTES:
            print(f"note: {printable(str(message))}", file=sys.stderr)
        elif len(notes) == MAX_NOTES + 1:
            print("note: further notes are left out", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield notes

"""Functions that numba compiles, kept on disk between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """A function compiled when it is first called, and kept on disk; only in memory where no folder can be written.

    Args:
        function: what numba understands.
        options: of ``numba.njit``.
    """
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # numba finds neither a writable __pycache__ nor a writable cache folder of the user
        return numba.njit(nogil=True, **options)(function)

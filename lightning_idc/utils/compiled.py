"""Functions compiled by numba and cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function on its first call; cached on disk, or in memory if no folder is writable.

    Args:
        function: function that numba supports.
        options: options of ``numba.njit``.
    """
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # numba finds neither a writable __pycache__ nor a writable cache folder of the user
        return numba.njit(nogil=True, **options)(function)

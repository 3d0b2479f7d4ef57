"""Which errors are the user's to mend, and how they read."""

from __future__ import annotations

import errno


def readable(error: Exception) -> str | None:
    """Message for an error that the user can mend; None for a fault of the program."""
    from lightning_idc.errors import PairError

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PairError):
            return str(seen)
        if isinstance(seen, OSError) and seen.errno == errno.ENOSPC:
            return f"the disk is full ({seen.filename or 'while writing'}); free some space and start again: nothing half-written is used"
        seen = seen.__cause__ or seen.__context__
    return None

"""The error of bad input; apart from `pairs` so that the command line can raise it without importing torch."""

from __future__ import annotations


class PairError(ValueError):
    """Bad input, told to the person who can mend it: what was found, what was expected, what to do."""

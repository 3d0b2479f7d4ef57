"""Errors of bad input: what was found, what was expected, what to do. Importing them needs no torch."""

from __future__ import annotations


class IDCError(ValueError):
    """Base of all errors that a user can fix."""


class ConfigError(IDCError):
    """A configuration, an argument or a combination of parts is wrong."""


class DatasetNotFoundError(IDCError):
    """A data set, or a file that belongs to it, is not where it was looked for."""


class DataError(IDCError):
    """A pair, an annotation or a stored file is damaged or inconsistent."""


class CheckpointError(IDCError):
    """A checkpoint or an exported folder is missing, damaged, hostile or of another class."""


PairError = IDCError
"""Name of the base class in the first edition."""

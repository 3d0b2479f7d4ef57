"""Arguments that have a new name: the old one works for one version and says so."""

from __future__ import annotations

from typing import TypeVar

from lightning.pytorch.utilities import rank_zero_deprecation

from lightning_idc.errors import ConfigError

Value = TypeVar("Value")


def renamed(old: str, given: Value | None, new: str, value: Value, default: Value) -> Value:
    """Value of an argument that has a new name.

    Args:
        old: its old name.
        given: under the old name; None where it is not.
        new: its name now.
        value: under the new name.
        default: that the new name has, to tell whether it is given.

    Raises:
        ConfigError: both names are given.

    Example:
        >>> renamed("share", None, "ratio", 0.4, 0.2)
        0.4
    """
    if given is None:
        return value
    if value != default:
        raise ConfigError(f"{old} is the old name of {new}; give {new} alone")
    rank_zero_deprecation(f"{old} is called {new} now; the old name goes with the next version")
    return given

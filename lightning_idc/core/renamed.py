"""Arguments that have a new name: the old one works for one version and says so."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lightning.pytorch.utilities import rank_zero_deprecation

from lightning_idc.errors import ConfigError

Class = TypeVar("Class", bound=type)


def renamed_arguments(**names: str) -> Callable[[Class], Class]:
    """Class decorator by which keyword arguments of an earlier edition are taken under their old names.

    Signature, help and YAML know the new names only; old names in YAML and checkpoints are those of
    `aliases.RENAMED_ARGUMENTS`, and a test keeps both alike.

    Args:
        names: old name to new one.

    Raises:
        ConfigError: (by the class) an argument is given under both names.

    Example:
        >>> @renamed_arguments(share="ratio")
        ... class Words:
        ...     def __init__(self, ratio: float = 0.2) -> None:
        ...         self.ratio = ratio
        >>> Words(ratio=0.4).ratio
        0.4
    """

    def decorated(cls: Class) -> Class:
        init: Callable[..., None] = vars(cls)["__init__"]

        @functools.wraps(init)
        def __init__(self: Any, *arguments: Any, **named: Any) -> None:
            for old in names.keys() & named.keys():
                new, value = names[old], named.pop(old)
                if new in inspect.signature(init).bind_partial(self, *arguments, **named).arguments:
                    raise ConfigError(f"{old} is the old name of {new}; give {new} alone")
                rank_zero_deprecation(f"{old} is called {new} now; the old name goes with the next version")
                named[new] = value
            init(self, *arguments, **named)

        type.__setattr__(cls, "__init__", __init__)
        return cls

    return decorated

"""Arguments that have a new name: the old one works for one version and says so."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lightning.pytorch.utilities import rank_zero_deprecation

from lightning_idc.core.aliases import RENAMED_ARGUMENTS
from lightning_idc.errors import ConfigError

Class = TypeVar("Class", bound=type)
_NEW_NAMES = {path.rpartition(".")[2]: names for path, names in RENAMED_ARGUMENTS.items()}


def renamed_arguments(cls: Class) -> Class:
    """Class decorator by which keyword arguments are taken under the old names of `aliases.RENAMED_ARGUMENTS`, too.

    Signature and help know the new names only.

    Args:
        cls: a class of that table, known by its name.

    Raises:
        ConfigError: (by the class) an argument is given under both names.

    Example:
        >>> @renamed_arguments
        ... class RandomCrop:
        ...     def __init__(self, min_scale: float = 0.8) -> None:
        ...         self.min_scale = min_scale
        >>> RandomCrop(min_scale=0.4).min_scale
        0.4
    """
    names = _NEW_NAMES[cls.__name__]
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

"""What a class can be made with, read from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import isclass
from typing import Any


def accepted_arguments(kind: Callable[..., Any]) -> frozenset[str] | None:
    """Names that a class can be made with, through ``**kwargs`` of its parents, or a function takes; None for any."""
    names: set[str] = set()
    # Lightning decorates Trainer.__init__, so look through wrappers
    made_by = (
        [vars(base)["__init__"] for base in inspect.getmro(kind) if "__init__" in vars(base)]
        if isclass(kind)
        else [kind]
    )
    for function in made_by:
        parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())[isclass(kind) :]
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return frozenset(names)
    return None

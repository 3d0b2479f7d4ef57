"""Constructor arguments of a class, read from signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from inspect import isclass
from typing import Any


def accepted_arguments(kind: Callable[..., Any]) -> frozenset[str] | None:
    """Collect the argument names that a class or function accepts; None if it accepts any.

    The ``**kwargs`` of a class stand for the arguments of its parents, or, with an ``options_class``, for the fields of
    that dataclass.
    """
    names: set[str] = set()
    # Lightning decorates Trainer.__init__, so look through wrappers
    constructors: list[tuple[Any, Any]] = [(None, kind)]
    if isclass(kind):
        constructors = [
            (vars(base).get("options_class"), vars(base)["__init__"])
            for base in inspect.getmro(kind)
            if "__init__" in vars(base)
        ]
    for options_class, function in constructors:
        parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())[isclass(kind) :]
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if options_class is not None:
            return frozenset(names | {field.name for field in fields(options_class)})
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return frozenset(names)
    return None

"""What a class can be made with, read from its signature."""

from __future__ import annotations

import inspect


def accepted_arguments(kind: type) -> frozenset[str] | None:
    """Names that a class can be made with, through ``**kwargs`` of its parents; None where anything goes."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        # Lightning decorates Trainer.__init__, so look through wrappers
        parameters = list(inspect.signature(inspect.unwrap(vars(base)["__init__"])).parameters.values())[1:]
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return frozenset(names)
    return None

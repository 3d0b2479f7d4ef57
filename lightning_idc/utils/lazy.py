"""Lazy public names: a package lists them once, in its ``__init__.pyi``, which type checkers read too."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def public_names(stub: str | Path) -> dict[str, tuple[str, str]]:
    """Module and name there of every public name of a package, as its stub imports them.

    Args:
        stub: ``__init__.pyi`` with nothing but ``from MODULE import NAME as PUBLIC``.
    """
    homes = {}
    for node in ast.parse(Path(stub).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                homes[alias.asname or alias.name] = (node.module or "", alias.name)
    return homes


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports a public name when it is first used.

    ``lazy_loader`` does the same within one package only; here ``callbacks`` also lists the callbacks of ``methods``.
    """
    homes = public_names(Path(file).with_suffix(".pyi"))
    names = sorted(homes)

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    return __getattr__, lambda: names, names

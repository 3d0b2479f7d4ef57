"""Lazy imports of public names, which a package lists once, in an ``__init__.pyi`` that type checkers also read."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def public_names(stub: str | Path) -> dict[str, tuple[str, str]]:
    """Map each public name of a package to its module and its name in that module.

    Args:
        stub: ``__init__.pyi`` that consists of ``from MODULE import NAME as PUBLIC``.
    """
    homes = {}
    for node in ast.parse(Path(stub).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                homes[alias.asname or alias.name] = (node.module or "", alias.name)
    return homes


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create ``__getattr__``, ``__dir__`` and ``__all__`` for a package that imports public names on first use.

    ``lazy_loader`` is limited to one package, but ``callbacks`` also exports the callbacks of ``methods``.
    """
    homes = public_names(Path(file).with_suffix(".pyi"))
    names = sorted(homes)

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    return __getattr__, lambda: names, names

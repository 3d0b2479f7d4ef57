"""Lazy imports of public names, which a package lists once, in an ``__init__.pyi`` that type checkers also read."""

from __future__ import annotations

import ast
import importlib
import importlib.util
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


def check_not_elsewhere(name: str, package: str, root: str) -> None:
    """Check that no other package of the library exports a name, to tell users where it is.

    Python replaces the message of an AttributeError in ``from PACKAGE import NAME``, but not that of an ImportError.

    Args:
        name: name to look up.
        package: package that does not export the name.
        root: folder of the library.

    Raises:
        ImportError: another package exports the name.
    """
    library = package.partition(".")[0]
    for stub in sorted(Path(root).glob("*/__init__.pyi")):
        if name in public_names(stub):
            owner = f"{library}.{stub.parent.name}"
            raise ImportError(f"cannot import name {name!r} from {package!r}; use: from {owner} import {name}")


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create ``__getattr__``, ``__dir__`` and ``__all__`` for a package that imports public names on first use.

    ``lazy_loader`` is limited to one package, but ``callbacks`` also exports the callbacks of ``methods``.
    """
    homes = public_names(Path(file).with_suffix(".pyi"))
    names = sorted(homes)

    def __getattr__(name: str) -> Any:
        if name not in homes:
            root, _, _ = package.partition(".")
            # a submodule is imported after this AttributeError
            if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is None:
                check_not_elsewhere(name, package, importlib.import_module(root).__path__[0])
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    return __getattr__, lambda: names, names

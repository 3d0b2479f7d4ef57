"""Lazy imports of public names, which a package lists once, in an ``__init__.pyi`` that type checkers also read."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from dis import opmap
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any


@cache
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


def exporter_of(name: str, library: str) -> str | None:
    """Package of the library that exports a name, such as ``lightning_idc.data``; None if no package does."""
    return _exporters(library).get(name)


@cache
def _exporters(library: str) -> dict[str, str]:
    """Map each public name of a library to its package; the first of the alphabet if several export it."""
    folder = Path(importlib.import_module(library).__path__[0])
    stubs = sorted(folder.glob("*/__init__.pyi"), reverse=True)
    return {name: f"{library}.{stub.parent.name}" for stub in stubs for name in public_names(stub)}


def _is_import(frame: FrameType) -> bool:
    """Whether a frame executes ``from PACKAGE import NAME``, which replaces the message of an AttributeError."""
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create ``__getattr__``, ``__dir__`` and ``__all__`` for a package that imports public names on first use.

    ``lazy_loader`` is limited to one package, but ``callbacks`` also exports the callbacks of ``methods``.
    """
    homes = public_names(Path(file).with_suffix(".pyi"))
    names = sorted(homes)

    def __getattr__(name: str) -> Any:
        if name not in homes:
            owner = None if name.startswith("_") else exporter_of(name, package.partition(".")[0])
            if owner is not None and _is_import(sys._getframe(1)):
                raise ImportError(f"cannot import name {name!r} from {package!r}; use: from {owner} import {name}")
            hint = "" if owner is None else f"; {owner} has it"
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        module, original = homes[name]
        return getattr(importlib.import_module(module), original)

    return __getattr__, lambda: names, names

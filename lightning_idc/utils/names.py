"""Resolve class names: ``ProCap`` in a configuration is ``lightning_idc.methods.ProCap`` in a checkpoint.

Bare names are looked up in source files, so that misspellings are reported before torch and Lightning are imported.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError

PACKAGES = tuple(f"lightning_idc.{name}" for name in ("methods", "models", "callbacks", "data", "synthesis", "nn"))
"""Packages of this library whose public names can be used without their module; the stubs list these names."""
MODULES = [
    "lightning_idc.models.schedules",
    "lightning_idc.models.strategies",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "lightning.pytorch.strategies",
    "lightning.pytorch.profilers",
    "torch.optim",
]
"""Further modules whose classes can be used by bare name; ``--import`` and a recipe's ``import`` append to it."""


@cache
def source_of(module: str) -> Path | None:
    """Find the source file of a module without importing it or its parents; None if there is none."""
    search: Any = None
    parts = module.split(".")
    spec = None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        try:
            spec = find_spec(name) if depth == 1 else PathFinder.find_spec(name, search)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        search = spec.submodule_search_locations
    origin = Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
    return origin if origin is not None and origin.suffix == ".py" else None


@cache
def bindings(module: str) -> dict[str, ast.stmt | str]:
    """Map the names that a module binds to their defining statement, or to the path of an imported name.

    A package with a stub next to its ``__init__.py`` lazily exports the names that the stub imports.

    Args:
        module: dotted path of the module.
    """
    file = source_of(module)
    if file is None:
        return {}
    package = module.split(".") if file.stem == "__init__" else module.split(".")[:-1]
    stub = file.with_suffix(".pyi")
    try:
        body = ast.parse((stub if stub.is_file() else file).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return {}
    names: dict[str, ast.stmt | str] = {}
    for node in _statements(body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                if alias.name == "*":
                    names.update({name: f"{home}.{name}" for name in bindings(home) if not name.startswith("_")})
                else:
                    names[alias.asname or alias.name] = f"{home}.{alias.name}"
        elif isinstance(node, ast.Import):
            names.update({alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names})
    return names


def _statements(body: list[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield the statements of a module, including those in ``if`` and ``try`` blocks."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements([*node.body, *node.orelse])


@cache
def definition(path: str) -> tuple[str, ast.stmt] | None:
    """Find the module and statement that define a class or function; None if there is no source.

    Args:
        path: dotted path of the class, where it is defined or exported.
    """
    module, _, name = path.rpartition(".")
    bound = bindings(module).get(name) if module else None
    if isinstance(bound, str):
        return definition(bound) if bound != path else None
    return (module, bound) if bound is not None else None


@cache
def _public() -> dict[str, tuple[str, str]]:
    """Map each public name to the package that exports it and the path of its definition."""
    bound: dict[str, tuple[str, str]] = {}
    for package in PACKAGES:
        for name, path in bindings(package).items():
            if isinstance(path, str):
                bound.setdefault(name, (package, path))
    return bound


@cache
def _exported() -> dict[str, str]:
    """Map the path of each definition to its public path."""
    return {path: f"{package}.{name}" for name, (package, path) in _public().items()}


def is_public(name: str) -> bool:
    """Whether a bare name is a public name of this library."""
    return name in _public()


def exported(path: str) -> bool:
    """Whether a path is public, such as ``lightning_idc.methods.ProCap``."""
    package, _, name = path.rpartition(".")
    return name in _public() and _public()[name][0] == package


def nearest(name: str, valid: Iterable[str]) -> str:
    """Format a hint with the closest valid name, or with all of them.

    Example:
        >>> nearest("widht", ["width", "heads"])
        "did you mean 'width'?"
    """
    options = sorted(valid)
    close = difflib.get_close_matches(name, options, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(options)}"


def full_name(name: str) -> str:
    """Return the public path of a class, from its bare name or any of its paths.

    Args:
        name: name as in a configuration, such as ``ProCap``, ``AdamW`` or ``mine.Captioner``.

    Raises:
        ConfigError: a bare name is unknown; the message suggests the closest one.

    Example:
        >>> full_name("ProCap"), full_name("lightning_idc.methods.procap.module.ProCap")
        ('lightning_idc.methods.ProCap', 'lightning_idc.methods.ProCap')
    """
    if "." in name:
        if name in _exported():
            return _exported()[name]
        module, _, original = name.rpartition(".")
        package, path = _public().get(original, ("", ""))
        # a parent package of the defining module may also export the class
        return f"{package}.{original}" if path.startswith(f"{module}.") else name
    if name in _public():
        return f"{_public()[name][0]}.{name}"
    class_names = set(_public())
    for module in MODULES:
        names = {other for other in bindings(module) if other[:1].isupper()}
        if name in names:
            return f"{module}.{name}"
        class_names |= names
    close = difflib.get_close_matches(name, class_names, 1, 0.6)
    hint = f"did you mean {close[0]!r}?" if close else "expected a public name or the path of a class (--import MODULE)"
    raise ConfigError(f"there is no class {name!r}; {hint}")


def public_name(kind: type) -> str:
    """Return the path that a checkpoint stores for a class: the public one, if any.

    Example:
        >>> from lightning_idc.models.schedules import Constant
        >>> public_name(Constant)
        'lightning_idc.models.schedules.Constant'
    """
    return full_name(f"{kind.__module__}.{kind.__qualname__}")


@cache
def class_of(name: str) -> Any:
    """Import the class or factory function with a given name.

    Raises:
        ConfigError: the module or the class does not exist.
    """
    path = full_name(name)
    module_name, _, original = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:  # ValueError for a path such as "a..b"
        raise ConfigError(f"class_path {name!r} cannot be imported: {error}") from error
    try:
        value = getattr(module, original)
    except AttributeError:
        classes = [other for other in dir(module) if other[:1].isupper()]
        raise ConfigError(
            f"class_path {name!r}: {module_name} has no class {original!r}; {nearest(original, classes)}"
        ) from None
    if not callable(value):
        raise ConfigError(f"class_path {name!r} is a {type(value).__name__}; expected a class")
    return value


def with_full_names(config: Any) -> Any:
    """Copy a configuration, with every ``class_path`` expanded to a full path.

    Raises:
        ConfigError: a bare name is unknown.
    """
    if isinstance(config, list):
        return [with_full_names(value) for value in config]
    if not isinstance(config, dict):
        return config
    copy = {key: with_full_names(value) for key, value in config.items()}
    path = copy.get("class_path")
    if isinstance(path, str) and "${" not in path:
        copy["class_path"] = full_name(path)
    return copy

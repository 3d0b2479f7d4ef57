"""Names of classes: ``ProCap`` in a configuration, ``lightning_idc.methods.ProCap`` in a checkpoint, one class."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.lazy import public_names

PACKAGES = ("methods", "models", "callbacks", "data", "synthesis", "nn")
"""Packages of this library whose public names need no module; their stubs list them, so nothing is imported."""
MODULES = [
    "lightning_idc.models.schedules",
    "lightning_idc.models.strategies",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "lightning.pytorch.strategies",
    "lightning.pytorch.profilers",
    "torch.optim",
]
"""Further modules whose classes need no module; ``--import`` and a recipe's ``import`` append theirs."""


@cache
def _public() -> dict[str, tuple[str, str, str]]:
    """Public name -> package that exports it, module that defines it, and its name there."""
    root = Path(__file__).resolve().parents[1]
    found: dict[str, tuple[str, str, str]] = {}
    for package in PACKAGES:
        for name, (module, original) in public_names(root / package / "__init__.pyi").items():
            found.setdefault(name, (f"lightning_idc.{package}", module, original))
    return found


@cache
def _exported() -> dict[tuple[str, str], str]:
    """Module and name there -> public path."""
    return {(module, original): f"{package}.{name}" for name, (package, module, original) in _public().items()}


def is_public(name: str) -> bool:
    """Whether a bare name is one of this library's public ones."""
    return name in _public()


def exported(path: str) -> bool:
    """Whether a path is a public one, such as ``lightning_idc.methods.ProCap``."""
    package, _, name = path.rpartition(".")
    return name in _public() and _public()[name][0] == package


def nearest(name: str, valid: Iterable[str]) -> str:
    """Hint that names the closest valid name, or all of them.

    Example:
        >>> nearest("widht", ["width", "heads"])
        "did you mean 'width'?"
    """
    options = sorted(valid)
    near = difflib.get_close_matches(name, options, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(options)}"


def full_name(name: str) -> str:
    """Public path of a class for its bare name or for its path.

    Args:
        name: as in a configuration, such as ``ProCap``, ``AdamW`` or ``mine.Captioner``.

    Raises:
        ConfigError: a bare name that is not known; the nearest one that is.

    Example:
        >>> full_name("ProCap"), full_name("lightning_idc.methods.procap.module.ProCap")
        ('lightning_idc.methods.ProCap', 'lightning_idc.methods.ProCap')
    """
    if "." in name:
        module, _, original = name.rpartition(".")
        if (module, original) in _exported():
            return _exported()[module, original]
        package, home, _ = _public().get(original, ("", "", ""))
        # a package on the way to the module may export the class, too
        return f"{package}.{original}" if home.startswith(f"{module}.") else f"{module}.{original}"
    if name in _public():
        return f"{_public()[name][0]}.{name}"
    known = set(_public())
    for module in MODULES:
        classes = _classes(module)
        if name in classes:
            return f"{module}.{name}"
        known |= classes
    if "" in (near := difflib.get_close_matches(name, known, 1, 0.6) or [""]):
        raise ConfigError(
            f"there is no class {name!r}; give a public name of lightning_idc or the path of a class, as in "
            f"module.{name} (classes of your own: --import module)"
        )
    raise ConfigError(f"there is no class {name!r}; did you mean {near[0]!r}?")


def _classes(module: str) -> set[str]:
    found = importlib.import_module(module)
    return {name for name, value in vars(found).items() if isinstance(value, type) and not name.startswith("_")}


def public_name(kind: type) -> str:
    """Path that a checkpoint stores for a class: the public one where there is one.

    Example:
        >>> from lightning_idc.models.schedules import Constant
        >>> public_name(Constant)
        'lightning_idc.models.schedules.Constant'
    """
    return full_name(f"{kind.__module__}.{kind.__qualname__}")


@cache
def class_of(name: str) -> Any:
    """Class, or function that makes an object, of a name.

    Raises:
        ConfigError: the module or the class does not exist.
    """
    path = full_name(name)
    module_name, _, original = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:  # a path such as "a..b" is the latter
        raise ConfigError(f"class_path {name!r} cannot be imported: {error}") from error
    try:
        found = getattr(module, original)
    except AttributeError:
        classes = [n for n in dir(module) if n[:1].isupper()]
        raise ConfigError(
            f"class_path {name!r}: {module_name} has no class {original!r}; {nearest(original, classes)}"
        ) from None
    if not callable(found):
        raise ConfigError(f"class_path {name!r} is a {type(found).__name__}; expected a class")
    return found


def with_full_names(config: Any) -> Any:
    """Copy of a configuration in which every ``class_path`` is a full path, and a class given as text has one.

    Raises:
        ConfigError: a bare name that is not known.
    """
    if isinstance(config, list):
        return [with_full_names(value) for value in config]
    if not isinstance(config, dict):
        return config
    found = {key: with_full_names(value) for key, value in config.items()}
    path = found.get("class_path")
    if isinstance(path, str) and "${" not in path:
        found["class_path"] = full_name(path)
    return found

"""Installed packages that bring captioners, data and recipes: the entry points of ``lightning_idc.plugins``.

A package names a module in its ``pyproject.toml``::

    [project.entry-points."lightning_idc.plugins"]
    birds = "my_birds.idc"

Every command imports this module, as ``--import my_birds.idc`` would, so that configurations can use its classes by
their bare names. The module may also define:

- ``DATA``: class paths of data modules by name, for ``--data NAME`` and ``data check NAME``;
- ``RECIPES``: a folder of recipes, for ``run NAME``;
- ``MODELS``: a folder with one folder of ``save_pretrained`` per captioner, for ``load(NAME)``.

Names of the library take precedence.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_idc.utils.names import MODULES

GROUP = "lightning_idc.plugins"
"""Group of entry points."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in of an installed package.

    Args:
        name: name of the entry point.
        module: dotted path of the module.
        package: name and version of the package.
    """

    name: str
    module: str
    package: str

    def load(self) -> ModuleType | None:
        """The module; None, with a warning, where it cannot be imported: no command fails for an installed package."""
        try:
            return importlib.import_module(self.module)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            warnings.warn(f"the plug-in {self.name} of {self.package} cannot be imported ({message})", stacklevel=2)
            return None


@cache
def plugins() -> tuple[Plugin, ...]:
    """All plug-ins that are installed, by name; their modules are registered for bare class names, not imported."""
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    installed = tuple(
        Plugin(entry.name, entry.module, f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package")
        for entry in entries
    )
    MODULES.extend(plugin.module for plugin in installed if plugin.module not in MODULES)
    return installed


def plugin_data() -> dict[str, str]:
    """Class paths of the data modules of all plug-ins by name."""
    return {name: path for names in _attributes("DATA") for name, path in dict(names).items()}


def plugin_folders(attribute: str) -> list[Path]:
    """Existing folders that plug-ins name as ``RECIPES`` or ``MODELS``."""
    return [folder for path in _attributes(attribute) if (folder := Path(path)).is_dir()]


def _attributes(name: str) -> list[Any]:
    modules = [plugin.load() for plugin in plugins()]
    return [value for module in modules if (value := getattr(module, name, None)) is not None]

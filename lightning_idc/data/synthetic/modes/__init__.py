"""One file per world: each draws pairs of scenes with their captions.

A mode is a module with ``draw(rng, world) -> ScenePair``, ``WORLD`` (its usual `World`) and ``KINDS``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from lightning_idc.utils.errors import ConfigError

MODES = ("clevr_change", "clevr_dc", "clevr_wide", "omnidiff")


def load_mode(name: str) -> ModuleType:
    """The module of a mode.

    Raises:
        ConfigError: there is no mode of that name.
    """
    if name not in MODES:
        raise ConfigError(f"there is no synthetic mode {name!r}; choose one of {', '.join(MODES)}")
    return import_module(f"{__name__}.{name}")

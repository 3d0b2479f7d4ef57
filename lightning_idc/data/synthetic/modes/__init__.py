"""Modes of synthetic data, one module each, that draw pairs of scenes with captions.

A mode is a module with ``draw(rng, world) -> ScenePair``, ``WORLD`` (its default `World`) and ``KINDS``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from lightning_idc.utils.errors import ConfigError

MODES = ("clevr_change", "clevr_dc", "clevr_wide", "omnidiff")


def load_mode(name: str) -> ModuleType:
    """Import the module of a mode.

    Raises:
        ConfigError: the mode does not exist.
    """
    if name not in MODES:
        raise ConfigError(f"mode is {name!r}; expected one of {', '.join(MODES)}")
    return import_module(f"{__name__}.{name}")

"""The verb list: recipes, captioners, data modules and protocols of the library."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest


def list_names(kind: Literal["recipes", "models", "data", "protocols", "plugins"], name: str | None = None) -> int:
    """List recipes, captioners, data modules, protocols of scores or plug-ins, or show one of them.

    `lightning-idc list recipes quickstart > mine.yaml` copies a recipe for editing.

    Args:
        kind: kind of entries.
        name: name of an entry to print: the YAML of a recipe, the card of a captioner, the documentation of a data
            module, the definition of a protocol, or the documentation of a plug-in.
    """
    entries, show, line = _KINDS[kind]()
    if name is None:
        if not entries:
            print(f"no {kind} are installed", file=sys.stderr)
        width = max(map(len, entries), default=0)
        for entry, value in entries.items():
            print(f"{entry:<{width}}  {line(value)}")
        return 0
    if name not in entries:
        raise ConfigError(f"list {kind} {name}: {nearest(name, entries)}")
    print(show(entries[name]).rstrip("\n"))
    return 0


_Kind = tuple[Mapping[str, Any], Callable[[Any], str], Callable[[Any], str]]
"""Entries by name, function for the full text of an entry, and function for its line in the list."""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _recipes() -> _Kind:
    import yaml

    from lightning_idc.cli.recipes.shipped import shipped

    # the C loader is faster; PyYAML may be built without it
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def line(path: Path) -> str:
        recipe = yaml.load(_text(path), loader)
        about = recipe.get("recipe") or {}
        axes = (recipe.get("matrix") or {}).items()
        title = f"{about.get('title', '')} ({about.get('minutes', '?')} min)"
        return "\n    ".join([title, *(f"--matrix.{axis} {' | '.join(map(str, entries))}" for axis, entries in axes)])

    return shipped(), _text, line


def _models() -> _Kind:
    from lightning_idc.checkpoints.shipped import shipped_models

    def line(folder: Path) -> str:
        spec = json.loads(_text(folder / "config.json"))["init_args"]["input_spec"]
        trained_at = "any size" if spec["size"] is None else f"trained at {spec['size'][1]}x{spec['size'][0]}"
        size = (folder / "model.safetensors").stat().st_size / 1e6
        return f"{spec['domain']}; {trained_at}; {size:.1f} MB"

    return shipped_models(), lambda folder: _text(folder / "README.md"), line


def _data() -> _Kind:
    from lightning_idc.cli.data import data_modules
    from lightning_idc.utils.names import definition

    def about(path: str) -> str:
        """Docstring of a class, read from its source: importing Lightning for it would take seconds."""
        source = definition(path)
        if source is None or not isinstance(source[1], ast.ClassDef):
            return ""  # such as a compiled class of a plug-in
        return ast.get_docstring(source[1]) or ""

    return (
        data_modules(),
        lambda path: f"{path}\n\n{about(path)}",
        lambda path: "\n    ".join([path, *about(path).splitlines()[:1]]),
    )


def _protocols() -> _Kind:
    from lightning_idc.metrics.protocols import PROTOCOLS

    def line(protocol: Any) -> str:
        needs = f" (needs {', '.join(f'--{need}' for need in protocol.needs)})" if protocol.needs else ""
        return f"{protocol.hash}  {protocol.about}{needs}"

    return PROTOCOLS, lambda protocol: json.dumps(protocol.definition(), indent=1), line


def _plugins() -> _Kind:
    from lightning_idc.utils.plugins import Plugin, plugins

    def show(plugin: Plugin) -> str:
        return f"{plugin.module}\n\n{getattr(plugin.load(), '__doc__', None) or ''}"

    return {plugin.name: plugin for plugin in plugins()}, show, lambda plugin: f"{plugin.package}  {plugin.module}"


_KINDS: dict[str, Callable[[], _Kind]] = {
    "recipes": _recipes,
    "models": _models,
    "data": _data,
    "protocols": _protocols,
    "plugins": _plugins,
}

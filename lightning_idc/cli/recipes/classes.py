"""Classes in recipes: ``{class: AdamW, lr: 1.0e-3}``, instead of LightningCLI's class_path and init_args."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_idc.cli.signatures import arguments_of
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import full_name

_PARTS = ("model", "data")
_PARTS_OF_TRAINER = ("strategy", "profiler", "logger")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` merged in; neither is changed.

    Mappings are merged key by key. If the class differs, arguments that the new class lacks are dropped.

    Args:
        base: configuration with full class names.
        over: values that override those of ``base``.

    Example:
        >>> merge({"model": {"width": 96, "heads": 4}}, {"model": {"width": 64}})
        {'model': {'width': 64, 'heads': 4}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(_arguments_for(old, value.get("class")) if isinstance(old, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _arguments_for(options: Mapping[str, Any], path: str | None) -> Mapping[str, Any]:
    """Options that another class also has; all options for the same class and for mappings without a class."""
    if path is None or options.get("class", path) == path:
        return options
    names = arguments_of(path) or frozenset()
    return {name: value for name, value in options.items() if name in names}


def with_classes(value: Any, where: str, key: str = "", parent: str = "") -> Any:
    """Copy of a configuration with full class names, including classes written as text or as a label.

    Args:
        value: configuration in the format of recipes, or a part of it.
        where: beginning of a message, such as the file.
        key: key of the part.
        parent: ``model``, ``data`` or ``trainer`` for parts below it.

    Raises:
        ConfigError: a class is unknown, or has the format of LightningCLI.
    """
    if isinstance(value, list):
        if (parent, key) == ("trainer", "callbacks"):
            raise ConfigError(f"{where}: callbacks: expected options by class, as in LogPairs: {{}}; found a list")
        return [with_classes(item, where, key, parent) for item in value]
    if isinstance(value, str) and _is_class(value, key, parent):
        value = {"class": value}
    if not isinstance(value, dict):
        return value
    if "class_path" in value:
        raise ConfigError(
            f"{where}: {key or 'a class'}: expected `class: {value['class_path']}` with its arguments, found class_path"
        )
    if (parent, key) == ("trainer", "callbacks"):
        value = {label: _labelled(label, options, where) for label, options in value.items()}
    below = parent or (key if key in (*_PARTS, "trainer") else "")
    copy = {name: with_classes(item, where, name, below) for name, item in value.items()}
    if isinstance(path := copy.get("class"), str) and "${" not in path:
        try:
            copy["class"] = full_name(path)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return copy


def _is_class(text: str, key: str, parent: str) -> bool:
    """Whether a text is the name of a class, unlike ``strategy: auto``."""
    if not parent:
        return key in _PARTS
    return parent == "trainer" and key in _PARTS_OF_TRAINER and (text[:1].isupper() or "." in text)


def _labelled(label: str, options: Any, where: str) -> Any:
    """Options of a callback with its class, by default its label."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise ConfigError(f"{where}: callbacks.{label}: expected options or null, found {options!r:.200}")
    return {"class": label, **options}


def as_lightning(value: Any, key: str = "") -> Any:
    """A configuration in the format of LightningCLI: class_path and init_args, callbacks as a list.

    Example:
        >>> as_lightning({"model": {"class": "m.Net", "width": 96}})
        {'model': {'class_path': 'm.Net', 'init_args': {'width': 96}}}
    """
    if isinstance(value, list):
        return [as_lightning(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if key == "callbacks":
        return [as_lightning(options) for options in value.values() if options is not None]
    options = {name: as_lightning(item, name) for name, item in value.items()}
    if "class" not in options:
        return options
    path = options.pop("class")
    return {"class_path": path, "init_args": options} if options else {"class_path": path}


def set_key(options: dict[str, Any], parts: list[str], value: Any) -> None:
    """Set a value by its dotted key, which may contain indices of lists, and ``init_args`` as in LightningCLI.

    Args:
        options: configuration of a stage; changed in place.
        parts: key, split at its dots.
        value: new value.

    Raises:
        ConfigError: a part of the key refers to a value without keys.
    """
    *path, last = [part for part in parts if part != "init_args"]
    parent: Any = options
    for name in path:
        inner = _item(parent, name, parts)
        if isinstance(inner, str) and inner[:1].isupper():
            inner = {"class": inner}
            parent[name] = inner
        elif inner is None:
            inner = parent[name] = {}
        parent = inner
    _item(parent, last, parts)
    parent[int(last) if isinstance(parent, list) else last] = value


def _item(at: Any, name: str, parts: list[str]) -> Any:
    if isinstance(at, dict):
        return at.get(name)
    if isinstance(at, list) and name.isdigit() and int(name) < len(at):
        return at[int(name)]
    kind = f"a list of {len(at)}, whose indices count from 0" if isinstance(at, list) else repr(at)
    raise ConfigError(f"--{'.'.join(parts)}: {name!r} is not a key of {kind:.200}")

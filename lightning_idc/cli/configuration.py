"""Configurations: reading YAML, merging, full names of classes, and overrides by ``--key value``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.names import with_full_names


def parse_value(text: str) -> Any:
    """Parse a YAML value, with 1e-3 as a number.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[call-overload, index]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{text!r} is not readable as a value: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file with a mapping.

    Raises:
        ConfigError: the file is missing or has no mapping.
    """
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(path)!r}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"{path} is not readable as YAML: {_reason(error)}") from error
    if not isinstance(content, dict) or not content:
        kind = type(content).__name__ if content else "nothing"
        raise ConfigError(f"{path} contains {kind}; expected keys with values")
    for key in content:
        if not isinstance(key, str):
            raise ConfigError(f"{path}: the key {key!r} is a {type(key).__name__}; expected text")
    return content


@cache
def _parsed(text: str) -> Any:
    try:
        content = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except AssertionError:  # OmegaConf parses twice, and a quoted text such as '1e3' becomes a number
        return text
    return text if content == {text.strip(): None} else content  # OmegaConf reads a bare text as a key


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"{(error.problem or error.context or '').rstrip('.')} in line {error.problem_mark.line + 1}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` merged in; neither is changed.

    Mappings are merged key by key, but a mapping with another class replaces the previous one. ``callbacks+`` and
    ``logger+`` append to a list.

    Raises:
        ConfigError: a key with ``+`` appends to a value that is not a list.
    """
    merged = dict(base)
    for key, value in over.items():
        name = key.removesuffix("+") if key in LISTS else key
        old = merged.get(name)
        if name != key:
            if old and not isinstance(old, list):
                raise ConfigError(f"{key} adds to a list, found {old!r}; {name} without + replaces it")
            merged[name] = [*(old or []), *(value if isinstance(value, list) else [value])]
        elif isinstance(value, dict):
            same = isinstance(old, dict) and value.get("class_path", old.get("class_path")) == old.get("class_path")
            merged[name] = merge(old if same and old is not None else {}, value)
        else:
            merged[name] = value
    return merged


LISTS = ("callbacks+", "logger+")
"""Keys that append to a list."""


def normalised(config: dict[str, Any]) -> dict[str, Any]:
    """Copy of a configuration with full class names; a class written as text, ``model: ProCap``, becomes a class_path.

    Raises:
        ConfigError: a class name is unknown.
    """
    copy = deepcopy(config)
    trainer: dict[str, Any] = copy["trainer"] if isinstance(copy.get("trainer"), dict) else {}
    for parent, keys in (
        (copy, ("model", "data")),
        (trainer, ("callbacks", "callbacks+", "logger", "logger+", "strategy", "profiler")),
    ):
        for key in keys:
            if key in parent:
                parent[key] = _as_class(parent[key], key in ("model", "data"))
    return with_full_names(copy)


def _as_class(value: Any, always: bool) -> Any:
    """Convert a class written as text to a class_path; other text, such as the name of a strategy, is unchanged."""
    if isinstance(value, list):
        return [_as_class(item, always) for item in value]
    return (
        {"class_path": value} if isinstance(value, str) and (always or value[:1].isupper() or "." in value) else value
    )


def set_key(config: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a dotted key; ``init_args`` may be omitted, and so may the index of a list, for its last item."""
    node: Any = config
    for depth, name in enumerate(path, 1):
        key: Any = name
        if isinstance(node, list):
            if not node or (name.isdigit() and int(name) >= len(node)):
                raise ConfigError(
                    f"--{'.'.join(path)}: {name!r} is not an index of a list of {len(node)}, which count from 0"
                )
            if not name.isdigit():
                node, key = node[-1], name
                if not isinstance(node, dict):
                    raise ConfigError(f"--{'.'.join(path)}: the last item is {node!r}, which has no key {name!r}")
            else:
                key = int(name)
        if isinstance(node, dict) and "class_path" in node and name not in ("class_path", "init_args", "dict_kwargs"):
            node = node.setdefault("init_args", {})
        if depth == len(path):
            node[key] = value
            return
        inner = node[key] if isinstance(node, list) else node.get(key)
        if not isinstance(inner, (dict, list)):
            inner = node[key] = _as_class(inner, False)  # a class written as text gets arguments
        if not isinstance(inner, (dict, list)):
            inner = node[key] = {}
        node = inner


def _flags(arguments: Sequence[str], short: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Iterate over ``--key value`` and ``--key=value``; None for a key without a value.

    Raises:
        ConfigError: an argument is not a key.
    """
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag != short and (not flag.startswith("--") or flag == "--"):
            raise ConfigError(f"expected --key value, found {flag!r}")
        yield flag, value if equals else rest.pop(0) if rest and not rest[0].startswith("--") else None


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Values of a command by key, parsed as YAML."""
    overrides: dict[str, Any] = {}
    for flag, value in _flags(arguments):
        if value is None:
            raise ConfigError(f"{flag} has no value; expected {flag} VALUE")
        try:
            overrides[flag[2:]] = parse_value(value)
        except IDCError as error:
            raise ConfigError(f"{flag}: {error}") from error
    return overrides


def gather(arguments: Sequence[str]) -> dict[str, Any]:
    """Merge the configuration files and ``--key value`` of a command, in their order.

    ``--trainer.callbacks+ NAME`` appends; ``--trainer.callbacks.KEY value`` sets an option of the last callback.

    Raises:
        ConfigError: a file or a value cannot be read, or a class name is unknown.
    """
    config: dict[str, Any] = {}
    for flag, value in _flags(arguments, short="-c"):
        if flag in ("--config", "-c"):
            config = merge(config, _read(Path("true" if value is None else value)))
            continue
        parsed = True if value is None else parse_value(value)
        *path, name = flag.removeprefix("--").split(".")
        if name.endswith("+"):
            over: dict[str, Any] = {name: parsed}
            for key in reversed(path):
                over = {key: over}
            config = merge(config, normalised(over))
        else:
            set_key(config, [*path, name], parsed)
            config = normalised(config)
    return config


def _read(path: Path) -> dict[str, Any]:
    config = read_yaml(path)
    if "stages" in config:
        raise ConfigError(f"{path} is a recipe of stages; run it with: lightning-idc run {path}")
    try:
        return normalised(config)
    except IDCError as error:
        raise ConfigError(f"{path}: {error}") from error

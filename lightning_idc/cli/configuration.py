"""Configurations: read from YAML, merged, with full names of classes, changed by ``--key value``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.names import with_full_names


def parse_value(text: str) -> Any:
    """Value of a YAML text, in which 1e-3 is a number.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[call-overload, index]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{text!r} is not readable as a value: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Mapping of a YAML file.

    Raises:
        ConfigError: the file is missing or holds something else.
    """
    try:
        found = _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(path)!r}; check the path") from None
    except yaml.MarkedYAMLError as error:
        at = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(
            f"{path} is not readable as YAML: {(error.problem or error.context or '').rstrip('.')}{at}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} is not readable as YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{path} is not readable as YAML: it is nested too deeply") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{path} holds {type(found).__name__ if found else 'nothing'}; expected keys with values")
    for key in found:
        if not isinstance(key, str):
            raise ConfigError(f"{path}: the key {key!r} is a {type(key).__name__}; expected text")
    return found


@cache
def _parsed(text: str) -> Any:
    try:
        found = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except AssertionError:  # a quoted text that is a number when it is read once more, such as '1e3'
        return text
    return text if found == {text.strip(): None} else found  # a text alone is read as a key


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of ``base`` with ``over`` merged in.

    A mapping is merged key by key, unless it names another class: then it replaces the one before, but for
    ``init_args+``, which keeps the arguments of that. Another key that ends in ``+`` appends to a list.

    Raises:
        ConfigError: a key ends in ``+`` and what it adds to is not a list, or for ``init_args+`` not a mapping.
    """
    merged = copied(base)
    for key, value in over.items():
        name = str(key).removesuffix("+")
        old = merged.get(name)
        if key == "init_args+":
            merged[name] = merge(_added_to(key, {} if old is None else old, dict), _added_to(key, value, dict))
        elif name != key:
            given = value if isinstance(value, list) else [value]
            merged[name] = [*_added_to(key, [] if old is None or old is False else old, list), *copied(given)]
        elif isinstance(value, dict) and isinstance(old, dict):
            keep = {"init_args": old["init_args"]} if "init_args+" in value and "init_args" in old else {}
            same = "class_path" not in value or old.get("class_path") == value["class_path"]
            merged[name] = merge(old if same else keep, value)
        else:
            merged[name] = merge({}, value) if isinstance(value, dict) else copied(value)
    return merged


def _added_to(key: str, found: Any, expected: type[dict[str, Any]] | type[list[Any]]) -> Any:
    if not isinstance(found, expected):
        kind = "keys with values" if expected is dict else "a list"
        raise ConfigError(
            f"{key} adds to {kind}, found {found!r}; write {key.removesuffix('+')} without + to replace it"
        )
    return found


def normalised(config: dict[str, Any]) -> dict[str, Any]:
    """Copy of a configuration with full names of classes; one given as text, ``model: ProCap``, becomes a class_path.

    Raises:
        ConfigError: a name that is not known.
    """
    found = copied(config)
    trainer = found.get("trainer") if isinstance(found.get("trainer"), dict) else {}
    for at, keys in (
        (found, ("model", "data")),
        (trainer, ("callbacks", "callbacks+", "logger", "strategy", "profiler")),
    ):
        for key in keys:
            if key in at:
                at[key] = _as_class(at[key], key in ("model", "data"))
    return with_full_names(found)


def _as_class(value: Any, always: bool) -> Any:
    """Class given as text, as a class_path; other text, such as the name of a strategy, as it is."""
    if isinstance(value, list):
        return [_as_class(one, always) for one in value]
    return (
        {"class_path": value} if isinstance(value, str) and (always or value[:1].isupper() or "." in value) else value
    )


_ASK_FOR_A_FOLDER = tuple(f"lightning.pytorch.loggers.{name}" for name in ("CSVLogger", "TensorBoardLogger"))


def with_log_folder(trainer: dict[str, Any]) -> dict[str, Any]:
    """The Trainer's arguments with the folder of the run for loggers that ask for one, so that their name is enough."""
    found = copied(trainer)
    loggers = found.get("logger")
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, dict) and logger.get("class_path") in _ASK_FOR_A_FOLDER:
            folder = {"save_dir": found.get("default_root_dir") or "."}
            logger["init_args"] = {**folder, **(logger.get("init_args") or {})}
    return found


def copied(value: Any) -> Any:
    """Copy of a configuration, whose parts belong to nobody else."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def set_key(config: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a dotted key; ``init_args`` may be left out, and so may the index of a list: the last counts."""
    at: Any = config
    for depth, name in enumerate(path, 1):
        key: Any = name
        if isinstance(at, list):
            if not at or (name.isdigit() and int(name) >= len(at)):
                raise ConfigError(
                    f"--{'.'.join(path)}: {name!r} is not an index of a list of {len(at)}, which count from 0"
                )
            if not name.isdigit():
                at, key = at[-1], name
                if not isinstance(at, dict):
                    raise ConfigError(f"--{'.'.join(path)}: the last of the list is {at!r}, which has no key {name!r}")
            else:
                key = int(name)
        if isinstance(at, dict) and "class_path" in at and name not in ("class_path", "init_args", "dict_kwargs"):
            at = at.setdefault("init_args", {})
        if depth == len(path):
            at[key] = value
            return
        inner = at[key] if isinstance(at, list) else at.get(key)
        if not isinstance(inner, (dict, list)):
            inner = at[key] = _as_class(inner, False)  # arguments of a class that was given as text
        if not isinstance(inner, (dict, list)):
            inner = at[key] = {}
        at = inner


def _given(arguments: Sequence[str], short: str | None = None) -> Iterator[tuple[str, str | None]]:
    """``--key value`` and ``--key=value`` one by one; None for a key that has no value.

    Raises:
        ConfigError: something else stands where a key is expected.
    """
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag != short and (not flag.startswith("--") or flag == "--"):
            raise ConfigError(f"expected --key value, found {flag!r}")
        yield flag, value if equals else rest.pop(0) if rest and not rest[0].startswith("--") else None


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Keys of a command to their values, read as YAML."""
    found: dict[str, Any] = {}
    for flag, value in _given(arguments):
        if value is None:
            raise ConfigError(f"{flag} has no value; expected {flag} VALUE")
        try:
            found[flag[2:]] = parse_value(value)
        except IDCError as error:
            raise ConfigError(f"{flag}: {error}") from error
    return found


def gather(arguments: Sequence[str]) -> dict[str, Any]:
    """Merge the configuration files and ``--key value`` of a command, in their order.

    ``--trainer.callbacks+ NAME`` appends; ``--trainer.callbacks.KEY value`` belongs to the one named last.

    Raises:
        ConfigError: a file or a value that cannot be read, or a name that is not known.
    """
    config: dict[str, Any] = {}
    for flag, value in _given(arguments, short="-c"):
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

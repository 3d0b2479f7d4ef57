"""Checks configuration keys against class signatures, which are parsed from source code without imports."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import bindings, definition, nearest, source_of

TOP = ("seed_everything", "trainer", "model", "data", "ckpt_path", "verbose", "return_predictions", "weights_only")
"""Top-level keys of a configuration."""
_TRAINER = "lightning.pytorch.Trainer"
_WITHOUT_ARGUMENTS = ("object", "Generic", "Protocol", "ABC")
_BUILT_TOO_EARLY = (
    "a top-level `{key}:` is built before callbacks add their parameters, which would then never be trained; "
    "put it under model.init_args (optimizer: ..., schedule: ...)"
)


@cache
def arguments_of(path: str) -> frozenset[str] | None:
    """Argument names of a class or function, including those of parents that receive its ``**kwargs``.

    The ``**kwargs`` of a class with an ``options_class`` are the fields of that dataclass.

    Args:
        path: path of the class.

    Returns:
        The names; None if they are unknown, as for a class that accepts any arguments.
    """
    if path.rpartition(".")[2] in _WITHOUT_ARGUMENTS:
        return frozenset()
    source = definition(path)
    if source is None:
        return None
    module, node = source
    if isinstance(node, ast.FunctionDef):
        return None if node.args.kwarg else _parameters(node)
    if not isinstance(node, ast.ClassDef):
        return None
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None and node.decorator_list and not _is_dataclass(node):
        return None
    names = _fields(node) if init is None else _parameters(init) - {"self"}
    if init is not None and init.args.kwarg is None:
        return names
    if init is not None and not node.bases:
        return None
    options = _options_class(node)
    if init is not None and options is not None:
        fields = arguments_of(_path_of(options, module))
        return None if fields is None else names | fields
    for base in node.bases:
        inherited = arguments_of(_path_of(base, module))
        if inherited is None:
            return None
        names |= inherited
    return names


def _options_class(node: ast.ClassDef) -> ast.expr | None:
    """The dataclass that a class assigns to ``options_class``."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "options_class":
            return statement.value
    return None


def _parameters(function: ast.FunctionDef) -> frozenset[str]:
    arguments = function.args
    return frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _is_dataclass(node: ast.ClassDef) -> bool:
    names = [ast.unparse(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]
    return names in (["dataclass"], ["dataclasses.dataclass"])


def _fields(node: ast.ClassDef) -> frozenset[str]:
    """Fields of a dataclass; nothing for another class."""
    annotated = [item for item in node.body if isinstance(item, ast.AnnAssign) and _is_dataclass(node)]
    return frozenset(field.target.id for field in annotated if isinstance(field.target, ast.Name))


def _path_of(base: ast.expr, module: str) -> str:
    """Path of a base class in a class statement of a module."""
    head, _, rest = ast.unparse(base.value if isinstance(base, ast.Subscript) else base).partition(".")
    bound = bindings(module).get(head)
    start = bound if isinstance(bound, str) else head if bound is None else f"{module}.{head}"
    return f"{start}.{rest}" if rest else start


def unknown_key(name: str, keys: Collection[str] = TOP) -> str:
    """Message for an unknown top-level key of a configuration."""
    if name in ("optimizer", "lr_scheduler"):
        return _BUILT_TOO_EARLY.format(key=name)
    return f"unknown key {name!r}; {nearest(name, keys)}"


def check_config(config: Mapping[str, Any], where: str = "") -> None:
    """Check that all keys and classes of a configuration exist; LightningCLI checks the values.

    Args:
        config: configuration with full class names.
        where: beginning of the message, such as the names of recipe and stage.

    Raises:
        ConfigError: a key or class does not exist.
    """
    try:
        for key in config:
            if key not in TOP:
                raise ConfigError(unknown_key(key))
        trainer = config.get("trainer")
        if not isinstance(trainer or {}, Mapping):
            raise ConfigError(f"trainer: expected keys with values, found {trainer!r}")
        names = arguments_of(_TRAINER)
        for key in trainer or {}:
            if names is not None and key not in names:
                raise ConfigError(f"trainer: Trainer has no argument {key!r}; {nearest(key, names)}")
        for name in ("model", "data"):
            # the class may come from the checkpoint
            if config.get(name) is not None and not config.get("ckpt_path"):
                _check_has_class(config[name], name)
        for key, value in config.items():
            _check_classes(value, key)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _check_has_class(value: Any, key: str) -> None:
    if not isinstance(value, Mapping) or "class_path" not in value:
        raise ConfigError(f"{key}: expected class_path and init_args, found {value!r:.200}")


def _check_classes(value: Any, key: str) -> None:
    """Check each class in a part of a configuration, and its arguments."""
    if isinstance(value, list):
        for item in value:
            _check_classes(item, key)
    if not isinstance(value, Mapping):
        return
    if isinstance(value.get("class_path"), str):
        _check_class(value, key)
        value = value.get("init_args") or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}.init_args: expected keys with values, found {value!r:.200}")
    for name, item in value.items():
        _check_classes(item, f"{key}.{name}")


def _check_class(value: Mapping[str, Any], key: str) -> None:
    path = value["class_path"]
    module, _, name = path.rpartition(".")
    if extra := set(value) - {"class_path", "init_args", "dict_kwargs"}:
        raise ConfigError(f"{key}: unknown key {min(extra)!r} next to class_path; arguments belong under init_args")
    names = bindings(module)
    if names and name not in names and "__getattr__" not in names and source_of(path) is None:
        classes = [other for other in names if other[:1].isupper()]
        raise ConfigError(f"{key}: {module} has no class {name!r}; {nearest(name, classes)}")
    argument_names = arguments_of(path)
    for argument in value.get("init_args") or {}:
        if argument_names is not None and argument not in argument_names:
            raise ConfigError(f"{key}: {name} has no argument {argument!r}; {nearest(argument, argument_names)}")


def check_arguments(options: Mapping[str, Any], path: str, where: str) -> None:
    """Check that a class or function has arguments for options.

    Args:
        options: options by name.
        path: path of the class or function.
        where: beginning of the message.

    Raises:
        ConfigError: there is no argument for an option.
    """
    names = arguments_of(path)
    for name in options:
        if names is not None and name not in names:
            raise ConfigError(f"{where}: {path.rpartition('.')[2]} has no argument {name!r}; {nearest(name, names)}")

"""Keys of a configuration, checked against the classes that they configure before anything is built."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable
from functools import cache
from typing import Any

from lightning_idc.core.arguments import accepted_arguments
from lightning_idc.errors import PairError

TOP = ("seed_everything", "trainer", "model", "data", "ckpt_path", "verbose", "return_predictions", "weights_only")
_BUILT_TOO_EARLY = (
    "a top-level `{key}:` is built before callbacks add their parameters, which would then never be trained; "
    "put it under model.init_args (optimizer: ..., schedule: ...)"
)


def nearest(key: str, valid: Iterable[str]) -> str:
    """Hint naming the closest valid key, or all of them."""
    options = sorted(valid)
    near = difflib.get_close_matches(key, options, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(options)}"


@cache
def class_of(path: str) -> Any:
    """Class, or function that makes an object, of a dotted path.

    Raises:
        PairError: the module or the class does not exist.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise PairError(f"class_path {path!r} must name the module, too, as in lightning_idc.data.synthetic.{path}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PairError(f"class_path {path!r} cannot be imported: {error}") from error
    try:
        found = getattr(module, name)
    except AttributeError:
        classes = [n for n in dir(module) if n[:1].isupper()]
        raise PairError(f"class_path {path!r}: {module_name} has no class {name!r}; {nearest(name, classes)}") from None
    if not callable(found):
        raise PairError(f"class_path {path!r} is a {type(found).__name__}; expected a class")
    return found


@cache
def arguments_of(kind: Any) -> frozenset[str] | None:
    """Names that a class can be configured with, through ``**kwargs`` of its parents; None where anything goes."""
    if not inspect.isclass(kind):
        known, passes_on = _names(list(inspect.signature(kind).parameters.values()))
        return None if passes_on else known
    return accepted_arguments(kind)


def _names(parameters: list[inspect.Parameter]) -> tuple[frozenset[str], bool]:
    """Names of parameters, and whether any other is passed on."""
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)), passes_on


def check(config: dict[str, Any], where: str = "") -> None:
    """Refuse unknown keys of a LightningCLI configuration.

    Raises:
        PairError: a key or a class that does not exist, with the nearest one that does.
    """
    from lightning.pytorch import Trainer

    prefix = f"{where}: " if where else ""
    for key, value in config.items():
        if key in ("optimizer", "lr_scheduler"):
            raise PairError(prefix + _BUILT_TOO_EARLY.format(key=key))
        if key not in TOP:
            raise PairError(f"{prefix}unknown key {key!r}; {nearest(key, TOP)}")
        if key in ("model", "data"):
            _check_class(value, f"{prefix}{key}")
    trainer = config.get("trainer") or {}
    if not isinstance(trainer, dict):
        raise PairError(f"{prefix}trainer: expected keys with values, found {trainer!r}")
    check_names(trainer, Trainer, f"{prefix}trainer")
    for key, value in trainer.items():
        _check_nested(value, f"{prefix}trainer.{key}")


def _check_class(value: Any, where: str) -> None:
    if not isinstance(value, dict) or "class_path" not in value:
        raise PairError(f"{where}: expected class_path and init_args, found {value!r}")
    if not isinstance(value["class_path"], str) or not isinstance(value.get("init_args") or {}, dict):
        raise PairError(f"{where}: expected class_path to be text and init_args to be keys with values")
    extra = set(value) - {"class_path", "init_args", "dict_kwargs"}
    if extra:
        raise PairError(f"{where}: unknown key {min(extra)!r} beside class_path; arguments belong under init_args")
    arguments = value.get("init_args") or {}
    try:
        kind = class_of(value["class_path"])
    except PairError as error:
        raise PairError(f"{where}: {error}") from error
    check_names(arguments, kind, where)
    for key, inner in arguments.items():
        _check_nested(inner, f"{where}.{key}")


def _check_nested(value: Any, where: str) -> None:
    if isinstance(value, dict) and "class_path" in value:
        _check_class(value, where)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_nested(item, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_nested(inner, f"{where}.{key}")


def check_names(given: dict[str, Any], kind: Any, where: str) -> None:
    """Refuse keys that a class has no argument of.

    Raises:
        PairError: the key, and the nearest one that exists.
    """
    valid = arguments_of(kind)
    if valid is None:
        return
    for key in given:
        if key not in valid:
            raise PairError(f"{where}: {kind.__name__} has no argument {key!r}; {nearest(key, valid)}")

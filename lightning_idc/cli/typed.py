"""Verbs from typed functions: arguments, defaults and help of a verb are those of a Python function."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

from docstring_parser import parse

from lightning_idc.cli import parser


def call(verb: str, function: Callable[..., int], given: list[str]) -> int:
    """Parse the arguments of a verb by the signature of a function, and call it.

    Arguments without a default are positional; those of type bool are switches, sequences take several values, and
    those of a dataclass stand beside the others.

    Args:
        verb: its name.
        function: documented; returns the exit status.
        given: arguments of the command line, without the verb.
    """
    about = parse(function.__doc__ or "")
    arguments = parser(verb, "\n\n".join(filter(None, (about.short_description, about.long_description))))
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    groups: dict[str, Any] = {}
    for name, kind in _add_all(arguments, function).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            groups[name] = (kind, list(_add_all(arguments, kind)))
    values = vars(arguments.parse_args(given))
    for name, (kind, names) in groups.items():
        values[name] = kind(**{own: values.pop(own) for own in names})
    return function(**values)


def _add_all(arguments: argparse.ArgumentParser, kind: Callable[..., Any]) -> dict[str, Any]:
    """Add the arguments of a function or dataclass; their types by name."""
    helps = {entry.arg_name: entry.description or "" for entry in parse(kind.__doc__ or "").params}
    hints = typing.get_type_hints(kind)
    found = {name: (hints[name], value.default) for name, value in inspect.signature(kind).parameters.items()}
    for name, (hint, default) in found.items():
        if not dataclasses.is_dataclass(hint):
            _add(arguments, name, hint, default, helps.get(name, "").replace("%", "%%"))
    return {name: hint for name, (hint, _) in found.items()}


def _add(arguments: argparse.ArgumentParser, name: str, kind: Any, default: Any, text: str) -> None:
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    rest: dict[str, Any] = {"help": text}
    if typing.get_origin(kind) is Literal:
        rest["choices"] = typing.get_args(kind)
    elif typing.get_origin(kind) is Sequence:
        rest |= {"nargs": "+", "type": typing.get_args(kind)[0]}
    elif kind is bool:
        rest["action"] = "store_true"
    else:
        rest["type"] = kind
    if default is inspect.Parameter.empty:
        arguments.add_argument(name, **rest)
        return
    if default not in (None, False, ()):
        rest["help"] += f" (default: {default})"
    arguments.add_argument(f"--{name.replace('_', '-')}", dest=name, default=default, **rest)

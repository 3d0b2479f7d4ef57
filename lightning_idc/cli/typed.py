"""Command-line verbs from typed functions: arguments, defaults and help come from signature and docstring."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from docstring_parser import parse

from lightning_idc.utils.bounds import Bounded

Verb = Callable[..., int]
_ANY_NUMBER = {True: "*", False: "+"}
"""``nargs`` of a sequence, by whether it is optional."""


def call(verb: str, target: Verb | Mapping[str, Verb], arguments: Sequence[str]) -> int:
    """Parse the arguments of a verb by the signature of its function, and call it.

    Parameters before a ``*`` are positional arguments. Parameters after it are options, named with underscores like
    configuration keys; a dataclass is a group of options, and ``**keys`` takes every other ``--key value``.

    Args:
        verb: name of the verb.
        target: documented function that returns the exit status, or functions by sub-verb.
        arguments: command-line arguments without the verb.
    """
    if isinstance(target, Mapping):
        name, *rest = arguments or [""]
        if name in target:
            return call(f"{verb} {name}", target[name], rest)
        is_help = name in ("-h", "--help")
        print(_usage_of_group(verb, target), file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    about = parse(target.__doc__ or "")
    parser = argparse.ArgumentParser(
        prog=f"lightning-idc {verb}",
        description="\n\n".join(filter(None, (about.short_description, about.long_description))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for name, hint in _add_all(parser, target).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            groups[name] = (hint, list(_add_all(parser, hint)))
    keys = any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(target).parameters.values())
    if keys:
        parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [--key value ...]"
    try:
        parsed, rest = parser.parse_known_args(arguments) if keys else (parser.parse_args(arguments), [])
    except SystemExit as stop:  # argparse has printed the help or an error
        return int(stop.code or 0)
    values = vars(parsed)
    positional = [values.pop(name) for name in _positional(target)]
    for name, (kind, names) in groups.items():
        values[name] = kind(**{field: values.pop(field) for field in names})
    return target(*positional, **values, **_keys(rest))


def _usage_of_group(verb: str, target: Mapping[str, Verb]) -> str:
    commands = [" ".join([name, *map(str.upper, _positional(function))]) for name, function in target.items()]
    width = max(map(len, commands))
    lines = [
        f"  {command:<{width}}  {parse(function.__doc__ or '').short_description}"
        for command, function in zip(commands, target.values(), strict=True)
    ]
    usage = f"usage: lightning-idc {verb} COMMAND ..."
    return "\n".join([usage, "", *lines, "", f"`lightning-idc {verb} COMMAND --help` shows the options."])


def _keys(arguments: Sequence[str]) -> dict[str, Any]:
    """Further ``--key value`` of a command, with values read as YAML."""
    if not arguments:
        return {}
    from lightning_idc.cli.configuration import parse_overrides

    return parse_overrides(arguments)


def _positional(function: Verb) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _add_all(parser: argparse.ArgumentParser, kind: Callable[..., Any]) -> dict[str, Any]:
    """Add the arguments of a function or dataclass, and return their types by name."""
    helps = {entry.arg_name: entry.description or "" for entry in parse(kind.__doc__ or "").params}
    hints = typing.get_type_hints(kind)
    positional = () if dataclasses.is_dataclass(kind) else _positional(kind)
    types_by_name = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        types_by_name[name] = hints[name]
        if not dataclasses.is_dataclass(hints[name]):
            text = helps.get(name, "").replace("%", "%%")
            _add(parser, name, hints[name], parameter.default, text, name in positional)
    return types_by_name


def _add(parser: argparse.ArgumentParser, name: str, hint: Any, default: Any, text: str, is_positional: bool) -> None:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
    is_required = default is inspect.Parameter.empty
    options: dict[str, Any] = {"help": text}
    if not is_required:
        options["default"] = default
        if default not in (None, False, ()):
            default_text = " ".join(map(str, default)) if isinstance(default, tuple) else default
            options["help"] += f" (default: {default_text})"
    if hint is bool:
        options["action"] = "store_true"
    elif typing.get_origin(hint) is Literal:
        options["choices"] = typing.get_args(hint)
    elif typing.get_origin(hint) is Sequence:
        options |= {"nargs": _ANY_NUMBER[not is_required and is_positional], "type": typing.get_args(hint)[0]}
    else:
        options["type"] = _number(hint) if issubclass(hint, Bounded) else hint
    if is_positional:
        if "nargs" not in options and not is_required:
            options["nargs"] = "?"
        parser.add_argument(name, **options)
        return
    if hint is not bool and "choices" not in options:
        options["metavar"] = name.rpartition("_")[2].upper()
    parser.add_argument(f"--{name}", required=is_required, **options)


def _number(bound: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parser of a bounded number, with the expected range in its error message."""

    def number(text: str) -> Any:
        try:
            return bound(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return number

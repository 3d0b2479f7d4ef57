"""Short representations of objects for ``repr``: constructor arguments, counts and shapes in place of all values."""

from __future__ import annotations

import inspect
import reprlib
from typing import Any


class _ShortRepr(reprlib.Repr):
    """Represents a tensor by its type and shape, and a long collection by its first item and its length."""

    def repr_Tensor(self, value: Any, level: int) -> str:
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"

    def repr_ndarray(self, value: Any, level: int) -> str:
        return f"{value.dtype} {value.shape}"

    def repr_list(self, value: list[Any], level: int) -> str:
        if len(value) <= 2:
            return f"[{', '.join(self.repr1(item, level - 1) for item in value)}]"
        return f"[{self.repr1(value[0], level - 1)}, ... {len(value):,} in all]"

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        if len(value) > 8:
            return f"{{... {len(value):,} entries}}"
        return f"{{{', '.join(f'{key!r}: {self.repr1(item, level - 1)}' for key, item in value.items())}}}"

    def repr_instance(self, value: Any, level: int) -> str:
        # nested transforms and sources have a short representation of their own
        return repr(value)


_SHORT = _ShortRepr()
_SHORT.maxstring = 80


def short_repr(value: Any) -> str:
    """Represent a value in one short line.

    Example:
        >>> short_repr(["a car left"] * 40)
        "['a car left', ... 40 in all]"
    """
    return _SHORT.repr(value)


def fields_repr(value: Any) -> str:
    """Represent a dataclass by the fields that differ from their defaults.

    Args:
        value: instance of a dataclass.
    """
    from dataclasses import MISSING, fields

    arguments = []
    for field in fields(value):
        content = getattr(value, field.name)
        is_default = content is field.default or (field.default_factory is not MISSING and not content)
        if field.repr and not is_default:
            arguments.append(f"{field.name}={short_repr(content)}")
    return f"{type(value).__name__}({', '.join(arguments)})"


def arguments_repr(value: Any, **properties: Any) -> str:
    """Represent an object by the constructor arguments that it stores under their names and that differ from defaults.

    Args:
        value: any object.
        properties: further properties, such as counts.
    """
    arguments: dict[str, Any] = {}
    for base in type(value).__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.name not in vars(value) or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            content = vars(value)[parameter.name]
            is_default = type(content) is type(parameter.default) and content == parameter.default
            if not is_default:
                arguments.setdefault(parameter.name, content)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    described = ", ".join(f"{name}={short_repr(content)}" for name, content in (arguments | properties).items())
    return f"{type(value).__name__}({described})"

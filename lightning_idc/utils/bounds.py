"""Argument types for numbers within bounds.

A type checker reads ``PositiveInt`` as int. The command line checks the bound and shows it in the help of the argument.
A constructor or function that is called from Python checks its arguments with :func:`check_arguments`, a dataclass its
fields with :func:`check_fields`; both also check ``Literal`` types. They are calls rather than decorators because
Lightning collects hyper-parameters from the frames of constructors, and a decorator would add a frame.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from inspect import get_annotations, unwrap
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union, cast, get_args, get_origin

from lightning_idc.utils.errors import ConfigError

Hints = tuple[tuple[str, Any], ...]


class Bounded:
    """Number within bounds; calling a subclass converts a command-line value to a plain int or float."""

    kind: ClassVar[type]
    expected: ClassVar[str]
    contains: ClassVar[Callable[[Any], bool]]

    def __new__(cls, value: Any) -> Any:
        try:
            number = cls.kind(value) if isinstance(value, str) else value
        except ValueError:  # not a number: reported below
            number = value
        if expected := cls.fault(number):
            raise ValueError(f"expected {expected}. Got value: {number!r}")
        return cls.kind(number)

    @classmethod
    def fault(cls, value: Any) -> str | None:
        """Describe what was expected instead of a value; None if the value is within the bounds."""
        if isinstance(value, bool) or not isinstance(value, Integral if cls.kind is int else Real):
            return "an integer" if cls.kind is int else "a number"
        return None if cls.contains(value) else cls.expected


def _bounded(kind: type, name: str, expected: str, contains: Callable[[Any], bool]) -> Any:
    """Create a type of numbers within bounds.

    Args:
        kind: int or float.
        name: bounds as shown in the help of the command line.
        expected: bounds in words, for the message of an error.
        contains: function that returns whether a number is within the bounds.
    """
    return type(name, (Bounded, kind), {"kind": kind, "expected": expected, "contains": staticmethod(contains)})


if TYPE_CHECKING:
    PositiveInt = int
    NonNegativeInt = int
    TwoOrMore = int
    AllOrCount = int
    Seed = int
    PositiveFloat = float
    NonNegativeFloat = float
    Share = float
    PositiveShare = float
    OpenShare = float
    ShareBelowOne = float
    ShareBelowHalf = float
else:
    PositiveInt = _bounded(int, "int >= 1", "at least 1", lambda n: n >= 1)
    NonNegativeInt = _bounded(int, "int >= 0", "at least 0", lambda n: n >= 0)
    TwoOrMore = _bounded(int, "int >= 2", "at least 2", lambda n: n >= 2)
    AllOrCount = _bounded(int, "int >= -1", "at least -1, which is all", lambda n: n >= -1)
    Seed = _bounded(int, "0 <= int < 2**32", "at least 0 and less than 2**32", lambda n: 0 <= n < 2**32)
    PositiveFloat = _bounded(float, "float > 0", "a number above 0", lambda x: 0 < x < math.inf)
    NonNegativeFloat = _bounded(float, "float >= 0", "at least 0", lambda x: 0 <= x < math.inf)
    Share = _bounded(float, "0 <= float <= 1", "a number from 0 to 1", lambda x: 0 <= x <= 1)
    PositiveShare = _bounded(float, "0 < float <= 1", "a number above 0 and at most 1", lambda x: 0 < x <= 1)
    OpenShare = _bounded(float, "0 < float < 1", "a number above 0 and less than 1", lambda x: 0 < x < 1)
    ShareBelowOne = _bounded(float, "0 <= float < 1", "at least 0 and less than 1", lambda x: 0 <= x < 1)
    ShareBelowHalf = _bounded(float, "0 <= float < 0.5", "at least 0 and less than 0.5", lambda x: 0 <= x < 0.5)


def _unchanged(value: Any) -> Any:
    return value


def register_bounds() -> None:
    """Register the types of this module with jsonargparse, which takes half a second to import."""
    from jsonargparse.typing import register_type

    for bound in Bounded.__subclasses__():
        register_type(bound, serializer=_unchanged)


if "jsonargparse" in sys.modules:
    register_bounds()


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Check the arguments of a call against the bounds and choices of their annotations.

    Args:
        function: called function.
        values: arguments by name, ``locals()`` at the first line of the function.

    Raises:
        ConfigError: an argument is out of bounds, or not one of its choices.

    Example:
        >>> def repeat(word: str, times: PositiveInt) -> str:
        ...     check_arguments(repeat, locals())
        ...     return word * times
        >>> repeat("ha", times=2)
        'haha'
    """
    for name, hint in _argument_hints(function):
        if name in values:
            check_value(name, values[name], hint)


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass against the bounds and choices of their annotations.

    Args:
        instance: dataclass instance, in its ``__post_init__``.

    Raises:
        ConfigError: a field is out of bounds, or not one of its choices.
    """
    for name, hint in _field_hints(cast(Any, type(instance))):
        check_value(name, getattr(instance, name), hint)


@cache
def _argument_hints(function: Callable[..., Any]) -> Hints:
    inner: Any = unwrap(function)
    return _checked_hints(get_annotations(inner), inner.__globals__)


@cache
def _field_hints(kind: Any) -> Hints:
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        hints.update(_checked_hints(get_annotations(base), vars(sys.modules[base.__module__])))
    return tuple(hints.items())


def _checked_hints(annotations: Mapping[str, Any], namespace: dict[str, Any]) -> Hints:
    """Select the annotations that contain a bound or choices."""
    hints = {}
    for name, annotation in annotations.items():
        try:
            hint = eval(annotation, namespace) if isinstance(annotation, str) else annotation
        except (NameError, TypeError, AttributeError):  # types imported only for type checkers have no bound
            continue
        if name != "return" and _is_checked(hint):
            hints[name] = hint
    return tuple(hints.items())


def _is_bound(hint: Any) -> bool:
    return isinstance(hint, type) and get_origin(hint) is None and issubclass(hint, Bounded)


def _is_checked(hint: Any) -> bool:
    return _is_bound(hint) or get_origin(hint) is Literal or any(_is_checked(part) for part in get_args(hint))


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check a value, and the values within it, against the bounds and choices of a type.

    Args:
        name: name of the value, for the message.
        value: value to check.
        hint: type annotation.

    Raises:
        ConfigError: the value is out of bounds, or not one of its choices.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if _is_bound(hint):
        if expected := hint.fault(value):
            raise ConfigError(f"{name} is {value!r}; expected {expected}")
    elif origin is Literal:
        if value not in parts:
            raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(map(str, parts))}")
    elif origin in (Union, types.UnionType):
        _check_union(name, value, parts)
    elif origin is tuple and parts[-1] is not Ellipsis:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise ConfigError(f"{name} is {value!r}; expected {len(parts)} values")
        for number, (item, part) in enumerate(zip(value, parts, strict=True)):
            check_value(f"{name}[{number}]", item, part)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_value(f"a key of {name}", key, parts[0])
            check_value(f"{name}.{key}", item, parts[-1])
    elif isinstance(value, Collection) and not isinstance(value, str) and _is_class_of(origin, Iterable):
        for number, item in enumerate(value):
            check_value(f"{name}[{number}]", item, parts[0])


def _check_union(name: str, value: Any, options: tuple[Any, ...]) -> None:
    """Check a value against the option of a union that has its shape; options without bounds accept anything."""
    if value is None and types.NoneType in options:
        return
    if any(get_origin(option) is Literal and value in get_args(option) for option in options):
        return
    options = tuple(option for option in options if option is not types.NoneType)
    same_shape = [option for option in options if _is_checked(option) and _has_shape(value, option)]
    if same_shape or all(map(_is_checked, options)):
        check_value(name, value, (same_shape or options)[0])


def _has_shape(value: Any, hint: Any) -> bool:
    if _is_bound(hint):
        return isinstance(value, Real)
    origin = get_origin(hint)
    if origin is Literal:
        return isinstance(value, str)
    return (
        isinstance(value, tuple | list)
        if origin is tuple
        else _is_class_of(origin, object) and isinstance(value, origin)
    )


def _is_class_of(origin: Any, base: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, base)

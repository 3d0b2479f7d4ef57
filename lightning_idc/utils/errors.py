"""Errors of bad input: what was found, what was expected, what to do. Importing them needs no torch."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_OF_WORKER = re.compile(r"Caught \w+ in .*\nOriginal Traceback .*^[\w.]+Error: ", re.DOTALL | re.MULTILINE)
"""PyTorch makes an error of a loader's worker anew, with the traceback of the worker before its message."""


class IDCError(ValueError):
    """Base of all errors that a user can fix; its message is one line, whatever another library put into it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_LINE_BREAK.sub(" ", _OF_WORKER.sub("", message)).strip())


class ConfigError(IDCError):
    """A configuration, an argument or a combination of parts is wrong."""


class DataError(IDCError):
    """A pair, an annotation or a stored file is damaged or inconsistent."""


class DatasetNotFoundError(DataError):
    """A data set, or a file that belongs to it, is not where it was looked for."""


class StoreError(DataError):
    """A store on disk is missing, damaged, of another version or made from something else."""


class CheckpointError(IDCError):
    """A checkpoint or an exported folder is missing, damaged, hostile or of another class."""


def check_number(name: str, value: float, minimum: float, below: float = math.inf) -> None:
    """Refuse a number that is out of range, NaN included.

    Args:
        name: of the argument, for the message.
        value: that was given.
        minimum: smallest value that is accepted.
        below: first value that is too large.

    Raises:
        ConfigError: the number is out of range.

    Example:
        >>> check_number("heads", 4, minimum=1)
    """
    if not minimum <= value < below:
        upper = "" if math.isinf(below) else f" and less than {below}"
        raise ConfigError(f"{name} is {value!r}; expected at least {minimum}{upper}")


def check_positive(name: str, value: float, maximum: float = math.inf) -> None:
    """Refuse a number that is not above 0, that is too large, infinite or NaN.

    Args:
        name: of the argument, for the message.
        value: that was given.
        maximum: largest value that is accepted.

    Raises:
        ConfigError: the number is out of range.

    Example:
        >>> check_positive("temperature", 0.7)
    """
    if not 0 < value <= maximum or math.isinf(value):
        upper = "" if math.isinf(maximum) else f" and at most {maximum}"
        raise ConfigError(f"{name} is {value!r}; expected a number above 0{upper}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a name that is none of those that there are.

    Args:
        name: of the argument, for the message.
        value: that was given.
        choices: names that are accepted.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> check_choice("level", "token", ("token", "sequence"))
    """
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Turn whatever goes wrong with the content of a file into one sentence about the file.

    What a damaged or hostile file makes fail depends on its content: a missing name, a wrong type, a size, a number of
    dimensions. ``lightning-idc --traceback`` shows where it happened.

    Args:
        path: of the file, for the sentence.

    Raises:
        CheckpointError: in place of any other error than our own.
    """
    try:
        yield
    except IDCError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        # torch lists what does not fit on lines of their own
        message = " ".join(line.strip() for line in lines[:3])[:300]
        raise CheckpointError(
            f"{str(path)!r} is damaged, or was made by another program or version ({type(error).__name__}: {message}); "
            "use another copy of it, or make it anew"
        ) from error


@contextmanager
def loading_model(name: Any) -> Iterator[None]:
    """Turn what transformers says of a folder or hub id that it does not load into one sentence.

    Its own sentence on a model with code advises to run that code, and what a damaged file makes fail depends on its
    content.

    Args:
        name: folder or hub id.

    Raises:
        ConfigError: in place of transformers' errors.
    """
    try:
        yield
    except (IDCError, RuntimeError, MemoryError):  # too little memory says so itself
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{str(name)!r} holds pickled objects and not only tensors, or is damaged: loading it would run code, "
            "so do not load it; ask for weights as safetensors"
        ) from error
    except Exception as error:
        message = " ".join(str(error).split())
        if any(words in message for words in ("trust_remote_code", "does not recognize", "Unrecognized")):
            raise ConfigError(
                f"{str(name)!r} is of a type that the installed transformers does not know, or brings code of its own, "
                "which is never run; choose a model that transformers itself has, or update transformers"
            ) from error
        if isinstance(error, (OSError, ImportError)) or type(error) is ValueError:
            raise ConfigError(f"{str(name)!r} cannot be loaded: {message[:300]}") from error
        raise ConfigError(
            f"{str(name)!r} cannot be loaded ({type(error).__name__}: {message[:300]}); a file of it is damaged, or "
            "was made by another program or version: use another copy of it"
        ) from error


def reads_file(argument: str) -> Callable[[F], F]:
    """Decorate a function that reads the file which one of its arguments names, as :func:`reading` does.

    Args:
        argument: its name.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with reading(signature.bind(*args, **kwargs).arguments.get(argument)):
                return function(*args, **kwargs)

        return cast(F, guarded)

    return decorate

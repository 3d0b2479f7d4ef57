"""Errors for bad input; a message states the actual value, the expected one and the remedy. Does not import torch."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from lightning_idc.utils.text import hide_passwords

F = TypeVar("F", bound=Callable[..., Any])
_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_WORKER_TRACEBACK = re.compile(r"Caught \w+ in .*\nOriginal Traceback .*^[\w.]+Error: ", re.DOTALL | re.MULTILINE)
"""Prefix that PyTorch adds to an error of a data loader worker: the traceback of the worker."""


class IDCError(ValueError):
    """Base of all errors that a user can fix; line breaks and secrets of URLs in the message are removed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(hide_passwords(_LINE_BREAK.sub(" ", _WORKER_TRACEBACK.sub("", message)).strip()))


class ConfigError(IDCError):
    """A configuration, an argument or a combination of parts is wrong."""


class DataError(IDCError):
    """A pair, an annotation or a stored file is damaged or inconsistent."""


class DatasetNotFoundError(DataError):
    """A data set or one of its files is missing."""


class StoreError(DataError):
    """A store on disk is missing, damaged, of another version or made from something else."""


class CheckpointError(IDCError):
    """A checkpoint or an exported folder is missing, damaged, malicious or of another class."""


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Re-raise any error caused by the content of a file as a one-line error that names the file.

    A damaged or malicious file can raise any type of error: a missing name, a wrong type, a size, a dimension.
    ``lightning-idc --traceback`` shows the original error.

    Args:
        path: path of the file, for the message.

    Raises:
        CheckpointError: any error except those of this library, which pass through unchanged.
    """
    try:
        yield
    except IDCError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        # torch lists mismatched weights on separate lines
        message = " ".join(line.strip() for line in lines[:3])[:300]
        raise CheckpointError(
            f"{str(path)!r} is damaged, or was written by another program or version ({type(error).__name__}: "
            f"{message}); use another copy, or create it again"
        ) from error


@contextmanager
def loading_model(name: Any) -> Iterator[None]:
    """Re-raise errors of transformers on loading a model as one-line errors.

    The original message for a model with custom code advises to run that code, and a damaged file can raise any type of
    error.

    Args:
        name: folder or hub id of the model.

    Raises:
        ConfigError: transformers cannot load the model.
    """
    try:
        yield
    except (IDCError, RuntimeError, MemoryError):  # out-of-memory errors explain themselves
        raise
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{str(name)!r} contains pickled objects, or is damaged: loading it could run code; use weights in the "
            "format safetensors"
        ) from error
    except Exception as error:
        message = " ".join(str(error).split())
        if any(words in message for words in ("trust_remote_code", "does not recognize", "Unrecognized")):
            raise ConfigError(
                f"{str(name)!r} has a type that the installed transformers does not support, or needs custom code, "
                "which is never run; choose a model whose code is part of transformers, or update transformers"
            ) from error
        if isinstance(error, (OSError, ImportError)) or type(error) is ValueError:
            raise ConfigError(f"{str(name)!r} cannot be loaded: {message[:300]}") from error
        raise ConfigError(
            f"{str(name)!r} cannot be loaded ({type(error).__name__}: {message[:300]}); one of its files is damaged "
            "or was written by another program or version: use another copy"
        ) from error


def reads_file(argument: str) -> Callable[[F], F]:
    """Decorator that applies :func:`reading` to a function with a path argument.

    Args:
        argument: name of the path argument.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with reading(signature.bind(*args, **kwargs).arguments.get(argument)):
                return function(*args, **kwargs)

        return cast(F, guarded)

    return decorate

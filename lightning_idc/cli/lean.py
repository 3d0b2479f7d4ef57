"""Importing torch and Lightning for a verb that only asks a captioner, without what they import for other purposes.

torchmetrics imports torchvision, transformers and scipy for metrics of its own, Lightning imports the compiler
torch._dynamo for one class and one decorator, and torch's counter of operations Triton for one class; together they
take longer than torch itself.
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError
from types import ModuleType
from typing import Any

_OPTIONAL = frozenset({"matplotlib", "onnxruntime", "scipy", "torchaudio", "torchvision", "tqdm", "transformers"})
"""Packages that torchmetrics imports where they are installed, and that some other dependency installs."""
_ASKED = {"torch._dynamo": "OptimizedModule", "triton.runtime.jit": "JITFunction"}
"""Modules that Lightning and torch's counter of operations import, and the class that they want of each."""


def import_lean(verb: str) -> None:
    """Import torch and Lightning in a process that the command line started for a verb, and in no other.

    Functions of torchmetrics that need an optional package are then missing from it, so a process that may go on to
    measure something must not call this.

    Args:
        verb: first argument of the process.
    """
    if sys.argv[1:2] != [verb] or not {"lightning", "torchmetrics"}.isdisjoint(sys.modules):
        return
    gc.disable()  # what importing makes stays
    try:
        importlib.import_module("torch")
        with _without(_OPTIONAL):
            importlib.import_module("torchmetrics")
        with _standing_in(_ASKED):
            importlib.import_module("lightning.pytorch.cli")
    finally:
        gc.freeze()  # the end of the process would look through these for most of a second, too
        gc.enable()


class _Missing(Distribution):
    """A package that counts as not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    @property
    def version(self) -> str:
        raise PackageNotFoundError(self.package)

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: Any) -> Any:
        return path


class _Without(MetaPathFinder):
    """Answers first, and says of some packages that they are missing."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is not None and context.name in self.packages:
            yield _Missing(context.name)


@contextmanager
def _without(packages: frozenset[str]) -> Iterator[None]:
    from lightning_utilities.core.imports import module_available, package_available

    finder = _Without(packages - sys.modules.keys())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for known in (module_available, package_available):
            known.cache_clear()  # it has kept that they are missing


class _OfAnother(type):
    """Kind of classes that stand for one of a module that is not imported: then there are no instances of it."""

    home: str

    def __instancecheck__(cls, instance: object) -> bool:
        home = _imported(cls.home)
        return home is not None and isinstance(instance, getattr(home, cls.__name__))


class _StandIn(ModuleType):
    """Stands for a module of which only what is an instance of one class is asked, and what it shall not compile."""

    def __init__(self, name: str, asked: str) -> None:
        super().__init__(name)
        setattr(self, asked, _OfAnother(asked, (), {"home": name}))

    def disable(self, function: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """A function that ``torch._dynamo`` does not compile, once it is there."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            home = _imported(self.__name__)
            called = function if home is None else home.disable(function, recursive, **options)
            return called(*arguments, **named)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # another version of Lightning or torch asks for more
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _imported(module: str) -> ModuleType | None:
    found = sys.modules.get(module)
    return None if isinstance(found, _StandIn) else found


@contextmanager
def _standing_in(asked: Mapping[str, str]) -> Iterator[None]:
    stand_ins = {module: _StandIn(module, name) for module, name in asked.items() if module not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for module, stand_in in stand_ins.items():
            if sys.modules.get(module) is stand_in:
                del sys.modules[module]

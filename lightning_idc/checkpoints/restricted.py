"""Reading pickled checkpoints of other people's code: tensors and containers come in, every other class stays inert.

``torch.load(weights_only=True)`` refuses a file that also holds, say, an ``argparse.Namespace``. Here such an object
becomes an :class:`Inert` placeholder: nothing of its class is imported, and nothing that the file names is called but
the functions that put tensors together.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import warnings
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import torch

from lightning_idc.utils.errors import CheckpointError, reading

_BUILDS_TENSORS = {
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("torch", "Size"): torch.Size,
    **{("torch", name): getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64", "int64")},
}


class Inert(dict[Any, Any]):
    """Placeholder for an object of a class that is not read: takes whatever its pickle gives, and keeps none of it."""

    def __new__(cls, *args: Any, **options: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Drop the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop the item."""

    def append(self, item: Any) -> None:
        """Drop an item of something list-like."""

    def extend(self, items: Any) -> None:
        """Drop items of something list-like."""

    def add(self, item: Any) -> None:
        """Drop an item of something set-like."""


# dictionaries have no hash, but what is read may be a key or in a set
cast(Any, Inert).__hash__ = object.__hash__


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _BUILDS_TENSORS:
            return _BUILDS_TENSORS[module, name]
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            storage = getattr(torch, name, None) or getattr(torch.storage, name, None)
            if isinstance(storage, type):
                return storage
        if (module, name) == ("collections", "defaultdict"):
            # its factory would be called; a plain dictionary holds the same items
            return lambda *args: {}
        return Inert


class _Scripted:
    """A module of a TorchScript archive: its tensors and modules by name, and nothing of its code."""

    parts: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.parts = state

    def tensors(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """All tensors within by their dotted names."""
        tensors: dict[str, torch.Tensor] = {}
        for name, part in self.parts.items():
            if isinstance(part, torch.Tensor):
                tensors[prefix + name] = part
            elif isinstance(part, _Scripted):
                tensors |= part.tensors(f"{prefix}{name}.")
        return tensors


class _ScriptUnpickler(_Unpickler):
    """Reads `data.pkl` of a TorchScript archive, with storages from the files beside it."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        return _Scripted if module.split(".")[0] == "__torch__" else super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, length = pid
        content = self.archive.read(f"{self.root}/data/{int(key)}")
        storage = torch.UntypedStorage.from_buffer(bytearray(content), dtype=torch.uint8)
        if storage.nbytes() < length * kind.dtype.itemsize:
            raise CheckpointError(f"the tensor {key} has {storage.nbytes()} bytes; expected {length} values of {kind}")
        typed: Any = torch.storage.TypedStorage  # torch gives its constructor no types
        return typed(wrap_storage=storage, dtype=kind.dtype, _internal=True)


def is_torchscript(path: str | Path) -> bool:
    """Whether a file is an archive as `torch.jit.save` writes it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: str | Path) -> dict[str, torch.Tensor]:
    """Tensors of a TorchScript archive by their dotted names; the code that it holds is not read.

    Raises:
        CheckpointError: the file is missing, damaged, or not such an archive.
    """
    if not Path(path).is_file() or not is_torchscript(path):
        raise CheckpointError(f"{str(path)!r} is not a TorchScript archive; check the path")
    with reading(path), zipfile.ZipFile(path) as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # these files are older than that
        root = next(name for name in archive.namelist() if name.endswith("/constants.pkl")).rpartition("/")[0]
        module = _ScriptUnpickler(archive, root).load()
        if not isinstance(module, _Scripted):
            raise CheckpointError(f"{str(path)!r} holds a {type(module).__name__}; expected a module")
        return module.tensors()


def _load(file: BinaryIO, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


def _refuse_programs(path: str | Path) -> None:
    """Refuse what `torch.load` would hand to other readers than this one: TorchScript runs, tar archives are unpacked.

    The list of members is taken from torch's own reader, since a file can be made that `zipfile` reads differently.
    """
    serialization: Any = torch.serialization
    with open(path, "rb") as file:
        is_zip = serialization._is_zipfile(file)
    try:
        if is_zip:
            with serialization._open_zipfile_reader(str(path)) as archive:
                runs = serialization._is_torchscript_zip(archive)
        else:
            runs = tarfile.is_tarfile(path)
    except RuntimeError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read as a checkpoint of tensors: {error}") from error
    if runs:
        kind = "a TorchScript archive, which holds code" if is_zip else "a tar archive"
        raise CheckpointError(f"{str(path)!r} is {kind}; expected a checkpoint of tensors, as `torch.save` writes it")


def read_foreign_checkpoint(path: str | Path) -> dict[str, Any]:
    """Tensors and plain containers of a checkpoint that another program wrote.

    Raises:
        CheckpointError: the file is missing, damaged, holds a program, or does not hold a dictionary.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint {str(path)!r}; check the path")
    _refuse_programs(path)
    module = cast(Any, SimpleNamespace(Unpickler=_Unpickler, load=_load, __name__="restricted"))
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)
    except Exception as error:
        raise CheckpointError(f"{str(path)!r} cannot be read as a checkpoint of tensors: {error}") from error
    if not isinstance(checkpoint, dict) or isinstance(checkpoint, Inert):
        raise CheckpointError(f"{str(path)!r} holds a {type(checkpoint).__name__}; expected a dictionary with tensors")
    return checkpoint

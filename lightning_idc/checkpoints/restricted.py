"""read_foreign_checkpoint: read pickled checkpoints of other programs safely, as tensors and containers only.

``torch.load(weights_only=True)`` rejects a file that contains, for example, an ``argparse.Namespace``. Here an object
of another class becomes an :class:`Inert` placeholder: its class is not imported, and the only functions
called are those that rebuild tensors.
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

from lightning_idc.utils.errors import CheckpointError, reading, reads_file

_TENSOR_BUILDERS = {
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("torch", "Size"): torch.Size,
    **{("torch", name): getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64", "int64")},
}


class Inert(dict[Any, Any]):
    """Placeholder for an object of an unsupported class; it discards the pickled state."""

    def __new__(cls, *args: Any, **options: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Discard the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Discard the item."""

    def append(self, item: Any) -> None:
        """Discard an item of a list-like object."""

    def extend(self, items: Any) -> None:
        """Discard items of a list-like object."""

    def add(self, item: Any) -> None:
        """Discard an item of a set-like object."""


# dictionaries are not hashable, but a placeholder may be a key or in a set
cast(Any, Inert).__hash__ = object.__hash__


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _TENSOR_BUILDERS:
            return _TENSOR_BUILDERS[module, name]
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            storage = getattr(torch, name, None) or getattr(torch.storage, name, None)
            if isinstance(storage, type):
                return storage
        if (module, name) == ("collections", "defaultdict"):
            # the factory would be called; a plain dictionary has the same items
            return lambda *args: {}
        return Inert


class _ScriptModule:
    """Module of a TorchScript archive: its tensors and sub-modules by name, without its code."""

    parts: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.parts = state

    def tensors(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """Collect all tensors by their dotted names."""
        tensors: dict[str, torch.Tensor] = {}
        for name, part in self.parts.items():
            if isinstance(part, torch.Tensor):
                tensors[prefix + name] = part
            elif isinstance(part, _ScriptModule):
                tensors |= part.tensors(f"{prefix}{name}.")
        return tensors


class _ScriptUnpickler(_Unpickler):
    """Reads `data.pkl` of a TorchScript archive and the storages in its other files."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        return _ScriptModule if module.split(".")[0] == "__torch__" else super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, length = pid
        content = self.archive.read(f"{self.root}/data/{int(key)}")
        storage = torch.UntypedStorage.from_buffer(bytearray(content), dtype=torch.uint8)
        if storage.nbytes() < length * kind.dtype.itemsize:
            raise CheckpointError(f"the tensor {key} has {storage.nbytes()} bytes; expected {length} values of {kind}")
        typed: Any = torch.storage.TypedStorage  # its constructor is not annotated in torch
        return typed(wrap_storage=storage, dtype=kind.dtype, _internal=True)


def is_torchscript(path: str | Path) -> bool:
    """Whether a file is an archive written by `torch.jit.save`."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: str | Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a TorchScript archive by their dotted names, without its code.

    Raises:
        CheckpointError: the file is missing, damaged, or not a TorchScript archive.
    """
    if not Path(path).is_file() or not is_torchscript(path):
        raise CheckpointError(f"{str(path)!r} is not a TorchScript archive; check the path")
    with reading(path), zipfile.ZipFile(path) as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # the archives predate UntypedStorage
        root = next(name for name in archive.namelist() if name.endswith("/constants.pkl")).rpartition("/")[0]
        module = _ScriptUnpickler(archive, root).load()
        if not isinstance(module, _ScriptModule):
            raise CheckpointError(f"{str(path)!r} holds a {type(module).__name__}; expected a module")
        return module.tensors()


def _load(file: BinaryIO, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


def _check_no_code(path: str | Path) -> None:
    """Raise an error for files that `torch.load` would pass to other readers: TorchScript would run, tar be unpacked.

    Members are listed with torch's reader, since a crafted file could look different to `zipfile`.
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
    """Read the tensors and plain containers of a checkpoint written by another program.

    Raises:
        CheckpointError: the file is missing, damaged, contains code, or is not a dictionary.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint {str(path)!r}; check the path")
    _check_no_code(path)
    module = cast(Any, SimpleNamespace(Unpickler=_Unpickler, load=_load, __name__="restricted"))
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)
    except Exception as error:
        raise CheckpointError(f"{str(path)!r} cannot be read as a checkpoint of tensors: {error}") from error
    if not isinstance(checkpoint, dict) or isinstance(checkpoint, Inert):
        raise CheckpointError(f"{str(path)!r} holds a {type(checkpoint).__name__}; expected a dictionary with tensors")
    return checkpoint


@reads_file("path")
def read_state_dict(path: str | Path) -> dict[str, torch.Tensor]:
    """Weights of a torch, TorchScript or safetensors file, also if under ``model``, ``weights`` or ``state_dict``.

    Raises:
        CheckpointError: the file is missing, damaged, contains code, or is not a dictionary.
    """
    source = Path(path)
    if source.suffix == ".safetensors" and source.is_file():
        from safetensors.torch import load_file

        return load_file(source)
    if source.is_file() and is_torchscript(source):
        return {key: value.float() for key, value in read_torchscript(source).items()}
    weights: Any = read_foreign_checkpoint(source)
    for name in ("model", "weights", "state_dict"):
        weights = weights.get(name, weights)
    return {key.removeprefix("module."): value for key, value in weights.items()}

"""Read checkpoints safely: tensors and plain types only, and classes of this library by their stored names."""

from __future__ import annotations

import importlib
import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_idc.utils.errors import CheckpointError, ConfigError
from lightning_idc.utils.names import exported, public_name

TRAINING_ONLY = frozenset(
    {"optimizer", "schedule", "schedules", "encoder_schedule", "init_from", "merge_adapters", "no_decay"}
)
"""Arguments that only affect training: objects that a checkpoint of plain types must not contain or name."""

_IMAGES = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
_POINTER, _LARGEST_POINTER = b"version https://git-lfs", 1024
SHARD_INDEX = ".metadata"
"""File in the folder of a sharded checkpoint that lists the shards, as torch.distributed.checkpoint writes it."""


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint file as tensors and plain types; nothing else is accepted.

    Raises:
        CheckpointError: the file is missing, damaged, sharded, or would run code when loaded.
    """
    if Path(path, SHARD_INDEX).is_file():
        # its list of shards is a pickle, which may run code
        raise CheckpointError(
            f"{str(path)!r} is a sharded checkpoint, which only Trainer.fit can resume; for a single file, train with "
            "save_distributed_checkpoint: false, or resume the run with its strategy and call save_pretrained"
        )
    if "://" in str(path):
        raise CheckpointError(f"{str(path)!r} is a URL; expected a file: download it first")
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint {str(path)!r}")
    check_no_pointers(Path(path))
    try:
        # memory-mapped, so that the optimizer state, two thirds of the file, is not read if only the weights are used;
        # files in the format of torch before 1.6 cannot be mapped
        mapped = zipfile.is_zipfile(path)
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(_load_failure(path, error)) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{str(path)!r} holds a {type(checkpoint).__name__}; expected a dictionary")
    return checkpoint


def check_no_pointers(path: Path) -> None:
    """Raise an error for files that git-lfs has not fetched: text of three lines in place of the content.

    Args:
        path: file, or folder whose files are checked.

    Raises:
        CheckpointError: a file is a pointer.
    """
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file() and file.stat().st_size < _LARGEST_POINTER:
            with file.open("rb") as opened:
                if opened.read(len(_POINTER)) == _POINTER:
                    raise CheckpointError(
                        f"{str(file)!r} is a git-lfs pointer, not the file itself; run `git lfs pull` there, or "
                        "fetch it with `hf download`"
                    )


def _load_failure(path: str | Path, error: Exception) -> str:
    """Message for a file that torch rejects, in place of torch's, which advises to load it unsafely."""
    with open(path, "rb") as file:
        start = file.read(16)
    for magic, kind in _IMAGES.items():
        if start.startswith(magic):
            return f"{str(path)!r} is an image ({kind}); expected a checkpoint (.ckpt) or a folder of save_pretrained"
    names = re.findall(r"(?:GLOBAL|global|class|function|type) `?([\w.]+\.\w+)`?", str(error))
    if names and isinstance(error, pickle.UnpicklingError):
        return (
            f"{str(path)!r} holds {names[0]} and not only tensors and plain types: loading it would run code; ask its "
            "author for a file with weights only, such as safetensors"
        )
    return (
        f"{str(path)!r} is damaged, incomplete, or not a checkpoint of tensors and plain types "
        f"({type(error).__name__}); use another copy of it"
    )


def check_no_nan(state: Mapping[str, Any], path: str | Path) -> None:
    """Check that no weight is NaN, which would silently give empty captions.

    Raises:
        CheckpointError: a weight is NaN.
    """
    for name, value in state.items():
        if isinstance(value, Tensor) and value.isnan().any():
            raise CheckpointError(
                f"{str(path)!r}: the weights {name!r} contain NaN, from a diverged training or a damaged file; use "
                "an earlier checkpoint"
            )


def check_same_computation(expected: Mapping[str, Any], stored: Mapping[str, Any], path: str | Path) -> None:
    """Check that the weights of a model were trained with the same computation.

    Args:
        expected: hyper-parameters of the model that loads the weights; only names in both mappings are compared.
        stored: hyper-parameters of the training.
        path: path of the checkpoint.

    Raises:
        CheckpointError: hyper-parameters differ.
    """
    differing = [name for name, value in expected.items() if name in stored and stored[name] != value]
    if differing:
        trained, here = (", ".join(f"{name}: {values[name]}" for name in differing) for values in (stored, expected))
        raise CheckpointError(
            f"{str(path)!r} was trained with {trained}, but this model has {here}; set {trained}, or use other weights"
        )


def plain_hparams(checkpoint: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Read the hyper-parameters of a checkpoint as constructor arguments with plain values.

    Arguments that only affect training and entries added by Lightning are left out, since they may name a class or a
    function that would be called.

    Raises:
        CheckpointError: a value names a class; only ``adapters`` may name classes of this library.
    """
    hparams = checkpoint.get("hyper_parameters") or {}
    if not isinstance(hparams, Mapping):
        raise CheckpointError(f"{str(path)!r}: hyper_parameters is a {type(hparams).__name__}; expected a dictionary")
    plain = {k: v for k, v in hparams.items() if not str(k).startswith("_") and k not in TRAINING_ONLY}
    for name, value in plain.items():
        if name == "adapters":
            _check_adapters(value, path)
        elif names_a_class(value):
            raise CheckpointError(
                f"{str(path)!r}: the hyper-parameter {name!r} names a class to build ({str(value)[:200]!r}); expected "
                "plain values. The file may be malicious: do not load it, or pass this argument yourself"
            )
    return plain


def check_loadable_hparams(hparams: Mapping[str, Any], owner: str) -> None:
    """Check that a checkpoint with these hyper-parameters can be loaded again.

    Args:
        hparams: hyper-parameters by name, as stored in checkpoints.
        owner: name of the class with these arguments.

    Raises:
        ConfigError: a hyper-parameter is not a plain value, or names a class.
    """
    for name, value in hparams.items():
        if str(name).startswith("_") or name in TRAINING_ONLY:
            continue
        if _is_loadable(value) and (name == "adapters" or not names_a_class(value)):
            continue
        raise ConfigError(
            f"the argument {name!r} of {owner} is {value!r:.80} ({type(value).__name__}), which a checkpoint could not "
            "restore, since only plain values are loaded; use strings, numbers, lists or dicts and create the object "
            f"in build_net, or add {name!r} to `not_stored` of the class"
        )


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or text, which every checkpoint can hold; larger integers may be refused."""
    return type(value) in (str, float, bool, type(None)) or (type(value) is int and abs(value) < 1 << 63)


def _is_loadable(value: Any) -> bool:
    """Whether a checkpoint with this value can be loaded without running code."""
    values = value if type(value) in (list, tuple) else [value]
    if all(map(_is_plain, values)):
        return True  # most are; to write and read each of them takes .4 ms
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling can raise any error
        return False
    return True


def _check_adapters(records: Any, path: str | Path) -> None:
    for name, record in (records or {}).items() if isinstance(records, Mapping) or records is None else [("", records)]:
        fits = isinstance(record, Mapping) and set(record) <= {"class_path", "init_args", "merged"}
        options = record.get("init_args") if fits else None
        if not isinstance(options, Mapping) or not isinstance(record["class_path"], str) or names_a_class(options):
            raise CheckpointError(
                f"{str(path)!r}: the adapter {name!r} is made from {str(record)[:200]!r}; expected the class_path of "
                "an adapter of this library and plain init_args. The file may be malicious: do not load it"
            )


def names_a_class(value: Any) -> bool:
    """Whether plain values name a class to build."""
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(names_a_class, value.values()))
    return isinstance(value, (list, tuple)) and any(map(names_a_class, value))


def class_named(path: str, base: type) -> Any:
    """The class that a checkpoint names: ``base``, an already imported subclass, or a class of this library.

    A class of a script or notebook is stored as ``__main__.NAME`` and matches any imported class with that name. Of
    several, for example after a cell ran twice, the latest is used.

    Args:
        path: public path stored in the checkpoint.
        base: required base class.

    Raises:
        CheckpointError: there is no class with that name.
    """
    if not isinstance(path, str):
        raise CheckpointError(f"the checkpoint names the class {str(path)[:100]!r}; expected the path of a class")
    module, _, name = path.rpartition(".")
    if module.split(".")[0] == "lightning_idc":
        try:
            package = importlib.import_module(module)
            if exported(path):
                getattr(package, name)  # imports the module that defines it
        except ModuleNotFoundError as error:
            raise CheckpointError(
                f"the checkpoint holds a {path}, which this version does not have: {error}"
            ) from error
    classes = [base]
    for kind in classes:
        classes += kind.__subclasses__()
    for kind in reversed(classes):
        if path == public_name(kind):
            return kind
    for kind in reversed(classes):
        if path == f"__main__.{kind.__qualname__}" and not kind.__module__.startswith("lightning_idc."):
            return kind
    if module.split(".")[0] == "lightning_idc":
        raise CheckpointError(
            f"the checkpoint holds a {path}, which is not a {base.__qualname__}; use the checkpoint of a stage that "
            "trains one, such as RUN/train/checkpoints/best.ckpt"
        )
    raise CheckpointError(
        f"the checkpoint holds a {path}, which is not a {base.__qualname__} of this library; if it is yours, "
        f"import its module first: --import {'MODULE' if module == '__main__' else module.split('.')[0] or path}"
    )

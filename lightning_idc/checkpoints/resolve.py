"""One resolver of weights: a name that comes with the library, a file, a folder, or an id on the Hugging Face hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lightning_idc.checkpoints.folders import read_folder
from lightning_idc.checkpoints.reading import PIECES, read_checkpoint
from lightning_idc.checkpoints.shipped import shipped_models
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.names import nearest

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """Path of the weights that a name stands for; what is on the hub is downloaded, or read from the cache.

    Args:
        name: ``.ckpt`` file, folder of ``save_pretrained``, name of a captioner that comes with the library, or hub id.
        revision: branch, tag or commit of a hub id.

    Raises:
        CheckpointError: there is nothing of this name.

    Example:
        >>> resolve("pcb").name
        'pcb'
    """
    path = Path(name)
    if path.exists():
        return path
    models = shipped_models()
    if str(name) in models:
        return models[str(name)]
    if is_hub_id(str(name)):
        return _downloaded(str(name), revision)
    raise CheckpointError(
        f"there is no checkpoint {str(name)!r}: expected a file, a folder, a hub id or one of {', '.join(models)}"
        if path.suffix == ".ckpt"
        else f"there is no checkpoint {str(name)!r}; {nearest(str(name), models)}, a file, a folder or a hub id"
    )


def read_named(name: str | Path) -> dict[str, Any]:
    """Weights by any name that :func:`resolve` takes, under the keys of a checkpoint file.

    Returns:
        ``state_dict``, ``hyper_parameters`` and ``class_path``, and whatever else a file holds.

    Raises:
        CheckpointError: there is nothing of this name, or it is damaged or would run code.
    """
    path = resolve(name)
    return read_folder(path) if path.is_dir() and not (path / PIECES).is_file() else read_checkpoint(path)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of an id on the hub, ``org/name``, and is not a path on this machine."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith(".ckpt") and not Path(name).exists()


def is_captioner_folder(folder: Path) -> bool:
    """Whether ``save_pretrained`` of this library wrote a folder; the configuration of transformers names no class."""
    config = folder / "config.json"
    if not config.is_file():
        return (folder / ".metadata").is_file()  # a sharded checkpoint, whose reader explains what to do
    try:
        return "class_path" in json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return True  # its reader reports the damage


def is_captioner_on_hub(name: str, revision: str | None = None) -> bool:
    """Whether a hub id holds a captioner of this library, by its configuration alone.

    Raises:
        CheckpointError: the hub does not answer, and the cache does not hold the file.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return is_captioner_folder(Path(hf_hub_download(name, "config.json", revision=revision)).parent)
    except EntryNotFoundError:
        return False  # such as a repository of adapters
    except Exception as error:
        raise CheckpointError(_unreachable(name, error)) from error


def _downloaded(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision))
    except Exception as error:
        raise CheckpointError(_unreachable(name, error)) from error


def _unreachable(name: str, error: Exception) -> str:
    return (
        f"there is no folder {name!r}, and it cannot be read from the Hugging Face hub or its cache "
        f"({type(error).__name__})"
    )

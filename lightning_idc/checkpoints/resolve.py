"""resolve: the path of weights, from a path, the name of a captioner that comes with the library, or a hub id."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from lightning_idc.checkpoints.folders import read_folder
from lightning_idc.checkpoints.reading import SHARD_INDEX, read_checkpoint
from lightning_idc.checkpoints.shipped import shipped_models
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.names import nearest

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve(name: str | Path, revision: str | None = None) -> Path:
    """Path of weights, as of :func:`local_path`; those on the hub are downloaded, or read from the cache.

    Args:
        name: ``.ckpt`` file, folder of ``save_pretrained``, name of a captioner that comes with the library, or hub id.
        revision: branch, tag or commit of a hub id.

    Raises:
        CheckpointError: no file, folder, captioner or hub repository has this name.

    Example:
        >>> resolve("pcb").name
        'pcb'
    """
    path = local_path(name)
    if path.exists():
        return path
    if is_hub_id(str(name)):
        return _downloaded(str(name), revision)
    models = shipped_models()
    raise CheckpointError(
        f"there is no checkpoint {str(name)!r}: expected a file, a folder, a hub id or one of {', '.join(models)}"
        if path.suffix == ".ckpt"
        else f"there is no checkpoint {str(name)!r}; {nearest(str(name), models)}, a file, a folder or a hub id"
    )


def local_path(name: str | Path) -> Path:
    """Path of a captioner on this machine; the path may not exist.

    A checkpoint file or a folder of a captioner comes before a captioner of the library with the same name. Any other
    file or folder, such as a folder of images, comes after it.

    Args:
        name: file, folder, or name of a captioner that comes with the library.
    """
    path = Path(name)
    is_captioner = zipfile.is_zipfile(path) if path.is_file() else _is_model_folder(path)
    return path if is_captioner else shipped_models().get(str(name), path)


def _is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a captioner of this library, a vision-language model or a LoRA, by its file names."""
    return any(
        (folder / file).is_file() for file in ("config.json", "adapter_config.json", "adapters.json", SHARD_INDEX)
    )


def read_named(name: str | Path) -> dict[str, Any]:
    """Read the weights that :func:`resolve` locates, as a dictionary with the keys of a checkpoint file.

    Returns:
        ``state_dict``, ``hyper_parameters`` and ``class_path``, and the other entries of a checkpoint file.

    Raises:
        CheckpointError: nothing has this name, or the file is damaged or would run code.
    """
    path = resolve(name)
    return read_folder(path) if path.is_dir() and not (path / SHARD_INDEX).is_file() else read_checkpoint(path)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of an id on the hub, ``org/name``, and is not a path on this machine."""
    return bool(_HUB_ID.fullmatch(name)) and not name.endswith(".ckpt") and not Path(name).exists()


def is_captioner_folder(folder: Path) -> bool:
    """Whether ``save_pretrained`` of this library wrote a folder, that is, whether its configuration names a class."""
    config = folder / "config.json"
    if not config.is_file():
        return (folder / SHARD_INDEX).is_file()  # read_checkpoint explains how to get a single file
    try:
        return "class_path" in json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return True  # its reader reports the damage


def is_captioner_on_hub(name: str, revision: str | None = None) -> bool:
    """Whether a hub id holds a captioner of this library, by its configuration alone.

    Raises:
        CheckpointError: the hub does not answer, and the repository is not in the cache.
    """
    config = hub_file(name, "config.json", revision)
    return config is not None and is_captioner_folder(config.parent)


def hub_file(name: str, file: str, revision: str | None = None) -> Path | None:
    """Path of one file of a hub repository, downloaded or in the cache; None if the repository does not have it.

    Args:
        name: hub id.
        file: path in the repository.
        revision: branch, tag or commit.

    Raises:
        CheckpointError: the hub does not answer, and the repository is not in the cache.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except LocalEntryNotFoundError as error:  # no network; the repository may be in the cache without this file
        try:
            snapshot_download(name, revision=revision, local_files_only=True)
        except Exception:
            raise CheckpointError(unreachable(name, error)) from error
        return None
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise CheckpointError(unreachable(name, error)) from error


def _downloaded(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision))
    except Exception as error:
        raise CheckpointError(unreachable(name, error)) from error


def unreachable(name: str, error: Exception) -> str:
    """Message of an error: a model can be read neither from the hub nor from its cache."""
    return (
        f"there is no folder {name!r}, it is not in the Hugging Face cache, and the hub does not answer "
        f"({type(error).__name__}); on a machine with a network run `hf download {name}`, then copy the cache "
        "(HF_HOME) or set the path of the folder"
    )

"""The list of outputs in a folder, which tells files of this library from those of others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import atomic_write, file_digest, seal, unseal

MANIFEST = ".lightning_idc.json"
"""File that names the outputs of a folder, and their files with digests."""
Manifest = dict[str, dict[str, list[str]]]
"""Output, file, digests: of the file as it is, and as it was before a run that was cut off."""


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one file or folder, under any name."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def is_below(path: Path, above: Path) -> bool:
    """Whether a path is a file or folder, under any name, or lies in that folder."""
    if is_same(path, above):
        return True
    if not above.is_dir():
        return False
    return (Path(os.path.realpath(path.parent)) / path.name).is_relative_to(os.path.realpath(above))


def is_as_written(path: Path, digests: Sequence[str]) -> bool:
    """Whether a file has one of these digests; a link has none."""
    return bool(digests) and path.is_file() and not path.is_symlink() and file_digest(path) in digests


def read_manifest(folder: Path) -> Manifest:
    """Outputs of a folder; empty where it has none.

    Raises:
        ConfigError: the list was changed.
    """
    path = folder / MANIFEST
    try:
        content = unseal(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError):
        content = None
    outputs: Manifest | None = None if content is None else content.get("outputs")
    if not _is_manifest(outputs):
        raise ConfigError(f"{str(path)!r} is not the list of outputs that was written; remove it")
    return outputs or {}


def _is_manifest(outputs: Any) -> bool:
    """Whether these are files below the folder with their digests; a downloaded folder may bring a list of its own."""
    if not isinstance(outputs, dict) or not all(isinstance(files, dict) for files in outputs.values()):
        return False
    entries = [entry for files in outputs.values() for entry in files.items()]
    return all(
        isinstance(digests, list) and not Path(file).is_absolute() and ".." not in Path(file).parts
        for file, digests in entries
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the list of the outputs of a folder."""
    # names of files may be no UTF-8, which ASCII can hold as escapes
    atomic_write(folder / MANIFEST, json.dumps(json.loads(seal({"outputs": manifest})), indent=1))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time changes the outputs of a folder, where the file system has locks."""
    number = None
    with suppress(ImportError, OSError):
        import fcntl

        number = os.open(folder, os.O_RDONLY)
        fcntl.flock(number, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if number is not None:
            os.close(number)

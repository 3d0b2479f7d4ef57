"""Which files of a folder this library wrote, so that it never replaces or removes one of the user's.

The list of each folder is kept in the library's cache folder, not in the user's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_idc.utils.files import atomic_write, default_cache_dir, digest, file_digest

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


def manifest_path(folder: Path) -> Path:
    """File that lists the outputs of a folder: one per real path, in the cache folder."""
    return default_cache_dir() / "outputs" / f"{digest(os.fsencode(os.path.realpath(folder)))}.json"


def read_manifest(folder: Path) -> Manifest:
    """Outputs of a folder; empty where none is known, or where the list is damaged."""
    try:
        outputs = json.loads(manifest_path(folder).read_text(encoding="utf-8"))["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return outputs if _is_manifest(outputs) else {}


def _is_manifest(outputs: Any) -> bool:
    if not isinstance(outputs, dict) or not all(isinstance(files, dict) for files in outputs.values()):
        return False
    entries = [entry for files in outputs.values() for entry in files.items()]
    return all(
        isinstance(digests, list) and not Path(file).is_absolute() and ".." not in Path(file).parts
        for file, digests in entries
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the list of the outputs of a folder, or remove it where there are none.

    Where the cache folder cannot be written, later runs ask for ``--overwrite``.
    """
    path = manifest_path(folder)
    with suppress(OSError):
        if not manifest:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # ASCII, since names of files need not be UTF-8
        atomic_write(path, json.dumps({"folder": str(folder.absolute()), "outputs": manifest}, indent=1))


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

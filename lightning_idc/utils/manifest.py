"""Manifests of the files that this library wrote to a folder, so that it never replaces or removes a user's file.

Manifests are stored in the library's cache folder rather than in the user's folder.
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
"""Output name -> file -> digests: of the current file, and of the previous one if a run was interrupted."""


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths refer to the same file or folder."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def is_below(path: Path, above: Path) -> bool:
    """Whether ``path`` is the same as ``above`` or inside that folder, with links resolved."""
    if is_same(path, above):
        return True
    if not above.is_dir():
        return False
    return (Path(os.path.realpath(path.parent)) / path.name).is_relative_to(os.path.realpath(above))


def is_as_written(path: Path, digests: Sequence[str]) -> bool:
    """Whether a file has one of these digests; always False for a link."""
    return bool(digests) and path.is_file() and not path.is_symlink() and file_digest(path) in digests


def manifest_path(folder: Path) -> Path:
    """Return the path, in the cache folder, of the manifest of a folder."""
    return default_cache_dir() / "outputs" / f"{digest(os.fsencode(os.path.realpath(folder)))}.json"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; empty if it is missing or damaged."""
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
    """Write the manifest of a folder, or delete it if it is empty.

    If the cache folder is not writable, later runs require ``--overwrite``.
    """
    path = manifest_path(folder)
    with suppress(OSError):
        if not manifest:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # escaped as ASCII, since file names may not be valid UTF-8
        atomic_write(path, json.dumps({"folder": str(folder.absolute()), "outputs": manifest}, indent=1))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the outputs of a folder, if the file system supports locks."""
    descriptor = None
    with suppress(ImportError, OSError):
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)

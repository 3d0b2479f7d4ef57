"""Small JSON files in which a run notes where it stands, and digests of what must not change meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import atomic_write, digest, file_digest, fingerprint

_SEAL = "digest_of_record"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write plain values, durably, with a digest that shows whether they are still those."""
    atomic_write(path, json.dumps({**value, _SEAL: fingerprint(value)}, indent=2))


def read_record(path: Path, names: Sequence[str], remedy: str) -> dict[str, Any]:
    """Read a record.

    Args:
        path: of the record.
        names: that it must have.
        remedy: what to do about a damaged one.

    Raises:
        DataError: it cannot be read, a name is missing, or it is not what was written.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); {remedy}") from error
    missing = [name for name in names if name not in found] if isinstance(found, dict) else list(names)
    if missing:
        raise DataError(f"{path} is damaged: it has no {missing[0]!r}; {remedy}")
    seal = found.pop(_SEAL, None)  # earlier versions wrote none
    if seal is not None and seal != fingerprint(found):
        raise DataError(f"{path} is damaged: it is not what was written; {remedy}")
    return dict(found)


def digest_of(path: Path) -> str:
    """Digest of a file, or of all files of a folder with their names."""
    if path.is_file():
        return file_digest(path)
    files = sorted(found for found in path.rglob("*") if found.is_file())
    return digest(*(f"{file.relative_to(path).as_posix()}\0{file_digest(file)}\0" for file in files))

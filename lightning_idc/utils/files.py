"""Atomic file writes, and digests of files and values."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

DIGEST_BYTES = 16
_BLOCK = 1 << 20


def atomic_write(target: Path, content: bytes | str | Callable[[Path], Any]) -> None:
    """Write a file atomically: to a temporary file in the same folder, flushed to disk, then renamed.

    A kill, a full disk or a power cut leaves the previous file or none. Devices and pipes, such as ``/dev/null``, are
    written to directly.

    Args:
        target: file to write, in an existing folder.
        content: bytes, text (UTF-8), or a function that writes to the path it receives.

    Raises:
        OSError: the file cannot be written.
    """
    if is_device(target):
        return write_content(target, content)  # as root, os.replace would overwrite the device node
    partial = target.with_name(f"{target.name}.{_machine()}-{os.getpid()}-{threading.get_ident()}.partial")
    try:
        write_content(partial, content)
        flush(partial)  # otherwise a power cut could leave an empty file under the final name
        os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    flush(target.parent)  # and lose the rename


def is_device(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir())


def write_content(path: Path, content: bytes | str | Callable[[Path], Any]) -> None:
    """Write bytes, text (UTF-8) or the output of a function to a file, not atomically."""
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Serialise plain values as JSON with a digest of their content."""
    plain = json.loads(json.dumps(value))
    return json.dumps({**plain, "seal": digest(json.dumps(plain, sort_keys=True))}, indent=indent, ensure_ascii=False)


def unseal(text: str) -> dict[str, Any] | None:
    """Parse the output of :func:`seal`; None if the digest does not match."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    sealed = content.pop("seal", None)
    return content if sealed == digest(json.dumps(content, sort_keys=True)) else None


def default_cache_dir() -> Path:
    """Return ``$LIGHTNING_IDC_CACHE``, or ``~/.cache/lightning_idc``."""
    return Path(os.environ.get("LIGHTNING_IDC_CACHE") or Path.home() / ".cache" / "lightning_idc")


def _machine() -> str:
    return digest(platform.node())[:6]


def digest(*parts: Any) -> str:
    """Compute the BLAKE2b digest of concatenated texts and bytes-like objects.

    Example:
        >>> digest("a", b"b") == digest("ab")
        True
    """
    return digest_of_all(parts)


def digest_of_all(parts: Iterable[Any]) -> str:
    """Compute :func:`digest` of an iterable, without holding all parts in memory."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part.encode(errors="surrogatepass") if isinstance(part, str) else part)
    return state.hexdigest()


def file_digest(path: Path, start: int = 0, end: int | None = None) -> str:
    """Compute the BLAKE2b digest of a file, or of its bytes from ``start`` up to ``end``, block by block."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    remaining = math.inf if end is None else end - start
    with path.open("rb") as file:
        file.seek(start)
        while remaining > 0 and (block := file.read(int(min(remaining, _BLOCK)))):
            state.update(block)
            remaining -= len(block)
    return state.hexdigest()


def fingerprint(value: Any) -> str:
    """Compute a digest of plain values that does not depend on the order of dictionary keys.

    Example:
        >>> fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
        True
    """
    return digest(json.dumps(value, sort_keys=True))


def finite(value: Any) -> Any:
    """Copy plain values, with NaN and infinity, which JSON lacks, replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

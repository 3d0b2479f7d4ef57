"""Files that are there as a whole or not at all, and the digests by which their content is known."""

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
    """Write a file beside its place, flush it to the disk and move it there.

    A process that is killed, a full disk or a power cut leaves the earlier file, or none. What is no file, such as
    ``/dev/null`` or a pipe, is written to as it is.

    Args:
        target: the file; its folder exists.
        content: bytes, text (UTF-8), or a function that writes the path it is given.

    Raises:
        OSError: the file cannot be written.
    """
    if is_device(target):
        return fill(target, content)  # the superuser would put a file in the place of the device
    partial = target.with_name(f"{target.name}.{_machine()}-{os.getpid()}-{threading.get_ident()}.partial")
    try:
        fill(partial, content)
        flush(partial)  # a power cut must not leave a good name on an empty file
        os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    flush(target.parent)  # nor lose the name


def is_device(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket, which is written to as it is."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir())


def fill(path: Path, content: bytes | str | Callable[[Path], Any]) -> None:
    """Write bytes, text (UTF-8), or whatever a function writes, into a file in place."""
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def seal(value: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON of plain values with a digest of themselves."""
    plain = json.loads(json.dumps(value))
    return json.dumps({**plain, "seal": digest(json.dumps(plain, sort_keys=True))}, indent=indent, ensure_ascii=False)


def unseal(text: str) -> dict[str, Any] | None:
    """The values of :func:`seal`; None where the text is not what was sealed."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    sealed = content.pop("seal", None)
    return content if sealed == digest(json.dumps(content, sort_keys=True)) else None


def default_cache_dir() -> Path:
    """``$LIGHTNING_IDC_CACHE``, or ``~/.cache/lightning_idc``."""
    return Path(os.environ.get("LIGHTNING_IDC_CACHE") or Path.home() / ".cache" / "lightning_idc")


def _machine() -> str:
    return digest(platform.node())[:6]


def digest(*parts: Any) -> str:
    """BLAKE2b of text and of anything with the buffer protocol, one part after another.

    Example:
        >>> digest("a", b"b") == digest("ab")
        True
    """
    return digest_of_all(parts)


def digest_of_all(parts: Iterable[Any]) -> str:
    """:func:`digest` of parts that are made as they are asked for."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part.encode(errors="surrogatepass") if isinstance(part, str) else part)
    return state.hexdigest()


def file_digest(path: Path, start: int = 0, end: int | None = None) -> str:
    """BLAKE2b of a file, or of its bytes from ``start`` up to ``end``, read a block at a time."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    left = math.inf if end is None else end - start
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(int(min(left, _BLOCK)))):
            state.update(block)
            left -= len(block)
    return state.hexdigest()


def fingerprint(value: Any) -> str:
    """Digest of plain values, the same whatever the order of a dictionary's keys.

    Example:
        >>> fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
        True
    """
    return digest(json.dumps(value, sort_keys=True))


def finite(value: Any) -> Any:
    """Copy of plain values in which numbers that JSON does not know are None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

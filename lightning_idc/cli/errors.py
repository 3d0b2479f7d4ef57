"""Which errors are the user's to mend, and how they read."""

from __future__ import annotations

import errno
import re

from lightning_idc.errors import PairError


def readable(error: BaseException) -> str | None:
    """Message for an error that the user can mend; None for a fault of the program."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PairError):
            return str(seen)
        if isinstance(seen, OSError) and seen.errno == errno.ENOSPC:
            where = seen.filename or "while writing"
            return f"the disk is full ({where}); free some space and start again: nothing half-written is used"
        seen = seen.__cause__ or seen.__context__
    return None


def parse_error(message: str) -> str:
    """The line of jsonargparse's many that matters: which key, what it expects, what it was given."""
    lines = message.splitlines()
    keyed = [(number, re.findall(r'Parser key "([^"]+)"', line)) for number, line in enumerate(lines)]
    keyed = [(number, keys) for number, keys in keyed if keys]
    if not keyed:
        return message
    last = keyed[-1][0]
    indent = _indent(lines[last])
    inner = [lines[last]]
    for line in lines[last + 1 :]:
        if line.strip() and _indent(line) < indent + 2:
            break
        inner.append(line)
    text = "\n".join(inner)
    expected = list(dict.fromkeys(re.findall(r"Expected an? <class '(?:[\w.]+\.)?(\w+)'>", text)))
    found = re.findall(r"(?:Got value|Given value): (.*?)(?:\. Got value: .*)?$", text, re.MULTILINE)
    if not expected or not found:
        return message
    path = ".".join(key for _, keys in keyed for key in keys)
    kinds = " or ".join("None" if kind == "NoneType" else kind for kind in expected)
    return f"{path}: expected {kinds}, found {found[0]!r}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

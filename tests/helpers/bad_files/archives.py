"""Archives with members outside the target folder or with false sizes, and YAML values that name code."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def zipped(name: str, mode: int = 0, content: bytes = b"x", **about: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with zipfile.ZipFile(path, "w", **about) as made:
            made.writestr("first.txt", b"good")
            made.writestr(info, content)

    return write


def tarred(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with tarfile.open(path, "w:gz") as made:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = 1 if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(b"x"))

    return write


def lying(path: Path) -> None:
    """Write a ZIP archive with a member that declares 10 bytes and unpacks to 100 MB."""
    zipped("big.bin", content=bytes(100_000_000), compression=zipfile.ZIP_DEFLATED)(path)
    content = bytearray(path.read_bytes())
    size = (100_000_000).to_bytes(4, "little")
    while (at := content.find(size)) >= 0:
        content[at : at + 4] = (10).to_bytes(4, "little")
    path.write_bytes(content)


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "zip: parent": zipped("../secrets/new"),
    "zip: absolute": zipped("/tmp/evil/new"),
    "zip: parent within": zipped("a/../../secrets/new"),
    "zip: link": zipped("link", stat.S_IFLNK | 0o777, b"../secrets"),
    "zip: NUL": zipped("a\0/../../secrets/new"),
    "zip: too long": zipped("x" * 5000),
    "zip: over its own root": zipped(".."),
    "zip: size that lies": lying,
    "tar: parent": tarred("../secrets/new"),
    "tar: absolute": tarred("/tmp/evil/new"),
    "tar: parent within": tarred("a/../../secrets/new"),
    "tar: symbolic link": tarred("l", tarfile.SYMTYPE, "../secrets"),
    "tar: hard link": tarred("l", tarfile.LNKTYPE, "../secrets/s.png"),
    "tar: pipe": tarred("p", tarfile.FIFOTYPE),
    "tar: device": tarred("d", tarfile.CHRTYPE),
    "tar: block device": tarred("d", tarfile.BLKTYPE),
    "tar: too long": tarred("x" * 5000),
}
YAML_VALUES = {
    "apply": "!!python/object/apply:os.system ['touch PWNED']",
    "new": "!!python/object/new:subprocess.Popen [['touch', 'PWNED']]",
    "object": "!!python/object:evil_mod.Config {a: 1}",
    "name": "!!python/name:os.system",
    "module": "!!python/module:evil_mod",
    "tuple": "!!python/tuple [1, !!python/object/apply:eval [\"open('PWNED', 'w')\"]]",
    "own tag": "!evil_mod.build x",
    "include": "!include ../secrets/w.safetensors",
    "environment": "${oc.env:HOME}",
    "decode": "${oc.decode:'!!python/name:os.system'}",
    "create": "${oc.create:{a: 1}}",
    "interpolated call": "${evil_mod:build}",
    "laughs": "&a [*a, *a]",
    "merge": "{<<: !!python/object/apply:os.system ['touch PWNED']}",
}

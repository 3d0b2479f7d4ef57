"""Manifest of a store: the settings that determine its rows, and the size and checksum of each shard.

A store is a folder of tables; each table consists of shards, Arrow files named ``TABLE-PART-ROWS-CHECKSUM.arrow``. A
shard is renamed to this name after it is fully written, so every shard is complete. The manifest of a finished store
lists all shards; that of a growing store lists none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import StoreError
from lightning_idc.utils.files import atomic_write, digest, fingerprint

FORMAT = 3
"""Version of the format; stores of other versions are rejected."""
MANIFEST = "manifest.json"
_SHARD_NAME = re.compile(r"([a-z]+)-([0-9a-z]+)-([0-9]+)-([0-9a-f]{16})\.arrow")


@dataclass(frozen=True, slots=True)
class ShardName:
    """Parsed file name of a shard.

    Args:
        table: table of the store.
        part: number of the shard, or a unique name.
        rows: number of rows.
        checksum: XXH3 of the store's fingerprint, table, part, rows and bytes.
    """

    table: str
    part: str
    rows: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.table}-{self.part}-{self.rows}-{self.checksum}.arrow"

    @property
    def order(self) -> tuple[str, int, str]:
        """Sort key: by table, then by number or time of writing."""
        return self.table, len(self.part), self.part

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """Parse a file name; None if it is not a shard."""
        match = _SHARD_NAME.fullmatch(name)
        return None if match is None else cls(match[1], match[2], int(match[3]), match[4])


def numbered(number: int) -> str:
    """Format the number of a shard as the name of its part."""
    return f"{number:05}"


def fingerprint_of(identity: Mapping[str, Any]) -> str:
    """Compute the fingerprint of a store from its identity."""
    return fingerprint([FORMAT, identity])


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of the manifest file.

    Args:
        identity: settings that determine the rows, plain values.
        shards: size of each shard in bytes; None while shards may be added.
        notes: other metadata, plain values.
    """

    identity: Mapping[str, Any]
    shards: Mapping[ShardName, int] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the identity."""
        return fingerprint_of(self.identity)

    def write(self, folder: Path) -> None:
        """Write the manifest atomically.

        Raises:
            OSError: the file cannot be written.
        """
        shards = None if self.shards is None else {str(name): size for name, size in self.shards.items()}
        content = {"format": FORMAT, "identity": self.identity, "shards": shards, "notes": self.notes}
        content = json.loads(json.dumps(content))
        text = json.dumps({**content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False)
        atomic_write(folder / MANIFEST, text)


def _checksum(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True))


def read_manifest(
    folder: Path, what: str = "rows", remedy: str = "remove it", identity: Mapping[str, Any] | None = None
) -> Manifest:
    """Read and check the manifest of a store.

    Args:
        folder: folder of the store.
        what: name of the content, for messages.
        remedy: advice for an unusable store, for messages.
        identity: expected identity; None accepts any.

    Raises:
        StoreError: the manifest is missing, damaged, of another format or has another identity.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{folder} has no {what}: {MANIFEST} is missing; {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise StoreError(f"{path} has format {version!r:.40}, expected {FORMAT}; {remedy}")
    if content.pop("checksum", None) != _checksum(content):
        raise StoreError(f"{path} is damaged: it does not match its checksum; {remedy}")
    if not all(isinstance(content.get(name), dict) for name in ("identity", "notes")):
        raise StoreError(f"{path} is not the manifest of a store: it lacks identity or notes; {remedy}")
    if identity is not None and content["identity"] != json.loads(json.dumps(identity)):
        raise StoreError(f"{folder} was made with other settings ({_changes(content['identity'], identity)}); {remedy}")
    return Manifest(content["identity"], _listed(content.get("shards"), path, remedy), content["notes"])


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return "; ".join(f"{name} is {before.get(name)!r}, expected {now.get(name)!r}" for name in names)


def _listed(shards: Any, path: Path, remedy: str) -> dict[ShardName, int] | None:
    """Check the names and sizes of the shards that a manifest lists."""
    if shards is None:
        return None
    names = {ShardName.parse(name): size for name, size in shards.items()} if isinstance(shards, dict) else {None: 0}
    listed = {name: size for name, size in names.items() if name is not None and type(size) is int}
    if len(listed) < len(names):
        raise StoreError(f"{path} lists a shard that is not a file of this store; {remedy}")
    return listed

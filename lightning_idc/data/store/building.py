"""Build a store atomically: one process writes it to a temporary folder and renames it; other processes wait."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.data.store.manifest import Manifest
from lightning_idc.data.store.reader import Store
from lightning_idc.data.store.shards import OPEN_SHARDS, Shard
from lightning_idc.utils.errors import StoreError


@dataclass(frozen=True, slots=True)
class Plan:
    """Store to build.

    Args:
        folder: folder of the store.
        identity: settings that determine the rows.
        content: name of the content, for messages.
        size: approximate size in bytes.
        folder_advice: advice on choosing another folder, for messages.
    """

    folder: Path
    identity: Mapping[str, Any]
    content: str
    size: int
    folder_advice: str

    def open(self) -> Store:
        """Open the store.

        Raises:
            StoreError: the store is missing, damaged or has another identity.
        """
        remedy = f"delete {self.folder} and run again to rebuild it"
        return Store(self.folder, self.content, remedy, self.identity)

    def usable(self) -> bool:
        """Whether the store exists, with shards of the right sizes."""
        try:
            self.open()
        except StoreError:
            return False
        return True


def rows_per_shard(rows: int, row_bytes: int) -> int:
    """Compute the number of rows per shard, for shards of 256 MB, or more if too many shards to keep all mapped."""
    return max(1, int(max(256e6, rows * row_bytes / (0.75 * OPEN_SHARDS)) / max(row_bytes, 1)))


def write_manifest(folder: Path, identity: Mapping[str, Any], shards: Iterable[Shard], **notes: Any) -> None:
    """Write the manifest of a store after all shards are written.

    Args:
        folder: folder of the store.
        identity: settings that determine the rows.
        shards: all shards of the store.
        notes: other metadata, plain values.
    """
    sizes = {shard.name: shard.path.stat().st_size for shard in shards}
    Manifest(identity, sizes, notes).write(folder)


def build(plan: Plan, write_shards: Callable[[Path], Iterable[Shard]]) -> None:
    """Build a store unless a usable one exists.

    Args:
        plan: description of the store.
        write_shards: function that writes the shards to an empty folder and returns them.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
    """
    from filelock import FileLock

    folder, root = plan.folder, plan.folder.parent
    if plan.usable():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if plan.usable():
                return
            for leftover in [*root.glob(f".{folder.name}.*"), folder]:  # from a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            if shutil.disk_usage(root).free < plan.size:
                raise OSError(errno.ENOSPC, "not enough disk space")
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
            try:
                write_manifest(draft, plan.identity, write_shards(draft))
                draft.chmod(0o755)
                draft.rename(folder)
            except BaseException:  # including KeyboardInterrupt
                shutil.rmtree(draft, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise StoreError(f"cannot write {plan.content} to {root}: {error}; {plan.folder_advice}") from error
        free = shutil.disk_usage(root).free
        raise StoreError(
            f"{plan.content} needs {plan.size / 1e6:,.0f} MB in {root}, where {free / 1e6:,.0f} MB are free; "
            f"free some disk space, or {plan.folder_advice}"
        ) from error

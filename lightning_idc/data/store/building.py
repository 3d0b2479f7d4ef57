"""Making a store as a whole, in a folder of another name, by one process while others wait."""

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
    """A store that is to be made.

    Args:
        folder: folder of the store.
        identity: everything that decides its rows.
        what: content of the store, for messages.
        size: room that it takes, bytes, roughly.
        elsewhere: how to name another folder, for messages.
    """

    folder: Path
    identity: Mapping[str, Any]
    what: str
    size: int
    elsewhere: str

    def open(self) -> Store:
        """The store that lies in the folder.

        Raises:
            StoreError: it is missing, damaged or has another identity.
        """
        remedy = f"delete {self.folder} and run again, which makes it anew"
        return Store(self.folder, self.what, remedy, self.identity)

    def usable(self) -> bool:
        """Whether the store is there, with shards of the right sizes."""
        try:
            self.open()
        except StoreError:
            return False
        return True


def rows_per_shard(rows: int, row_bytes: int) -> int:
    """Rows of a shard: 256 MB of them, or more where the shards would be too many to stay mapped in random order."""
    return max(1, int(max(256e6, rows * row_bytes / (0.75 * OPEN_SHARDS)) / max(row_bytes, 1)))


def complete(folder: Path, identity: Mapping[str, Any], shards: Iterable[Shard], **notes: Any) -> None:
    """Write the manifest of a store whose shards are all there.

    Args:
        folder: folder of the store.
        identity: everything that decides its rows.
        shards: its shards.
        notes: other plain values.
    """
    sizes = {shard.name: shard.path.stat().st_size for shard in shards}
    Manifest(identity, sizes, notes).write(folder)


def build(plan: Plan, fill: Callable[[Path], Iterable[Shard]]) -> None:
    """Make a store where there is no usable one.

    Args:
        plan: store that is to be made.
        fill: writes the shards into the empty folder that it is called with, and returns them.

    Raises:
        StoreError: there is no room, or the folder cannot be written.
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
            for leftover in [*root.glob(f".{folder.name}.*"), folder]:  # a killed process left it
                shutil.rmtree(leftover, ignore_errors=True)
            if shutil.disk_usage(root).free < plan.size:
                raise OSError(errno.ENOSPC, "too little room")
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
            try:
                complete(draft, plan.identity, fill(draft))
                draft.chmod(0o755)
                draft.rename(folder)
            except BaseException:  # Ctrl-C too leaves nothing behind
                shutil.rmtree(draft, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise StoreError(f"cannot write {plan.what} to {root}: {error}; {plan.elsewhere}") from error
        free = shutil.disk_usage(root).free
        raise StoreError(
            f"{plan.what} needs {plan.size / 1e6:,.0f} MB in {root}, where {free / 1e6:,.0f} MB are free; "
            f"make room, or {plan.elsewhere}"
        ) from error

"""Checkpoints that a full disk, a kill or a power cut cannot damage, and the newest of them that can be read."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from lightning_idc.checkpoints.reading import refuse_nan
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.files import atomic_write

SHARDS = "meta.pt"
"""In the folder of a checkpoint in pieces, what the processes have in common."""
NEEDED = ("global_step", "optimizer_states", "loops")
"""What training cannot go on without."""
INTERRUPTED = "interrupted.ckpt"
"""Checkpoint of a run that was stopped between its own ones."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, waits until the disk has it, and moves it there.

    Lightning's own writes into the temporary folder, which may lie on another disk, and copies from there, so that a
    full disk or a kill leaves half a file. ``lightning-idc`` uses this one by itself.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(plugins=[AtomicCheckpointIO()], accelerator="cpu", logger=False)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; another file system than the local one is left to Lightning.

        Raises:
            CheckpointError: there is no room for it, or writing there is not allowed.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_checkpoint(checkpoint, path)


def write_checkpoint(content: dict[str, Any], target: str | Path) -> None:
    """``torch.save`` that leaves the file as it was, or as it shall be.

    Raises:
        CheckpointError: there is no room for it, or writing there is not allowed.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(target, lambda path: _save(content, path))
    except OSError as error:
        raise CheckpointError(_refused(target, error)) from error


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        recorder = _Recorder(file)
        try:
            torch.save(content, cast(Any, recorder))
        except Exception as error:
            raise recorder.error or error from None


class _Recorder:
    """File of which torch's writer hides why writing failed."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return int(self.file.write(data))
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self.file.flush()


def _refused(target: Path, error: OSError) -> str:
    """Sentence on a checkpoint that could not be written: where, why, and what there still is."""
    folder = target.parent
    while not folder.is_dir():
        folder = folder.parent
    names = sorted(path.name for path in folder.glob("*.ckpt")) if folder == target.parent else []
    still = f"what was written before is complete ({', '.join(names)})" if names else "there is no earlier one"
    if error.errno in FULL:
        free = shutil.disk_usage(folder).free / 2**20
        return (
            f"the disk of {str(folder)!r} is full ({free:.1f} MB are free), so {target.name} could not be written; "
            f"{still}. Make room there, then continue the run"
        )
    return (
        f"{str(target)!r} could not be written: {error.strerror}; {still}. Make {str(folder)!r} writable, or name "
        "another folder"
    )


def newest_checkpoint(folder: Path, say: Callable[[str], None] = print) -> Path | None:
    """The checkpoint in ``folder``, or below it, that training got furthest with and can go on from.

    The number of steps decides, which is in the file: times of files are changed by copying and by wrong clocks. What
    cannot be read is passed over.

    Args:
        folder: searched with all its sub-folders.
        say: takes a sentence about each file that is passed over.
    """
    checkpoints: list[tuple[int, int, Path]] = []
    for path in sorted(folder.rglob("*.ckpt")):
        try:
            checkpoints.append((_steps(path), _finished_most(path), path))
        except CheckpointError as error:
            say(f"passing over {os.path.relpath(path)}: {error}")
    for _, _, path in sorted(checkpoints, reverse=True):
        damaged = _damage(path)
        if damaged is None:
            return path
        say(f"passing over {os.path.relpath(path)}: {damaged}")
    return None


def check_intact(path: Path, remedy: str) -> None:
    """Compare a checkpoint with the checksums in it.

    Raises:
        CheckpointError: it is damaged.
    """
    if (damaged := _damage(path)) is not None:
        raise CheckpointError(f"{str(path)!r}: {damaged}; {remedy}")


def _steps(path: Path) -> int:
    """Optimizer steps of a checkpoint; its weights stay on the disk.

    Raises:
        CheckpointError: it cannot be read, or training cannot go on from it.
    """
    file = path / SHARDS if path.is_dir() else path
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=path.is_file())
    except Exception as error:  # a damaged file fails in many ways
        raise CheckpointError(f"it is damaged or incomplete ({type(error).__name__})") from error
    # the shards of optimizers stand in files of their own
    needed = [name for name in NEEDED if path.is_file() or name != "optimizer_states"]
    if not isinstance(content, dict) or not isinstance(content.get("global_step"), int):
        raise CheckpointError("it is not a checkpoint of a training")
    missing = [name for name in needed if name not in content]
    if missing:
        raise CheckpointError(f"it holds weights only (no {missing[0]}), so training cannot go on from it")
    return int(content["global_step"])


def _finished_most(path: Path) -> int:
    """Of checkpoints with equally many steps, the last one also knows of the validation and of the best one."""
    return {"last": 2, "interrupted": 1}.get(path.stem, 0)


def _damage(path: Path) -> str | None:
    """What is wrong with the content: torch does not look at the checksums that it writes, nor at the numbers."""
    if path.is_dir():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            name = archive.testzip()
    except Exception as error:
        return f"it is damaged ({type(error).__name__})"
    if name is not None:
        return f"it is damaged: {name} is not what was written"
    try:
        refuse_nan(torch.load(path, map_location="cpu", weights_only=True, mmap=True).get("state_dict", {}), path)
    except CheckpointError:
        return "its weights hold NaN, from a training that diverged"
    return None

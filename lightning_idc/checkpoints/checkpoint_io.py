"""Write checkpoints atomically, and find the newest intact one."""

from __future__ import annotations

import errno
import math
import os
import shutil
import zipfile
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import Tensor

from lightning_idc.checkpoints.reading import check_no_nan
from lightning_idc.utils.errors import CheckpointError
from lightning_idc.utils.files import atomic_write
from lightning_idc.utils.manifest import is_same

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

SHARDS = "meta.pt"
"""File in the folder of a sharded checkpoint with the state shared by all processes."""
RESUME_KEYS = ("global_step", "optimizer_states", "loops")
"""Entries required to resume training."""
INTERRUPTED = "interrupted.ckpt"
"""Checkpoint saved when a run is interrupted."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in the same folder, flushes it to disk and renames it.

    Lightning writes to the system's temporary folder, possibly on another disk, and copies the file, so that a full
    disk or a kill leaves a truncated file. ``lightning-idc`` uses this class by default.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(plugins=[AtomicCheckpointIO()], accelerator="cpu", logger=False)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``; remote file systems are handled by Lightning.

        Raises:
            CheckpointError: the disk is full or the folder not writable.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_checkpoint(checkpoint, path)


def write_checkpoint(content: dict[str, Any], target: str | Path) -> None:
    """Atomic ``torch.save``.

    Raises:
        CheckpointError: the disk is full or the folder not writable.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(target, lambda path: _save(content, path))
    except OSError as error:
        raise CheckpointError(_write_failure(target, error)) from error


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        recorder = _Recorder(file)
        try:
            torch.save(content, cast(Any, recorder))
        except Exception as error:
            raise recorder.error or error from None


class _Recorder:
    """File that records write errors, because torch's writer hides their cause."""

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


def _write_failure(target: Path, error: OSError) -> str:
    """Build the message for a failed write: where, why, and which earlier checkpoints are intact."""
    folder = target.parent
    while not folder.is_dir():
        folder = folder.parent
    names = sorted(path.name for path in folder.glob("*.ckpt")) if folder == target.parent else []
    earlier = f"earlier checkpoints are complete ({', '.join(names)})" if names else "there is no earlier checkpoint"
    if error.errno in DISK_FULL:
        free = shutil.disk_usage(folder).free / 2**20
        return (
            f"the disk of {str(folder)!r} is full ({free:.1f} MB are free), so {target.name} could not be written; "
            f"{earlier}. Free some space, then resume the run"
        )
    return (
        f"{str(target)!r} could not be written: {error.strerror}; {earlier}. Make {str(folder)!r} writable, or choose "
        "another folder"
    )


def save_interrupted(trainer: Trainer, folder: Path) -> Path:
    """Save the state of a training that stops early, and return the path; all processes must call this.

    Args:
        trainer: trainer of the run.
        folder: folder of ``interrupted.ckpt``, which is named ``interrupted-v1.ckpt`` and so on where the state of
            another run has that name.
    """
    names = (f"interrupted-v{number}.ckpt" for number in count(1))
    paths = (folder / name for name in chain([INTERRUPTED], names))
    resumed = Path(trainer.ckpt_path or "")
    target = next(path for path in paths if not path.exists() or is_same(path, resumed))
    target = Path(trainer.strategy.broadcast(str(target)))
    trainer.save_checkpoint(target)
    return target


def newest_checkpoint(folder: Path, warn: Callable[[str], None] = print) -> Path | None:
    """Find the resumable checkpoint with the most steps in ``folder`` and its sub-folders.

    The number of steps stored in the file decides, since copies and wrong clocks change file times. Unreadable files
    are skipped.

    Args:
        folder: folder to search recursively.
        warn: function that is called with a message about each skipped file.
    """
    checkpoints: list[tuple[int, int, Path]] = []
    for path in sorted(folder.rglob("*.ckpt")):
        try:
            checkpoints.append((_steps(path), _completeness(path), path))
        except CheckpointError as error:
            warn(f"skipping {os.path.relpath(path)}: {error}")
    for _, _, path in sorted(checkpoints, reverse=True):
        damage = _find_damage(path)
        if damage is None:
            return path
        warn(f"skipping {os.path.relpath(path)}: {damage}")
    return None


def check_intact(path: Path, remedy: str) -> None:
    """Verify the checksums in a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    if (damage := _find_damage(path)) is not None:
        raise CheckpointError(f"{str(path)!r}: {damage}; {remedy}")


def _steps(path: Path) -> int:
    """Read the number of optimizer steps of a checkpoint without loading its weights.

    Raises:
        CheckpointError: the checkpoint cannot be read, or training cannot resume from it.
    """
    file = path / SHARDS if path.is_dir() else path
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=path.is_file())
    except Exception as error:  # a damaged file can raise any error
        raise CheckpointError(f"it is damaged or incomplete ({type(error).__name__})") from error
    # sharded optimizer states are in separate files
    required = [name for name in RESUME_KEYS if path.is_file() or name != "optimizer_states"]
    if not isinstance(content, dict) or not isinstance(content.get("global_step"), int):
        raise CheckpointError("it is not a training checkpoint")
    missing = [name for name in required if name not in content]
    if missing:
        raise CheckpointError(f"it holds only weights (no {missing[0]}), so training cannot resume from it")
    return int(content["global_step"])


def _completeness(path: Path) -> int:
    """Rank of a checkpoint among those with equal steps: only ``last.ckpt`` includes the validation and best score."""
    return {"last": 2, "interrupted": 1}.get(path.stem.partition("-")[0], 0)


def _find_damage(path: Path) -> str | None:
    """Describe damage of the content, None if intact: torch verifies neither its checksums nor the values."""
    if path.is_dir():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            name = archive.testzip()
    except Exception as error:
        return f"it is damaged ({type(error).__name__})"
    if name is not None:
        return f"it is damaged: the checksum of {name} does not match"
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    try:
        check_no_nan(content.get("state_dict", {}), path)
    except CheckpointError:
        return "its weights contain NaN, from a training that diverged"
    optimizers = content.get("optimizer_states", ())
    states = [values for optimizer in optimizers for values in optimizer["state"].values()]
    for value in chain.from_iterable(values.values() for values in states):
        if isinstance(value, Tensor) and value.is_floating_point() and not torch.isfinite(value).all():
            return "the state of its optimizer is not finite, from a training that diverged"
    groups = chain.from_iterable(optimizer.get("param_groups", ()) for optimizer in optimizers)
    for name, setting in chain.from_iterable(group.items() for group in groups):
        if isinstance(setting, float) and not math.isfinite(setting):
            return f"the {name} of its optimizer is {setting}"
    return None

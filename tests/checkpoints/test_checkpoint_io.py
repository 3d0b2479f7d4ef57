"""Writing leaves either the old or the new checkpoint, and a run resumes from the furthest readable one."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import forking_python
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_idc.checkpoints.checkpoint_io import AtomicCheckpointIO, _steps, newest_checkpoint, write_checkpoint
from lightning_idc.utils.errors import CheckpointError

MB = 1 << 20


def content(steps: int, numbers: int = 4) -> dict[str, Any]:
    return {
        "global_step": steps,
        "state_dict": {"w": torch.full((numbers,), float(steps))},
        "optimizer_states": [],
        "loops": {},
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MB, separate from that of temporary files."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_preserves_the_earlier_checkpoint_and_is_named(small_disk: Path) -> None:
    target = small_disk / "last.ckpt"
    write_checkpoint(content(1, 100), target)
    with pytest.raises(
        CheckpointError, match=r"the disk of '.*disk' is full .*last\.ckpt could not be written.*\(last\.ckpt\)"
    ):
        write_checkpoint(content(2, MB), target)
    assert torch.load(target, weights_only=True)["global_step"] == 1
    assert sorted(os.listdir(small_disk)) == ["last.ckpt"], "nothing half-written is left, which would fill the disk"


@pytest.mark.slow
def test_a_full_disk_during_training_leaves_a_run_that_goes_on(small_disk: Path) -> None:
    def trainer(epochs: int) -> Trainer:
        saver = ModelCheckpoint(dirpath=small_disk, filename="last", enable_version_counter=False)
        return Trainer(max_epochs=epochs, callbacks=[saver], plugins=[AtomicCheckpointIO()], **QUIET)

    data = TinyPairs(batch_size=4)
    trainer(1).fit(TinyCaptioner(), data)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(2 * MB - (small_disk / "last.ckpt").stat().st_size - 20 * 1024))
    with pytest.raises(CheckpointError, match="is full"):
        trainer(2).fit(TinyCaptioner(), TinyPairs(batch_size=4), ckpt_path=small_disk / "last.ckpt", weights_only=True)
    filler.unlink()
    newest = newest_checkpoint(small_disk)
    assert newest == small_disk / "last.ckpt"
    again = trainer(2)
    again.fit(TinyCaptioner(), TinyPairs(batch_size=4), ckpt_path=newest, weights_only=True)
    assert again.global_step == 8


def test_a_full_disk_error_of_the_system_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated, for machines on which nothing can be mounted."""
    target = tmp_path / "last.ckpt"
    write_checkpoint(content(1), target)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"is full .*earlier checkpoints are complete \(last\.ckpt\)"):
        write_checkpoint(content(2), target)
    assert torch.load(target, weights_only=True)["global_step"] == 1 and len(os.listdir(tmp_path)) == 1


def test_a_folder_that_must_not_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"could not be written: .*; there is no earlier checkpoint"):
        write_checkpoint(content(1), tmp_path / "file" / "last.ckpt")


def test_a_fault_of_the_content_is_not_a_fault_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        write_checkpoint({"f": lambda: None}, tmp_path / "last.ckpt")
    assert not os.listdir(tmp_path)


KILLED = """
import sys, torch
from lightning_idc.checkpoints.checkpoint_io import write_checkpoint
import os, lightning_idc.utils.files as files
flush = files.flush
def dies(path):
    if os.path.isfile(path):
        os.kill(os.getpid(), 9)
    flush(path)
files.flush = dies
write_checkpoint({"global_step": 2, "w": torch.zeros(1000)}, sys.argv[1])
"""


@pytest.mark.slow
def test_a_kill_while_writing_leaves_the_earlier_one(tmp_path: Path) -> None:
    target = tmp_path / "last.ckpt"
    write_checkpoint(content(1), target)
    done = subprocess.run([forking_python(), "-c", KILLED, str(target)])
    assert done.returncode == -9
    assert newest_checkpoint(tmp_path) == target and torch.load(target, weights_only=True)["global_step"] == 1


# ---- the checkpoint that training resumes from -----------------------------------------------------------


def test_steps_decide_and_times_do_not(tmp_path: Path) -> None:
    for name, steps, time in (("best", 3, 2_000_000_000), ("epoch", 5, 1_000_000_000), ("old", 1, 1_500_000_000)):
        write_checkpoint(content(steps), tmp_path / f"{name}.ckpt")
        os.utime(tmp_path / f"{name}.ckpt", (time, time))
    assert newest_checkpoint(tmp_path) == tmp_path / "epoch.ckpt"


def test_of_equally_many_steps_the_last_knows_most(tmp_path: Path) -> None:
    for name in ("best", "interrupted", "last", "zeta"):
        write_checkpoint(content(4), tmp_path / f"{name}.ckpt")
    assert newest_checkpoint(tmp_path) == tmp_path / "last.ckpt"
    (tmp_path / "last.ckpt").unlink()
    assert newest_checkpoint(tmp_path) == tmp_path / "interrupted.ckpt"


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[data.find(torch.full((8,), 9.0).numpy().tobytes()) + 5] ^= 1  # inside a tensor
    (path).write_bytes({"cut": data[: len(data) // 2], "empty": b"", "text": b"not a checkpoint"}.get(how, bytes(data)))


@pytest.mark.parametrize("how", ["cut", "empty", "text", "flipped"])
def test_what_cannot_be_read_is_passed_over_with_a_sentence(tmp_path: Path, how: str) -> None:
    write_checkpoint(content(3), tmp_path / "best.ckpt")
    write_checkpoint(content(9, 64), tmp_path / "last.ckpt")
    damage(tmp_path / "last.ckpt", how)
    messages: list[str] = []
    assert newest_checkpoint(tmp_path, messages.append) == tmp_path / "best.ckpt"
    (sentence,) = messages
    assert "skipping" in sentence and "last.ckpt" in sentence and "damaged" in sentence


def test_weights_alone_and_other_files_are_passed_over(tmp_path: Path) -> None:
    write_checkpoint({"global_step": 9, "state_dict": {}, "loops": {}}, tmp_path / "weights.ckpt")
    torch.save([1, 2], tmp_path / "list.ckpt")
    messages: list[str] = []
    assert newest_checkpoint(tmp_path, messages.append) is None
    assert any("only weights" in sentence for sentence in messages) and any(
        "not a training checkpoint" in s for s in messages
    )


def test_a_checkpoint_that_would_run_code_is_passed_over(tmp_path: Path) -> None:
    torch.save({**content(9), "x": os.system}, tmp_path / "evil.ckpt")
    write_checkpoint(content(1), tmp_path / "good.ckpt")
    assert newest_checkpoint(tmp_path, lambda said: None) == tmp_path / "good.ckpt"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory of a process")
def test_weights_stay_on_the_disk_while_one_is_chosen(tmp_path: Path) -> None:
    """Reading the step of a checkpoint of several gigabytes must not load its weights."""

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    write_checkpoint(content(1, 16 * MB), tmp_path / "large.ckpt")
    before = memory()
    assert _steps(tmp_path / "large.ckpt") == 1
    assert memory() - before < 16 * MB, "64 MB of weights were read"

"""Memory of a loader's worker while it reads images of the maximum size, and one that is just too large."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from lightning_idc.images.options import ImageOptions
from lightning_idc.images.raw import MAX_PIXELS
from lightning_idc.images.read import read_image
from lightning_idc.utils.errors import DataError

SIDE = 8000
BOUND = 1.5
"""GiB; before there was a limit, 200 million pixels of 16 bits took 5.8 GB."""


def write(path: Path, width: int, height: int, depth: int, colour: int, channels: int) -> None:
    """Write a PNG of one value, which compresses to a small file."""
    packer, row = zlib.compressobj(1), b"\0" + b"\x55" * (width * channels * depth // 8)
    data = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    peak = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
        peak += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    path.write_bytes(peak)


def status(name: str) -> float:
    return int(re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 2**20


class Reads(Dataset[float]):
    """Measures by how many GiB reading an image raises the peak memory of a worker, negated if the image is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = status("VmRSS")
        try:
            read_image(self.path, options=ImageOptions((0, 65535), None, None, None))
        except DataError as error:
            assert "expected at most 64,000,000" in str(error)
            return -(status("VmHWM") - before)
        return status("VmHWM") - before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
def test_worker_memory_is_bounded(tmp_path: Path) -> None:
    assert SIDE * SIDE == MAX_PIXELS
    peaks = {}
    for name, kind in {"8 bits": (8, 2, 3), "16 bits": (16, 0, 1)}.items():
        write(tmp_path / "a.png", SIDE, SIDE, *kind)
        assert (tmp_path / "a.png").stat().st_size < 2_000_000
        (peaks[name],) = (float(peak) for peak in DataLoader(Reads(tmp_path / "a.png"), num_workers=1))
    print(f"GiB at the peak: {peaks}")
    assert all(0 < peak < BOUND for peak in peaks.values()), peaks
    write(tmp_path / "a.png", SIDE, SIDE + 1, 8, 0, 1)
    (refused,) = (float(peak) for peak in DataLoader(Reads(tmp_path / "a.png"), num_workers=1))
    assert -0.05 < refused <= 0, "it is refused before anything is decoded"

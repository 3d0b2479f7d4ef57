"""A batch of pairs that is killed again and again: what it loses, repeats or answers otherwise.

`lightning-idc predict` over pairs of files is killed (SIGKILL) when a further share of them is answered, and started
again with the same command. Counted are the lines of the file that it leaves, the ids that are missing or stand there
twice, and the answers of earlier starts that are not taken over as they were.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 64


def draw(folder: Path, pairs: int, side: int = SIDE) -> list[str]:
    """Pairs of random pixels, in the second one with a white square; their names."""
    draws, names = np.random.default_rng(0), [f"{number:06d}" for number in range(pairs)]
    for name in ("before", "after"):
        (folder / name).mkdir()
    for name in names:
        pixels = draws.integers(0, 200, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "before" / f"{name}.png")
        y, x = draws.integers(0, side - 16, 2)
        pixels[y : y + 16, x : x + 16] = 255
        Image.fromarray(pixels).save(folder / "after" / f"{name}.png")
    return names


def answered(part: Path) -> list[str]:
    """Lines that are written to the end, without the first, which names the run."""
    return part.read_text(encoding="utf-8").rpartition("\n")[0].split("\n")[1:] if part.is_file() else []


def killed(model: str, pairs: int, kills: int) -> dict[str, Any]:
    """What becomes of pairs whose prediction is killed so many times, and the seconds of all starts together."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = draw(folder, pairs)
        out, part = folder / "answers.jsonl", folder / "answers.jsonl.part"
        command = [sys.executable, "-m", "lightning_idc", "predict", str(folder), "--model", model]
        command += ["--out", str(out), "--batch-size", "32"]
        kept: list[str] = []
        killed_at, lost = [], 0
        for kill in range(1, kills + 1):
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            goal = pairs * kill // (kills + 1)
            while running.poll() is None and len(answered(part)) < goal:
                time.sleep(0.05)
            running.send_signal(signal.SIGKILL)
            running.wait()
            now = answered(part)
            lost += now[: len(kept)] != kept
            kept = now
            killed_at.append(len(kept))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = out.read_text(encoding="utf-8").splitlines()
    final = set(lines)
    ids = Counter(json.loads(line)["id"] for line in lines)
    return {
        "pairs": pairs,
        "killed_at": killed_at,
        "lines": len(lines),
        "missing": len(set(names) - set(ids)),
        "repeated": sum(count > 1 for count in ids.values()),
        "changed_answers": lost + sum(line not in final for line in kept),
        "seconds": round(time.perf_counter() - began, 1),
    }

"""How many pairs per second does the renderer draw on one core?

    python -m benchmarks.render [--pairs 100] [--runs 5] [--out FILE]

Scenes are those of the clevr_change mode with three to eight objects. The time of a pair includes both images and the
conversion of scenes to arrays, but not sampling the scenes. Figures are CPU seconds of one thread: fastest run and
median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from lightning_idc.data.synthetic.cache import Key, draw_pair  # noqa: E402 - after the number of threads is set
from lightning_idc.data.synthetic.modes import load_mode  # noqa: E402
from lightning_idc.data.synthetic.render import render  # noqa: E402
from lightning_idc.data.synthetic.scene import Scene  # noqa: E402

TARGETS = {64: 250, 128: 80}
_FIRST = """
import time
from lightning_idc.data.synthetic.render import DEFAULT_CAMERA, DEFAULT_LIGHTS, render
from lightning_idc.data.synthetic.scene import Scene
import numba
began = time.process_time()
render([Scene((), DEFAULT_CAMERA, DEFAULT_LIGHTS)], 64, 64)
print(time.process_time() - began)
"""


def scenes(pairs: int) -> list[Scene]:
    """Both scenes of each pair."""
    world = replace(load_mode("clevr_change").WORLD, things=(3, 8))
    key = Key("clevr_change", "train", pairs, 64, 64, 0, world)
    return [scene for pair in (draw_pair(key, n) for n in range(pairs)) for scene in (pair.before, pair.after)]


def speed(drawn: list[Scene], size: int, runs: int) -> dict[str, float]:
    """Pairs a second."""
    render(drawn[:2], size, size)
    seconds = []
    for _ in range(runs):
        began = time.process_time()
        render(drawn, size, size)
        seconds.append(time.process_time() - began)
    pairs = len(drawn) / 2
    return {"best": pairs / min(seconds), "median": pairs / statistics.median(seconds)}


def first_call() -> tuple[float, float]:
    """CPU seconds of the first image before anything is compiled, and in the next process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", _FIRST]
        cold, warm = (
            float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
            for _ in range(2)
        )
    return cold, warm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from benchmarks.harness import report

    drawn = scenes(options.pairs)
    cold, warm = first_call()
    result = {
        "question": "pairs drawn per CPU second of one thread, two antialiased pictures with soft shadows each",
        "pairs": options.pairs,
        "things_per_scene": sum(len(scene.things) for scene in drawn) / len(drawn),
        "runs": options.runs,
        "numba": {str(size): speed(drawn, size, options.runs) for size in TARGETS},
        "targets": {str(size): target for size, target in TARGETS.items()},
        "first_call_s": {"compiling": cold, "cached": warm},
    }
    report(result, options.out, "numba", seeds=[])


if __name__ == "__main__":
    main()

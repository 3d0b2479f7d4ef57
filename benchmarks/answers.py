"""How long does a first caption take, and how many pairs of files a second are described?

    python benchmarks/answers.py [--model clevr] [--pairs 400] [--side 128] [--tries 5] [--out results/answers.json]

``describe``: the command as a user types it, started anew for every try, with the place of the change. Its seconds of
CPU stand beside those of the clock, which other programs lengthen. ``predict``: pairs of PNG files of so many pixels a
side that one process describes a second, without what starting it takes. One thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from _harness import report
from resume import draw

import lightning_idc


def timed(*arguments: str) -> tuple[float, float]:
    """Seconds by the clock, and of CPU, of a command that must end well."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "lightning_idc", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spread(seconds: list[float]) -> dict[str, float]:
    return {"best": round(min(seconds), 2), "median": round(median(seconds), 2), "worst": round(max(seconds), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pair = [str(path) for path in lightning_idc.sample_pair("clevr")]
    cold = [timed("describe", *pair, "--model", options.model) for _ in range(options.tries)]
    batches = []
    for count in (8, options.pairs + 8):  # the difference is what the pairs take
        with tempfile.TemporaryDirectory() as place:
            draw(Path(place), count, options.side)
            given = ["predict", place, "--model", options.model, "--out", str(Path(place, "answers.jsonl"))]
            batches.append(timed(*given))
    result = {
        "model": options.model,
        "describe": {"seconds": spread([wall for wall, _ in cold]), "cpu_seconds": spread([cpu for _, cpu in cold])},
        "predict": {
            "pairs": options.pairs,
            "side": options.side,
            "pairs_per_second": round(options.pairs / (batches[1][0] - batches[0][0]), 1),
            "pairs_per_cpu_second": round(options.pairs / (batches[1][1] - batches[0][1]), 1),
        },
    }
    report(result, options.out, "lightning_idc", seeds=[0])


if __name__ == "__main__":
    main()

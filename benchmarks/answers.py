"""How long does a first caption take, and how many pairs are described a second?

    python -m benchmarks.answers [--model clevr] [--pairs 400] [--side 128] [--tries 5] [--requests 200]
        [--out FILE]

``first caption``: the first command in a new environment, before Python files are compiled: caption and location of a
change in two photographs whose size differs from the captioner's. ``describe``: the same command again, in a new
process for every try. Both are reported in wall and CPU seconds, since other programs affect wall time. ``predict``:
pairs of PNG files per second of one process, without its start-up time. ``serve``: simultaneous requests to a server,
and how many receive the same answer as in Python. All use one thread.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

import lightning_idc
from benchmarks.harness import report

COMMAND = [sys.executable, "-m", "lightning_idc"]


def timed(*arguments: str, compiled: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command that must succeed.

    Args:
        arguments: arguments of the command.
        compiled: folder of Python's compiled files, which the first start fills.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([*COMMAND, *arguments], check=True, env=environment, capture_output=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spread(seconds: list[float]) -> dict[str, float]:
    return {"best": round(min(seconds), 2), "median": round(median(seconds), 2), "worst": round(max(seconds), 2)}


def starts(model: str, tries: int, place: Path) -> dict[str, Any]:
    """Times of the first command in an environment, and of repetitions."""
    pair = []
    for path in lightning_idc.sample_pair("clevr"):
        pair.append(str(place / path.name) + ".jpg")
        with Image.open(path) as image:
            image.convert("RGB").resize((1152, 768), Image.Resampling.BICUBIC).save(pair[-1], quality=92)
    args = ("describe", *pair, "--model", model)
    first, *again = (timed(*args, compiled=str(place / "compiled")) for _ in range(tries + 1))
    return {
        "first caption": {"seconds": round(first[0], 2), "cpu_seconds": round(first[1], 2)},
        "describe": {"seconds": spread([wall for wall, _ in again]), "cpu_seconds": spread([cpu for _, cpu in again])},
    }


def write_pairs(folder: Path, count: int, side: int) -> None:
    """Pairs of random pixels; the second image of each has a white square."""
    generator = np.random.default_rng(0)
    for name in ("before", "after"):
        (folder / name).mkdir()
    for number in range(count):
        pixels = generator.integers(0, 200, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "before" / f"{number:06d}.png")
        y, x = generator.integers(0, side - 16, 2)
        pixels[y : y + 16, x : x + 16] = 255
        Image.fromarray(pixels).save(folder / "after" / f"{number:06d}.png")


def batched(model: str, pairs: int, side: int, place: Path) -> dict[str, Any]:
    """Pairs per second of one process."""
    taken = []
    for name, count in (("compiling", 8), ("few", 8), ("many", pairs + 8)):
        folder = place / name
        folder.mkdir()
        write_pairs(folder, count, side)
        args = ("predict", str(folder), "--model", model, "--out", str(folder / "answers.jsonl"))
        taken.append(timed(*args, compiled=str(place / "compiled")))
    # the difference is what the pairs take
    rates = [round(pairs / (taken[2][kind] - taken[1][kind]), 1) for kind in (0, 1)]
    return {"pairs": pairs, "side": side, "pairs_per_second": rates[0], "pairs_per_cpu_second": rates[1]}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def form(*files: bytes) -> bytes:
    """Body of a request with two images."""
    parts = [
        f'--xx\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.png"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in zip(("before", "after"), files, strict=True)
    ]
    return b"".join([*parts, b"--xx--\r\n"])


def post(port: int, body: bytes) -> tuple[int, bytes]:
    """Send a request with two images; return the status and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/describe", body, {"Content-Type": "multipart/form-data; boundary=xx"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def served(model: str, requests: int) -> dict[str, Any]:
    """Simultaneous requests, and how many receive the same answer as a single request."""
    port, body = free_port(), form(*(path.read_bytes() for path in lightning_idc.sample_pair("clevr")))
    server = subprocess.Popen([*COMMAND, "serve", "--model", model, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        began = time.perf_counter()
        while True:
            try:
                expected = json.loads(post(port, body)[1])["caption"]
                break
            except OSError:
                if server.poll() is not None or time.perf_counter() - began > 300:
                    raise
                time.sleep(0.1)
        ready, began = time.perf_counter() - began, time.perf_counter()
        with ThreadPoolExecutor(requests) as pool:
            results = list(pool.map(lambda _: post(port, body), range(requests)))
        seconds = time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()
    right = sum(status == 200 and json.loads(text)["caption"] == expected for status, text in results)
    return {
        "requests at once": requests,
        "lost": requests - right,
        "seconds": round(seconds, 2),
        "seconds until the first answer": round(ready, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="clevr")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as place:
        result = {
            "model": options.model,
            **starts(options.model, options.tries, Path(place)),
            "predict": batched(options.model, options.pairs, options.side, Path(place)),
            "serve": served(options.model, options.requests),
        }
    report(result, options.out, "lightning_idc", "fastapi", seeds=[0])


if __name__ == "__main__":
    main()

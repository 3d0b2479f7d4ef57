"""Is anything lost or made twice when two Ray launchers share a target and their workers are killed?

    python benchmarks/synthesis_ray.py --kills 10 --out results/synthesis_ray.json

Two programs, each with a Ray of its own, make the same two stores at once, the second stage streaming behind the first.
Meanwhile workers are killed with SIGKILL at random. What is left is compared with what one process makes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_idc.synthesis.records import Record

MARK = "LIDC_BENCHMARK_RUN"
RECORDS = 80
PAUSE = 0.15
"""Seconds that a record takes, for kills to fall into."""


class Numbers:
    """Records with a number and a picture of one colour."""

    fingerprint = "numbers"

    def __len__(self) -> int:
        return RECORDS

    def record(self, index: int) -> Record:
        from lightning_idc.synthesis.records import Record

        record = Record(f"n{index:03}", {"number": index})
        record.put("picture", torch.full((3, 16, 16), index, dtype=torch.uint8))
        return record


def slowly(record: Record) -> list[Record]:
    """Drop every seventh record, make two of every fifth."""
    time.sleep(PAUSE)
    number = record.facts["number"]
    if number % 7 == 0:
        record.drop("multiple of seven")
    return [record] if number % 5 or record.dropped else [record.child("a"), record.child("b")]


def brightness(record: Record) -> Record:
    time.sleep(PAUSE / 3)
    record.facts["mean"] = float(record.image("picture").float().mean())
    return record


def steps(root: Path) -> list[tuple[Any, Any]]:
    from lightning_idc.synthesis.engine import ShardJob
    from lightning_idc.synthesis.stages import MapStage

    first, second = root / "first", root / "second"
    return [
        (MapStage(slowly), ShardJob(Numbers(), first, batch_size=2, shard_size=4)),
        (MapStage(brightness, ("picture",)), ShardJob(str(first), second, batch_size=2, shard_size=3)),
    ]


def drive(root: Path) -> None:
    """One of the programs."""
    from lightning_idc.synthesis.ray_launcher import RayPool, launch_stream

    pool = RayPool(workers=1, num_cpus=0.5, retries=100)
    launch_stream([(stage, job, pool) for stage, job in steps(root)])


def workers_of(mark: str) -> list[int]:
    """Ray's workers that were started, directly or not, by this run."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::_Worker") and f"{MARK}={mark}".encode() in environment:
            found.append(int(path.name))
    return found


def state_of(root: Path) -> dict[str, Any]:
    """Digests of all shards, and how often each was made."""
    found: dict[str, Any] = {}
    for name in ("first", "second"):
        sides = sorted((root / name).glob("shard-*.json"))
        lines = (root / name / "progress.jsonl").read_text().splitlines()
        noted = [json.loads(line)["shard"] for line in lines]
        found[name] = {
            "shards": len(sides),
            "digests": [json.loads(line)["digest"] for path in sides for line in path.read_text().splitlines()],
            "made twice": len(noted) - len(set(noted)),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive)
        return
    from _harness import report

    draw, killed = random.Random(given.seed), []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        command = [sys.executable, __file__, "--drive", str(root / "shared")]
        programs = [subprocess.Popen(command, env={**os.environ, MARK: folder})]
        while programs[0].poll() is None and not list(root.glob("shared/first/shard-*.json")):
            time.sleep(0.2)  # two that start at once on a busy machine keep each other from starting in time
        programs.append(subprocess.Popen(command, env={**os.environ, MARK: folder}))
        while any(program.poll() is None for program in programs):
            time.sleep(draw.uniform(0.5, 3.0))
            workers = workers_of(folder)
            if workers and len(killed) < given.kills:
                killed.append(draw.choice(workers))
                os.kill(killed[-1], signal.SIGKILL)
        spent = time.perf_counter() - began
        from lightning_idc.synthesis.launchers import InProcess

        globals()["PAUSE"] = 0.0
        for stage, job in steps(root / "alone"):
            InProcess().launch(stage, job)
        shared, alone = state_of(root / "shared"), state_of(root / "alone")
    result = {
        "kills": len(killed),
        "exit_statuses": [program.returncode for program in programs],
        "shards": {name: found["shards"] for name, found in shared.items()},
        "same_bytes_as_one_process": {name: shared[name]["digests"] == alone[name]["digests"] for name in alone},
        "made_twice": {name: found["made twice"] for name, found in shared.items()},
        "seconds": spent,
    }
    report(result, given.out, "ray", seeds=[given.seed])


if __name__ == "__main__":
    main()

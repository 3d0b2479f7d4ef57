"""Is any record lost or produced twice if two Ray launchers share a target and their workers are killed?

    python -m benchmarks.synthesis_ray --kills 10 --out FILE

Two programs, each with its own Ray cluster, write the same two stores simultaneously; the second stage streams the
output of the first. Meanwhile, random workers that process a shard are killed with SIGKILL. The result is compared with
the Trainer's. Each kill starts a new worker, whose import of the package takes most of the time.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_idc.synthesis.records import Record

MARK = "LIDC_BENCHMARK_RUN"
RECORDS = 120
PAUSE = 0.15
"""Seconds that a record takes, for kills to fall into."""
PATIENCE = 120
"""Seconds within which something has to happen: a first shard, a worker at a shard, the end after the last kill."""


class Numbers:
    """Records with a number and an image of one colour."""

    fingerprint = "numbers"

    def __len__(self) -> int:
        return RECORDS

    def record(self, index: int) -> Record:
        from lightning_idc.synthesis.records import Record

        record = Record(f"n{index:03}", {"number": index})
        record.put("picture", torch.full((3, 16, 16), index, dtype=torch.uint8))
        return record


def slowly(record: Record) -> list[Record]:
    """Drop every seventh record, and duplicate every fifth."""
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
    from lightning_idc.synthesis.run import Job
    from lightning_idc.synthesis.stages import MapStage

    first, second = root / "first", root / "second"
    return [
        (MapStage(slowly), Job(Numbers(), first, batch_size=2, shard_size=4)),
        (MapStage(brightness, ("picture",)), Job(str(first), second, batch_size=2, shard_size=3)),
    ]


def drive(root: Path) -> None:
    """Run one of the programs."""
    from lightning_idc.synthesis.ray import RayPool

    pool = RayPool(workers=1, num_cpus=0.5, retries=100)
    for stage, job in steps(root):
        pool.launch(stage, job)


def processes(mark: str, name: bytes = b"") -> list[int]:
    """Descendant processes of this run whose command begins with a name."""
    results = []
    for path in Path("/proc").iterdir():
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if command.startswith(name) and f"{MARK}={mark}".encode() in environment:
            results.append(int(path.name))
    return results


def wait_for(what: str, happens: Callable[[], Any], programs: Sequence[subprocess.Popen[bytes]]) -> Any:
    """First true result of a function; None if all programs end before.

    Raises:
        RuntimeError: a program failed.
        TimeoutError: there is none within `PATIENCE` seconds.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        statuses = [program.poll() for program in programs]
        if any(statuses):
            raise RuntimeError(f"{what}: the programs ended with {statuses}")
        if results := happens():
            return results
        if None not in statuses:
            return None
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {PATIENCE} s")


def kill_workers(root: Path, mark: str, kills: int, draw: random.Random) -> list[float]:
    """Run two programs that write the stores, and kill workers; return seconds to each kill and to the end."""
    command = [sys.executable, "-m", "benchmarks.synthesis_ray", "--drive", str(root / "shared")]
    began = time.perf_counter()
    times: list[float] = []
    programs: list[subprocess.Popen[bytes]] = []
    with (root / "log").open("wb") as log:
        try:
            for _ in range(2):
                programs.append(subprocess.Popen(command, env={**os.environ, MARK: mark}, stdout=log, stderr=log))
                # two that start at once on a busy machine keep each other from starting in time
                wait_for("the first shard", lambda: list(root.glob("shared/first/records-*.arrow")), programs)
            while len(times) < kills:
                if not wait_for("a worker at a shard", lambda: processes(mark, b"ray::_Worker.work"), programs):
                    raise SystemExit(f"all was made after {len(times)} of {kills} kills; give it more records")
                time.sleep(draw.uniform(0, 1))
                workers = processes(mark, b"ray::_Worker.work")
                if workers:
                    with suppress(ProcessLookupError):
                        os.kill(draw.choice(workers), signal.SIGKILL)
                    times.append(time.perf_counter() - began)
                    print(f"{len(times)} of {kills} killed after {times[-1]:.0f} s", flush=True)
            wait_for("the end", lambda: None, programs)
        except (RuntimeError, TimeoutError, SystemExit):
            print((root / "log").read_text(errors="replace")[-5000:], file=sys.stderr)
            raise
        finally:
            for process in processes(mark):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    return [*times, time.perf_counter() - began]


def state_of(root: Path) -> dict[str, Any]:
    """Digests of all shards, and how often each was produced."""
    results: dict[str, Any] = {}
    for name in ("first", "second"):
        shards = sorted(path.name for path in (root / name).glob("*.arrow"))
        lines = (root / name / "progress.jsonl").read_text().splitlines()
        noted = [json.loads(line)["shard"] for line in lines]
        results[name] = {
            "shards": len(shards),
            "digests": shards,
            "made twice": len(noted) - len(set(noted)),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(args.drive)
        return
    from benchmarks.harness import report
    from lightning_idc.synthesis.run import run

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        *killed, spent = kill_workers(root, folder, args.kills, random.Random(args.seed))
        globals()["PAUSE"] = 0.0
        for stage, job in steps(root / "alone"):
            run(
                stage,
                str(job.source_folder) if job.source_folder else job.source,
                job.target,
                batch_size=2,
                shard_size=job.shard_size,
            )
        shared, alone = state_of(root / "shared"), state_of(root / "alone")
        died = (root / "log").read_text(errors="replace").count("a worker died at shard")
    result = {
        "records": RECORDS,
        "kills": len(killed),
        "kills_in_mid_shard": died,
        "seconds_of_kills": [round(at, 1) for at in killed],
        "shards": {name: results["shards"] for name, results in shared.items()},
        "same_bytes_as_the_trainer": {
            name: shared[name]["names with checksums"] == alone[name]["names with checksums"] for name in alone
        },
        "made_twice": {name: results["made twice"] for name, results in shared.items()},
        "seconds": round(spent, 1),
    }
    report(result, args.out, "ray", seeds=[args.seed])


if __name__ == "__main__":
    main()

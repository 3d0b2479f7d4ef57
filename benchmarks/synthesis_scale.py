"""What does data synthesis cost without its models? Time per record, memory and bytes read, with trivial stages.

    python -m benchmarks.synthesis_scale --records 1000000 --out FILE

Two text stages run one after the other in one process, each with its own store. Then a stage produces images, and two
more follow: one that reads only texts and one that reads an image. Memory is that of the process minus its imports.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lightning_idc.synthesis.records import Record


class Captions:
    """Records of one caption each, generated from the index of the record.

    Args:
        count: number of records.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def fingerprint(self) -> str:
        return f"captions {self.count}"

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        from lightning_idc.synthesis.records import Record

        return Record(f"{index:08}", {"caption": f"dog {index} sits on chair {index % 977} beside a window"})


def count_letters(record: Record) -> Record:
    record.facts["letters"] = len(record.facts["caption"])
    return record


def add_picture(record: Record) -> Record:
    noise = torch.Generator().manual_seed(int(record.id))
    record.put("picture", torch.randint(256, (3, 64, 64), generator=noise, dtype=torch.uint8))
    return record


def read_picture(record: Record) -> Record:
    record.facts["mean"] = float(record.image("picture").float().mean())
    return record


class Memory(threading.Thread):
    """Peak resident memory of this process in MB, sampled twenty times per second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.ended = self.now(), False

    @staticmethod
    def now() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def run(self) -> None:
        while not self.ended:
            self.peak = max(self.peak, self.now())
            time.sleep(0.05)


def measure(stages: dict[str, Any], source: Any, root: Path, shard_size: int, memory: Memory) -> dict[str, Any]:
    """Cost of each stage; each reads the output of the previous one."""
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.stages import MapStage

    results: dict[str, Any] = {}
    before = memory.now()
    for name, (function, reads) in stages.items():
        memory.peak = memory.now()
        began, spent = time.perf_counter(), time.process_time()
        store = run(MapStage(function, reads), source, root / name, shard_size=shard_size)
        again = time.perf_counter()
        run(MapStage(function, reads), source, root / name, shard_size=shard_size)  # finished already
        ended = time.perf_counter()
        results[name] = {
            "ms_per_record": (again - began) / len(store) * 1e3,
            "cpu_ms_per_record": (time.process_time() - spent) / len(store) * 1e3,
            "resume_seconds": ended - again,
            "memory_mb_beyond_imports": memory.peak - before,
            "bytes_per_record": sum(path.stat().st_size for path in (root / name).glob("*.arrow")) / len(store),
        }
        print(name, results[name], flush=True)
        source = str(root / name)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--shard-size", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    from benchmarks.harness import report
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.stages import MapStage

    letters = {"first": (count_letters, ()), "second": (count_letters, ())}
    pictures = {"draw": (add_picture, ()), "texts": (count_letters, ()), "picture": (read_picture, ("picture",))}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run(MapStage(add_picture), Captions(3), root / "warm")  # imports what is imported late
        memory = Memory()
        imported = memory.now()
        memory.start()
        text = measure(letters, Captions(args.records), root, args.shard_size, memory)
        image = measure(pictures, Captions(args.pictures), root, 128, memory)
        memory.ended = True
    result = {
        "records": args.records,
        "pictures": args.pictures,
        "shard_size": args.shard_size,
        "imports_mb": imported,
        "text": text,
        "images": image,
    }
    report(result, args.out, "pyarrow", seeds=[], quiet=True)


if __name__ == "__main__":
    main()

"""All GPU benchmarks, in parts of less than nine minutes; or the same on a CPU with tiny networks.

    make bench-gpu BENCH_PART=1  # tests marked gpu, scoring of a vision-language model, small captioners
    make bench-gpu BENCH_PART=2  # SFT, DPO, ADPO and GRPO of that model, and TRL's if it is installed
    make bench-gpu BENCH_PART=3  # decoding of that model: dynamic and static cache, compiled, CUDA graphs, LoRA
    python -m benchmarks.gpu --part 1 --tiny --out FOLDER  # smoke test on a CPU

Needs only the repository and its packages, no network. Each result is a file of ``benchmarks/results/gpu`` with
hardware and versions, rewritten after each row. If a benchmark fails, the others still run, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
QWEN = ["--size", "qwen2_5_vl_3b"]


def gpu_tests() -> list[str]:
    """Test files that need a GPU; collecting all tests would take longer than running these."""
    files = sorted((HERE.parent / "tests").rglob("test_*.py"))
    marked = (path for path in files if re.search(r"mark\.gpu|helpers\.devices", path.read_text(encoding="utf-8")))
    return [str(path.relative_to(HERE.parent)) for path in marked]


def commands(part: int, tiny: bool, out: Path) -> list[list[str]]:
    """Command lines of a part; all but the tests write a result."""
    device = ["--device", "cpu" if tiny else "cuda"]

    def script(name: str, *arguments: str) -> list[str]:
        return ["-m", f"benchmarks.{name}", *arguments, "--out", str(out / f"{name}.json")]

    if part == 3:
        sizes = ["--size", "tiny", "--pairs", "2"] if tiny else [*QWEN, "--pairs", "4", "16"]
        lengths = ["--length", "4", "--runs", "1"] if tiny else ["--length", "64", "--seconds", "330"]
        return [script("vlm_decode", *sizes, *device, *lengths)]
    if part == 1:
        vlm = ["--size", "tiny", "--pairs", "2"] if tiny else [*QWEN, "--pairs", "4"]
        scoring = ["--length", "4", "--runs", "1"] if tiny else ["--length", "60", "--answers", "4"]
        small = ["--tiny", "--steps", "2", "--precisions", "32-true"] if tiny else []
        reading = ["--columns", "namc", "--batches", "1", "--tokens", "2", "--runs", "1"] if tiny else []
        return [
            ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *gpu_tests()],
            script("vlm_scoring", *vlm, *device, *scoring),
            script("captioner_training", *device, *small),
            script("namc_inference", *device, *(reading or ["--batches", "8", "64"])),
        ]
    from benchmarks.vlm_training import ROWS

    rows = ["sft, compiled", "adpo, CLIP, compiled", "grpo"] if tiny else list(ROWS)
    if not tiny and find_spec("trl") is None:
        rows = [row for row in rows if not row.startswith("trl")]
    sizes = (
        ["--size", "small_qwen", "--batch", "2", "--steps", "2"]
        if tiny
        else [*QWEN, "--batch", "8", "--steps", "15", "--seconds", "420"]
    )
    return [script("vlm_training", *sizes, "--rows", *rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=(1, 2, 3), required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu")
    args = parser.parse_args()
    if not args.tiny:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("there is no GPU here; --tiny tries the same on the CPU")
    failed = []
    for command in commands(args.part, args.tiny, args.out):
        print("$ python", *command, flush=True)
        began = time.perf_counter()
        status = subprocess.run([sys.executable, *command], cwd=HERE.parent, env=os.environ).returncode
        print(f"  status {status}, {time.perf_counter() - began:.0f} s", flush=True)
        # 5: no test was collected
        if status not in (0, 5):
            failed.append(command[1])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""How long should an idle thread of OpenMP look for work, and in which precision, when a small captioner is trained?

Wall time of a training step of a PairTransformer on all cores: with GNU OpenMP's default, with threads that sleep at
once (`OMP_WAIT_POLICY=PASSIVE`), and with the `GOMP_SPINCOUNT` that `lightning run` sets; on an idle machine and with
as many other busy processes as cores; in float32 and bf16-mixed. Each row is the smallest median of some runs, which
take turns, in separate processes.

    python -m benchmarks.waiting_threads --out FILE
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.captioner_training import texts_of
from benchmarks.harness import adamw, quiet_trainer, report
from benchmarks.steps import Clock, MadeUpPairs, Stopwatch
from lightning_idc.cli.recipes.entries import SPIN_COUNT
from lightning_idc.models.pair_transformer.module import PairTransformer

WAITING: dict[str, dict[str, str]] = {
    "default": {},
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "as lightning run": {"GOMP_SPINCOUNT": SPIN_COUNT},
}
"""Environment of each way to wait."""
PRECISIONS = ("32-true", "bf16-mixed")


def median_step(precision: str, steps: int) -> float:
    """Median milliseconds of the steps of a training, without the first two."""
    watch = Stopwatch(time.perf_counter, counts=False)
    captioner = PairTransformer(backbone="residual", captions_per_pair=1, freeze_backbone=True, optimizer=adamw(1e-3))
    trainer = quiet_trainer(max_steps=steps, precision=precision, limit_val_batches=0, callbacks=[Clock(watch)])
    trainer.fit(captioner, MadeUpPairs(64, texts_of(32 * steps), batch_size=32))
    return 1e3 * float(watch.measurements()["seconds_per_step"])


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Run processes that do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_apart(environment: dict[str, str], precision: str, steps: int) -> float:
    """`median_step` in a process of its own, whose OpenMP reads the environment."""
    ignored = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    inherited = {name: value for name, value in os.environ.items() if name not in ignored}
    command = [sys.executable, "-m", "benchmarks.waiting_threads", "--steps", str(steps), "--row", precision]
    done = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=PRECISIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(median_step(args.row, args.steps)))
        return
    rows: dict[str, dict[str, list[float]]] = {}
    cores = os.cpu_count() or 1
    for machine, others in (("idle", 0), ("busy", cores)):
        with busy_processes(others):
            for _, precision, (name, environment) in itertools.product(
                range(args.repeats), PRECISIONS, WAITING.items()
            ):
                row = rows.setdefault(f"{machine}, {precision}", {})
                row.setdefault(name, []).append(run_apart(environment, precision, args.steps))
    smallest = {key: {name: round(min(values), 1) for name, values in row.items()} for key, row in rows.items()}
    report({"cores": cores, "milliseconds_per_step": smallest}, args.out, "lightning", seeds=[1])


if __name__ == "__main__":
    main()

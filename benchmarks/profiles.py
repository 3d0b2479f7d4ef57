"""Where does the time of each recipe go, and how near does training come to what the machine can do?

    python benchmarks/profiles.py [--rows quickstart score] [--out results/profiles.json]
    python benchmarks/profiles.py --rows namc --earlier results/profiles.json --docs docs/profile.md

Each row is a recipe as a user runs it, with its own batches and sizes but fewer epochs (``ROWS``), in a process of its
own with the threads that torch takes by itself; its stages run in that process one after another. A thread samples the
stack of the main thread 200 times a second, which says what it is doing (``PARTS``, the first one that matches).
Floating-point operations are those of one training step of each stage, counted by torch's FlopCounterMode: matrix
products, convolutions and attention, nothing else. They stand beside what a large product of matrices reaches in the
same process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from _harness import RowFailed, give_back, measure_apart, report
from _pages import filled

ROOT = Path(__file__).resolve().parents[1]
ROWS: dict[str, list[str]] = {
    "quickstart": ["--stages.pretrain_backbone.trainer.max_epochs", "2", "--stages.train.trainer.max_epochs", "4"],
    "deeppcb": [
        *("--stages.pretrain_backbone.trainer.max_epochs", "8", "--stages.train.trainer.max_epochs", "2"),
        *("--stages.pretrain_backbone.trainer.check_val_every_n_epoch", "8"),
        *("--stages.train.trainer.check_val_every_n_epoch", "2"),
    ],
    "procap": ["--stages.procedure.trainer.max_epochs", "1", "--stages.caption.trainer.max_epochs", "5"],
    "namc": ["--stages.pretrain.trainer.max_epochs", "1", "--stages.finetune.trainer.max_epochs", "3"],
    "m3diff": ["--stages.pretrain.trainer.max_epochs", "1", "--data.train_pairs", "2000"],
    "adpo": ["--stages.pretrain_backbone.trainer.max_epochs", "1", "--stages.sft.trainer.max_epochs", "1"],
    "img_diff": ["--stages.train.trainer.max_epochs", "2"],
    "score": [],
}
"""Recipes with their overrides; ``score`` is the command line on 5,000 captions with five references each."""
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("imports", ("importlib._bootstrap",)),
    ("backward", (":_engine_run_backward",)),
    ("decoding", ("nn/decoding/decoding.py",)),
    ("scoring", ("lightning_idc/metrics/",)),
    ("checkpoints", ("torch/serialization.py", "checkpoint_io", "model_checkpoint.py", "checkpoint_connector.py")),
    (
        "reports, logging",
        ("lightning_idc/report/", "lightning/pytorch/loggers", "logger_connector", "callbacks/progress"),
    ),
    ("making data", ("lightning_idc/synthesis/", "data/synthetic/")),
    ("reading data", ("lightning_idc/data/", "torch/utils/data/")),
    ("forward", (":training_step",)),
    ("evaluation", (":validation_step", ":test_step", ":predict_step")),
    ("optimizer", ("torch/optim/",)),
    ("trainer", ("lightning/pytorch/loops",)),
)
REST = "set-up"
TRAINING = ("forward", "backward", "optimizer")


class Sampler(threading.Thread):
    """Samples the stack of the main thread.

    Args:
        every: seconds between two samples.
    """

    def __init__(self, every: float = 0.005) -> None:
        super().__init__(daemon=True)
        self.every = every
        self.found: Counter[str] = Counter()
        self.ended = threading.Event()

    def run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        before = time.perf_counter()
        while not self.ended.wait(self.every):
            frame = sys._current_frames().get(main)
            now = time.perf_counter()
            # by time and not by count: a call that keeps the interpreter's lock delays the next sample
            self.found[part_of(frame)] += now - before  # type: ignore[assignment]
            before = now


def part_of(frame: FrameType | None) -> str:
    """The part that a stack belongs to."""
    stack = []
    while frame is not None:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    text = "\n".join(stack)
    return next((name for name, signs in PARTS if any(sign in text for sign in signs)), REST)


def machine() -> dict[str, float]:
    """What a large product of matrices, convolutions and a large copy reach here, with torch's own threads."""
    import torch
    from _steps import convolution_rate, matrix_rate

    source, target = torch.randn(1 << 26), torch.empty(1 << 26)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return {
        "threads": torch.get_num_threads(),
        "matrix_gflops": matrix_rate(time.perf_counter) / 1e9,
        "convolution_gflops": convolution_rate(time.perf_counter) / 1e9,
        "copy_gb_per_s": 2 * source.numel() * 4 / min(seconds) / 1e9,
    }


def run_stages_here() -> None:
    """Have the stages of recipes run in this process, whose stack is read, instead of in children."""
    from lightning_idc.cli import main, stages
    from lightning_idc.cli.processes import RESULT

    def run_process(verb: str, config: Path, result: Path, *unused: Any, **more: Any) -> int:
        os.environ[RESULT] = str(result)
        return main([verb, "--config", str(config)])

    stages.run_process = run_process  # type: ignore[assignment]


def count_steps(steps: list[dict[str, Any]]) -> None:
    """Have every `Trainer.fit` of this process note the operations and seconds of its training steps."""
    from _steps import Clock, Stopwatch
    from lightning.pytorch import Trainer

    fit = Trainer.fit

    @functools.wraps(fit)  # whose arguments the command line reads
    def counted(trainer: Trainer, model: Any, *arguments: Any, **named: Any) -> None:
        watch = Stopwatch(time.perf_counter)
        trainer.callbacks.append(Clock(watch))  # type: ignore[attr-defined]
        fit(trainer, model, *arguments, **named)
        if len(watch.seconds) > 2:
            found = watch.found()
            steps.append({"model": type(model).__name__, "flops": found["flops"], "seconds": found["seconds_per_step"]})

    Trainer.fit = counted  # type: ignore[method-assign, assignment]


def captions(folder: Path, count: int = 5000) -> list[str]:
    """Arguments of `score` on made-up captions."""
    words = [
        "large",
        "small",
        "red",
        "blue",
        "metal",
        "rubber",
        "cube",
        "sphere",
        "moved",
        "gone",
        "and",
        "behind",
        "now",
    ]
    chance = random.Random(0)

    def sentence() -> str:
        return " ".join(chance.choices(words, k=12))

    said = {str(i): sentence() for i in range(count)}
    kept = {name: [sentence() for _ in range(5)] for name in said}
    for name, content in (("said", said), ("references", kept)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return ["score", str(folder / "said.json"), "--references", str(folder / "references.json")]


def measure(name: str, more: list[str]) -> dict[str, Any]:
    """Seconds of a row by part."""
    began = time.perf_counter()
    sampler = Sampler()
    sampler.start()
    steps: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ.setdefault("LIGHTNING_IDC_CACHE", str(folder / "cache"))
        if name == "score":
            arguments = captions(folder)
        else:
            run_stages_here()
            count_steps(steps)
            recipe = str(ROOT / "recipes" / f"{name}.yaml")
            arguments = ["run", recipe, "--run_dir", str(folder / "run"), *ROWS[name], *more]
        from lightning_idc.cli import main

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = main(arguments)
    sampler.ended.set()
    sampler.join()
    if status:
        raise SystemExit(f"{name} ended with {status}: {printed.getvalue()[-2000:]}")
    return {
        "seconds": time.perf_counter() - began,
        "parts": dict(sampler.found.most_common()),
        "steps": steps,
        "machine": machine(),
    }


def tables(rows: dict[str, Any]) -> str:
    """Both tables in Markdown."""
    names = [name for name, _ in PARTS] + [REST]
    lines = ["| row | seconds | " + " | ".join(names) + " |", "|---|---:" + "|---:" * len(names) + "|"]
    for row, found in rows.items():
        total = sum(found["parts"].values())
        shares = [f"{100 * found['parts'].get(name, 0) / total:.0f} %" for name in names]
        lines.append(f"| {row} | {found['seconds']:.0f} | " + " | ".join(shares) + " |")
    lines += [
        "",
        "| row | trains | GFLOP a step | ms a step | GFLOP/s | of a product's | of a convolution's |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row, found in rows.items():
        for step in found["steps"]:
            rate = step["flops"] / step["seconds"] / 1e9
            most = [found["machine"].get(name) for name in ("matrix_gflops", "convolution_gflops")]
            of_most = " | ".join("" if one is None else f"{100 * rate / one:.0f} %" for one in most)
            cells = f"{step['flops'] / 1e9:.1f} | {1000 * step['seconds']:.0f} | {rate:.0f} | {of_most}"
            lines.append(f"| {row} | {step['model']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path, help="page whose tables are replaced")
    parser.add_argument(
        "--earlier",
        nargs="*",
        type=Path,
        default=[],
        help="results whose rows the tables show as well; the last counts",
    )
    parser.add_argument(
        "--deeppcb", type=Path, help="folder of DeepPCB, of which 200 pairs are read; without it no such row"
    )
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    given, more = parser.parse_known_args()
    if given.row:
        give_back(measure(given.row, more))
        return
    rows: dict[str, Any] = {}
    failed: dict[str, str] = {}
    boards = ["--data.root", given.deeppcb, "--data.limit", 200]
    for name in [name for name in given.rows if name != "deeppcb" or given.deeppcb]:
        try:
            rows[name] = measure_apart("--row", name, *(boards if name == "deeppcb" else []), *more)
        except RowFailed as error:
            failed[name] = error.line
        print(name, f"{rows[name]['seconds']:.0f} s" if name in rows else failed[name], flush=True)
        # after each row: a run that is cut off keeps what it has
        found = {"overrides": {row: ROWS[row] for row in rows}, "rows": rows, "failed": failed}
        report(found, given.out, "lightning", "transformers", seeds=[1], quiet=True)
    known = [json.loads(path.read_text(encoding="utf-8"))["rows"] for path in given.earlier]
    text = tables({name: found for part in (*known, rows) for name, found in part.items()})
    print(text)
    if given.docs:
        page = filled(given.docs.read_text(encoding="utf-8"), {"tables": text})
        given.docs.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Faults drawn at random, done to real runs: does each end with the same result, or with one sentence?

    python benchmarks/faults.py --faults 200 --out docs/faults.md

A small captioner is trained on drawn pairs, measured and asked for predictions, as a recipe. Each trial starts the
training, or what comes after it, does one fault at a random moment, puts right what a user would put right (room on the
disk, a file that a sentence names), resumes, and compares weights, captions and scores bit for bit with a run that
nothing happened to. What counts: `equal`; `refused`, which is one sentence, after which the run goes on to the same
result; anything else is a failure and printed. Full and read-only disks need the right to mount; without it they are
left out.

Processes are forked from one that has imported the library, since starting Python anew would take most of the time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SECONDS = 180
"""A process that takes longer hangs."""
RECIPE = """
recipe: {title: Faults}
base:
  trainer: {accelerator: cpu, logger: false, enable_model_summary: false, num_sanity_val_steps: 0, max_epochs: 4,
            deterministic: true}
  model:
    class_path: lightning_idc.methods.pair_transformer.module.PairTransformer
    init_args: {width: 8, encoder_layers: 1, decoder_layers: 1, heads: 1,
                optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-2}}}
  data:
    class_path: lightning_idc.data.benchmarks.folder.FolderPairs
    init_args: {root: pairs, batch_size: 4, image_size: 16, num_workers: WORKERS, cache_images: cache}
stages:
  - name: train
    run: fit
    config:
      trainer:
        callbacks:
          - class_path: lightning.pytorch.callbacks.ModelCheckpoint
            init_args: {monitor: val/CIDEr-D, mode: max, filename: best, save_last: true}
"""
AFTERWARDS = """  - name: measure
    run: validate
    config: {trainer: {callbacks: [{class_path: lightning_idc.callbacks.show_results.ShowResults,
                                    init_args: {examples: 0, report_pairs: 0}}]}}
  - {name: say, run: predict}
"""


def draw_pairs(folder: Path, pairs: int = 40) -> None:
    """Squares that appear on grey; the same every time."""
    from PIL import Image

    chance = random.Random(0)
    rows = ["id,before,after,captions,split"]
    for side in ("before", "after"):
        (folder / side).mkdir(parents=True)
    for number in range(pairs):
        image = Image.new("RGB", (16, 16), (chance.randrange(90, 140),) * 3)
        image.save(folder / "before" / f"{number}.png")
        color, left = chance.choice(("red", "green", "blue")), chance.random() < 0.5
        image.paste(color, (2, 4, 7, 9) if left else (9, 4, 14, 9))
        image.save(folder / "after" / f"{number}.png")
        caption = f"a {color} square appears on the {'left' if left else 'right'}"
        split = "train" if number < 24 else "val" if number < 32 else "test"
        rows.append(f"{number},before/{number}.png,after/{number}.png,{caption},{split}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")


@dataclass
class Process:
    """A command of the library in a process of its own.

    Args:
        pid: of the process.
        output: what it has said.
    """

    pid: int
    output: Path
    status: int | None = None

    def running(self) -> bool:
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if found else None
        return self.status is None

    def wait(self) -> int:
        until = time.monotonic() + SECONDS
        while self.running():
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"still running after {SECONDS} s")
            time.sleep(0.01)
        assert self.status is not None
        return self.status

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def start(folder: Path, *arguments: str) -> Process:
    """Start ``lightning-idc`` in a folder."""
    output = folder / f"out{len(list(folder.glob('out*')))}.txt"
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Process(pid, output)
    try:
        os.setsid()
        number = os.open(output, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(number, stream)
        os.chdir(folder)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.default_int_handler if name == signal.SIGINT else signal.SIG_DFL)
        from lightning_idc.cli import main, stages

        stages.may_fork = lambda trainer, imported_only: True  # nothing has been computed in this process either
        status = main(list(arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    os._exit(status)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in descendants(child)]


def result_of(run: Path, afterwards: bool) -> dict[str, str]:
    """Digests of what a finished run has made.

    Args:
        run: its folder.
        afterwards: of the stages after the training; of the training otherwise.
    """
    import torch

    def short(value: Any) -> str:
        return hashlib.blake2b(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]

    found = {}
    if afterwards:
        found["measured"] = short(json.loads((run / "measure" / "predictions.json").read_text()))
        found["scores"] = short(json.loads((run / "measure" / "stage.json").read_text())["metrics"])
        said = [json.loads(line) for line in (run / "say" / "predictions.jsonl").read_text().splitlines()]
        # a batch of another size may change the last digits of a score
        found["said"] = short([(record["id"], record["caption"]) for record in said])
        return found
    for name in ("best.ckpt", "last.ckpt"):
        content = torch.load(run / "train" / "checkpoints" / name, weights_only=True)
        digest = hashlib.blake2b(str(content["global_step"]).encode())
        for value in content["state_dict"].values():
            digest.update(value.numpy().tobytes())
        found[name] = digest.hexdigest()[:12]
    return found


@dataclass
class Trial:
    """One run with one fault.

    Args:
        folder: of its own, with the data and the recipe.
        chance: draws moments and places.
        seconds: that a run takes when nothing happens.
        afterwards: whether it begins when the training is done.
    """

    folder: Path
    chance: random.Random
    seconds: float
    afterwards: bool
    refused: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def begin(self) -> Process:
        return start(self.folder, "run", "faults.yaml", "--resume" if self.afterwards else "--run_dir", "run")

    def wait_a_while(self, process: Process) -> None:
        """Until a random moment of the run."""
        until = time.monotonic() + self.chance.uniform(0.02, 1.0) * self.seconds
        while time.monotonic() < until and process.running():
            time.sleep(0.005)

    def refusal(self, process: Process) -> None:
        """Expect an end with one sentence."""
        status = process.wait()
        said = process.said()
        if not status:
            raise AssertionError("it ended as if nothing was wrong")
        if "Traceback" in said or "error: " not in said:
            raise AssertionError(f"no sentence, status {status}: {said[-600:]}")
        self.refused.append(next(line for line in said.splitlines() if line.startswith("error: ")))

    def finish(self) -> None:
        """Resume until the run has ended; a start that was killed before it had a folder is made again."""
        for _ in range(4):
            known = (self.run / "run.json").is_file()
            process = start(self.folder, "run", "faults.yaml", "--resume" if known else "--run_dir", "run")
            status = process.wait()
            if not status:
                return
            said = process.said()
            if "Traceback" in said or "error: " not in said:
                raise AssertionError(f"resuming failed without a sentence, status {status}: {said[-600:]}")
            sentence = next(line for line in said.splitlines() if line.startswith("error: "))
            self.refused.append(sentence)
            self.put_right(sentence)
        raise AssertionError(f"it cannot be resumed: {self.refused[-1]}")

    def put_right(self, sentence: str) -> None:
        """Do what the sentence advises."""
        for stage in ("train", "measure", "say"):
            record = f"run/{stage}/stage.json"
            if record in sentence and "remove" in sentence:
                (self.folder / record).unlink()
                return
        if "remove run/train to train" in sentence:
            shutil.rmtree(self.run / "train")
        elif "run.json" in sentence and self.afterwards:  # from a copy: without it the run is over
            shutil.copy(self.folder.parent / "reference" / "run" / "run.json", self.run)
        elif "run.json" in sentence:  # start anew
            shutil.rmtree(self.run)
        elif ".part" in sentence:
            for part in self.run.rglob("*.part"):
                part.unlink()
        elif "cache" in sentence:
            shutil.rmtree(self.folder / "cache", ignore_errors=True)


def killed(trial: Trial) -> None:
    """kill -9 of the command"""
    process = trial.begin()
    trial.wait_a_while(process)
    if process.running():
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def killed_stage(trial: Trial) -> None:
    """kill -9 of the stage's process"""
    process = trial.begin()
    trial.wait_a_while(process)
    below = descendants(process.pid)
    if process.running() and below:
        os.kill(below[0], signal.SIGKILL)
    process.wait()


def asked_to_stop(trial: Trial) -> None:
    """SIGTERM or Ctrl-C"""
    process = trial.begin()
    trial.wait_a_while(process)
    if process.running():
        os.kill(process.pid, trial.chance.choice((signal.SIGTERM, signal.SIGINT)))
    process.wait()
    if "Traceback" in process.said():
        raise AssertionError(process.said()[-600:])


def asked_twice(trial: Trial) -> None:
    """Ctrl-C twice"""
    process = trial.begin()
    trial.wait_a_while(process)
    for _ in range(2):
        if process.running():
            os.kill(process.pid, signal.SIGINT)
            time.sleep(trial.chance.uniform(0.05, 0.5))
    process.wait()


def killed_twice(trial: Trial) -> None:
    """kill -9, then again while resuming"""
    killed(trial)
    if (trial.run / "run.json").is_file():
        process = start(trial.folder, "run", "faults.yaml", "--resume", "run")
        trial.wait_a_while(process)
        if process.running():
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def killed_worker(trial: Trial) -> None:
    """kill -9 of a loader's worker"""
    recipe = trial.folder / "faults.yaml"
    recipe.write_text(recipe.read_text().replace("num_workers: 0", "num_workers: 1"))
    process = trial.begin()
    trial.wait_a_while(process)
    until = time.monotonic() + trial.seconds
    while process.running() and time.monotonic() < until and len(descendants(process.pid)) < 2:
        time.sleep(0.005)
    workers = descendants(process.pid)[1:]
    if workers:
        os.kill(trial.chance.choice(workers), signal.SIGKILL)
    if process.wait():
        trial.refusal(process)


def clock_skew(trial: Trial) -> None:
    """kill -9, then times of files that are wrong by years"""
    killed(trial)
    for path in trial.folder.rglob("*"):
        moment = trial.chance.uniform(0, 4e9)
        if path.is_file() and "pairs" not in path.parts:
            os.utime(path, (moment, moment))


def two_starts(trial: Trial) -> None:
    """a second start while the first goes on"""
    process = trial.begin()
    while process.running() and not (trial.run / "run.json").is_file():
        time.sleep(0.005)
    trial.wait_a_while(process)
    second = start(trial.folder, "run", "faults.yaml", "--resume", "run")
    status = second.wait()
    if process.running() and not status:
        raise AssertionError("both ran")
    if status:
        trial.refusal(second)
    if process.wait():
        raise AssertionError(f"the first one failed: {process.said()[-600:]}")


def damaged_file(trial: Trial) -> None:
    """a file of the run cut or flipped after a kill"""
    killed(trial)
    files = [
        path for path in trial.run.rglob("*") if path.suffix in (".ckpt", ".json", ".part") and path.stat().st_size
    ]
    if files:
        _damage(trial.chance.choice(sorted(files)), trial.chance)


def damaged_cache(trial: Trial) -> None:
    """a file of the image cache cut or flipped between two runs"""
    killed(trial)
    files = [path for path in (trial.folder / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    if files:
        _damage(trial.chance.choice(sorted(files)), trial.chance)


def _damage(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        data = data[: chance.randrange(len(data))]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _mounted(trial: Trial, size: str, fault: Callable[[Process], None], cure: Callable[[], None]) -> None:
    before = trial.folder / "before"
    trial.run.mkdir(exist_ok=True)
    shutil.copytree(trial.run, before)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(trial.run)], check=True)
    shutil.copytree(before, trial.run, dirs_exist_ok=True)
    process = trial.begin()
    fault(process)
    status = process.wait()
    if status:
        said = process.said()
        if "Traceback" in said or "error: " not in said:
            raise AssertionError(f"no sentence, status {status}: {said[-600:]}")
        trial.refused.append(next(line for line in said.splitlines() if line.startswith("error: ")))
    cure()


def full_disk(trial: Trial) -> None:
    """a full disk under the run, enlarged afterwards"""

    def enlarge() -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(trial.run)], check=True)

    taken = sum(path.stat().st_size for path in trial.run.rglob("*") if path.is_file()) // 1024
    _mounted(trial, f"{taken + trial.chance.randrange(64, 400)}k", lambda process: None, enlarge)


def read_only(trial: Trial) -> None:
    """a disk that becomes read-only, writable afterwards"""

    def lock(process: Process) -> None:
        trial.wait_a_while(process)
        # refused while a file is open for writing
        while (
            process.running()
            and subprocess.run(["mount", "-o", "remount,ro", str(trial.run)], capture_output=True).returncode
        ):
            time.sleep(0.01)

    _mounted(
        trial, "64m", lock, lambda: subprocess.run(["mount", "-o", "remount,rw", str(trial.run)], check=True) and None
    )


FAULTS: list[Callable[[Trial], None]] = [
    *(killed, killed_stage, asked_to_stop, asked_twice, killed_twice, killed_worker, clock_skew, two_starts),
    *(damaged_file, damaged_cache, full_disk, read_only),
]
NEED_MOUNT = (full_disk, read_only)


def prepare(folder: Path, data: Path, afterwards: bool, reference: Path | None = None) -> None:
    """A folder with data and recipe; where the training is done, with what it left."""
    folder.mkdir(parents=True)
    (folder / "pairs").symlink_to(data)
    (folder / "faults.yaml").write_text((RECIPE + (AFTERWARDS if afterwards else "")).replace("WORKERS", "0"))
    if reference is not None and afterwards:
        shutil.copytree(reference / "run" / "train", folder / "run" / "train")
        shutil.copy(reference / "run" / "run.json", folder / "run")
        shutil.copytree(reference / "cache", folder / "cache")


def attempt(fault: Callable[[Trial], None], trial: Trial, reference: dict[str, str]) -> str:
    """Do a fault; ``equal``, ``refused`` or what went wrong."""
    try:
        fault(trial)
        trial.finish()
        found = result_of(trial.run, trial.afterwards)
        if found != reference:
            different = [name for name in reference if found.get(name) != reference[name]]
            return f"FAILED: another result: {', '.join(different)}"
        return "refused" if trial.refused else "equal"
    except (AssertionError, TimeoutError, OSError, RuntimeError) as error:
        return f"FAILED: {error}"
    finally:
        if os.path.ismount(trial.run):
            subprocess.run(["umount", "-l", str(trial.run)], check=False)


def may_mount(folder: Path) -> bool:
    place = folder / "probe"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True).returncode == 0
    return made and subprocess.run(["umount", str(place)]).returncode == 0


def table(counts: dict[str, Counter[str]], about: str) -> str:
    rows = [
        "| fault | runs | same result | refused in one sentence, then the same result | failed |",
        "|---|---|---|---|---|",
    ]
    for name, found in counts.items():
        rows.append(f"| {name} | {found.total()} | {found['equal']} | {found['refused']} | {found['failed']} |")
    total = sum(counts.values(), Counter[str]())
    rows.append(f"| all | {total.total()} | {total['equal']} | {total['refused']} | {total['failed']} |")
    return f"# Faults\n\n{about}\n\n" + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument("--only", help="name of one kind of fault")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import lightning_idc.callbacks.show_results
    import lightning_idc.cli.training
    import lightning_idc.data.benchmarks.folder
    import lightning_idc.methods.pair_transformer.module  # noqa: F401

    place = Path(tempfile.mkdtemp(prefix="faults"))
    draw_pairs(place / "pairs")
    began = time.monotonic()
    seconds, reference = {}, {}
    for afterwards in (False, True):
        part = time.monotonic()
        if not afterwards:
            prepare(place / "reference", place / "pairs", False)
        else:
            (place / "reference" / "faults.yaml").write_text((RECIPE + AFTERWARDS).replace("WORKERS", "0"))
        how = "--resume" if afterwards else "--run_dir"
        process = start(place / "reference", "run", "faults.yaml", how, "run")
        if process.wait():
            sys.exit(process.said())
        seconds[afterwards] = time.monotonic() - part
        reference[afterwards] = result_of(place / "reference" / "run", afterwards)
    print(f"a training takes {seconds[False]:.1f} s, what comes after it {seconds[True]:.1f} s", flush=True)
    kinds = [fault for fault in FAULTS if options.only in (None, fault.__name__)]
    mounts = may_mount(place)
    kinds = [fault for fault in kinds if mounts or fault not in NEED_MOUNT]
    counts: dict[str, Counter[str]] = {str(fault.__doc__): Counter() for fault in kinds}
    until = began + 60 * options.minutes
    for number in range(options.faults):
        if time.monotonic() > until:
            break
        fault = kinds[number % len(kinds)]
        folder = place / f"trial{number}"
        # each fault in turn, of trainings and of what comes after them
        afterwards = number // len(kinds) % 2 == 1
        prepare(folder, place / "pairs", afterwards, place / "reference")
        trial = Trial(folder, random.Random(f"{options.seed}/{number}"), seconds[afterwards], afterwards)
        outcome = attempt(fault, trial, reference[afterwards])
        counts[str(fault.__doc__)][outcome if outcome in ("equal", "refused") else "failed"] += 1
        print(
            f"{number} {fault.__name__} {'after' if afterwards else 'in'} training: {outcome}",
            *trial.refused,
            sep="\n    ",
            flush=True,
        )
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)
    done = sum(found.total() for found in counts.values())
    about = (
        f"{done} faults at random moments of trainings and of what comes after them (validation and prediction), by "
        f"`benchmarks/faults.py --faults {options.faults} --seed {options.seed}`. A result is the weights of best.ckpt "
        "and last.ckpt, or the captions with their scores and the predictions, compared with a run that nothing "
        "happened to" + ("." if mounts else "; full and read-only disks were left out: nothing could be mounted.")
    )
    text = table(counts, about)
    print(text)
    if options.out is not None and done:
        options.out.write_text(text, encoding="utf-8")
    sys.exit(any(found["failed"] for found in counts.values()))


if __name__ == "__main__":
    main()

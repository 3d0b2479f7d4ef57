"""Faults drawn at random, done to real runs: does each end with the same result, or with one sentence?

    python benchmarks/faults.py --faults 200 --out docs/faults.md

Small recipes train, test, predict, make records and render a world. Each trial starts one, does one fault at a random
moment, puts right what a user would put right (room on the disk, a file that a sentence names), resumes, and compares
weights, captions, scores and records bit for bit with a run that nothing happened to. What counts: `equal`; `refused`,
which is one sentence, after which the run goes on to the same result; anything else is a failure and printed. Full and
read-only disks need the right to mount; without it they are left out.

Processes are forked from one that has imported the library, since starting Python anew would take most of the time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from _faults import FAULTS, NEED_MOUNT, Trial, killed_worker, start

from lightning_idc.errors import IDCError

TRAINER = """
  trainer: {accelerator: cpu, logger: false, enable_model_summary: false, num_sanity_val_steps: 0, max_epochs: EPOCHS,
            deterministic: true}
"""
MODEL = """
  model:
    class_path: PairTransformer
    init_args: {width: 8, encoder_layers: 1, decoder_layers: 1, heads: 1,
                optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-2}}}
"""
TRAIN = """
stages:
  - name: train
    run: fit
    config:
      trainer:
        callbacks:
          - class_path: lightning.pytorch.callbacks.ModelCheckpoint
            init_args: {monitor: val/CIDEr-D, mode: max, filename: best, save_last: true}
"""
PAIRS = f"""
recipe: {{title: Faults}}
base:{TRAINER.replace("EPOCHS", "4")}{MODEL}
  data:
    class_path: FolderPairs
    init_args: {{root: pairs, batch_size: 4, image_size: 16, num_workers: WORKERS, cache_images: cache}}
{TRAIN}"""
AFTERWARDS = """  - name: measure
    run: test
    config: {trainer: {callbacks: [{class_path: ShowResults, init_args: {examples: 0, report_pairs: 0}}]}}
  - {name: say, run: predict}
"""
WORLD = f"""
recipe: {{title: Faults}}
base:{TRAINER.replace("EPOCHS", "2")}{MODEL}
  data:
    class_path: SyntheticPairs
    init_args: {{train_pairs: 24, val_pairs: 8, test_pairs: 8, render_size: 24, batch_size: 4, num_workers: WORKERS,
                cache_dir: cache, progress: false, render_workers: 1}}
{TRAIN}"""
RECORDS = f"""
recipe: {{title: Faults}}
base:{TRAINER.replace("EPOCHS", "1")}
stages:
  - name: edit
    run: predict
    config:
      return_predictions: false
      model: {{class_path: PasteEdits, init_args: {{size: 48}}}}
      data:
        class_path: Records
        init_args: {{source: {{class_path: ImageFolder, init_args: {{root: pairs/before}}}},
                    target: "${{run_dir}}/edit/records", shard_size: 4, batch_size: 2}}
  - name: filter
    run: predict
    config:
      return_predictions: false
      model: {{class_path: Sequential, init_args: {{stages: [
        {{class_path: PairSimilarity, init_args: {{filters: embedded}}}},
        {{class_path: DifferenceAreas, init_args: {{filters: embedded}}}}]}}}}
      data:
        class_path: Records
        init_args: {{source: "${{run_dir}}/edit/records", target: "${{run_dir}}/filter/records", shard_size: 4,
                    batch_size: 2}}
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


def short(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def weights_of(run: Path) -> dict[str, str]:
    """Digests of the weights of a training."""
    import torch

    found = {}
    for name in ("best.ckpt", "last.ckpt"):
        content = torch.load(run / "train" / "checkpoints" / name, weights_only=True)
        digest = hashlib.blake2b(str(content["global_step"]).encode())
        for value in content["state_dict"].values():
            digest.update(value.numpy().tobytes())
        found[name] = digest.hexdigest()[:12]
    return found


def captions_of(run: Path) -> dict[str, str]:
    """Digests of captions, scores and predictions."""
    said = [json.loads(line) for line in (run / "say" / "predictions.jsonl").read_text().splitlines()]
    return {
        "measured": short(json.loads((run / "measure" / "predictions.json").read_text())),
        "scores": short(json.loads((run / "measure" / "stage.json").read_text())["metrics"]),
        # a batch of another size may change the last digits of a score
        "said": short([(record["id"], record["caption"]) for record in said]),
    }


def records_of(run: Path) -> dict[str, str]:
    """Digests of the records that a pipeline made, with their images."""
    from lightning_idc.synthesis.store import RecordStore

    found = {}
    for stage in ("edit", "filter"):
        digest = hashlib.blake2b()
        for record in RecordStore(run / stage / "records"):
            digest.update(json.dumps([record.id, record.facts, record.dropped], sort_keys=True).encode())
            for name, data in sorted(record.images.items()):
                digest.update(name.encode() + data)
        found[stage] = digest.hexdigest()[:12]
    return found


@dataclass(frozen=True)
class Scenario:
    """What faults are done to.

    Args:
        name: for the table.
        recipe: its text.
        result: digests of what a finished run has made.
        after: scenario whose finished run this one goes on from.
    """

    name: str
    recipe: str
    result: Callable[[Path], dict[str, str]]
    after: Scenario | None = None

    def prepare(self, folder: Path, data: Path, reference: Path | None) -> None:
        """Make a folder with data and recipe, and with what is done before."""
        folder.mkdir(parents=True)
        (folder / "pairs").symlink_to(data)
        (folder / "faults.yaml").write_text(self.recipe.replace("WORKERS", "0"))
        if self.after is not None and reference is not None:
            shutil.copytree(reference / "run" / "train", folder / "run" / "train")
            shutil.copy(reference / "run" / "run.json", folder / "run")
            shutil.copytree(reference / "cache", folder / "cache")


TRAINING = Scenario("training", PAIRS, weights_of)
SCENARIOS = (
    TRAINING,
    Scenario("test and prediction", PAIRS + AFTERWARDS, captions_of, TRAINING),
    Scenario("making records", RECORDS, records_of),
    Scenario("rendering and training", WORLD, weights_of),
)


def attempt(fault: Callable[[Trial], None], trial: Trial, scenario: Scenario, reference: dict[str, str]) -> str:
    """Do a fault; ``equal``, ``refused`` or what went wrong."""
    try:
        fault(trial)
        trial.finish()
        try:
            found = scenario.result(trial.run)
        except IDCError as error:  # what was damaged after its stage was finished is refused when it is read
            trial.refused.append(str(error))
            trial.put_right(str(error))
            trial.finish()
            found = scenario.result(trial.run)
        if found != reference:
            different = [name for name in reference if found.get(name) != reference[name]]
            return f"FAILED: another result: {', '.join(different)}"
        return "refused" if trial.refused else "equal"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"
    finally:
        if os.path.ismount(trial.run):
            subprocess.run(["umount", "-l", str(trial.run)], check=False)


def may_mount(folder: Path) -> bool:
    place = folder / "probe"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True).returncode == 0
    return made and subprocess.run(["umount", str(place)]).returncode == 0


def table(counts: dict[str, Counter[str]]) -> str:
    rows = [
        "| fault | runs | same result | one sentence, then the same result | failed |",
        "|---|---|---|---|---|",
    ]
    total = sum(counts.values(), Counter[str]())
    for name, found in [*counts.items(), ("all", total)]:
        rows.append(f"| {name} | {found.total()} | {found['equal']} | {found['refused']} | {found['failed']} |")
    return "\n".join(rows) + "\n"


def warm(place: Path) -> None:
    """Import and compile what the forked processes need, so that none of them has to."""
    import lightning_idc.callbacks.show_results
    import lightning_idc.cli.training
    import lightning_idc.data.benchmarks.folder
    import lightning_idc.methods.img_diff.areas
    import lightning_idc.methods.img_diff.edits
    import lightning_idc.methods.pair_transformer.module
    import lightning_idc.synthesis.pipeline  # noqa: F401
    from lightning_idc.core import evaluation
    from lightning_idc.data import SyntheticPairs
    from lightning_idc.synthesis.library import cutouts

    evaluation.USUAL = evaluation.FAST  # METEOR takes longer than everything else here
    cutouts(None)
    sizes = {"train_pairs": 1, "val_pairs": 1, "test_pairs": 1, "render_size": 24, "render_workers": 1}
    SyntheticPairs(cache_dir=place / "warm", progress=False, **sizes).prepare_data()


def references(place: Path) -> tuple[dict[Scenario, dict[str, str]], dict[Scenario, float]]:
    """Results of runs that nothing happens to, and the seconds that they take."""
    found, seconds = {}, {}
    for number, scenario in enumerate(SCENARIOS):
        folder = place / ("reference" if scenario is TRAINING else f"reference{number}")
        scenario.prepare(folder, place / "pairs", place / "reference")
        began = time.monotonic()
        process = start(folder, "run", "faults.yaml", "--resume" if scenario.after else "--run_dir", "run")
        if process.wait():
            sys.exit(process.said())
        seconds[scenario] = time.monotonic() - began
        found[scenario] = scenario.result(folder / "run")
        print(f"{scenario.name} takes {seconds[scenario]:.1f} s", flush=True)
    return found, seconds


def combinations(only: str | None, mounts: bool) -> list[tuple[Scenario, Callable[[Trial], None]]]:
    """Every fault of every scenario in which it can happen."""
    return [
        (scenario, fault)
        for fault in FAULTS
        for scenario in SCENARIOS
        if only in (None, fault.__name__, scenario.name)
        and (mounts or fault not in NEED_MOUNT)
        and ("WORKERS" in scenario.recipe or fault is not killed_worker)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    parser.add_argument("--only", help="name of one kind of fault, or of one scenario")
    parser.add_argument("--out", type=Path, help="page with the tables")
    parser.add_argument("--json", type=Path, help="file for the counts")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="faults"))
    draw_pairs(place / "pairs")
    warm(place)
    until = time.monotonic() + 60 * options.minutes
    reference, seconds = references(place)
    mounts = may_mount(place)
    drawn = combinations(options.only, mounts)
    order = random.Random(options.seed)
    by_fault = {str(fault.__doc__): Counter[str]() for _, fault in drawn}
    by_scenario = {scenario.name: Counter[str]() for scenario, _ in drawn}
    for number in range(options.faults):
        if time.monotonic() > until:
            break
        if number % len(drawn) == 0:
            order.shuffle(drawn)  # each as often as the others, in no order
        scenario, fault = drawn[number % len(drawn)]
        folder = place / f"trial{number}"
        scenario.prepare(folder, place / "pairs", place / "reference")
        trial = Trial(folder, random.Random(f"{options.seed}/{number}"), seconds[scenario], scenario.after is not None)
        outcome = attempt(fault, trial, scenario, reference[scenario])
        for counts, name in ((by_fault, str(fault.__doc__)), (by_scenario, scenario.name)):
            counts[name][outcome if outcome in ("equal", "refused") else "failed"] += 1
        print(f"{number} {fault.__name__} in {scenario.name}: {outcome}", *trial.refused, sep="\n    ", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)
    report_on(by_fault, by_scenario, options, mounts)


def report_on(
    by_fault: dict[str, Counter[str]], by_scenario: dict[str, Counter[str]], options: Any, mounts: bool
) -> None:
    """Print the tables and write them where one asked for that; end with 1 where something failed."""
    from environment import describe

    done = sum(found.total() for found in by_fault.values())
    text = (
        f"# Faults\n\n{done} faults at random moments of four small recipes, by "
        f"`benchmarks/faults.py --faults {options.faults} --seed {options.seed}`.\n"
        "A result is the weights of best.ckpt and last.ckpt, the captions with their scores and the predictions, or\n"
        "the records with their images, compared bit for bit with a run that nothing happened to. Where the library\n"
        "refuses to go on, the script does what its sentence advises and resumes.\n"
        + ("" if mounts else "Full and read-only disks were left out: nothing could be mounted.\n")
        + f"\n{table(by_fault)}\n{table(by_scenario).replace('| fault |', '| of |')}"
    )
    print(text)
    if options.out is not None and done:
        options.out.write_text(text, encoding="utf-8")
    counts = {"by_fault": by_fault, "by_scenario": by_scenario}
    result = {"faults": done, "seed": options.seed, **counts, "environment": describe("lightning")}
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(found["failed"] for found in by_fault.values()))


if __name__ == "__main__":
    main()

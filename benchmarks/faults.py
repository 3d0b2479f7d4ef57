"""Faults drawn at random, done to real runs: does each end with the same result, or with one sentence?

    python benchmarks/faults.py --faults 200 --workers 16 --out docs/faults.md

Small recipes train, test, predict, make records and render a world, and a server answers. Each trial starts one, does
one fault at a random moment, puts right what a user would put right (room on the disk, a file that a sentence names),
resumes, and compares weights, captions, scores, records and answers bit for bit with a run that nothing happened to.
What counts: `equal`; `refused`, which is one sentence, after which the run goes on to the same result; anything else is
a failure and printed. Full and read-only disks need the right to mount; without it they are left out.

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
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from _faults import FAULTS, NEED_MOUNT, Trial, killed_worker
from _harness import report
from _serve_faults import SERVE_FAULTS, ServeTrial, answers_of, full_temporary_folder
from _serve_faults import prepare as prepare_serving

from lightning_idc.utils.errors import IDCError

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
        recipe: its text; the server has none.
        result: digests of what a finished run has made.
        after: scenario whose finished run this one goes on from.
    """

    name: str
    recipe: str
    result: Callable[[Path], dict[str, str]]
    after: Scenario | None = None

    @property
    def faults(self) -> list[Callable[[Any], None]]:
        """Those that can happen to it."""
        if not self.recipe:
            return [*SERVE_FAULTS]
        return [fault for fault in FAULTS if "WORKERS" in self.recipe or fault is not killed_worker]

    def trial(self, folder: Path, chance: random.Random, seconds: float) -> Trial:
        """A run of it in a folder that :meth:`prepare` has made."""
        return (Trial if self.recipe else ServeTrial)(folder, chance, seconds, self.after is not None)

    def prepare(self, folder: Path) -> None:
        """Make a folder with data and recipe, and with what is done before."""
        data, reference = folder.parent / "pairs", folder.parent / "reference"
        if not self.recipe:
            prepare_serving(folder, data, folder.parent / "model")
            return
        folder.mkdir(parents=True)
        (folder / "pairs").symlink_to(data)
        (folder / "faults.yaml").write_text(self.recipe.replace("WORKERS", "0"))
        if self.after is not None:
            shutil.copytree(reference / "run" / "train", folder / "run" / "train")
            shutil.copy(reference / "run" / "run.json", folder / "run")
            shutil.copytree(reference / "cache", folder / "cache")


TRAINING = Scenario("training", PAIRS, weights_of)
SERVING = Scenario("serving", "", answers_of)
SCENARIOS: tuple[Scenario, ...] = (
    TRAINING,
    Scenario("test and prediction", PAIRS + AFTERWARDS, captions_of, TRAINING),
    Scenario("making records", RECORDS, records_of),
    Scenario("rendering and training", WORLD, weights_of),
    *([SERVING] if find_spec("litserve") else []),
)


def attempt(fault: Callable[[Any], None], trial: Trial, scenario: Scenario, reference: dict[str, str]) -> str:
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
    import lightning_idc.models.pair_transformer.module
    import lightning_idc.synthesis.pipeline  # noqa: F401
    from lightning_idc.data import SyntheticPairs
    from lightning_idc.models import evaluation
    from lightning_idc.synthesis.library import cutouts

    evaluation.USUAL = evaluation.FAST  # METEOR takes longer than everything else here
    cutouts(None)
    sizes = {"train_pairs": 1, "val_pairs": 1, "test_pairs": 1, "render_size": 24, "render_workers": 1}
    SyntheticPairs(cache_dir=place / "warm", progress=False, **sizes).prepare_data()


def save_model(place: Path) -> None:
    """The captioner that is served: of the size of the images, and not trained."""
    import torch

    from lightning_idc.models import PairTransformer
    from lightning_idc.nn.vocabulary import Vocabulary

    torch.manual_seed(0)
    words = Vocabulary.build(["a red green blue square appears on the left right", "nothing changed"]).words
    model = PairTransformer(vocabulary=words, image_size=(16, 16), max_length=6, width=16, heads=2, grid=2)
    model.build()
    model.save_pretrained(place / "model")


def references(place: Path) -> tuple[dict[str, dict[str, str]], dict[str, float]]:
    """By scenario: results of runs that nothing happens to, and the seconds that they take."""
    found, seconds = {}, {}
    for number, scenario in enumerate(SCENARIOS):
        folder = place / ("reference" if scenario is TRAINING else f"reference{number}")
        scenario.prepare(folder)
        began = time.monotonic()
        trial = scenario.trial(folder, random.Random(0), 0)
        trial.finish()
        if trial.refused:
            sys.exit(trial.refused[0])
        seconds[scenario.name] = time.monotonic() - began
        found[scenario.name] = scenario.result(folder / "run")
        print(f"{scenario.name} takes {seconds[scenario.name]:.1f} s", flush=True)
    return found, seconds


def drawn(options: argparse.Namespace, mounts: bool) -> list[tuple[Scenario, Callable[[Any], None]]]:
    """Scenarios and faults in the order in which they are tried: each as often as the others."""
    every = [
        (scenario, fault)
        for scenario in SCENARIOS
        for fault in scenario.faults
        if options.only in (None, fault.__name__, scenario.name)
        and (mounts or fault not in (*NEED_MOUNT, full_temporary_folder))
    ]
    if not every:
        raise SystemExit(f"--only {options.only}: there is no such fault, or it cannot be done here")
    order, found = random.Random(options.seed), []
    while len(found) < options.faults:
        order.shuffle(every)
        found += every
    return found[: options.faults]


def work(place: Path, options: argparse.Namespace, mounts: bool, worker: int, until: float) -> None:
    """Every n-th fault, one after another; a line of JSON for each."""
    reference, seconds = json.loads((place / "reference.json").read_text())
    with (place / f"outcomes{worker}.jsonl").open("w") as file:
        for number, (scenario, fault) in enumerate(drawn(options, mounts)):
            if number % options.workers != worker:
                continue
            if time.monotonic() > until:
                break
            folder = place / f"trial{number}"
            scenario.prepare(folder)
            trial = scenario.trial(folder, random.Random(f"{options.seed}/{number}"), seconds[scenario.name])
            outcome = attempt(fault, trial, scenario, reference[scenario.name])
            said = [f"{number} {fault.__name__} in {scenario.name}: {outcome}", *trial.refused]
            print("\n    ".join(said), flush=True)
            row = {"fault": str(fault.__doc__), "scenario": scenario.name, "outcome": outcome, "said": said}
            file.write(json.dumps(row) + "\n")
            shutil.rmtree(folder, ignore_errors=True)


def all_at_once(place: Path, options: argparse.Namespace, mounts: bool, until: float) -> list[dict[str, Any]]:
    """Outcomes of all workers, which are forks of this process."""
    workers = []
    for worker in range(options.workers):
        pid = os.fork()
        if not pid:
            status = 70
            try:
                work(place, options, mounts, worker, until)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        workers.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in workers]):
        sys.exit("a worker of this script failed")
    lines = [line for path in sorted(place.glob("outcomes*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that try faults at the same time")
    parser.add_argument("--minutes", type=float, default=60, help="begin no fault after so many")
    parser.add_argument("--only", help="name of one kind of fault, or of one scenario")
    parser.add_argument("--out", type=Path, help="page with the tables")
    parser.add_argument("--json", type=Path, help="file for the counts")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="faults"))
    until = time.monotonic() + 60 * options.minutes
    draw_pairs(place / "pairs")
    warm(place)
    save_model(place)
    (place / "reference.json").write_text(json.dumps(references(place)))
    mounts = may_mount(place)
    outcomes = all_at_once(place, options, mounts, until)
    shutil.rmtree(place, ignore_errors=True)
    counts = {key: count(outcomes, key) for key in ("fault", "scenario")}
    failures = [row["said"] for row in outcomes if row["outcome"].startswith("FAILED")]
    text = page(counts, failures, options, mounts)
    print(text)
    if options.out is not None and outcomes:
        options.out.write_text(text, encoding="utf-8")
    result = {"faults": len(outcomes), "by_fault": counts["fault"], "by_scenario": counts["scenario"]}
    report({**result, "failures": failures}, options.json, "lightning", seeds=[options.seed], quiet=True)
    sys.exit(bool(failures))


def count(outcomes: list[dict[str, Any]], key: str) -> dict[str, Counter[str]]:
    """How often each outcome came, by kind of fault or by scenario."""
    found: dict[str, Counter[str]] = {row[key]: Counter() for row in sorted(outcomes, key=lambda row: str(row[key]))}
    for row in outcomes:
        found[row[key]][row["outcome"] if row["outcome"] in ("equal", "refused") else "failed"] += 1
    return found


def page(
    counts: dict[str, dict[str, Counter[str]]], failures: list[list[str]], options: argparse.Namespace, mounts: bool
) -> str:
    """The tables, and what failed."""
    done = sum(found.total() for found in counts["fault"].values())
    return (
        f"# Faults\n\n{done} faults at random moments of four small recipes and of a server, by "
        f"`benchmarks/faults.py --faults {options.faults} --seed {options.seed}`.\n"
        "A result is the weights of best.ckpt and last.ckpt, the captions with their scores and the predictions, the\n"
        "records with their images, or the answers of a server, compared bit for bit with a run that nothing happened\n"
        "to. Where the library refuses to go on, the script does what its sentence advises and resumes.\n"
        + ("" if mounts else "Full and read-only disks were left out: nothing could be mounted.\n")
        + ("" if SERVING in SCENARIOS else "The server was left out: the extra serve is not installed.\n")
        + f"\n{table(counts['fault'])}\n{table(counts['scenario']).replace('| fault |', '| of |')}"
        + "".join(f"\n- {' / '.join(said)}" for said in failures)
    )


if __name__ == "__main__":
    main()

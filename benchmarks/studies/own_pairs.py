"""How many pairs does a folder need before a captioner that is trained on it sees the change?

    python -m benchmarks.studies.own_pairs --work DIR [--deeppcb FOLDER] [--runs RUN ...] [--out FILE]

Writes folders as of ``recipes/own_pairs.yaml`` with a number of training pairs, an eighth of it to select the
checkpoint, and the same test pairs for every number, two sentences a pair. A run is ``lightning-idc run RECIPE
--data.root FOLDER`` with the recipe's own settings, as a user types it, and the options that :data:`ROUTES` lists. Its
score is compared with the baselines that every test prints: a constant caption that was chosen on the training
captions, the captioner on identical images, and in addition ``rules``. Intervals are paired bootstraps over the test
pairs, 95 %.

- ``boards``: DeepPCB at 640 pixels. Its official test split has 500 pairs: 200 to test, the others to train, which the
  captioner ``pcb`` has not seen. The official training split, which ``pcb`` has seen, is used
  for selection and for 1,000 pairs, where only captioners from nothing are trained. There are not enough boards for
  3,000.
- ``rendered``: scenes of ``clevr_change`` at 64 pixels, of other seeds than those of the captioner ``clevr``.

A stopped study resumes: finished runs are read from ``--work``, and an unfinished one is trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.harness import report
from lightning_idc.data import DeepPCB, FolderPairs, PairDataModule, SyntheticPairs
from lightning_idc.data.source import PairSource
from lightning_idc.report.baselines import check_baselines
from lightning_idc.rules.baseline import ROW, rules_captions
from lightning_idc.utils.outputs import save_json

Selected = list[tuple[PairSource, int]]
"""Pairs, each a source and its index in it."""
SENTENCES = 2
TEST = {"boards": 200, "rendered": 300}
ROUTES: dict[str, tuple[str, ...]] = {
    "own_pairs": ("own_pairs",),
    "own_boards": ("own_boards",),
    "efficientnet": ("own_encoder", "--model.backbone", "tf_efficientnet_lite0"),
    "clevr": ("own_encoder", "--model.backbone", "residual", "--model.backbone_weights", "clevr"),
}
"""Recipe and options of each row; ``efficientnet`` also has the weights of ``--efficientnet``."""
OPTIONS: dict[str, tuple[str, ...]] = {"boards": (), "rendered": ("--data.image_size", "64")}
"""Options of each world: rendered pairs are not enlarged."""
RUNS = (
    "boards/own_boards/300/1",
    "boards/efficientnet/300/1",
    "rendered/own_pairs/300/1",
    "rendered/clevr/300/1",
    "rendered/own_pairs/1000/1",
    "boards/own_pairs/100/1",
    "rendered/own_pairs/100/1",
    "boards/own_pairs/300/1",
    "rendered/own_pairs/3000/1",
    "boards/own_boards/100/1",
    "boards/own_pairs/1000/1",
    f"boards/{ROW}/300/1",
    f"rendered/{ROW}/300/1",
)
"""World, route, number of training pairs and seed, the most informative first."""


def splits_of(world: str, size: int, data: PairDataModule) -> dict[str, Selected]:
    """Training, validation and test pairs of a folder with a number of training pairs.

    Raises:
        SystemExit: the world has fewer pairs.
    """
    test, train = data.pairs_of("test"), data.pairs_of("train")
    # the official lists are sorted by board
    order = np.random.default_rng(0).permutation(len(test)).tolist()
    tests: Selected = [(test, index) for index in order[: TEST[world]]]
    pool: Selected = [(train, index) for index in np.random.default_rng(1).permutation(len(train)).tolist()]
    if world == "boards":
        pool = [*((test, index) for index in order[TEST[world] :]), *pool]
    count = size + size // 8
    if count > len(pool):
        raise SystemExit(f"{world} has {len(pool)} pairs that are not for the test; {size} need {count}")
    return {"train": pool[:size], "val": pool[size:count], "test": tests}


def write_folder(root: Path, splits: dict[str, Selected]) -> None:
    """Write pairs as ``before/``, ``after/`` and ``captions.csv`` with a column ``split``; nothing if it is there."""
    table = root / "captions.csv"
    if table.is_file():
        return
    for side in ("before", "after"):
        (root / side).mkdir(parents=True, exist_ok=True)
    rows = []
    for split, pairs in splits.items():
        for source, index in pairs:
            pair = source.load(index)
            for side, image in (("before", pair.before), ("after", pair.after)):
                Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(root / side / f"{pair.id}.png")
            rows.append((pair.id, json.dumps(source.captions(index)[:SENTENCES]), split))
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "captions", "split"), *rows])


def train(root: Path, out: Path, route: str, world: str, seed: int, weights: Path | None) -> dict[str, float]:
    """Type the command of a route; minutes that it took, of the clock and of the processor.

    Raises:
        SystemExit: the command failed.
    """
    recipe, *options = ROUTES[route]
    if route == "efficientnet":
        options += ["--model.backbone_weights", str(weights)]
    if recipe != "own_boards" and world == "boards":  # the same results, without reading 640 pixels in every epoch
        options += ["--data.cache_images", str(out.parent.parent / "images")]
    command = [sys.executable, "-m", "lightning_idc", "run", recipe, "--data.root", str(root)]
    command += [*OPTIONS[world], *options, "--seed_everything", str(seed)]
    command += ["--resume", str(out)] if (out / "run.json").is_file() else ["--out", str(out)]
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.with_suffix(".log").open("w", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    if code:
        raise SystemExit(f"{out.name} failed with {code}; see {log.name}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"minutes": round((time.monotonic() - start) / 60, 1), "cpu_minutes": round(processor / 60, 1)}


def facts_of(data: PairDataModule, captions: dict[str, str]) -> dict[str, float]:
    """Percentage of captions with each fact right, by name."""
    judged: dict[str, list[bool]] = {}
    for id, caption in captions.items():
        for name, right in data.facts("test", id, caption).items():
            if right is not None:
                judged.setdefault(name, []).append(right)
    return {name: round(100 * sum(values) / len(values), 1) for name, values in judged.items()}


def row_of(out: Path, data: PairDataModule) -> dict[str, Any]:
    """What a run's test wrote, and the facts of its captions and of the constant caption."""
    metrics = json.loads((out / "test" / "metrics.json").read_text(encoding="utf-8"))
    lines = (out / "test" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    captions = {record["id"]: record["caption"] for record in map(json.loads, lines)}
    check = metrics["baseline_check"]
    return {
        "CIDEr-D": round(check["score"], 1),
        "interval": metrics["intervals"]["CIDEr-D"],
        "distinct": check["distinct"],
        "over": check["over"],
        "facts": facts_of(data, captions),
        "constant": {"caption": check["constant"], "facts": facts_of(data, dict.fromkeys(captions, check["constant"]))},
    }


def rules_row(root: Path, data: PairDataModule) -> dict[str, Any]:
    """Scores of the rules on the test pairs of a folder."""
    folder = FolderPairs(root)
    test = folder.pairs_of("test")
    captions = rules_captions(test.load(index) for index in range(len(test)))
    references = {id: test.captions(index) for index, id in enumerate(test.ids)}
    check = check_baselines(captions, references, None, None)
    return {
        "CIDEr-D": round(check.score, 1),
        "distinct": check.distinct,
        "changed": sum(text != "Nothing changed." for text in captions.values()),
        "facts": facts_of(data, captions),
    }


def worlds(deeppcb: Path | None, largest: int) -> Iterator[tuple[str, PairDataModule]]:
    """Data modules by world; the rendered one has ``largest`` pairs to train."""
    if deeppcb is not None:
        yield "boards", DeepPCB(deeppcb)
    yield (
        "rendered",
        SyntheticPairs(
            "clevr_change",
            train_pairs=largest + largest // 8,
            val_pairs=1,
            test_pairs=TEST["rendered"],
            data_seed=43,
            progress=False,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of pairs and runs; a stopped study resumes")
    parser.add_argument("--deeppcb", type=Path, help="folder of DeepPCB; without it only rendered pairs")
    parser.add_argument("--efficientnet", type=Path, help="file of ImageNet weights of timm's tf_efficientnet_lite0")
    parser.add_argument("--largest", type=int, default=3000, help="number of rendered pairs")
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="WORLD/ROUTE/PAIRS/SEED")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    work, data = options.work, dict(worlds(options.deeppcb, options.largest))
    results: dict[str, Any] = {}
    for run in options.runs:
        world, route, size, seed = run.split("/")
        if world not in data:
            continue
        root, out = work / "pairs" / f"{world}-{size}", work / "runs" / run.replace("/", "-")
        record = out.with_suffix(".json")
        if not record.is_file():
            out.parent.mkdir(parents=True, exist_ok=True)
            write_folder(root, splits_of(world, int(size), data[world]))
            if route == ROW:
                row = rules_row(root, data[world])
            else:
                times = train(root, out, route, world, int(seed), options.efficientnet)
                row = {**times, **row_of(out, data[world])}
            save_json(record, row, overwrite=True)
        results[run] = json.loads(record.read_text(encoding="utf-8"))
        print(run, json.dumps({key: value for key, value in results[run].items() if key != "constant"}), flush=True)
        report(
            {
                "test_pairs": TEST,
                "routes": ROUTES,
                "options": OPTIONS,
                "threads": os.environ.get("OMP_NUM_THREADS"),
                "runs": results,
            },
            options.out,
            "lightning",
            "timm",
            seeds=sorted({int(name.split("/")[-1]) for name in results}),
            quiet=True,
        )


if __name__ == "__main__":
    main()

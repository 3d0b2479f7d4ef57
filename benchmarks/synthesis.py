"""Quality of embedded boxes, speed of stages and batches, scaling of mining, and the cost of killed processes.

python -m benchmarks.synthesis boxes          precision and recall on rendered scenes by light and camera, without each
                                              filter of the area generator in turn, and what each filter leaves out
python -m benchmarks.synthesis cutouts        correctly named boxes when the user's own cut-outs are pasted
python -m benchmarks.synthesis throughput     records per second of each stage with the embedded slots
python -m benchmarks.synthesis batches        stages with pretrained slots (random weights), one by one and in batches
python -m benchmarks.synthesis mining 100000  building and searching the index, memory, recall of the approximate one
python -m benchmarks.synthesis kills 10       a process killed at random times compared with an uninterrupted one
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

SCENES = {"fitted": 31, "tested": 32, "tested again": 33}
"""Seeds of the scenes on which thresholds were chosen, and of those on which none was."""
RESULTS = Path(__file__).resolve().parent / "results" / "synthesis.json"


def scenes(count: int, size: int, light: bool, jitter: float, seed: int) -> list[Any]:
    """Records of rendered pairs; without light, both images have the same lights and camera."""
    from lightning_idc.data.synthetic.modes import clevr_change
    from lightning_idc.data.synthetic.render import render
    from lightning_idc.data.synthetic.sampling import Rng
    from lightning_idc.data.synthetic.truth import measure
    from lightning_idc.synthesis.records import Record

    records = []
    world = replace(clevr_change.WORLD, no_change=0.0, camera_jitter=jitter)
    for index in range(count):
        pair = clevr_change.draw(Rng(np.random.default_rng([seed, index])), world)
        if not light:
            pair = replace(pair, after=replace(pair.after, lights=pair.before.lights, camera=pair.before.camera))
        images, seen = render([pair.before, pair.after], size, size)
        truth = measure(pair, seen)
        nouns: list[str | None] = [None, None]
        for side, name in enumerate(("before", "after")):
            for change in truth["changes"]:
                for thing in change[name]:
                    words = truth[name]["things"][thing]
                    nouns[side] = f"{words['color']} {words['material']} {words['shape']}"
        facts = {"true_boxes": truth["boxes"], "edit": pair.change_type, "nouns": nouns}
        record = Record(f"{index}", facts)
        record.decoded = {"before": torch.from_numpy(images[0]), "after": torch.from_numpy(images[1])}
        records.append(record)
    return records


def boxes(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.methods.img_diff.areas import DifferenceAreas, box_scores
    from lightning_idc.methods.img_diff.presets import load_filters
    from lightning_idc.synthesis.models.contours import DifferenceContours
    from lightning_idc.synthesis.records import Record

    rows: dict[str, Any] = {}
    conditions = {
        "same light and camera": (False, 0.0),
        "other light": (True, 0.0),
        "other light and camera": (True, 0.7),
    }
    for name, (light, jitter) in conditions.items():
        rows[name] = {which: _boxes_of(arguments.count, light, jitter, seed) for which, seed in SCENES.items()}
        for which in ("fitted", "tested again"):
            for detail in ("areas", "recall by kind"):
                del rows[name][which][detail]
    usual = load_filters("embedded")
    off = {
        "nothing": {},
        "crop similarity": {"crop_similarity": 2.0},
        "matching with the names": {"region_match": -1.0},
        "overlap": {"overlap": 1.0},
        "all three": {"crop_similarity": 2.0, "region_match": -1.0, "overlap": 1.0},
    }
    records = scenes(arguments.count, 128, False, 0.0, seed=SCENES["fitted"])
    without: dict[str, Any] = {}
    for name, values in off.items():
        stage = DifferenceAreas(DifferenceContours(min_area=1 / 2000), filters="embedded")
        stage.filters = replace(usual, **values)
        again = [Record(r.id, dict(r.facts), decoded=r.decoded) for r in records]
        without[name] = box_scores(stage.transform(again))
    # small regions are let through by the segmenter, so that the filters have something to do
    return {**rows, "filter left out, same light and camera": without}


def _boxes_of(count: int, light: bool, jitter: float, seed: int) -> dict[str, Any]:
    from lightning_idc.methods.img_diff.areas import DifferenceAreas, box_scores

    records = DifferenceAreas(filters="embedded").transform(scenes(count, 128, light, jitter, seed))
    kinds = sorted({record.facts["edit"] for record in records})
    of_kind = {kind: box_scores([r for r in records if r.facts["edit"] == kind])["recall"] for kind in kinds}
    areas = [area for record in records for area in record.facts["areas"]]
    reasons = Counter("kept" if area["dropped"] is None else area["dropped"]["reason"] for area in areas)
    return {**box_scores(records), "areas": dict(reasons), "recall by kind": of_kind}


def own_cutouts(folder: Path) -> Path:
    """User-defined cut-outs: parts of photographs in five shapes, none of them rendered."""
    from PIL import Image

    from lightning_idc.synthesis.sources import SamplePhotos

    y, x = np.mgrid[-1:1:96j, -1:1:96j]
    outlines = {
        "leaf": (abs(x) < 0.95 * np.cos(y * 1.5) ** 2) & (abs(y) < 0.95),
        "ring": (x**2 + y**2 < 0.95) & (x**2 + y**2 > 0.2),
        "star": x**2 + y**2 < (0.6 + 0.3 * np.cos(5 * np.arctan2(y, x))) ** 2,
        "boat": (y > 0) & (y < 0.8) & (abs(x) < 0.95 - 0.5 * y),
        "moon": (x**2 + y**2 < 0.9) & ((x - 0.5) ** 2 + y**2 > 0.5),
    }
    photos = SamplePhotos()
    for number, (name, inside) in enumerate(outlines.items()):
        photo = photos.record(number % len(photos)).image("image").permute(1, 2, 0).numpy()
        rgba = np.dstack([photo[60:156, 60:156], inside.astype(np.uint8) * 255])
        Image.fromarray(rgba).save(folder / f"{name}.png")
    return folder


def pasted_and_described(library: str | None, known: str | None, seed: int = 0) -> Any:
    """Img-Diff with the embedded slots, pasting objects of one library and naming those of another."""
    from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
    from lightning_idc.methods.img_diff.edits import PasteEdits
    from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
    from lightning_idc.synthesis.models.prototypes import NearestPrototype
    from lightning_idc.synthesis.stages import Sequential

    return Sequential(
        [
            PasteEdits(size=128, library=library, kinds=["replace", "remove", "add"], seed=seed),
            PairSimilarity(filters="embedded"),
            DifferenceAreas(filters="embedded"),
            RegionCaptions(NearestPrototype(known), filters="embedded"),
            DifferenceCaptions(),
        ]
    )


def rightly_named(records: Any) -> tuple[int, int]:
    """Number of accepted boxes whose captions of both images are exactly right, and of all accepted boxes."""
    from lightning_idc.methods.img_diff.filtering import accepted

    right = total = 0
    for record in records:
        for area in accepted(record.facts.get("areas") or []) if record.dropped is None else []:
            expected = ["plain background" if noun is None else f"a {noun}" for noun in record.facts["nouns"]]
            right, total = right + (area["captions"] == expected), total + 1
    return right, total


def cutouts(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.sources import SamplePhotos

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "library").mkdir()
        library = str(own_cutouts(root / "library"))
        source = SamplePhotos(copies=-(-arguments.count // 6))
        store = run(pasted_and_described(library, library, seed=2), source, root / "made", limit=arguments.count)
        right, total = rightly_named(store)
        kept_pairs, dropped = store.counts()
    share = right / max(total, 1)
    return {"pairs": len(store), "kept pairs": kept_pairs, "dropped": dropped, "kept boxes": total, "right": share}


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
    from lightning_idc.methods.img_diff.edits import PasteEdits
    from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.sources import SamplePhotos

    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        copies = -(-arguments.count // 6)
        filters = "embedded"
        source: Any = SamplePhotos(copies=copies)
        for stage in (
            PasteEdits(size=192),
            PairSimilarity(filters=filters),
            DifferenceAreas(filters=filters),
            RegionCaptions(filters=filters),
            DifferenceCaptions(),
        ):
            target = root / stage.name
            began = time.perf_counter()
            store = run(stage, source, target, batch_size=16)
            rows[stage.name] = round(len(store) / (time.perf_counter() - began), 1)
            source = str(target)
    return rows


def batches(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every stage with models of transformers on the same records, one by one and in batches.

    The weights are random and the models small, with the architectures of the paper's, on which the speedup of batches
    depends. All records must have the same outcome either way.
    """
    from benchmarks.synthesis_models import build, stages
    from lightning_idc.methods.img_diff.edits import PasteEdits
    from lightning_idc.synthesis.models.pretrained import Pretrained
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.sources import SamplePhotos

    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        build(root)
        copies = -(-arguments.pairs // 6)
        store = run(PasteEdits(size=192), SamplePhotos(copies=copies), root / "pairs", limit=arguments.pairs)
        for stage in stages(root, arguments.batch):
            if arguments.only and stage.name not in arguments.only:
                continue
            stage.setup("predict")
            outcome: dict[int, list[str]] = {}
            seconds = {}
            for size in (1, arguments.batch):
                records = prepared(store)
                stage.transform(records[:1])  # the first call of a model is slower than those that follow
                records = prepared(store)
                began = time.process_time()  # of one thread, so that other work on the machine does not count
                for start in range(0, len(records), size):
                    stage.transform(records[start : start + size])
                seconds[size] = time.process_time() - began
                outcome[size] = [outcome_of(record) for record in records]
            rates = {f"batch {size}": round(len(store) / spent, 2) for size, spent in seconds.items()}
            same = sum(a == b for a, b in zip(outcome[1], outcome[arguments.batch], strict=True))
            asked = ", ".join(type(slot).__name__ for slot in stage.modules() if isinstance(slot, Pretrained))
            rows[f"{stage.name}: {asked}"] = {
                **rates,
                "times": round(seconds[1] / seconds[arguments.batch], 2),
                "equal outcomes": f"{same} of {len(store)}",
            }
            print(list(rows.items())[-1], flush=True)
    return rows


def prepared(store: Any) -> list[Any]:
    """Records with all inputs of the stages: decoded images and one area each."""
    records = list(store)
    for record in records:
        for side in ("before", "after"):
            record.image(side)
        x = 8 * (len(record.id) % 4)
        boxes = [[x, 10, x + 60, 70]]
        record.facts["caption"] = "a dog sleeps on the sofa" + " beside a lamp" * (len(records) % 3)
        record.facts["areas"] = [
            {"box": box, "similarity": 0.1 * number, "captions": ["a cup", "a lamp"], "dropped": None}
            for number, box in enumerate(boxes)
        ]
    return records


def outcome_of(record: Any) -> str:
    """Outcome of a record, with scores rounded to four digits, since sums in another order differ in the seventh."""
    scores = {name: round(value, 4) for name, value in record.history[-1]["scores"].items()}
    dropped = record.dropped
    if dropped is not None and isinstance(dropped["value"], float):
        dropped = {**dropped, "value": round(dropped["value"], 4)}
    return json.dumps([record.facts, scores, dropped])


def mining(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.methods.namc.mining import Search

    count, width = arguments.count, arguments.width
    centres = np.random.default_rng(0).normal(size=(count // 20 + 1, width)).astype(np.float32)

    def block(start: int, end: int) -> np.ndarray:
        noise = np.random.default_rng([1, start]).normal(size=(end - start, width)).astype(np.float32)
        values = centres[np.arange(start, end) // 20] + 0.5 * noise
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)

    rows: dict[str, Any] = {}
    reference = None
    for exact in (True, False):
        starts = range(0, count, 16_384)
        step = max(512, count // 128)
        sample = np.concatenate([block(start, start + 512) for start in range(0, count - 512, step)]).astype(np.float32)
        began = time.perf_counter()
        search = Search((block(start, min(start + 16_384, count)) for start in starts), count, width, exact, sample)
        built = time.perf_counter() - began
        queries = search.vectors(np.linspace(0, count - 1, 500).astype(np.int64))
        began = time.perf_counter()
        ids, _ = search.top(queries, 51)
        spent = time.perf_counter() - began
        name = "exact" if exact else "approximate"
        rows[name] = {
            "build_s": round(built, 1),
            "queries_per_s": round(500 / spent, 1),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        if reference is None:
            reference = ids
        else:
            same = [len(set(a[:21]) & set(b[:21])) / 21 for a, b in zip(reference.tolist(), ids.tolist(), strict=True)]
            rows[name]["recall_at_20"] = round(float(np.mean(same)), 4)
    return rows


def kills(arguments: argparse.Namespace) -> dict[str, Any]:
    """Img-Diff in processes that are killed, compared with an uninterrupted one."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)

        def start(folder: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "benchmarks.synthesis", "_made", str(root / folder)]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        began = time.perf_counter()
        start("whole").wait()
        spent = time.perf_counter() - began
        draw, runs = random.Random(0), 1
        at: list[float] = []
        while len(at) < arguments.count:
            process = start(f"cut-{runs}")
            try:
                process.wait(draw.uniform(0.3, 1.0) * spent)
                runs += 1  # it came to its end first; go on with a new one
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                at.append(len(list((root / f"cut-{runs}").glob("*/records-*.arrow"))))
        start(f"cut-{runs}").wait()
        whole = _digests(root / "whole")
        same = [_digests(root / f"cut-{number}") == whole for number in range(1, runs + 1)]
        return {
            "kills": arguments.count,
            "finished shards after each": at,
            "of": len(whole),
            "runs": runs,
            "same bytes": all(same),
        }


def _digests(folder: Path) -> list[str]:
    """Names of all shards, which contain their checksums."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.arrow"))


def made(folder: Path) -> None:
    from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
    from lightning_idc.methods.img_diff.edits import PasteEdits
    from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
    from lightning_idc.synthesis.run import run
    from lightning_idc.synthesis.sources import SamplePhotos
    from lightning_idc.synthesis.stages import Sequential

    run(PasteEdits(size=128), SamplePhotos(copies=60), folder / "pairs", batch_size=4, shard_size=4)
    filters = "embedded"
    parts = [PairSimilarity(filters=filters), DifferenceAreas(filters=filters), RegionCaptions(filters=filters)]
    run(Sequential([*parts, DifferenceCaptions()]), str(folder / "pairs"), folder / "made", batch_size=4, shard_size=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("boxes").add_argument("count", type=int, nargs="?", default=300)
    verbs.add_parser("cutouts").add_argument("count", type=int, nargs="?", default=240)
    speed = verbs.add_parser("throughput")
    speed.add_argument("count", type=int, nargs="?", default=240)
    several = verbs.add_parser("batches")
    several.add_argument("pairs", type=int, nargs="?", default=16)
    several.add_argument("--batch", type=int, default=16)
    several.add_argument("--only", nargs="+", help="names of stages; results of the others are not replaced")
    scale = verbs.add_parser("mining")
    scale.add_argument("count", type=int, nargs="?", default=100_000)
    scale.add_argument("--width", type=int, default=768)
    verbs.add_parser("kills").add_argument("count", type=int, nargs="?", default=10)
    verbs.add_parser("_made").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if arguments.verb == "_made":
        made(arguments.folder)
        return
    from benchmarks.harness import complete

    began = time.perf_counter()
    asked = (boxes, cutouts, throughput, batches, mining, kills)
    questions = {question.__name__: question for question in asked}
    result = questions[arguments.verb](arguments)
    result["seconds"] = round(time.perf_counter() - began, 1)
    result = complete(
        result, "transformers", "faiss-cpu", seeds=list(SCENES.values()) if arguments.verb == "boxes" else [2]
    )
    print(json.dumps(result, indent=1))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[arguments.verb] = {**(known.get("batches", {}) if getattr(arguments, "only", None) else {}), **result}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()

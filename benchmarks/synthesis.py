"""How good the embedded boxes are, how fast each stage is, what batches gain, how mining scales, and what kills cost.

python benchmarks/synthesis.py boxes          precision and recall on rendered scenes, by preset, light and camera
python benchmarks/synthesis.py throughput     records per second of each stage, one by one and in batches
python benchmarks/synthesis.py mining 100000  building and searching the index, memory, recall of the approximate one
python benchmarks/synthesis.py kills 10       a process killed at random moments against one that was not
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).resolve().parent / "results" / "synthesis.json"


def scenes(count: int, size: int, light: bool, jitter: float, seed: int) -> list[Any]:
    """Records of rendered pairs; without light both pictures have the same lights and the same camera."""
    from lightning_idc.data.synthetic.modes import clevr_change
    from lightning_idc.data.synthetic.render import render
    from lightning_idc.data.synthetic.sampling import Dice
    from lightning_idc.data.synthetic.truth import measure
    from lightning_idc.synthesis.records import Record

    records = []
    world = replace(clevr_change.WORLD, no_change=0.0, camera_jitter=jitter)
    for index in range(count):
        pair = clevr_change.draw(Dice(np.random.default_rng([seed, index])), world)
        if not light:
            pair = replace(pair, after=replace(pair.after, lights=pair.before.lights, camera=pair.before.camera))
        images, seen = render([pair.before, pair.after], size, size)
        truth = measure(pair, seen)
        record = Record(f"{index}", {"true_boxes": truth["boxes"], "edit": pair.change_type})
        record.decoded = {"before": torch.from_numpy(images[0]), "after": torch.from_numpy(images[1])}
        records.append(record)
    return records


def boxes(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.synthesis.img_diff.areas import DifferenceAreas, found_and_true

    found: dict[str, Any] = {}
    conditions = {
        "same light and camera": (False, 0.0),
        "other light": (True, 0.0),
        "other light and camera": (True, 0.7),
    }
    for name, (light, jitter) in conditions.items():
        records = DifferenceAreas(filters="embedded").work_on(scenes(arguments.count, 128, light, jitter, seed=2))
        measured = found_and_true(records)
        by_kind = {
            kind: found_and_true([r for r in records if r.facts["edit"] == kind])
            for kind in sorted({r.facts["edit"] for r in records})
        }
        reasons: dict[str, int] = {}
        for record in records:
            for area in record.facts["areas"]:
                reason = "kept" if area["dropped"] is None else area["dropped"]["reason"]
                reasons[reason] = reasons.get(reason, 0) + 1
        found[name] = {**measured, "areas": reasons, "recall by kind": {k: m["recall"] for k, m in by_kind.items()}}
    return found


def clip_like(folder: str) -> None:
    """CLIP ViT-B/32 with random weights: the cost of the paper's filter without its knowledge."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    CLIPModel(CLIPConfig()).save_pretrained(folder)
    CLIPImageProcessor().save_pretrained(folder)


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.synthesis.img_diff.areas import DifferenceAreas, PairSimilarity
    from lightning_idc.synthesis.img_diff.edits import PasteEdits
    from lightning_idc.synthesis.img_diff.sentences import DifferenceCaptions, RegionCaptions
    from lightning_idc.synthesis.pipeline import run
    from lightning_idc.synthesis.slots.pretrained import ClipImages
    from lightning_idc.synthesis.sources import SamplePhotos

    found: dict[str, Any] = {}
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
            found[stage.name] = round(len(store) / (time.perf_counter() - began), 1)
            source = str(target)
        clip_like(str(root / "clip"))
        pairs = str(root / "PasteEdits")
        for batch in (1, 16):
            stage = PairSimilarity(ClipImages(str(root / "clip"), batch_size=2 * batch), "table17_4")
            target = root / f"clip-{batch}"
            data = {"batch_size": batch, "shard_size": 64, "limit": arguments.pairs}
            run(stage, pairs, root / f"warm-{batch}", **{**data, "limit": batch})
            began = time.perf_counter()
            store = run(stage, pairs, target, **data)
            found[f"CLIP ViT-B/32, batch {batch}"] = round(len(store) / (time.perf_counter() - began), 2)
            found[f"scores, batch {batch}"] = [round(r.history[-1]["scores"]["pair_similarity"], 4) for r in store][:8]
    return found


def mining(arguments: argparse.Namespace) -> dict[str, Any]:
    from lightning_idc.synthesis.mining import Search

    count, width = arguments.count, arguments.width
    centres = np.random.default_rng(0).normal(size=(count // 20 + 1, width)).astype(np.float32)

    def block(start: int, end: int) -> np.ndarray:
        noise = np.random.default_rng([1, start]).normal(size=(end - start, width)).astype(np.float32)
        values = centres[np.arange(start, end) // 20] + 0.5 * noise
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)

    found: dict[str, Any] = {}
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
        found[name] = {
            "build_s": round(built, 1),
            "queries_per_s": round(500 / spent, 1),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        if reference is None:
            reference = ids
        else:
            same = [len(set(a[:21]) & set(b[:21])) / 21 for a, b in zip(reference.tolist(), ids.tolist(), strict=True)]
            found[name]["recall_at_20"] = round(float(np.mean(same)), 4)
    return found


def kills(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole of Img-Diff in processes of its own that are killed, against one that is left alone."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)

        def start(folder: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, __file__, "_made", str(root / folder)]
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        began = time.perf_counter()
        whole = start("whole")
        whole.wait()
        spent = time.perf_counter() - began
        draw = random.Random(0)
        at = []
        for _ in range(arguments.count):
            process = start("cut")
            time.sleep(draw.uniform(0.3, 1.0) * spent)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            at.append(len(list((root / "cut").glob("*/shard-*.json"))))
        start("cut").wait()
        same = _digests(root / "cut") == _digests(root / "whole")
        return {"kills": arguments.count, "finished shards after each": at, "same bytes": same}


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*/shard-*.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text())["digest"] for path in files}


def made(folder: Path) -> None:
    from lightning_idc.synthesis.img_diff.areas import DifferenceAreas, PairSimilarity
    from lightning_idc.synthesis.img_diff.edits import PasteEdits
    from lightning_idc.synthesis.img_diff.sentences import DifferenceCaptions, RegionCaptions
    from lightning_idc.synthesis.pipeline import Chain, run
    from lightning_idc.synthesis.sources import SamplePhotos

    run(PasteEdits(size=128), SamplePhotos(copies=100), folder / "pairs", batch_size=4, shard_size=4)
    filters = "embedded"
    parts = [PairSimilarity(filters=filters), DifferenceAreas(filters=filters), RegionCaptions(filters=filters)]
    run(Chain([*parts, DifferenceCaptions()]), str(folder / "pairs"), folder / "made", batch_size=4, shard_size=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("boxes").add_argument("count", type=int, nargs="?", default=300)
    speed = verbs.add_parser("throughput")
    speed.add_argument("count", type=int, nargs="?", default=240)
    speed.add_argument("--pairs", type=int, default=32, help="compared one by one and in batches")
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
    began = time.perf_counter()
    question = {"boxes": boxes, "throughput": throughput, "mining": mining, "kills": kills}[arguments.verb]
    result = {"command": " ".join(["python", "benchmarks/synthesis.py", *sys.argv[1:]]), **question(arguments)}
    result["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(result, indent=1))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[arguments.verb] = result
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()

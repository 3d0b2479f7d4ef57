"""How long does a process that evaluates captions once take, with pycocoevalcap and with its drop-in?

    python -m benchmarks.cold_start [--images 10 1000] [--runs 3] [--out FILE]

Each run is a process of its own, from its start to its end: imports, tokenisation, BLEU, METEOR, ROUGE-L and CIDEr-D
of COCO's captions with five references (those in the SPICE jar). METEOR's index is built before. CPU seconds include
those of Java, which the process starts. The minimum of the runs counts, as other programs share the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from benchmarks.metrics import corpus

EVALUATION = """
import json, sys
from MODULE import Bleu, Cider, Meteor, PTBTokenizer, Rouge
captions, references = json.load(open(sys.argv[1]))
tokenizer = PTBTokenizer()
gts = tokenizer.tokenize({id: [{"caption": text} for text in texts] for id, texts in references.items()})
res = tokenizer.tokenize({id: [{"caption": text}] for id, text in captions.items()})
scores = [scorer.compute_score(gts, res)[0] for scorer in (Bleu(4), Meteor(), Rouge(), Cider())]
print("SCORES", json.dumps([*map(float, scores[0]), *map(float, scores[1:])]))
"""
MODULES = {"pycocoevalcap": "pycocoevalcap.eval", "drop-in": "lightning_idc.metrics.coco"}


def evaluate(module: str, path: Path) -> tuple[list[float], float, float]:
    """Scores, wall seconds and CPU seconds of one process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", EVALUATION.replace("MODULE", module), str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(printed.partition("SCORES ")[2].splitlines()[0]), wall, cpu


def measure(images: int, runs: int) -> dict[str, Any]:
    """Seconds of both, in turn, and the largest difference of their scores."""
    captions, references = corpus(images, 5)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in MODULES}
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "captions.json"
        path.write_text(json.dumps([captions, references]), encoding="utf-8")
        evaluate(MODULES["drop-in"], path)  # builds the index of METEOR where there is none
        for _ in range(runs):
            for name, module in MODULES.items():
                scores[name], *seconds = evaluate(module, path)
                times[name].append((seconds[0], seconds[1]))
    best = {name: {"wall": min(w for w, _ in of), "cpu": min(c for _, c in of)} for name, of in times.items()}
    return {
        "images": images,
        "seconds": {name: {unit: round(value, 3) for unit, value in of.items()} for name, of in best.items()},
        "times_faster": {
            unit: round(best["pycocoevalcap"][unit] / best["drop-in"][unit], 1) for unit in ("wall", "cpu")
        },
        "largest_difference": max(abs(a - b) for a, b in zip(*scores.values(), strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [measure(images, options.runs) for images in options.images]
    report({"rows": rows}, options.out, "pycocoevalcap", "numba", seeds=[0], java=True)


if __name__ == "__main__":
    main()

"""How much faster are BLEU, ROUGE-L and CIDEr-D here than with pycocoevalcap, for the same scores?

    python -m benchmarks.metrics [--pairs 5000] [--references 5] [--runs 5] [--out FILE]

COCO captions from pycocoevalcap's SPICE jar: the references of an image, and as candidate one of them with every
seventh word replaced. Both paths compute scores from text in one process, alternately: pycocoevalcap's Java tokenizer
and three scorers, and `score_captions` with an empty word cache ("ours") and with prepared references ("ours again", as
in validation after every epoch). CPU seconds include Java's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.harness import report
from lightning_idc.metrics import tokenizer
from lightning_idc.metrics.captions import References, score_captions


def corpus(pairs: int, references: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Candidates and references by image."""
    import pycocoevalcap

    jar = Path(next(iter(pycocoevalcap.__path__))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        records = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    by_image: dict[str, list[str]] = {}
    for record in records:
        by_image.setdefault(str(record["image_id"]), []).append(" ".join(record["caption"].split()))
    generator = random.Random(0)
    chosen = generator.sample(sorted(id for id, texts in by_image.items() if len(texts) >= references), pairs)
    expected = {id: by_image[id][:references] for id in chosen}
    words = [word for texts in expected.values() for text in texts for word in text.split()]
    said = {}
    for id, texts in expected.items():
        spoken = generator.choice(texts).split()
        said[id] = " ".join(generator.choice(words) if n % 7 == 3 else word for n, word in enumerate(spoken))
    return said, expected


def theirs(candidates: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    """Scores of pycocoevalcap."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    with contextlib.redirect_stdout(io.StringIO()):
        said = PTBTokenizer().tokenize({id: [{"caption": text}] for id, text in candidates.items()})
        expected = PTBTokenizer().tokenize({id: [{"caption": t} for t in texts] for id, texts in references.items()})
        bleu, rouge, cider = (scorer.compute_score(expected, said)[0] for scorer in (Bleu(4), Rouge(), Cider()))
    return {**{f"BLEU-{n + 1}": 100 * v for n, v in enumerate(bleu)}, "ROUGE-L": 100 * rouge, "CIDEr-D": 100 * cider}


def cpu_seconds() -> float:
    """CPU seconds of this process and of its finished Java processes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--references", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    candidates, references = corpus(options.pairs, options.references)
    prepared = References(references)
    score_captions(candidates, prepared)
    paths: dict[str, Callable[[], dict[str, float]]] = {
        "ours": lambda: score_captions(candidates, references).as_dict(),
        "ours again": lambda: score_captions(candidates, prepared).as_dict(),
        "pycocoevalcap": lambda: theirs(candidates, references),
    }
    wall: dict[str, list[float]] = {name: [] for name in paths}
    cpu: dict[str, list[float]] = {name: [] for name in paths}
    scores: dict[str, dict[str, float]] = {}
    for _ in range(options.runs):
        for name, path in paths.items():
            if name == "ours":
                tokenizer.clear_cache()
            began, used = time.perf_counter(), cpu_seconds()
            scores[name] = path()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(cpu_seconds() - used)

    def faster(name: str, seconds: dict[str, list[float]]) -> float:
        return round(statistics.median(a / b for a, b in zip(seconds["pycocoevalcap"], seconds[name], strict=True)), 2)

    result = {
        "question": "seconds for BLEU-1..4, ROUGE-L and CIDEr-D with tokenisation; medians of runs in turn",
        "pairs": options.pairs,
        "references_per_pair": options.references,
        "wall_s": {name: round(statistics.median(seconds), 3) for name, seconds in wall.items()},
        "cpu_s": {name: round(statistics.median(seconds), 3) for name, seconds in cpu.items()},
        "times_faster_wall": {name: faster(name, wall) for name in ("ours", "ours again")},
        "times_faster_cpu": {name: faster(name, cpu) for name in ("ours", "ours again")},
        "largest_difference_x100": max(
            abs(scores[name][metric] - value)
            for name in ("ours", "ours again")
            for metric, value in scores["pycocoevalcap"].items()
        ),
        "scores": {metric: round(value, 3) for metric, value in scores["ours"].items()},
    }
    report(result, options.out, "pycocoevalcap", seeds=[], java=True)


if __name__ == "__main__":
    main()

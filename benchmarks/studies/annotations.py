"""Do our scores equal pycocoevalcap's on each file of real difference captions?

    python -m benchmarks.studies.annotations FOLDER [--meteor] [--most 2000] [--out FILE]

FOLDER contains annotation files that `score --references` reads (``.json`` and ``.json.gz``, at any depth; others are
skipped). The references of each file are scored as captions of their own pair (the first of a pair against all), of
another pair ("shuffled"), and cut to half of their words ("truncated"). pycocoevalcap runs unmodified: Java tokenizer,
scorers, and with --meteor its Java METEOR. Differences are multiplied by 100; METEOR's must be 0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from lightning_idc.metrics.captions import FAST_METRICS, score_captions
from lightning_idc.metrics.grouping import grouped
from lightning_idc.metrics.reading import read_references
from lightning_idc.utils.errors import IDCError

Texts = Mapping[str, Sequence[str]]


def oracle(said: Mapping[str, str], expected: Texts, meteor: Any) -> dict[str, float]:
    """pycocoevalcap's scores, times 100."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        candidates = PTBTokenizer().tokenize({id: [{"caption": text}] for id, text in said.items()})
        references = PTBTokenizer().tokenize({id: [{"caption": t} for t in texts] for id, texts in expected.items()})
        results = {f"BLEU-{n + 1}": v for n, v in enumerate(Bleu(4).compute_score(references, candidates)[0])}
        results["ROUGE-L"] = float(Rouge().compute_score(references, candidates)[0])
        results["CIDEr-D"] = float(Cider().compute_score(references, candidates)[0])
        if meteor is not None:
            results["METEOR"] = meteor.compute_score(references, candidates)[0]
    return {name: 100 * value for name, value in results.items()}


def variants(expected: Texts) -> dict[str, dict[str, str]]:
    """Candidates made from references."""
    ids = list(expected)
    generator = random.Random(0)
    others = generator.sample(ids, len(ids))
    first = {id: texts[0] for id, texts in expected.items()}
    return {
        "themselves": first,
        "shuffled": {id: first[other] for id, other in zip(ids, others, strict=True)},
        "truncated": {id: " ".join(text.split()[: (len(text.split()) + 1) // 2]) for id, text in first.items()},
    }


def compare(path: Path, most: int, meteor: Any) -> dict[str, Any] | None:
    """Largest differences of one file; None if it contains no references."""
    try:
        truths = grouped(read_references(path))["all"]
    except IDCError:
        return None
    # line breaks and their kin move pycocoevalcap's captions to other pairs, so both see the same blanks
    expected = {t.id: [" ".join(text.split()) for text in t.references] for t in truths[:most] if t.references}
    words = [len(text.split()) for texts in expected.values() for text in texts]
    if sum(words) < 2 * len(words):  # a map of names, such as types of change
        return None
    results: dict[str, Any] = {"pairs": len(expected), "references": sum(map(len, expected.values()))}
    metrics = FAST_METRICS if meteor is None else (*FAST_METRICS, "METEOR")
    for name, said in variants(expected).items():
        ours, theirs = score_captions(said, expected, metrics).values, oracle(said, expected, meteor)
        results[name] = {metric: abs(ours[metric] - theirs[metric]) for metric in theirs}
    return results


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--meteor", action="store_true")
    arguments.add_argument("--most", type=int, default=2000, help="pairs of a file")
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    meteor = None
    if options.meteor:
        from pycocoevalcap.meteor.meteor import Meteor

        meteor = Meteor()
    began = time.perf_counter()
    files = {}
    for path in sorted(options.folder.rglob("*.json*")):
        name = path.relative_to(options.folder).as_posix()
        outcome = compare(path, options.most, meteor)
        if outcome is not None:
            files[name] = outcome
            worst = max(v for part in outcome.values() if isinstance(part, dict) for v in part.values())
            print(f"{name}: {outcome['pairs']} pairs, largest difference {worst:.2e}", flush=True)
    largest: dict[str, float] = {}
    for outcome in files.values():
        for part in outcome.values():
            for metric, value in part.items() if isinstance(part, dict) else ():
                largest[metric] = max(largest.get(metric, 0.0), value)
    result = {
        "seconds": round(time.perf_counter() - began, 1),
        "largest_difference_x100": largest,
        "files": files,
    }
    if options.out is not None:
        print(json.dumps(largest))
    report(result, options.out, "pycocoevalcap", seeds=[], java=True, quiet=options.out is not None)


if __name__ == "__main__":
    main()

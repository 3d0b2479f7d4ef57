"""How well does a captioner describe unseen circuit boards, compared with baselines that do not see them?

    python -m benchmarks.studies.boards FOLDER [--model pcb] [--limit 500] [--out FILE]

The official test split of DeepPCB. Measured are CIDEr-D and the fractions of boards with correct types, all numbers,
the total, and the locations of the most common type. Baselines are a constant caption selected on the training
references and shuffled captions; controls are the template with itself, and boards with repaired defects, for which the
captioner should report none. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import report
from benchmarks.studies.real_clevr import cider_d
from benchmarks.studies.where import interval
from lightning_idc import load
from lightning_idc.data import DeepPCB
from lightning_idc.data.benchmarks.deeppcb import BoardPairs
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.baselines import constant_caption

BATCH = 10


def judged(data: DeepPCB, ids: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Fraction of captions with each fact right, and CIDEr-D."""
    source = data.source("test")
    results: dict[str, list[bool]] = {}
    for id, text in zip(ids, texts, strict=True):
        for name, right in data.facts("test", id, text).items():
            if right is not None:
                results.setdefault(name, []).append(right)
    shares: dict[str, Any] = {
        name: {"share": round(sum(values) / len(values), 3), "interval": interval(sum(values), len(values))}
        for name, values in results.items()
    }
    return {**shares, "CIDEr-D": cider_d(list(texts), [source.captions(source.ids.index(id)) for id in ids])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="pcb")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--controls", type=int, default=100, help="of the first boards")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    captioner, data = load(options.model, device="cpu"), DeepPCB(options.folder)
    source = data.source("test")
    count = min(options.limit, len(source.ids))
    repaired = BoardPairs(source.root, source.entries, None, False, False, repaired=count)
    texts: list[str] = []
    quiet = {"template": 0, "repaired": 0}
    for start in range(0, count, BATCH):
        places = range(start, min(start + BATCH, count))
        samples = [source.load(place) for place in places]
        texts += [caption.text for caption in captioner.describe_all(samples)]
        if start >= options.controls:
            continue
        same = [PairSample(sample.id, sample.before, sample.before) for sample in samples]
        mended = [repaired.load(len(source.entries) + place) for place in places]
        for name, controls in (("template", same), ("repaired", mended)):
            quiet[name] += sum((caption.change_score or 0.0) < 0.5 for caption in captioner.describe_all(controls))
    ids, controls = source.ids[:count], min(count, -(-options.controls // BATCH) * BATCH)
    constant = constant_caption(
        [data.source("train").captions(place) for place in range(len(data.source("train").ids))]
    )
    result = {
        "model": options.model,
        "boards": count,
        "captioner": judged(data, ids, texts),
        "constant": {"caption": constant, **judged(data, ids, [constant] * count)},
        "dealt": judged(data, ids, texts[1:] + texts[:1]),
        "controls": controls,
        "called_unchanged": {
            name: {"share": round(hits / controls, 3), "interval": interval(hits, controls)}
            for name, hits in quiet.items()
        },
    }
    report(result, options.out, "lightning_idc", seeds=[0])


if __name__ == "__main__":
    main()

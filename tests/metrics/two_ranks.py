"""Run by test_gathering.py in two gloo processes: each adds its captions, and both must see the scores of all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from helpers.processes import run_script
from torchmetrics import MetricCollection

from lightning_idc.metrics import BLEU, ROUGEL, CIDErD
from lightning_idc.metrics.metric import CaptionScores


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    records = json.loads((folder / "records.json").read_text(encoding="utf-8"))
    metric = CaptionScores()
    results = []
    # unequal parts with one pair in both; then captions on one rank only; then none at all
    for mine in (records[:3] if rank else records[2:], records if rank else [], []):
        if mine:
            metric.update(mine)
        seen, scores = metric.compute()
        results.append([[r["id"] for r in seen], [r["caption"] for r in seen], scores and scores.as_dict()])
        metric.reset()
    # one score each, in a collection with shared state; with ids, the pair of both ranks counts once
    scores = MetricCollection([BLEU(), CIDErD(), ROUGEL()])
    for _ in range(2):
        mine = records[:3] if rank else records[2:]
        captions, references, ids = ([r[name] for r in mine] for name in ("caption", "references", "id"))
        scores.update(captions, references, ids=ids)
        results.append({name: float(value) for name, value in scores.compute().items()})
        scores.reset()
    # references are prepared where scores are computed
    results.append(metric._prepared is not None)
    (folder / f"results{rank}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    run_script(main, Path(sys.argv[1]))

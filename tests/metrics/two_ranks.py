"""Run by test_gathering.py as two gloo processes: each adds its captions, both must see the scores of all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from helpers.processes import run_script

from lightning_idc.metrics.metric import CaptionScores


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    records = json.loads((folder / "records.json").read_text(encoding="utf-8"))
    metric = CaptionScores()
    found = []
    # unequal shares with a pair that both have; then nothing on one of them; then nothing at all
    for mine in (records[:3] if rank else records[2:], records if rank else [], []):
        if mine:
            metric.update(mine)
        seen, scores = metric.compute()
        found.append([[r["id"] for r in seen], [r["caption"] for r in seen], scores and scores.as_dict()])
        metric.reset()
    # references are prepared where they are scored
    found.append(metric._prepared is not None)
    (folder / f"found{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run_script(main, int(sys.argv[1]), Path(sys.argv[2]))

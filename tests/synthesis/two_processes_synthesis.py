"""Makes the records of `test_pipeline` with two processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.toy_stages import Numbers, Shade, run_under_trainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    two = {"devices": 2, "strategy": "ddp"}
    run_under_trainer(Shade(), Numbers(40), Path(sys.argv[1]), two, batch_size=4, shard_size=6)

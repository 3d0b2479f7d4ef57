"""Makes the records of `test_pipeline` with two processes."""

from __future__ import annotations

import sys

import torch
from helpers.toy_stages import Numbers, Shade

from lightning_idc.synthesis.pipeline import run

if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Shade(), Numbers(40), sys.argv[1], batch_size=4, shard_size=6, accelerator="cpu", devices=2, strategy="ddp")

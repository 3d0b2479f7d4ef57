"""Run by test_namc_callbacks.py: ReconstructionQuality on a few pairs, in one or several processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from helpers.processes import gloo, run_script
from helpers.training import QUIET
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.methods.namc.masked_reconstruction import MaskedReconstruction
from lightning_idc.methods.namc.module import NAMC
from lightning_idc.methods.namc.reconstruction_quality import ReconstructionQuality
from lightning_idc.models.distributed import is_rank_zero
from lightning_idc.nn.image_tokenizer import ImageTokenizer


def main(processes: int, out: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    sizes: dict[str, Any] = dict(train_pairs=8, val_pairs=3, test_pairs=1, render_size=16, image_size=64, batch_size=1)
    data = SyntheticDescriptions(**sizes, cache_dir=out / "cache", progress=False)
    tokens = ImageTokenizer(codebook_size=16, latent=4, width=4, multipliers=(1, 1), blocks=1, patch_size=2)
    # all cells are masked, so that the scores do not depend on the random mask
    callbacks = [MaskedReconstruction(tokens, mask_ratio=1.0, encoder="net.encoder"), ReconstructionQuality()]
    strategy = gloo("one" if processes == 1 else "ddp")
    trainer = Trainer(strategy=strategy, devices=processes, callbacks=callbacks, **QUIET)
    scores = trainer.validate(NAMC(width=32, heads=2, dropout=0.0), data, verbose=False)[0]
    if is_rank_zero():
        (out / f"{processes}.json").write_text(json.dumps(scores))


if __name__ == "__main__":
    run_script(main, int(sys.argv[1]), Path(sys.argv[2]))

"""Run by test_procap_distributed.py: interpolation and both training stages on two gloo processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from helpers.procap_tiny import QUIET, data, first_stage, second_stage
from helpers.processes import gloo, run_script
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.methods.procap.flow import CrossFade
from lightning_idc.methods.procap.interpolation import EveryPair, FrameInterpolator
from lightning_idc.methods.procap.tokenizer import TokenizerTraining


def trainer() -> Trainer:
    return Trainer(**QUIET, strategy=gloo("ddp"), devices=2, max_epochs=1, enable_checkpointing=False)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    seed_everything(3, verbose=False)
    pairs = data(folder, batch_size=2, train_pairs=9)
    tokenizer = TokenizerTraining(
        codebook_size=12, latent=8, width=8, multipliers=[1], blocks=1, patch_size=4, revive_every=2
    )
    runs = {"tokenizer": tokenizer}
    first = trainer()
    first.fit(tokenizer, pairs)
    first.save_checkpoint(folder / "tokenizer.ckpt")
    interpolator = FrameInterpolator(str(folder / "procedures"), 7, CrossFade())
    written = trainer().predict(interpolator, EveryPair(pairs, batch_size=2)) or []
    # the number of pairs is odd, so some batches are odd, too
    for name, model in (("procedure", first_stage(folder)), ("caption", second_stage(folder))):
        run = trainer()
        run.fit(model, pairs)
        run.save_checkpoint(folder / f"{name}.ckpt")
        runs[name] = model
    weights = {name: {key: value.clone() for key, value in model.state_dict().items()} for name, model in runs.items()}
    ids = [id for batch in written for id in batch]
    torch.save({**weights, "written": ids}, folder / f"rank{first.global_rank}.pt")


if __name__ == "__main__":
    run_script(main, Path(sys.argv[1]))

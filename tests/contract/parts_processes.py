"""Run by test_parts_on_captioners.py in two gloo processes: train parts on one captioner and write the weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from helpers.captioners import PARTS
from helpers.processes import apart, gloo, run_script
from test_parts_on_captioners import train
from torch import distributed


def main(captioner: str, out: Path, parts: list[str]) -> None:
    torch.set_num_threads(1)
    outcome: dict[str, Any] = {}
    for part in parts:
        callbacks = PARTS[part].callbacks(captioner)
        options: dict[str, Any] = {"batch_size": 2, "strategy": gloo("ddp"), "devices": 2}
        model = train(captioner, callbacks, out.parent, max_epochs=1, **options)
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        outcome[part] = {"weights": weights, "apart": apart(model)}
    if distributed.get_rank() == 0:
        torch.save(outcome, out)


if __name__ == "__main__":
    run_script(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

"""Run by test_plugins.py in two gloo processes: train every plug-in of the table and write the weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from helpers.plugins import PLUGINS, train
from helpers.processes import apart, gloo, run_script
from torch import distributed


def main(out: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, plugin in PLUGINS.items():
        model = train(name, out.parent, plugin.callbacks(), batch_size=2, strategy=gloo("ddp"), devices=2)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        # buffers that depend on the batches of a process, such as those of a batch norm, may differ
        found[name] = {"state": state, "apart": apart(model)}
    if distributed.get_rank() == 0:
        torch.save(found, out)


if __name__ == "__main__":
    run_script(main, Path(sys.argv[1]))

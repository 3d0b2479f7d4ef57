"""Two processes equal one: data order, gradients, checkpoints, predictions and scores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TinyCaptioner

HERE = Path(__file__).parent


def launch(kind: str, out: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent.parent}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "two_processes.py"), kind, str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(out / f"{kind}.pt", weights_only=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("one")
    return out, launch("one", out)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind: str, one: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, expected = one
    found = launch(kind, tmp_path)
    assert [(r["id"], r["caption"]) for r in found["predictions"]] == [
        (r["id"], r["caption"]) for r in expected["predictions"]
    ]
    for name in ("test/CIDEr-D", "test/BLEU-4", "test/ROUGE-L"):
        torch.testing.assert_close(found["scores"][name], expected["scores"][name])
    weights = torch.load(tmp_path / f"{kind}.ckpt", weights_only=True)["state_dict"]
    reference = torch.load(folder / "one.ckpt", weights_only=True)["state_dict"]
    assert weights.keys() == reference.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], reference[name], rtol=1e-4, atol=2e-6, msg=name)
    assert weights["adapter.shift.shift"].abs().max() > 1e-3
    # a checkpoint of two processes loads in one, without a Trainer and with the add-on left behind
    alone = TinyCaptioner.load_from_checkpoint(tmp_path / f"{kind}.ckpt")
    assert alone.net is not None and not [k for k in alone.state_dict() if k.startswith("aux_addons")]

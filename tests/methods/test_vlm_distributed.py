"""M3Diff on two processes equals one: gradients, checkpoint with LoRA and MDP, captions; under DDP and FSDP2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.checkpoint import load_captioner

HERE = Path(__file__).parent


def launch(kind: str, out: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent.parent}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "vlm_two_processes.py"), kind, str(out)]
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
    # four layers of the tower, two of the language model, the whole and MDP
    assert (found["sharded"] >= 8) == (kind == "fsdp2")
    assert [(r["id"], r["caption"]) for r in found["predictions"]] == [
        (r["id"], r["caption"]) for r in expected["predictions"]
    ]
    weights = torch.load(tmp_path / f"{kind}.ckpt", weights_only=True)["state_dict"]
    reference = torch.load(folder / "one.ckpt", weights_only=True)["state_dict"]
    assert weights.keys() == reference.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], reference[name], rtol=1e-4, atol=2e-5, msg=name)
    adapted = [name for name in weights if "lora_B" in name or "adapter.mdp" in name or "modules_to_save" in name]
    assert len(adapted) > 60 and all(weights[name].abs().max() > 1e-3 for name in adapted)
    again = load_captioner(tmp_path / f"{kind}.ckpt")
    assert list(again.adapter) == ["lora", "mdp"]
    for name, value in again.state_dict().items():
        assert torch.equal(value, weights[name]), name

"""M3Diff on two processes equals one: gradients, checkpoint with LoRA and MDP, captions; under DDP and FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import launch

from lightning_idc.checkpoint import load_captioner

HERE = Path(__file__).parent


def outcome(kind: str, out: Path) -> dict[str, Any]:
    launch(HERE / "vlm_two_processes.py", kind, out)
    return torch.load(out / f"{kind}.pt", weights_only=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("one")
    return out, outcome("one", out)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind: str, one: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, expected = one
    found = outcome(kind, tmp_path)
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

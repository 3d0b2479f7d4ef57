"""Two processes equal one: data order, gradients, checkpoints, predictions and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import launch
from helpers.tiny import TinyCaptioner

HERE = Path(__file__).parent


def outcome(kind: str, out: Path) -> dict[str, Any]:
    launch(HERE / "two_processes.py", kind, out, processes=1 if kind == "one" else 2)
    return torch.load(out / f"{kind}.pt", weights_only=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("one")
    return out, outcome("one", out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind: str, one: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, expected = one
    found = outcome(kind, tmp_path)
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
    assert weights["adapters.shift.shift"].abs().max() > 1e-3
    # a checkpoint of two processes loads in one, without a Trainer and without the add-on
    alone = TinyCaptioner.load_from_checkpoint(tmp_path / f"{kind}.ckpt")
    assert alone.net is not None and not [k for k in alone.state_dict() if k.startswith("aux_addons")]

"""Preference optimisation on two processes: DPO equals one process, ADPO keeps its replicas equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import launch

HERE = Path(__file__).parent


def outcome(kind: str, out: Path) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    launch(HERE / "two_processes_preference.py", kind, out)
    weights = torch.load(out / f"{kind}.ckpt", weights_only=True)["state_dict"]
    return weights, torch.load(out / f"{kind}.pt", weights_only=True)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes(kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    expected, _ = outcome("one", tmp_path_factory.mktemp("one"))
    found, replicas = outcome(kind, tmp_path)
    assert found.keys() == expected.keys()
    moved = 0.0
    for name, value in expected.items():
        twin = f"aux_addons.preference.reference.twin.{name}"
        if twin in expected:
            moved = max(moved, float((value - expected[twin]).abs().max()))
        if name != "aux_addons.preference.chosen_ratio":  # every process keeps its own
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=5e-6, msg=name)
    assert moved > 1e-2, "the policy left the reference"
    assert len(replicas) == 2 and replicas[0] == replicas[1]

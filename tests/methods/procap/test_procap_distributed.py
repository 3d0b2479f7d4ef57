"""Every stage runs on two processes, which finish with equal weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.processes import launch

from lightning_idc.methods.procap.procedures import ProcedureFolder

HERE = Path(__file__).parent


@pytest.mark.dist
def test_two_processes_equal_one(tmp_path: Path) -> None:
    launch(HERE / "procap_two_processes.py", tmp_path, processes=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for stage in ("tokenizer", "procedure", "caption"):
        assert all(torch.equal(ranks[0][stage][name], value) for name, value in ranks[1][stage].items()), stage
    made = ProcedureFolder(tmp_path / "procedures")
    assert len(made) == 9 + 5 + 3
    assert min(len(rank["written"]) for rank in ranks) >= 8, "each process wrote its half"

"""Every stage on two processes: they finish, and hold the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.processes import launch

from lightning_idc.methods.procap.procedures import ProcedureFolder

HERE = Path(__file__).parent


@pytest.mark.dist
def test_two_processes_agree_in_every_stage(tmp_path: Path) -> None:
    launch(HERE / "procap_two_processes.py", tmp_path)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for stage in ("tokenizer", "procedure", "caption"):
        assert all(torch.equal(ranks[0][stage][name], value) for name, value in ranks[1][stage].items()), stage
    made = ProcedureFolder(tmp_path / "procedures")
    assert len(made) == 9 + 5 + 3
    first, second = (set((tmp_path / f"parts{rank}.txt").read_text().split()) for rank in (0, 1))
    assert first and second and not first & second, "each process wrote shards of its own"
    assert {path.name.split("-")[1] for path in (tmp_path / "procedures").glob("rows-*.arrow")} == first | second

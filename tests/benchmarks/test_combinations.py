"""Trainings that a budget of seconds ends, and the smallest run of the study that compares methods so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import quiet_trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_idc.utils.errors import DataError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # which the scripts set for themselves
        monkeypatch.setenv(name, "1")
    # which cv2 sets when it is imported for the first time
    monkeypatch.setenv("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))


class Ticking:
    """A processor's clock that each step of a training moves on by a second."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def process_time(self) -> float:
        return self.seconds


class Stepping(LightningModule):
    """One weight, whose steps move a clock; it notes the rates that it learned with."""

    def __init__(self, clock: Ticking, schedule: Any) -> None:
        super().__init__()
        self.clock, self.schedule, self.layer, self.rates = clock, schedule, nn.Linear(1, 1), list[float]()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.clock.seconds += 1
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        loss: Tensor = self.layer(batch[0]).sum()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.schedule(0.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_a_budget_ends_a_training_in_the_middle_of_an_epoch_and_its_rate_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import _budget

    clock = Ticking()
    monkeypatch.setattr(_budget.time, "process_time", clock.process_time)
    monkeypatch.setattr(
        _budget, "quiet_trainer", lambda default_root_dir, **own: quiet_trainer("cpu", default_root_dir, **own)
    )
    budget = _budget.Budget.begin(10.0, charged=3.0)
    model = Stepping(clock, _budget.ByClock(budget, budget.share, warmup=0.0))
    _, steps = _budget.fitted(model, DataLoader(TensorDataset(torch.ones(4, 1))), budget, tmp_path)
    assert steps == 7 and budget.spent == 10.0, "three seconds were spent before the first of them"
    assert all(later < earlier for earlier, later in zip(model.rates, model.rates[1:], strict=False))
    assert model.rates[0] == 1.0 and model.rates[-1] < 0.1, "the whole fall in what was left"


@pytest.mark.parametrize(
    ("world", "rows"), [("baseline", ("SFT+", "ADPO", "MDP")), ("clip4idc", ("SFT", "SFT+", "noise masking"))]
)
def test_the_smallest_run_compares_all_rows_with_the_control(
    world: str, rows: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import combinations

    out = tmp_path / "out.json"
    sizes = ["--smallest", "--pairs", "16", "--test_pairs", "6", "--seeds", "1"]
    places = ["--work", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["combinations.py", *sizes, "--world", world, "--only", *rows, *places])
    combinations.main()
    found = json.loads(out.read_text(encoding="utf-8"))["worlds"][world]
    assert set(found["summary"]) == set(rows)
    assert set(found["over_control"]) == set(rows) - {"SFT+"}
    for row in set(rows) - {"SFT"}:
        figures = found["each_seed"][0][row]
        assert figures["steps"] >= 1 and figures["seconds"] >= combinations.SMALLEST["seconds"]
    assert found["each_seed"][0][rows[-1]]["seconds before"] >= (0.3 if "noise" in rows[-1] else 0.0)


def test_a_row_of_several_worlds_is_a_study_of_worlds() -> None:
    from _study import Study
    from merge_study import across

    from lightning_idc.report.comparison import Captioned

    references = {f"p{n}": [f"the {colour} cube moved"] for n, colour in enumerate("abcd")}
    right = {id: texts[0] for id, texts in references.items()}
    studies = {}
    for world, texts in (("one", dict.fromkeys(right, "something moved")), ("other", right)):
        studies[world] = Study(references, "something moved", ["SFT+"])
        for seed in (1, 2) if world == "one" else (2,):
            said = Captioned(texts, texts, {id: {} for id in texts})
            studies[world].add(seed, {"SFT+": (said, {"steps": 3.0})})
    found = across(studies, "SFT+")
    assert found.order == ["one", "other"] and found.over(0, 1)["mean"] > 0
    assert found.seeds == [2], "the one that both have"
    with pytest.raises(DataError, match="0 have GRPO"):
        across(studies, "GRPO")


def test_the_tables_of_the_page_are_what_the_results_hold() -> None:
    from _pages import filled
    from combinations_page import PAGE, tables

    text = PAGE.read_text(encoding="utf-8")
    assert filled(text, tables()) == text, "run benchmarks/combinations_page.py --write"

"""Ablations and keyframes of ProCap train as its main recipe does, and the official entries as the authors' code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.models.schedules import WarmupLinear

PAPER = Path(__file__).resolve().parents[2] / "recipes" / "paper"
SETTINGS = ("optimizer", "schedule", "encoder_schedule", "learning_rates", "captions_per_pair", "decoder_width")


def captioner(recipe: str, **chosen: str) -> dict[str, Any]:
    """Options of the captioner in the second stage."""
    stages = {stage.name: stage for stage in load(PAPER / f"{recipe}.yaml", chosen).stages}
    options: dict[str, Any] = stages["caption"].config["model"]["init_args"]
    return options


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["procap_ablations", "procap_keyframes"])
@pytest.mark.parametrize("dataset", ["clevr_change", "spot_the_diff"])
def test_what_is_not_ablated_is_as_in_the_main_recipe(recipe: str, dataset: str) -> None:
    main = captioner("procap", dataset=dataset)
    assert main["schedule"]["init_args"] == {"warmup": 0.1, "floor": 1.0}  # appendix H: warm-up over the first tenth
    entries = choices(PAPER / f"{recipe}.yaml", {"dataset": dataset})
    assert len(entries) > 10
    for entry in entries:
        own = captioner(recipe, **entry)
        assert {name: own.get(name) for name in SETTINGS} == {name: main.get(name) for name in SETTINGS}, entry


@pytest.mark.parametrize("entry", ["table2_none", "table2_epm", "table2_ipc"])
def test_rows_of_table_2_make_no_frames(entry: str) -> None:
    stages = {stage.name for stage in load(PAPER / "procap_ablations.yaml", {"ablation": entry}).stages}
    assert "frames" not in stages and ("procedure" in stages) == (entry == "table2_epm")


@pytest.mark.parametrize("dataset", ["clevr_change", "image_editing_request", "spot_the_diff"])
def test_official_rates_are_those_of_each_of_two_processes(dataset: str) -> None:
    """BertAdam counts the steps of its own process, but its total is that of a single process, twice as many."""
    options = captioner("procap", dataset=f"{dataset}_official")
    planned = WarmupLinear(warmup=0.1)
    for name in ("schedule", "encoder_schedule"):
        schedule = WarmupLinear(**options[name]["init_args"])
        for share in (0.05, 0.1, 0.2, 0.5, 0.9, 1.0):
            assert schedule(share) == pytest.approx(planned(share / 2), abs=1e-4), (name, share)

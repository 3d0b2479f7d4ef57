"""Table 17 is one run: it computes all scores first, then applies each setting of the filters, as typed by a user."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers.stages_here import stages_here

from lightning_idc.cli import main
from lightning_idc.cli.configuration import parse_overrides
from lightning_idc.cli.recipes.compose import load
from lightning_idc.cli.recipes.overrides import override
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("cv2")  # imported at module level, since the import changes the environment
RECIPE = Path(__file__).parents[2] / "recipes" / "paper" / "img_diff_table17.yaml"


def filters_of(config: Any) -> list[str]:
    """Values of ``filters`` in a stage and in its nested stages."""
    if isinstance(config, dict):
        own = [config["filters"]] if "filters" in config else []
        return [*own, *(found for value in config.values() for found in filters_of(value))]
    return [found for value in config for found in filters_of(value)] if isinstance(config, list) else []


def test_the_command_of_the_header_leaves_no_filter_on() -> None:
    text = re.sub(r"\\\n#", "", RECIPE.read_text("utf-8"))
    command = re.search(r"lightning run recipes/paper/(img_diff\.yaml .*)", text)
    assert command is not None
    name, *given = shlex.split(command[1])
    recipe = load(RECIPE.parent / name)
    override(recipe, parse_overrides(given))
    found = filters_of([stage.config for stage in recipe.stages])
    assert found == ["scores"] * 3, "pairs, regions and captions"


@pytest.mark.slow
def test_a_setting_of_the_filters_is_applied_to_a_store_of_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages_here(monkeypatch)
    edited, scored, out = tmp_path / "edited" / "records", tmp_path / "scored" / "records", tmp_path / "out"
    run(PasteEdits(size=96), SamplePhotos(copies=3), edited)
    stages = [kind(filters="scores") for kind in (PairSimilarity, DifferenceAreas, RegionCaptions)]
    run(Sequential([*stages, DifferenceCaptions()]), str(edited), scored)
    given = ["--matrix.preset", "table17_4", "--stages.refilter.data.source", str(scored)]
    assert main(["run", str(RECIPE), "--out", str(out), *given]) == 0
    store = RecordStore(out / "refilter" / "records")
    assert 0 < store.counts()[0] < len(store)
    steps = [step for step in store.record(0).history if step["stage"] == "Refilter"]
    assert [step["filters"]["pair_similarity"] for step in steps] == [[0.85, 0.98]]
    assert (out / "release" / "img_diff_object_replacement.json").is_file() and (out / "audit.html").is_file()

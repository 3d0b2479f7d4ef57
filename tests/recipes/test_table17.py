"""Table 17 is one run: all scores first, then each setting of the filters, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_idc.cli import main
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.launchers import run_in_process
from lightning_idc.synthesis.sources import SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("cv2")  # here, since importing it changes the environment
RECIPE = Path(__file__).parents[2] / "recipes" / "paper" / "img_diff_table17.yaml"


@pytest.mark.dist
def test_a_setting_of_the_filters_is_applied_to_a_store_of_scores(tmp_path: Path) -> None:
    edited, scored, out = tmp_path / "edited" / "records", tmp_path / "scored" / "records", tmp_path / "out"
    run_in_process(PasteEdits(size=96), SamplePhotos(copies=3), edited)
    stages = [kind(filters="scores") for kind in (PairSimilarity, DifferenceAreas, RegionCaptions)]
    run_in_process(Sequential([*stages, DifferenceCaptions()]), str(edited), scored)
    given = ["--matrix.preset", "table17_4", "--stages.refilter.data.source", str(scored)]
    assert main(["run", str(RECIPE), "--run_dir", str(out), *given]) == 0
    store = RecordStore(out / "refilter" / "records")
    assert 0 < store.counts()[0] < len(store)
    steps = [step for step in store.record(0).history if step["stage"] == "Refilter"]
    assert [step["filters"]["pair_similarity"] for step in steps] == [[0.85, 0.98]]
    assert (out / "release" / "img_diff_object_replacement.json").is_file() and (out / "audit.html").is_file()

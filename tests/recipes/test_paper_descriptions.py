"""recipes/paper/implicit_change.yaml, run by the commands of its header on tiny files in the authors' layout."""

from __future__ import annotations

import json
import os
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.describers import InTemplate
from helpers.paper import PAPER, image, run_stages_here, spot_the_diff
from helpers.processes import TESTS
from helpers.tiny_models import make_llava

from lightning_idc.cli import main
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore

RECIPE = PAPER / "implicit_change.yaml"


def commands() -> list[list[str]]:
    """Arguments of each command in the header."""
    header = RECIPE.read_text(encoding="utf-8").partition("recipe:\n")[0]
    lines = "\n".join(line.removeprefix("#").strip() for line in header.splitlines()).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("lightning run ")]


class SixPairs:
    """Records of mined pairs with two images each."""

    fingerprint = "six pairs"

    def __len__(self) -> int:
        return 6

    def record(self, index: int) -> Record:
        record = Record(f"p{index}", {"similarity": 0.8})
        for side in ("before", "after"):
            record.put(side, torch.full((3, 20, 24), 30 * index + len(side), dtype=torch.uint8))
        return record


class Mined(PipelineStage):
    def process(self, records: list[Record]) -> list[Record]:
        return records


def mined(folder: Path) -> None:
    run(Mined(), SixPairs(), folder / "pairs" / "records")


def instruct_pix2pix(folder: Path) -> None:
    (folder / "seeds.json").parent.mkdir(parents=True)
    (folder / "seeds.json").write_text(json.dumps([[f"{number:07d}", ["11"]] for number in range(7)]))
    for number in range(7):
        for side in (0, 1):
            image(folder / f"{number:07d}" / f"11_{side}.jpg", 32, 24, 2 * number + side)
        said = {"input": "x", "edit": f"make it {number}", "output": "y"}
        (folder / f"{number:07d}" / "prompt.json").write_text(json.dumps(said))


MAKERS = {"cc3m": mined, "spot_the_diff": spot_the_diff, "instruct_pix2pix": instruct_pix2pix, "conventional": mined}
"""Functions that write the input of each command, by its instruction."""
QUOTED = {
    "spot_the_diff": "Here is the difference: person 0 left. ",
    "instruct_pix2pix": "Here is the prompt: make it 0. ",
}


def kind_of(command: list[str]) -> str:
    kinds = [value for key, value in pairwise(command) if key.endswith(".kind")]
    return kinds[0] if kinds else "cc3m"


def test_the_header_has_a_command_for_each_instruction() -> None:
    assert sorted(map(kind_of, commands())) == sorted(MAKERS)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", commands(), ids=kind_of)
def test_each_command_describes_and_releases_pairs(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, kind = run_stages_here(tmp_path, monkeypatch), kind_of(command)
    MAKERS[kind](here / "given")
    given = str(here / "given")
    typed = [
        part.replace("root: FOLDER", f"root: {given}, official: false").replace("RUN/", f"{given}/") for part in command
    ]
    typed[1] = str(RECIPE)
    llava = str(make_llava(here / "llava"))
    stages = "stages.describe.model.stages"
    small = {
        f"{stages}.0.captioner.model.model": llava,
        f"{stages}.0.captioner.model.dtype": "float32",
        f"{stages}.0.captioner.model.max_new_tokens": 12,
        f"{stages}.1.model": {"class": "helpers.describers.InTemplate"},
        "stages.describe.data.num_workers": 0,
        "trainer.accelerator": "cpu",
    }
    InTemplate.prompts.clear()
    # missing requirements are checked in a separate process
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{TESTS.parent}")
    out = here / "out"
    replaced = [part for key, value in small.items() for part in (f"--{key}", json.dumps(value))]
    assert main([*typed, "--out", str(out), *replaced]) == 0
    store = RecordStore(out / "describe" / "records")
    counts = store.counts()
    assert len(store) == 6 and len(InTemplate.prompts) >= 3, counts
    assert any(QUOTED.get(kind, "describe the") in prompt for prompt in InTemplate.prompts)
    told = [record for record in store if record.dropped is None]
    assert all(record.facts["origin"] == kind for record in told)
    refused = counts[1].get("text after the sentence", 0)
    assert refused == (0 if kind == "conventional" else len(InTemplate.prompts) // 3)
    released = FolderPairs(out / "release").pairs_of("train")
    assert [released.captions(place) for place in range(len(released))] == [[r.facts["description"]] for r in told]
    assert (out / "audit.html").stat().st_size > 1000

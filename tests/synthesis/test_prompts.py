"""The questions are the authors': string by string, with the file and the line where each stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_idc.methods.img_diff import prompts
from lightning_idc.methods.img_diff.presets import PRESETS
from lightning_idc.synthesis.slots.chat import VICUNA

PAPER = Path(__file__).resolve().parents[2] / "recipes" / "paper"


@pytest.fixture(scope="module")
def authors(shared: Path) -> dict[str, Any]:
    file = shared / "parity" / "imgdiff_prompts.json"
    if not file.is_file():
        pytest.skip("imgdiff_prompts.json is not in the shared folder")
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", prompts.ORIGINS)
def test_a_prompt_is_the_authors_string(authors: dict[str, Any], name: str) -> None:
    own, path, line = prompts.ORIGINS[name]
    theirs = next(prompt for prompt in authors["prompts"] if prompt["id"] == name)
    assert own == theirs["text"]
    assert (f"Img-Diff-codes/{path}", line, "ImgDiff") == (theirs["path"], theirs["line"], theirs["branch"])


def test_all_active_prompts_of_the_papers_branch_are_taken(authors: dict[str, Any]) -> None:
    active = [p["id"] for p in authors["prompts"] if p["branch"] == "ImgDiff" and p.get("active", True)]
    assert set(prompts.ORIGINS) == set(active)
    assert next(text["text"] for text in authors["paper"] if text["id"] == "cocot") == prompts.COCOT


def test_vicuna_is_asked_in_its_template(authors: dict[str, Any]) -> None:
    assert VICUNA.replace("{prompt}", "{message}") == authors["templates"]["vicuna_v1"]["rendered"]


def test_the_scripts_preset_has_the_scripts_numbers(authors: dict[str, Any]) -> None:
    value = {number["id"]: number["value"] for number in authors["numbers"]}
    preset = PRESETS["scripts"]
    assert list(preset.pair_similarity) == value["image_similarity"]
    assert preset.confidence == value["fastsam_conf"] and preset.overlap == value["box_iou"]
    assert (preset.region_match, preset.caption_match) == (value["itm_noun"], value["caption_itm"])
    assert preset.crop_similarity == value["crop_similarity"]
    assert preset.caption_similarity == value["caption_similarity"]
    assert (preset.most_regions, preset.described_regions) == (value["boxes_kept"], value["qa_turns_run"])
    assert preset.area == (value["box_min_area"], 1.0) and preset.match_margin == value["box_margin"]


def test_boxes_are_written_as_the_authors_write_them() -> None:
    assert prompts.box_in_shares([0, 20.5, 512, 51.2], [1024, 512]) == ["0.00", "0.02", "1.00", "0.05"]
    assert prompts.box_in_pixels([0, 20, 512, 51.5], [1024, 512]) == ["0.0", "20.0", "512.0", "51.5"]


def of_recipe(name: str, kind: str) -> dict[str, Any]:
    """Arguments of the first class of that name in a recipe."""

    def search(value: Any) -> Any:
        if isinstance(value, dict):
            if str(value.get("class_path", "")).rpartition(".")[2] == kind:
                return value.get("init_args") or {}
            value = list(value.values())
        found = (search(item) for item in value) if isinstance(value, list) else ()
        return next((item for item in found if item is not None), None)

    found = search(yaml.safe_load((PAPER / name).read_text(encoding="utf-8")))
    assert found is not None, f"{kind} is not in {name}"
    return found


def test_the_paper_recipes_ask_as_the_authors_do(authors: dict[str, Any]) -> None:
    value = {number["id"]: number["value"] for number in authors["numbers"]}
    regions = of_recipe("img_diff.yaml", "PromptedRegions")
    assert "prompt" not in regions and regions.get("coordinates", "shares") == "shares"
    assert regions["model"]["init_args"]["max_new_tokens"] == value["region_max_new_tokens"]
    teller = of_recipe("img_diff.yaml", "PromptedTeller")
    assert "prompt" not in teller
    assert teller["model"]["init_args"]["max_new_tokens"] == value["difference_max_new_tokens"]
    edits = of_recipe("img_diff.yaml", "PromptedEdits")
    assert "prompt" not in edits and edits["model"]["init_args"]["temperature"] == value["edit_temperature"]
    removed = of_recipe("img_diff_removal.yaml", "PromptedRegions")
    assert removed["coordinates"] == "pixels", "section 19.2.4: the whole picture and the box"
    erase = of_recipe("img_diff_removal.yaml", "EraseObjects")
    assert erase["alike"] == value["removal_crop_similarity"]
    assert erase["confidence"] == value["removal_fastsam_conf"] and erase["overlap"] == value["removal_box_iou"]
    assert [erase["size"]] * 2 == value["removal_size"]
    described = of_recipe("img_diff_removal.yaml", "RemovedObjects")
    assert (described["present"], described["absent"]) == (value["removal_itm_present"], value["removal_itm_absent"])
    natural = of_recipe("img_diff_evaluation.yaml", "NaturalImages")
    assert "prompt" not in natural and natural["boxes"] is True

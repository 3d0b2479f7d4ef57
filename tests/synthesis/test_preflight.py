"""The preflight reports all problems of a pipeline at once, before its first stage."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.cli.preflight import check_models
from lightning_idc.cli.recipes.compose import load
from lightning_idc.cli.recipes.overrides import override
from lightning_idc.synthesis.preflight import preflight
from lightning_idc.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def step(name: str, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "data": {"init_args": {"target": name, **data}}}


def chat(**options: Any) -> dict[str, Any]:
    return {"class_path": "lightning_idc.synthesis.models.chat.ChatModel", "init_args": options}


def edits(model: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": "lightning_idc.methods.img_diff.captions.PromptedEdits", "init_args": {"model": model}}


@pytest.mark.slow
def test_problems_of_all_stages_are_listed(tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text("a dog\n" * 50_000)
    sentences = {
        "class_path": "lightning_idc.synthesis.sources.Sentences",
        "init_args": {"texts": str(tmp_path / "captions.txt")},
    }
    painter = {
        "class_path": "lightning_idc.synthesis.models.diffusion.PromptToPrompt",
        "init_args": {"model": "no/sdxl"},
    }
    paint = {"class_path": "lightning_idc.methods.img_diff.painting.PaintPairs", "init_args": {"painter": painter}}
    fast = {
        "class_path": "lightning_idc.methods.img_diff.areas.DifferenceAreas",
        "init_args": {"segmenter": {"class_path": "lightning_idc.synthesis.models.sam.FastSamSegmenter"}},
    }
    wrong = {"class_path": "lightning_idc.methods.img_diff.areas.PairSimilarity", "init_args": {"filters": "papper"}}
    steps = [
        step("edit", edits(chat(model="nobody/nothing")), source=sentences),
        step("paint", paint),
        step("areas", fast),
        step("similar", wrong),
    ]
    problems = preflight(steps, tmp_path)
    expected = {
        "edit: ": "hf download nobody/nothing",
        "paint: ": "hf download no/sdxl",
        "areas: ": "ultralytics",
        "similar: ": "papper",
        "the images need about": "keep_dropped",
    }
    for start, part in expected.items():
        own = [text for text in problems if text.startswith(start)]
        assert len(own) == 1 and part in own[0], (start, problems)


def test_missing_chat_template_is_a_problem(tmp_path: Path) -> None:
    from helpers.tiny_models import tokenizer
    from transformers import LlamaConfig

    tokenizer().save_pretrained(tmp_path / "bare")
    LlamaConfig(num_hidden_layers=1).save_pretrained(tmp_path / "bare")
    (problem,) = preflight([step("edit", edits(chat(model=str(tmp_path / "bare"))))], tmp_path)
    assert "has no chat template" in problem and "template to vicuna" in problem
    assert preflight([step("edit", edits(chat(model=str(tmp_path / "bare"), template="vicuna")))], tmp_path) == []


def test_weights_larger_than_memory_are_a_problem(tmp_path: Path) -> None:
    from helpers.tiny_models import tokenizer
    from transformers import LlamaConfig

    folder = tmp_path / "large-vicuna"
    tokenizer().save_pretrained(folder)
    LlamaConfig(num_hidden_layers=1).save_pretrained(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(10**13)  # ten terabytes in a sparse file
    (problem,) = preflight([step("edit", edits(chat(model=str(folder))))], tmp_path)
    assert "the weights have 10000.0 GB" in problem and "quantization" in problem
    loading = {"device_map": "auto"}
    assert preflight([step("edit", edits(chat(model=str(folder), loading=loading)))], tmp_path) == []


@pytest.mark.slow
def test_paper_recipe_stops_before_its_first_stage(tmp_path: Path) -> None:
    recipe = load(ROOT / "recipes" / "paper" / "img_diff.yaml")
    (tmp_path / "captions.txt").write_text("a dog\n")
    override(recipe, {"stages.edit.data.source.texts": str(tmp_path / "captions.txt")})
    with pytest.raises(ConfigError, match="nothing was started") as caught:
        check_models(recipe, tmp_path / "run")
    for name in ("vicuna-13b", "stable-diffusion-xl", "clip-vit-base", "sam-vit-huge", "blip-itm-large", "llava-v1.6"):
        assert f"hf download {name}" in str(caught.value).replace("lmsys/", "").replace("stabilityai/", "").replace(
            "openai/", ""
        ).replace("facebook/", "").replace("Salesforce/", "").replace("llava-hf/", ""), name
    assert not (tmp_path / "run").exists()


def test_embedded_recipes_are_not_delayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    for name in ("img_diff", "similar_pairs", "implicit_change", "quickstart"):
        check_models(load(ROOT / "recipes" / f"{name}.yaml"), tmp_path)

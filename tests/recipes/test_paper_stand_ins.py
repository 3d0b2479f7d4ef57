"""Recipes in recipes/paper that no other test runs, with stand-ins for models: frames, features, pairs, questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paper import MAKERS, run, run_stages_here
from helpers.tiny_models import make_llama, make_llava
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.run import run as synthesise
from lightning_idc.synthesis.sources import SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.synthesis.store import RecordStore

pytest.importorskip("cv2")  # imported at module level, since the import changes the environment
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
CPU = {"trainer.accelerator": "cpu", "data.num_workers": 0}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return run_stages_here(tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_captioner_on_cached_grid_features(here: Path) -> None:
    root = here / "clevr_change"
    root.mkdir()
    MAKERS["clevr_change"](root)
    small = {"model.backbone": "resnet18", "model.pretrained_backbone": False, "model.width": 16, "model.heads": 2}
    short = {"data.image_size": [64, 64], "data.batch_size": 2, "stages.train.trainer.max_epochs": 1}
    run("grid_features", here / "out", **CPU, **small, **short, **{"data.root": str(root), "data.official": False})
    rows = json.loads((here / "out" / "test" / "metrics.json").read_text())["summary"]["rows"]
    assert 0 <= rows["all"]["CIDEr-D"] <= 1000 and list((here / "runs" / "features").iterdir())


@pytest.mark.slow
def test_similar_pairs_are_mined_from_a_folder_of_images(here: Path) -> None:
    """Two images that differ only in a corner become a pair."""
    (here / "images").mkdir()
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b", "c", "d"):
        scene = torch.randint(0, 255, (16, 16, 3), generator=generator, dtype=torch.uint8)
        for side, value in (("0", 0), ("1", 90)):
            pixels = scene.repeat_interleave(6, 0).repeat_interleave(6, 1)
            pixels[:30, :30] = value
            Image.fromarray(pixels.numpy()).save(here / "images" / f"{name}{side}.png")
    loose = {"low": 0.5, "high": 0.999, "set_max": 0.5, "set_min": 0.5}
    keys: dict[str, Any] = {
        "trainer.accelerator": "cpu",
        "stages.features.data.source.root": str(here / "images"),
        "stages.features.data.num_workers": 0,
        "stages.pairs.model.clip": loose,
        "stages.pairs.model.dino": loose,
        "stages.pairs.model.neighbours": 3,
    }
    for name in ("clip", "dino"):
        keys[f"stages.features.model.{name}"] = {"class": "PixelEncoder"}
    run("similar_pairs", here / "out", **keys)
    pairs = RecordStore(here / "out" / "pairs" / "records")
    facts = [record.facts for record in pairs if record.dropped is None]
    mined = {(fact["first"], fact["second"]) for fact in facts}
    assert mined >= {(f"{name}0.png", f"{name}1.png") for name in ("a", "b", "c", "d")}


def with_stand_ins(recipe: str, stand_ins: dict[str, str]) -> str:
    """Write a recipe with stand-ins for the paper's models, and return its path."""
    text = (RECIPES / "paper" / f"{recipe}.yaml").read_text(encoding="utf-8")
    for model, stand_in in stand_ins.items():
        assert model in text, model
        text = text.replace(model, stand_in)
    Path(f"{recipe}.yaml").write_text(text)
    return f"{recipe}.yaml"


@pytest.mark.slow
def test_objects_are_erased_and_answers_rated(here: Path) -> None:
    """Pairs are made as in recipes/paper/img_diff.yaml; two models have random weights, and the others none."""
    edited, similar, described = (str(here / name / "records") for name in ("edited", "similar", "described"))
    synthesise(PasteEdits(size=96), SamplePhotos(copies=2), edited)
    synthesise(PairSimilarity(filters="embedded"), edited, similar)
    stages = [DifferenceAreas(filters="embedded"), RegionCaptions(filters="embedded"), DifferenceCaptions()]
    synthesise(Sequential(stages), similar, described)
    llava = "{class: ChatVisionModel, model: Qwen/Qwen2-VL-7B-Instruct, max_new_tokens: 64}"
    removal = with_stand_ins(
        "img_diff_removal",
        {
            "{class: SamSegmenter, model: facebook/sam-vit-huge, confidence: 0.1, overlap: 0.5}": "null",
            "{class: ClipImages, model: openai/clip-vit-base-patch32}": "null",
            "{class: DiffusionInpainter, model: stabilityai/sdxl-turbo}": "null",
            "size: 512": "size: 96",
            "{class: BlipMatcher, model: Salesforce/blip-itm-large-coco, score: cosine}": "null",
            "llava-hf/llava-v1.6-vicuna-13b-hf": str(make_llava(here / "llava")),
        },
    )
    cpu = ["--trainer.accelerator", "cpu"]
    assert main(["run", removal, "--out", "removal", *cpu, "--stages.erase.data.source", similar]) == 0
    erased = RecordStore(here / "removal" / "describe" / "records")
    assert len(erased) and "error" not in erased.counts()[1] and (here / "removal" / "release").is_dir()
    evaluation = with_stand_ins(
        "img_diff_evaluation",
        {
            "{class: ChatVisionModel, model: OpenGVLab/InternVL2_5-8B-MPO-hf, max_new_tokens: 5}": "null",
            llava: llava.replace("Qwen/Qwen2-VL-7B-Instruct", str(here / "llava")).replace("64", "4"),
            "Qwen/Qwen2.5-7B-Instruct": f"{make_llama(here / 'llama')}\n            template: none",
            "size: 500": "size: 3",
        },
    )
    assert main(["run", evaluation, "--out", "evaluation", *cpu, "--stages.natural.data.source", described]) == 0
    rated = RecordStore(here / "evaluation" / "rate" / "records")
    assert len(rated) and "error" not in rated.counts()[1] and (here / "evaluation" / "audit.html").is_file()

"""The paper's recipe from captions to its release, with randomly initialised models and few open files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.processes import TESTS
from helpers.stages_here import stages_here
from helpers.tiny_models import make_blip, make_clip, make_llama, make_llava, make_sam, make_sdxl_parts

from lightning_idc.cli import main
from lightning_idc.data import ImgDiff
from lightning_idc.data.store.reader import faults, stores_below
from lightning_idc.synthesis.store import RecordStore

RECIPE = TESTS.parent / "recipes" / "paper" / "img_diff.yaml"
CAPTIONS = ["a red cat on the mat .", "a dog", "the blue dog on a red mat .", "a cat on a dog .", "the red mat"]


def with_small_models(folder: Path) -> str:
    """The recipe with tiny models from a folder; filters only score, since no output passes the paper's thresholds."""
    from diffusers import StableDiffusionXLPipeline

    folder.mkdir()
    StableDiffusionXLPipeline(**make_sdxl_parts(folder)).save_pretrained(folder / "sdxl")
    make_llama(folder / "vicuna")
    made = {
        "lmsys/vicuna-13b-v1.5": folder / "vicuna",
        "stabilityai/stable-diffusion-xl-base-1.0\n            steps: 50": f"{folder / 'sdxl'}\n            steps: 2\n"
        "            size: 16",
        "openai/clip-vit-base-patch32": make_clip(folder / "clip"),
        "facebook/sam-vit-huge, confidence: 0.05": f"{make_sam(folder / 'sam')}, confidence: -9.0, stability: -1.0, "
        "points: 3",
        "Salesforce/blip-itm-large-coco": make_blip(folder / "blip"),
        "llava-hf/llava-v1.6-vicuna-13b-hf": make_llava(folder / "llava"),
        "filters: paper": "filters: scores",
    }
    text = RECIPE.read_text(encoding="utf-8")
    for name, small in made.items():
        assert name in text, name
        text = text.replace(name, str(small))
    return text


@pytest.fixture
def few_open_files() -> Iterator[None]:
    """Limit open files to 1024, the usual default of a process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.usefixtures("few_open_files")
def test_the_recipe_runs_from_captions_to_release_with_1024_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages_here(monkeypatch)
    (tmp_path / "recipe.yaml").write_text(with_small_models(tmp_path / "models"))
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS * 2))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    options = ["--trainer.accelerator", "cpu", "--stages.edit.data.source.texts", str(tmp_path / "captions.txt")]
    assert main(["run", "recipe.yaml", "--out", str(out), *options]) == 0
    stores = {path.parent.name: RecordStore(path) for path in stores_below(out)}
    assert list(stores) == ["areas", "captions", "differences", "edit", "released", "similar"]
    assert not [problem for store in stores.values() for problem in faults(store.folder)]
    assert all(len(store) == len(CAPTIONS) * 2 and "error" not in store.counts()[1] for store in stores.values())
    kept = [record for record in stores["differences"] if record.dropped is None]
    boxes = [area for record in kept for area in record.facts["areas"] if area["dropped"] is None]
    assert kept and boxes and all(area["difference"] and len(area["captions"]) == 2 for area in boxes)
    (about,) = stores["areas"].manifest.notes["provenance"]
    assert {name: len(model["weights"]) for name, model in about["models"].items()} == {
        "segmenter": 64, "encoder": 64, "matcher": 64
    }  # fmt: skip
    read = ImgDiff(out / "release", official=False, shares=(1.0, 0.0, 0.0)).pairs_of("train")
    assert len(read) == len(boxes) and (out / "audit.html").stat().st_size > 1000

"""recipes/paper/img_diff_finetune.yaml end to end on a tiny model, with pairs released by our own pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.paper import best
from helpers.stages_here import run_stages_of_two_devices
from helpers.vlm_tiny import captioner, samples
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.data.benchmark import Benchmark
from lightning_idc.data.benchmarks.img_diff import ImgDiff
from lightning_idc.methods.img_diff.prompts import RELEASED_QUESTION
from lightning_idc.methods.img_diff.release import Release
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.utils.errors import ConfigError

RECIPE = Path(__file__).parents[2] / "recipes" / "paper" / "img_diff_finetune.yaml"


class Described:
    """Described pairs in the format of Img-Diff's last stage, with one box each."""

    fingerprint = "described"

    def __len__(self) -> int:
        return 60

    def record(self, index: int) -> Record:
        record = Record(f"{index:03d}", {"summary": "the square changed"}, [{"stage": "made"}])
        ground = torch.randint(90, 120, (3, 48, 48), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)
        for side, channel in (("before", 0), ("after", 2)):
            picture = ground.clone()
            picture[:, 16:32, 16:32] = 0
            picture[channel, 16:32, 16:32] = 250
            record.put(side, picture)
        area = {"box": [16, 16, 32, 32], "captions": ["a red square", "a blue square"], "dropped": None}
        record.facts |= {"size": [48, 48], "areas": [{**area, "difference": "the red square turned blue"}]}
        return record


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("img_diff_finetune")
    run(Release(str(folder / "data" / "img_diff")), Described(), folder / "released")
    others(folder / "data")
    captioner("llava").save_model(folder / "stock")
    return folder


def others(data: Path) -> None:
    """Write pairs in the layouts of the data sets that are mixed with Img-Diff."""
    picture = Described().record(0).image("before").permute(1, 2, 0).numpy()
    for name in ("spot_the_diff/annotations", "spot_the_diff/resized_images", "image_editing_request/images"):
        (data / name).mkdir(parents=True)
    for split, edits in (("train", "train"), ("val", "valid"), ("test", "test")):
        records: list[dict[str, Any]] = [{"img_id": "2", "sentences": ["a car left"]}]
        (data / f"spot_the_diff/annotations/{split}.json").write_text(json.dumps(records))
        records = [{"uid": split, "img0": "2.png", "img1": "2_2.png", "sents": ["make it blue"]}]
        (data / f"image_editing_request/{edits}.json").write_text(json.dumps(records))
    for name in ("2.png", "2_2.png"):
        for folder in ("spot_the_diff/resized_images", "image_editing_request/images"):
            Image.fromarray(picture).save(data / folder / name)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
def test_img_diff_is_tuned_on_with_boxes_drawn_and_its_questions_asked_and_then_each_benchmark(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    two_processes = run_stages_of_two_devices(monkeypatch)
    monkeypatch.setattr(Benchmark, "miscount", lambda self, split: None)  # the stand-ins have other counts
    shown: list[tuple[str, torch.Tensor]] = []
    collate = VLMCaptioner.collate

    def seen(self: VLMCaptioner, pairs: Any) -> Any:
        batch = collate(self, pairs)
        for number, pair in enumerate(pairs):
            if pair.meta.get("question") is not None:
                own = self.prompt_ids(RELEASED_QUESTION, *pair.before.shape[1:])
                asked = batch.model_inputs["prompt_ids"][number][batch.model_inputs["prompt_mask"][number]]
                assert asked.tolist() == own, "its own question is asked"
                shown.append((pair.meta.get("part", "alone"), pair.before))
        return batch

    monkeypatch.setattr(VLMCaptioner, "collate", seen)
    given = {
        "matrix.data": "replacement",
        "matrix.model": "llava_1_5_7b",
        "matrix.weights": "full",
        "model.model": str(here / "stock"),
        "model.max_length": "6",
        "data.num_workers": "0",
        "trainer.accelerator": "cpu",
        "trainer.devices": "1",
        "trainer.strategy": "auto",
        "trainer.precision": "32-true",
        "trainer.accumulate_grad_batches": "1",
        # one of the benchmarks trains on two devices, in place of the recipe's eight
        "stages.adapt_spot_the_diff.data.official": "false",
        "stages.adapt_spot_the_diff.trainer.devices": "2",
        "stages.adapt_spot_the_diff.trainer.strategy": '{"class": "ShardedStrategy"}',
        "out": str(here / "run"),
    }
    arguments = [part for name, value in given.items() for part in (f"--{name}", value)]
    assert main(["run", str(RECIPE), *arguments]) == 0
    assert two_processes == ["adapt_spot_the_diff"]
    assert {part for part, _ in shown} == {"replacement", "alone"}
    tuned, adapted = (
        torch.load(best(here / "run", name), weights_only=True)["state_dict"]
        for name in ("tune", "adapt_spot_the_diff")
    )
    config = yaml.safe_load((here / "run" / "adapt_spot_the_diff" / "stage.yaml").read_text())
    assert Path(config["model"]["init_args"]["init_from"]) == best(here / "run", "tune")
    assert tuned.keys() == adapted.keys() and any(not torch.equal(tuned[name], adapted[name]) for name in tuned)
    for _, image in shown:
        assert image[0, 12, 24] > 180 and image[1:, 12, 24].max() < 90, "the red box is in the picture"
    counts = {}
    for name in ("img_diff", "spot_the_diff", "image_editing_request"):
        metrics = json.loads((here / "run" / f"test_{name}" / "metrics.json").read_text(encoding="utf-8"))
        counts[name] = metrics["summary"]["pairs"]["all"]
    expected = len(ImgDiff("data/img_diff").pairs_of("test"))
    assert counts == {"img_diff": expected, "spot_the_diff": 1, "image_editing_request": 1} and expected > 0


@pytest.mark.slow
def test_img_diff_is_tuned_on_first_and_each_benchmark_last() -> None:
    """Tables 5 and 6: rows differ in the tuning data, and training on the benchmark's own style comes afterwards."""
    parts = {
        "replacement": {"replacement"},
        "replacement_and_removal": {"replacement", "removal"},
        "image_edit_and_spot": {"spot_the_diff", "image_editing_request"},
        "clevr_change": {"clevr_change"},
        "without": None,
    }
    for choice in choices(RECIPE, {"weights": "full"}):
        stages = {stage.name: stage.config for stage in load(RECIPE, choice).stages}
        expected = parts[choice["data"]]
        if expected is None:
            assert "tune" not in stages and "test_img_diff" not in stages
        else:
            assert set(stages["tune"]["data"]["init_args"]["parts"]) == expected
            prompts = stages["tune"]["model"]["init_args"]["prompts"]
            assert set(prompts) >= expected and prompts["replacement"] == prompts["removal"] == "{question}"
        for name, kind in (("spot_the_diff", "SpotTheDiff"), ("image_editing_request", "ImageEditingRequest")):
            adapt, test = stages[f"adapt_{name}"], stages[f"test_{name}"]
            assert adapt["model"]["init_args"]["init_from"] == (expected and "${stages.tune.best}")
            assert test["ckpt_path"] == f"${{stages.adapt_{name}.best}}"
            for stage in (adapt, test):
                assert stage["data"]["class_path"].rpartition(".")[2] == kind
            assert adapt["model"]["init_args"]["prompt"] == test["model"]["init_args"]["prompt"]


def test_a_pair_without_a_question_is_refused() -> None:
    model = captioner("llava", prompt="{question}")
    with pytest.raises(ConfigError, match="but pair 'p0' has no meta"):
        model.collate(samples(1))
    (pair,) = samples(1)
    pair.meta["question"] = "what is gone?"
    asked = model.collate([pair]).model_inputs["prompt_ids"]
    assert asked.tolist() == [model.prompt_ids("what is gone?", 48, 48)]

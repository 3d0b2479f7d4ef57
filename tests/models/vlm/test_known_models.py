"""Plans without files of the models. Oracles: the published numbers of parameters, and measured training steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightning_idc.cli import main
from lightning_idc.cli.configuration import read_yaml
from lightning_idc.cli.recipes.shipped import shipped
from lightning_idc.models.vlm.known_models import KNOWN_MODELS
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.plan import StepShape, plan_of
from lightning_idc.models.vlm.rates import pairs_per_second

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[3]
PARAMETERS = {
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "llava-hf/llava-1.5-7b-hf": 7_063_427_072,
    "llava-hf/llava-1.5-13b-hf": 13_351_494_656,
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": 8_030_348_832,
    "OpenGVLab/InternVL3-8B-hf": 7_944_373_760,
}
"""Numbers of parameters in the published weights, as counted by the hub."""
LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def models_of(value: object) -> set[str]:
    """Return the models of all VLMCaptioners in a recipe; models of synthesis are not trained."""
    if isinstance(value, list):
        return set().union(*map(models_of, value))
    if not isinstance(value, dict):
        return set()
    named = value.get("model")
    own = (
        {named}
        if isinstance(named, str) and "/" in named and value.get("class", "VLMCaptioner") == "VLMCaptioner"
        else set()
    )
    return own.union(*map(models_of, value.values()))


@pytest.fixture(autouse=True)
def without_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_a_known_model_has_its_published_number_of_parameters(name: str) -> None:
    plan = plan_of(name, {})
    assert plan.num_frozen + sum(plan.num_trained.values()) == PARAMETERS[name]


@pytest.mark.slow
def test_the_models_that_recipes_train_are_known() -> None:
    named = set().union(*(models_of(read_yaml(path)) for path in shipped().values()))
    assert named == set(KNOWN_MODELS)


@pytest.mark.slow
def test_the_speed_of_the_measured_step_is_the_measured_one() -> None:
    lora = LoRA(rank=16, alpha=32, targets=LANGUAGE, freeze=["model", "lm_head"])
    shape = StepShape(
        (448, 448), "What changed from the first image to the second?", max_caption_tokens=49, batch_size=8
    )
    plan = plan_of(
        "Qwen/Qwen2.5-VL-3B-Instruct", {"lora": lora.adapter_class(**lora.options)}, "bf16-mixed", step_shape=shape
    )
    rows = json.loads((ROOT / "benchmarks/results/gpu/vlm_training.json").read_text(encoding="utf-8"))["rows"]
    assert plan.states == rows["sft"]["planned"]["states"], "planned there from the files of a model of these shapes"
    assert plan.cost is not None
    for compiled, row in ((False, "sft"), (True, "sft, compiled")):
        speed = pairs_per_second(plan.cost.step_flops, "H100", compiled)
        assert speed == pytest.approx(rows[row]["pairs_per_s"], rel=2e-3)
    assert pairs_per_second(plan.cost.step_flops, "A100", False) == pytest.approx(
        rows["sft"]["pairs_per_s"] * 312 / 989, rel=2e-3
    )


@pytest.mark.slow
def test_a_recipe_is_planned_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "paper/finetune_vlm", "--matrix.hardware", "gpus_8", "--pairs", "5000"]) == 0
    out = capsys.readouterr().out
    assert out.count("GiB per device, estimated") == 3 and out.count("h for 5,000 pairs, epochs: 3") == 15
    assert "8 x H100" in out and "prompt tokens" in out


def test_one_message_for_all_stages_with_one_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = "{run: fit, model: {class: VLMCaptioner, model: nobody/unknown}, data: FolderPairs}"
    (tmp_path / "r.yaml").write_text(f"recipe: {{title: t}}\nstages: {{one: {stage}, two: {stage}}}\n")
    assert main(["plan", str(tmp_path / "r.yaml")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("one, two: there is no folder 'nobody/unknown'") and out.count("nobody/unknown'") == 1

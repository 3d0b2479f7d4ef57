"""recipes/paper/finetune_vlm.yaml on tiny models, and its memory table for the shapes of the published models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.own_pairs import own_pairs
from helpers.stages_here import run_stages_of_two_devices
from helpers.vlm_tiny import captioner, tokenizer

from lightning_idc.cli import main
from lightning_idc.cli.recipes.compose import choices, load
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.loading import configured
from lightning_idc.models.vlm.plan import GIB, plan_of_stage

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "paper" / "finetune_vlm.yaml"
README = ROOT / "lightning_idc" / "models" / "vlm" / "README.md"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    own_pairs(folder / "mine", 24)
    captioner("qwen2_5_vl").save_model(folder / "stock")
    return folder


@pytest.mark.dist
@pytest.mark.timeout(400)
@pytest.mark.parametrize("hardware", ["gpu_24gb", "gpu_80gb", "gpus_8"])
def test_each_hardware_tunes_and_tests_a_tiny_model(hardware: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    if hardware == "gpu_24gb":
        pytest.importorskip("bitsandbytes")
    out = here / hardware
    arguments = {
        "matrix.hardware": hardware,
        "matrix.model": "qwen2_5_vl_3b",
        "model.model": str(here / "stock"),
        "model.max_length": "6",
        "model.max_pixels": "4096",
        "data.root": str(here / "mine"),
        "data.num_workers": "0",
        "trainer.accelerator": "cpu",
        "trainer.devices": "2" if hardware == "gpus_8" else "1",
        "trainer.max_epochs": "1",
        "trainer.accumulate_grad_batches": "1",
        "out": str(out),
    }
    if hardware == "gpus_8":
        sharded = json.dumps({"class": "ShardedStrategy", "process_group_backend": "gloo"})
        arguments |= {"trainer.strategy": sharded, "stages.test.trainer.devices": "1"}
        arguments["stages.test.trainer.strategy"] = "auto"
    two_processes = run_stages_of_two_devices(monkeypatch)
    given = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    assert main(["run", str(RECIPE), *given]) == 0
    assert two_processes == (["tune"] if hardware == "gpus_8" else [])
    record = json.loads((out / "tune" / "stage.json").read_text(encoding="utf-8"))
    kept = torch.load(out / record["best"], weights_only=True)["state_dict"]
    alone = all("lora" in name for name in kept)
    assert alone == (hardware == "gpu_24gb"), "in 4 bits LoRA is all that trains; elsewhere the tower does, too"
    assert {value.dtype for value in kept.values()} == {torch.float32}
    assert all(value.abs().max() > 0 for name, value in kept.items() if "lora_B" in name)
    metrics = json.loads((out / "test" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["summary"]["pairs"]["all"] > 0
    again: Any = load_captioner(out / record["best"])
    assert list(again.adapters) == ["lora"]


def rope(*sections: int) -> dict[str, Any]:
    return {"rope_type": "default", "mrope_section": list(sections), "rope_theta": 1e6}


TOWER: dict[str, Any] = dict(
    depth=32,
    hidden_size=1280,
    num_heads=16,
    intermediate_size=3420,
    patch_size=14,
    spatial_merge_size=2,
    window_size=112,
    fullatt_block_indexes=[7, 15, 23, 31],
)
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl_3b": dict(
        vision_config={**TOWER, "out_hidden_size": 2048},
        text_config=dict(
            hidden_size=2048,
            intermediate_size=11008,
            num_hidden_layers=36,
            num_attention_heads=16,
            num_key_value_heads=2,
            vocab_size=151936,
            rope_parameters=rope(16, 24, 24),
        ),
        tie_word_embeddings=True,
    ),
    "qwen2_5_vl_7b": dict(
        vision_config={**TOWER, "out_hidden_size": 3584},
        text_config=dict(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
            rope_parameters=rope(16, 24, 24),
        ),
        tie_word_embeddings=False,
    ),
}
LIMITS = {"gpu_24gb": 24, "gpu_80gb": 80, "gpus_8": 80}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the published models' configurations, a tokenizer of few words, and no weights."""
    found = {}
    for name, shape in SHAPES.items():
        config, processor, _ = configured({"model_type": "qwen2_5_vl", **shape}, tokenizer("qwen2_5_vl"))
        found[name] = tmp_path_factory.mktemp(name)
        config.save_pretrained(found[name])
        processor.save_pretrained(found[name])
    return found


@pytest.mark.slow
def test_the_table_of_memory_is_what_plan_computes(shapes: dict[str, Path]) -> None:
    rows = {}
    for choice in choices(RECIPE, {}):
        if choice["model"] not in shapes:
            continue
        stage = next(stage for stage in load(RECIPE, choice).stages if stage.run == "fit")
        config = dict(stage.config)
        config["model"]["init_args"]["model"] = str(shapes[choice["model"]])
        plan = plan_of_stage(config)
        needed = plan.states + plan.activations
        assert needed / GIB < 0.9 * LIMITS[choice["hardware"]], choice
        figures = [plan.states, plan.activations, needed, plan.host]
        trained = sum(plan.num_trained.values()) / 1e6
        rows[choice["hardware"], choice["model"]] = [f"{trained:.0f}", *(f"{value / GIB:.1f}" for value in figures)]
    assert len(rows) == 6
    pattern = r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$"
    found = re.findall(pattern, README.read_text(encoding="utf-8"), re.MULTILINE)
    written = {(hardware, model): rest.split(" | ") for hardware, model, rest in found if hardware in LIMITS}
    assert written == rows

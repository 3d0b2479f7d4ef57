"""The planned memory of a run equals its measured memory, to the byte."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.vlm_tiny import ColorPairs, captioner
from helpers.vlm_tiny import samples as vlm_samples
from lightning.pytorch import Trainer
from torch import nn

from lightning_idc.cli import main
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter
from lightning_idc.models.adapter import Adapter
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.vlm import static_cache
from lightning_idc.models.vlm.lora import LoRA
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.plan import plan_of_stage
from lightning_idc.utils.errors import ConfigError

CALLBACKS = [
    {"class_path": "lightning_idc.models.vlm.lora.LoRA", "init_args": {"rank": 4, "alpha": 8}},
    {"class_path": "lightning_idc.methods.m3diff.mdp_adapter.MDPAdapter"},
    {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"},
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioner("qwen2_5_vl").save_model(tmp_path_factory.mktemp("stock"))


def stage(stock: Path, precision: str) -> dict[str, Any]:
    model = {"class_path": "lightning_idc.models.vlm.module.VLMCaptioner", "init_args": {"model": str(stock)}}
    return {"trainer": {"precision": precision, "callbacks": CALLBACKS}, "model": model}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_plan_is_what_a_step_holds(precision: str, stock: Path, tmp_path: Path) -> None:
    plan = plan_of_stage(stage(stock, precision))
    model = VLMCaptioner(model=str(stock), optimizer=lambda groups: torch.optim.AdamW(groups), max_length=6)
    trainer = Trainer(
        accelerator="cpu",
        precision=precision,  # type: ignore[arg-type]
        max_steps=1,
        callbacks=[LoRA(rank=4, alpha=8), MDPAdapter()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, ColorPairs(batch_size=2))
    weights = {True: 0, False: 0}
    for parameter in model.parameters():
        weights[parameter.requires_grad] += parameter.numel() * parameter.element_size()
    states = trainer.optimizers[0].state.values()
    moments = sum(value.numel() * value.element_size() for state in states for value in state.values() if value.ndim)
    assert plan.parts["frozen weights"] == weights[False] and plan.parts["trained weights"] == weights[True]
    assert plan.parts["optimizer"] == moments and plan.parts["gradients"] == weights[True]
    groups = {group["name"]: sum(p.numel() for p in group["params"]) for group in trainer.optimizers[0].param_groups}
    assert plan.num_trained["vision"] == groups["vision"] and plan.num_trained["mdp"] == groups["adapters.mdp"]
    assert plan.num_trained["lora"] + plan.num_trained["language"] == groups["language"]


class Scale(Adapter):
    """Scales the last hidden states; declares a cost of a million operations."""

    def install(self, net: nn.Module) -> None:
        self.scale = nn.Parameter(torch.ones(32))

    def disabled(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forward_cost(self, num_patches: int, bytes_per_value: int) -> tuple[float, int]:
        return 1e6, 1000 * bytes_per_value


class ScaleCallback(AdapterCallback):
    def __init__(self, name: str = "scale") -> None:
        super().__init__(name, Scale)


def test_an_adapter_of_a_users_own_is_planned(stock: Path) -> None:
    config = stage(stock, "32-true")
    config["trainer"] = {"callbacks": []}
    without = plan_of_stage(config)
    config["trainer"] = {"callbacks": [{"class_path": f"{__name__}.ScaleCallback"}]}
    plan = plan_of_stage(config)
    assert plan.num_trained == {**without.num_trained, "scale": 32}
    assert plan.cost is not None and without.cost is not None
    assert plan.cost.forward_flops == {**without.cost.forward_flops, "adapters": 1e6}
    assert plan.cost.activation_bytes == without.cost.activation_bytes + 4000


@pytest.mark.parametrize("samples", [None, 4])
def test_the_static_cache_is_planned(samples: int | None, stock: Path) -> None:
    config = stage(stock, "32-true")
    callback = {"class_path": "lightning_idc.methods.policy.policy.GroupRelative", "init_args": {"samples": samples}}
    config["trainer"] = {"callbacks": [callback] if samples else []}
    config["data"] = {"init_args": {"batch_size": 2, "image_size": 56}}
    options = config["model"]["init_args"]
    options |= {"max_length": 6, "num_beams": 3}
    assert "static cache" not in plan_of_stage(config).parts
    options["cache_implementation"] = "static"
    plan = plan_of_stage(config)
    model = VLMCaptioner(**options).eval()
    model.build()
    with torch.no_grad():
        features = model.encode(model.collate(vlm_samples(2, 56)))
        if samples:
            model.decoder.sample(features, samples)
        else:
            model.decoder.search(features)
    layers = static_cache._buffers[model.built_net].cache.layers
    assert plan.parts["static cache"] == sum(part.nbytes for layer in layers for part in (layer.keys, layer.values))


@pytest.mark.slow
def test_the_verb_prints_it(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = {entry["class_path"].rpartition(".")[2]: entry.get("init_args", {}) for entry in CALLBACKS}
    recipe = {
        "recipe": {"title": "t", "requirements": "n", "minutes": 1},
        "base": {
            "data": {"class": "SyntheticPairs"},
            "trainer": {"precision": "bf16-mixed", "callbacks": callbacks},
            "model": {"class": "VLMCaptioner", "model": str(stock)},
        },
        "stages": {"tune": {"run": "fit"}},
        "matrix": {"gpus": {"one": {}, "two": {"base": {"trainer": {"devices": 2}}}}},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["plan", str(tmp_path / "r.yaml")]) == 0
    out = capsys.readouterr().out
    assert "frozen weights" in out and "lora" in out and "without activations" in out
    assert "TFLOP per step" in out and "activations" in out
    assert "one/tune" in out and "two/tune" in out
    assert main(["plan", str(tmp_path / "r.yaml"), "--memory", "100000", "--matrix.gpus", "one"]) == 0
    assert "two/tune" not in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "r.yaml"), "--data.root", "x"]) == 1
    assert "plan takes --memory and --matrix.AXIS, found --data.root" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "r.yaml"), "--memory", "0.000001"]) == 1
    assert "more than 1e-06: set quantize" in capsys.readouterr().err


def test_a_recipe_is_named_as_run_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "own_pairs"]) == 1
    assert "train: plan needs a stage that trains a VLMCaptioner" in capsys.readouterr().out
    assert main(["plan", "own_pair"]) == 1
    assert "did you mean 'own_pairs'" in capsys.readouterr().err


def test_other_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="published `model`"):
        plan_of_stage({"model": {"class_path": "lightning_idc.methods.namc.module.NAMC"}})

"""The plan for 64 GPUs: its tables are those of the script, and the arithmetic holds where it can be checked."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen2 import Qwen2Config

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale_plan.py"
_found = importlib.util.spec_from_file_location("scale_plan", SCRIPT)
assert _found is not None and _found.loader is not None
plan = sys.modules["scale_plan"] = importlib.util.module_from_spec(_found)
_found.loader.exec_module(plan)


def test_the_document_holds_what_the_script_computes() -> None:
    text = plan.DOC.read_text(encoding="utf-8")
    assert plan.filled(text, plan.tables()) == text, "run benchmarks/scale_plan.py --write"
    assert all(plan.table(name) in text for name in plan.TABLES)


def test_parameters_are_those_of_the_model() -> None:
    import torch

    config = Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = sum(value.numel() for name, value in model.named_parameters() if ".layers." in name)
    assert layers == pytest.approx(plan.M3DIFF.parameters, rel=0.01)
    linear = [module for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    lora = sum(plan.LORA_RANK * (module.in_features + module.out_features) for module in linear)
    assert lora == plan.LORA_PARAMETERS


def test_flop_of_a_decoder_are_those_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attn_implementation": "eager"}
    config = AutoConfig.for_model("qwen2", **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config).model
    parameters = sum(value.numel() for name, value in model.named_parameters() if "proj.weight" in name)
    decoder = plan.Decoder(parameters, 0.0, 3, 64, 100, 0, 0.0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 100, dtype=torch.long))
    assert counter.get_total_flops() == pytest.approx(decoder.forward, rel=0.01)

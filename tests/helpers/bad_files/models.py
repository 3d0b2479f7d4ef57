"""Values in checkpoints and model folders that name code to build or import, or files to fetch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from helpers.bad_files.weights import LORA, MODEL, ODD, Calls


def touch(trace: Path) -> str:
    return f"__import__('pathlib').Path({str(trace)!r}).touch()"


def in_adapters(value: Any) -> dict[str, Any]:
    return {"adapters": {"a": {"x": value}}}


def gadgets(trace: Path) -> dict[str, dict[str, Any]]:
    shell = f"touch {trace}"
    popen = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(trace)]}}
    sympy = {"class_path": "sympy.Poly", "dict_kwargs": {"rep": touch(trace)}}
    system = {"class_path": "os.system", "init_args": {"command": shell}}
    module = {"class_path": "evil_mod.Evil"}
    return {
        "sympy in adapters": in_adapters(sympy),
        "popen in adapters": in_adapters(popen),
        "system in adapters": in_adapters(system),
        "module in adapters": in_adapters(module),
        "adapter of a foreign class": {"adapters": {"a": {"class_path": "evil_mod.Evil", "init_args": {}}}},
        "adapter with a nested class": {
            "adapters": {"a": {"class_path": "lightning_idc.models.LoraAdapter", "init_args": {"targets": sympy}}}
        },
        "optimizer beside the file": {"optimizer": module},
        "schedule beside the file": {"schedule": module},
        "schedule that calls": {"schedule": sympy},
        "vocabulary": {"vocabulary": sympy},
        "rates": {"learning_rates": {"vision": sympy}},
        "backbone": {"backbone": module},
        "size": {"image_size": [sympy, sympy]},
        "a list in a list": {"no_change_captions": [["a"], [popen]]},
        "instantiator": {"_instantiator": "evil_mod.build"},
        "class": {"_class_path": "evil_mod.Evil", "_instantiator": "lightning.pytorch.cli.instantiate_module"},
        "init_from": {"init_from": "evil_mod.py"},
        "unknown key": {"anything": sympy},
    }


def folder_files(good: dict[str, Any], trace: Path) -> dict[str, Callable[[Path], Any]]:
    hparams = {k: v for k, v in good["hyper_parameters"].items() if not k.startswith("_")}
    config = {"class_path": MODEL, "init_args": hparams}
    state = {key: value.clone() for key, value in good["state_dict"].items()}

    def folder(text: str | bytes | None, weights: Any = state) -> Callable[[Path], Any]:
        def write(path: Path) -> None:
            path.mkdir()
            if isinstance(text, bytes):
                (path / "config.json").write_bytes(text)
            elif text is not None:
                (path / "config.json").write_text(text)
            if isinstance(weights, bytes):
                (path / "model.safetensors").write_bytes(weights)
            elif weights is not None:
                save_file(weights, path / "model.safetensors")

        return write

    as_json = json.dumps(config)
    first = next(iter(state))
    files = {
        "as it is": folder(as_json),
        "no config": folder(None),
        "no weights": folder(as_json, None),
        "cut config": folder(as_json[:40]),
        "config of bytes": folder(b"\xff\xfe\x00"),
        "deep config": folder("[" * 100_000),
        "weights cut": folder(as_json, b"\x08\x00\x00"),
        "weights of words": folder(as_json, b"words" * 100),
        "header too long": folder(as_json, b"\xff" * 8 + b"{}"),
        "empty weights": folder(as_json, b""),
        "other shape": folder(as_json, {**state, first: torch.zeros(1, 2, 3)}),
        "NaN": folder(as_json, {**state, first: state[first] * float("nan")}),
        "missing": folder(as_json, {k: v for k, v in state.items() if k != first}),
        "too many": folder(as_json, {**state, "unknown": torch.zeros(1)}),
    }
    for name, value in ODD.items():
        files[f"config {name}"] = folder(json.dumps(value))
        for key in config:
            files[f"{key} {name}"] = folder(json.dumps({**config, key: value}))
        for key in hparams:
            files[f"hparam {key} {name}"] = folder(json.dumps({**config, "init_args": {**hparams, key: value}}))
    for name, change in gadgets(trace).items():
        files[f"gadget {name}"] = folder(json.dumps({**config, "init_args": {**hparams, **change}}))
    return files


STORED: dict[str, Any] = {
    "class": {"class_path": "evil_mod.build", "init_args": {}},
    "function": {"class_path": "os.system", "init_args": {"command": "touch PWNED"}},
    "module of ours": {"class_path": "lightning_idc.cli.main", "init_args": {"arguments": ["run", "evil.yaml"]}},
    "callback": {"class_path": "lightning_idc.callbacks.LogPairs", "init_args": {}},
    "method": {"class_path": "lightning_idc.models.PairTransformer", "init_args": {}},
    "class within": {"class_path": "FolderPairs", "init_args": {"transforms": [{"class_path": "evil_mod.build"}]}},
    "deep class": {"class_path": "FolderPairs", "init_args": {"a": [[{"b": {"class_path": "os.system"}}]]}},
    "no options": {"class_path": "FolderPairs", "init_args": "x"},
    "no class": {"class_path": ["FolderPairs"], "init_args": {}},
    "list": [{"class_path": "FolderPairs", "init_args": {}}],
}
TYPE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1}
TYPE |= {"num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8}
KINDS = ("AutoConfig", "AutoModelForCausalLM", "AutoProcessor", "AutoModelForImageTextToText")
HERE = {kind: "evil_mod.Config" for kind in KINDS} | {"AutoTokenizer": ["evil_mod.Config", None]}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "code of this folder": {"config.json": {"model_type": "unheard_of", "auto_map": HERE}},
    "code of another repository": {
        "config.json": {"model_type": "unheard_of", "auto_map": {kind: "evil/repo--evil_mod.Config" for kind in KINDS}}
    },
    "code for a known type": {"config.json": {**TYPE, "auto_map": HERE}},
    "class of the tokenizer": {
        "config.json": TYPE,
        "tokenizer_config.json": {"tokenizer_class": "evil_mod.Config", "auto_map": HERE},
    },
    "class of the processor": {"config.json": TYPE, "processor_config.json": {"processor_class": "os.system"}},
    "class of the image processor": {
        "config.json": TYPE,
        "preprocessor_config.json": {"image_processor_type": "evil_mod.Config", "auto_map": HERE},
    },
    "pickled weights": {"config.json": TYPE, "pytorch_model.bin": ...},
    "weights of another folder": {
        "config.json": TYPE,
        "model.safetensors.index.json": {"metadata": {}, "weight_map": {"w": "../secrets/w.safetensors"}},
    },
    "base model elsewhere": {
        "config.json": TYPE,
        "adapter_config.json": {
            "peft_type": "LORA",
            "base_model_name_or_path": "../secrets",
            "auto_mapping": {"parent_library": "evil_mod", "base_model_class": "Config"},
        },
    },
    "generation of its own": {
        "config.json": TYPE,
        "generation_config.json": {"custom_generate": "evil_mod.py", "trust_remote_code": True},
    },
    "trust said by itself": {"config.json": {**TYPE, "auto_map": HERE, "trust_remote_code": True}},
    "quantizer": {"config.json": {**TYPE, "quantization_config": {"quant_method": "evil_mod.Config"}}},
    "attention from the hub": {"config.json": {**TYPE, "_attn_implementation": "evil/kernels:build"}},
    "name of another model": {"config.json": {**TYPE, "_name_or_path": "http://127.0.0.1:9/evil"}},
    "template": {"config.json": TYPE, "chat_template.jinja": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
}


def gadget_folder(name: str, good: dict[str, Any], folder: Path) -> None:
    """Write a folder in the layout of ``save_pretrained`` whose options name code."""
    hparams = {key: value for key, value in good["hyper_parameters"].items() if not key.startswith("_")}
    config = {"class_path": good["class_path"], "init_args": hparams | gadgets(folder / "PWNED")[name]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "config.yaml").write_text("model: {class_path: evil_mod.build}\ndata: {class_path: evil_mod.build}\n")
    state = {key: value.clone() for key, value in good["state_dict"].items()}
    save_file(state, folder / "model.safetensors")


ADAPTERS: dict[str, dict[str, Any]] = {
    "path as a name": {"../../secrets": {"class_path": LORA, "init_args": {}}},
    "class": {"a": {"class_path": "evil_mod.build", "init_args": {}}},
    "program": {"a": {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "PWNED"]}}},
    "class within": {"a": {"class_path": LORA, "init_args": {"targets": {"class_path": "evil_mod.build"}}}},
    "pattern": {"a": {"class_path": LORA, "init_args": {"freeze": ["__class__.__init__"], "targets": "(("}}},
    "module within ours": {"a": {"class_path": "lightning_idc.models.adapter.os", "init_args": {}}},
    "instantiator": {
        "a": {"class_path": "lightning_idc.callbacks.LoRA", "init_args": {}, "_instantiator": "evil_mod.build"}
    },
    "main": {"a": {"class_path": "lightning_idc.__main__", "init_args": {}}},
}
"""Adapter records in the format of ``adapters.json`` and of checkpoints."""


def write_transformers(name: str, code: str, folder: Path) -> None:
    """Write a transformers model folder that ships code, or that names files and addresses elsewhere."""
    (folder / "evil_mod.py").write_text(code)
    for file, content in TRANSFORMERS[name].items():
        if content is ...:
            torch.save({"w": Calls(os.system, f"touch {folder / 'PWNED'}")}, folder / file)
        else:
            (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))

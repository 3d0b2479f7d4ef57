"""Good checkpoints and folders with one value replaced: each is refused in one line, or still loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bad_files import models, weights
from helpers.bad_files.weights import Writer, good_checkpoint
from helpers.sandbox import Sandbox
from helpers.tiny import Shift, TinyCaptioner
from helpers.weight_readers import WEIGHT_READERS, Reader

from lightning_idc.models.loading import load_captioner
from lightning_idc.utils.errors import CheckpointError


def read_each(files: Mapping[str, Writer], reader: Reader, sandbox: Sandbox) -> dict[str, str]:
    """Message that each file is refused with, or '' if it is read."""
    messages = {}
    for name, write in files.items():
        sandbox.clear("file.ckpt", "out.ckpt")
        write(sandbox.folder / "file.ckpt")
        try:
            messages[name] = sandbox.read(lambda: reader(sandbox.folder / "file.ckpt"))
        except BaseException as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    return messages


def saved(contents: Mapping[str, Any]) -> dict[str, Writer]:
    return {name: lambda path, value=value: torch.save(value, path) for name, value in contents.items()}


@pytest.mark.slow
def test_captioners_with_one_value_replaced(sandbox: Sandbox) -> None:
    good = good_checkpoint()
    hparams, trace = good["hyper_parameters"], sandbox.folder / "PWNED"
    contents = weights.mutated(good)
    contents |= {
        f"gadget {name}": {**good, "hyper_parameters": {**hparams, **change}}
        for name, change in models.gadgets(trace).items()
    }
    foreign = ("os.system", "evil.X", "lightning_idc.__main__", "lightning_idc.cli.main", "torch.nn.Linear", "", ".")
    contents |= {f"class {name}": {**good, "class_path": name} for name in (*foreign, weights.MODEL + "X")}
    messages = read_each(saved(contents), load_captioner, sandbox)
    assert messages["as it is"] == ""
    assert all(messages[name] for name in ("without state_dict", "weight=shape", "class os.system"))
    assert "NaN" in messages["weight of NaN"]
    assert sum(map(bool, messages.values())) > len(messages) / 3


@pytest.mark.slow
def test_folders_of_captioners_with_one_value_replaced(sandbox: Sandbox) -> None:
    files = models.folder_files(good_checkpoint(), sandbox.folder / "PWNED")
    messages = read_each(files, load_captioner, sandbox)
    assert messages["as it is"] == "" and "NaN" in messages["NaN"]
    for name in ("no config", "cut config", "weights cut", "empty weights", "other shape", "missing", "config list"):
        assert messages[name], name


OTHERS = ("image tokenizer", "dual encoder", "backbone", "CLIP4IDC", "weights")


@pytest.mark.slow
@pytest.mark.parametrize("reader", OTHERS)
def test_other_weights_with_one_value_replaced(reader: str, sandbox: Sandbox) -> None:
    content = {
        "state_dict": {"net.w": torch.zeros(1), "net.backbone.weight": torch.zeros(1, 1)},
        "hyper_parameters": {},
        "dual_encoder": {"width": 8},
        "image_tokenizer": {"width": 8},
        "weights": "abc",
        "scores": [("a", [1], 2, 0.5)],
    }
    read_each(saved(weights.mutated(content)), WEIGHT_READERS[reader], sandbox)


@pytest.mark.slow
def test_folders_of_adapters_with_one_value_replaced(sandbox: Sandbox) -> None:
    def build() -> TinyCaptioner:
        model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "a"], max_length=4)
        model.build()
        return model

    model, good = build(), sandbox.folder / "saved"
    record = {"class_path": f"{Shift.__module__}.{Shift.__qualname__}", "init_args": {}}
    model.adapters.record({"shift": record})
    model.adapters.install(model.built_net, model.device)
    model.save_adapters(good)

    def folder(records: str, change: Callable[[bytes], bytes] = bytes) -> Writer:
        def write(path: Path) -> None:
            shutil.copytree(good, path)
            next(path.glob("*.json")).write_text(records)
            (weight_file,) = (path / "shift").glob("*.safetensors")
            weight_file.write_bytes(change(weight_file.read_bytes()))

        return write

    as_json = json.dumps({"shift": record})
    files = {
        "as it is": folder(as_json),
        "cut": folder('{"shift": {"cla'),
        "weights cut": folder(as_json, lambda data: data[:20]),
        "no weights": folder(as_json, lambda data: b""),
        "another name": folder(json.dumps({"other": record})),
        "path as a name": folder(json.dumps({"../../x": record})),
    }
    for name, value in weights.ODD.items():
        files[f"records {name}"] = folder(json.dumps(value))
        files[f"record {name}"] = folder(json.dumps({"shift": value}))
        files |= {f"{key} {name}": folder(json.dumps({"shift": {**record, key: value}})) for key in record}
    for kind in ("os.system", "lightning_idc.__main__", "torch.nn.Linear"):
        files[f"class {kind}"] = folder(json.dumps({"shift": {"class_path": kind, "init_args": {}}}))
    messages = read_each(files, lambda path: build().load_adapters(path), sandbox)
    assert messages["as it is"] == "" and messages["cut"] and messages["weights cut"] and messages["class os.system"]


def test_a_hostile_checkpoint_is_named_with_its_function(sandbox: Sandbox) -> None:
    torch.save({"x": os.system}, "evil.ckpt")
    with pytest.raises(CheckpointError, match=r"evil\.ckpt.*posix\.system.*would run code"):
        load_captioner("evil.ckpt")

"""Damaged and hostile files through every reader of weights: one sentence or a good result, and no foreign code."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import Shift, TinyCaptioner
from safetensors.torch import save_file
from test_hostile_checkpoints import MODEL, gadgets, good  # noqa: F401

from lightning_idc.methods.clip4idc.convert import convert
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder
from lightning_idc.methods.procap.official.encoder import read_weights
from lightning_idc.models.loading import load_captioner
from lightning_idc.nn.backbones import load_backbone
from lightning_idc.nn.image_tokenizer import load_image_tokenizer
from lightning_idc.utils.errors import CheckpointError, IDCError

ODD: dict[str, Any] = {
    "none": None,
    "zero": 0,
    "text": "x",
    "list": [],
    "pairs": [[1]],
    "dict": {"a": 1},
    "minus": -1,
    "nan": float("nan"),
}


class Gadget:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


def broken_files(content: Any, trace: Path) -> dict[str, Callable[[Path], Any]]:
    """Ways to write a file that is not what it should be, whatever it should be."""

    def saved(value: Any, **options: Any) -> Callable[[Path], Any]:
        return lambda path: torch.save(value, path, **options)

    def changed(change: Callable[[bytearray], bytes | bytearray]) -> Callable[[Path], Any]:
        def write(path: Path) -> None:
            torch.save(content, path)
            path.write_bytes(change(bytearray(path.read_bytes())))

        return write

    def flipped(seed: int) -> Callable[[bytearray], bytearray]:
        def change(data: bytearray) -> bytearray:
            data[random.Random(seed).randrange(min(len(data), 3000))] ^= 1 << seed % 8
            return data

        return change

    def foreign_zip(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02}.")
            archive.writestr("../outside", b"x")

    return {
        "empty": lambda path: path.write_bytes(b""),
        "words": lambda path: path.write_text("not a checkpoint"),
        "zeros": lambda path: path.write_bytes(bytes(5000)),
        "noise": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
        "foreign zip": foreign_zip,
        **{
            f"cut to {part} %": changed(lambda data, part=part: data[: len(data) * part // 100]) for part in (1, 50, 99)
        },
        **{f"flip {seed}": changed(flipped(seed)) for seed in range(8)},
        **{f"value {name}": saved(value) for name, value in ODD.items()},
        "tensor": saved(torch.zeros(3)),
        "pickle": lambda path: path.write_bytes(pickle.dumps(Gadget(trace))),
        "pickle 0": lambda path: path.write_bytes(pickle.dumps(Gadget(trace), 0)),
        "gadget in zip": saved({**content, "x": Gadget(trace)}),
        "gadget in the old format": saved({**content, "x": Gadget(trace)}, _use_new_zipfile_serialization=False),
        "module": saved(torch.nn.Linear(1, 1)),
        "function": saved({**content, "x": os.system}),
    }


def mutated(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A checkpoint with one value replaced: of its own, of its hyper-parameters, of its weights."""
    found: dict[str, dict[str, Any]] = {"as it is": content}
    for key in content:
        found |= {f"{key}={name}": {**content, key: value} for name, value in ODD.items()}
        found[f"without {key}"] = {name: value for name, value in content.items() if name != key}
    hparams = content.get("hyper_parameters", {})
    for key in hparams:
        found |= {
            f"hparam {key}={name}": {**content, "hyper_parameters": {**hparams, key: value}}
            for name, value in ODD.items()
        }
    state = content.get("state_dict", {})
    first, *_, other = [*state, *state]
    for name, value in {**ODD, "shape": torch.zeros(2, 3, 5), "int": torch.zeros(1, dtype=torch.int64)}.items():
        found[f"weight={name}"] = {**content, "state_dict": {**state, first: value}}
    found["weight of NaN"] = {**content, "state_dict": {**state, other: state[other] * float("nan")}}
    found["weight missing"] = {**content, "state_dict": {key: state[key] for key in state if key != first}}
    found["weight too many"] = {**content, "state_dict": {**state, "unknown": torch.zeros(1)}}
    found["weight with number as a name"] = {**content, "state_dict": {**state, 3: torch.zeros(1)}}
    return found


def read(reader: Callable[[Path], Any], path: Path, trace: Path) -> str | None:
    """The sentence that a file is refused with; None where it is read. Anything else fails the test."""
    try:
        reader(path)
    except IDCError as error:
        assert str(error) and "Traceback" not in str(error)
        assert "weights_only" not in str(error), "torch's advice leads to running the code"
        return str(error)
    finally:
        assert not trace.exists(), f"{path} ran code"
    return None


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "PWNED"


def through(
    reader: Callable[[Path], Any], files: dict[str, Callable[[Path], Any]], trace: Path
) -> dict[str, str | None]:
    said = {}
    for name, write in files.items():
        path = trace.parent / "file.ckpt"
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        write(path)
        try:
            said[name] = read(reader, path, trace)
        except BaseException as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    return said


@pytest.mark.slow
def test_captioners(good: dict[str, Any], trace: Path) -> None:  # noqa: F811
    """More than 200 files, of which some are still good: a value that nothing depends on was replaced."""
    files = broken_files(good, trace)
    files |= {name: lambda path, value=value: torch.save(value, path) for name, value in mutated(good).items()}
    for name, change in gadgets(trace).items():
        value = {**good, "hyper_parameters": {**good["hyper_parameters"], **change}}
        files[f"gadget {name}"] = lambda path, value=value: torch.save(value, path)
    classes = (
        "os.system",
        "evil.X",
        "lightning_idc.__main__",
        "lightning_idc.cli.main",
        "lightning_idc.models.nothing.X",
    )
    for name in (*classes, "torch.nn.Linear", MODEL + "X", "", "."):
        files[f"class {name}"] = lambda path, name=name: torch.save({**good, "class_path": name}, path)
    assert len(files) > 200
    said = through(load_captioner, files, trace)
    assert said["as it is"] is None
    for name in ("empty", "cut to 50 %", "value list", "without state_dict", "weight=shape", "class os.system"):
        assert said[name], name
    assert said["pickle"] and said["pickle 0"]
    for name in ("gadget in zip", "gadget in the old format", "function"):
        assert "would run code" in (said[name] or ""), (name, said[name])
    assert "NaN" in (said["weight of NaN"] or "")
    assert sum(sentence is not None for sentence in said.values()) > 120


def folder_files(good: dict[str, Any], trace: Path) -> dict[str, Callable[[Path], Any]]:  # noqa: F811
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


def test_folders_of_save_pretrained(good: dict[str, Any], trace: Path) -> None:  # noqa: F811
    files = folder_files(good, trace)
    said = through(load_captioner, files, trace)
    assert said["as it is"] is None
    for name in ("no config", "cut config", "weights cut", "empty weights", "other shape", "missing", "config list"):
        assert said[name], name
    assert "NaN" in (said["NaN"] or "")


def test_folders_of_adapters(trace: Path) -> None:
    model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "a"], max_length=4)
    model.build()
    here = f"{Shift.__module__}.{Shift.__qualname__}"
    record = {"class_path": here, "init_args": {}}
    model.adapters.record({"shift": record})
    model.adapters.install(model.built_net, model.device)
    model.save_adapters(trace.parent / "saved")
    weights = next((trace.parent / "saved" / "shift").glob("*.safetensors"))

    def folder(records: str, change: Callable[[bytes], bytes] = bytes) -> Callable[[Path], Any]:
        def write(path: Path) -> None:
            shutil.copytree(trace.parent / "saved", path)
            next(path.glob("*.json")).write_text(records)
            (path / "shift" / weights.name).write_bytes(change(weights.read_bytes()))

        return write

    files = {
        "as it is": folder(json.dumps({"shift": record})),
        "cut": folder('{"shift": {"cla'),
        "weights cut": folder(json.dumps({"shift": record}), lambda data: data[:20]),
        "no weights": folder(json.dumps({"shift": record}), lambda data: b""),
        "another name": folder(json.dumps({"other": record})),
        "path as a name": folder(json.dumps({"../../x": record})),
    }
    for name, value in ODD.items():
        files[f"records {name}"] = folder(json.dumps(value))
        files[f"record {name}"] = folder(json.dumps({"shift": value}))
        files |= {f"{key} {name}": folder(json.dumps({"shift": {**record, key: value}})) for key in record}
    for kind in ("os.system", "subprocess.Popen", "lightning_idc.__main__", "torch.nn.Linear"):
        files[f"class {kind}"] = folder(json.dumps({"shift": {"class_path": kind, "init_args": {}}}))

    def load(path: Path) -> None:
        fresh = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "a"], max_length=4)
        fresh.build()
        fresh.load_adapters(path)

    said = through(load, files, trace)
    assert said["as it is"] is None and said["cut"] and said["weights cut"] and said["class os.system"]


OTHERS: dict[str, Callable[[Path], Any]] = {
    "image tokenizer": load_image_tokenizer,
    "dual encoder": load_dual_encoder,
    "backbone": lambda path: load_backbone(torch.nn.Linear(1, 1), path),
    "CLIP4IDC of the authors": convert,
    "weights of the authors": read_weights,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_readers(name: str, trace: Path) -> None:
    content = {
        "state_dict": {"net.w": torch.zeros(1), "net.backbone.weight": torch.zeros(1, 1)},
        "hyper_parameters": {},
        "dual_encoder": {"width": 8},
        "image_tokenizer": {"width": 8},
        "weights": "abc",
        "scores": [("a", [1], 2, 0.5)],
    }
    files = broken_files(content, trace)
    files |= {key: lambda path, value=value: torch.save(value, path) for key, value in mutated(content).items()}
    said = through(OTHERS[name], files, trace)
    for key in ("empty", "cut to 50 %", "value list", "gadget in zip", "pickle"):
        assert said[key], key


def test_the_sentence_for_a_hostile_file_gives_no_dangerous_advice(trace: Path) -> None:
    torch.save({"x": os.system}, trace.parent / "evil.ckpt")
    with pytest.raises(CheckpointError, match=r"posix\.system.*would run code, so do not load it") as caught:
        load_captioner(trace.parent / "evil.ckpt")
    assert "\n" not in str(caught.value)

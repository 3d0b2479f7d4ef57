"""Weight files: pickles that call functions in every container of torch, damaged checkpoints, bad safetensors."""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import pathlib
import pickle
import random
import runpy
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch

from lightning_idc.models.pair_transformer.module import PairTransformer

LORA = "lightning_idc.models.LoraAdapter"
MODEL = "lightning_idc.models.PairTransformer"
Writer = Callable[[Path], Any]


@functools.cache
def good_checkpoint() -> dict[str, Any]:
    """Content of the checkpoint of a tiny captioner."""
    torch.manual_seed(0)
    model = PairTransformer(
        width=8,
        encoder_layers=1,
        decoder_layers=1,
        heads=1,
        max_length=4,
        no_change_captions=["a"],
        vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "a"],
        image_size=(16, 16),
    )
    model.build()
    return {
        "state_dict": model.state_dict(),
        "hyper_parameters": {**dict(model.hparams), "_instantiator": "lightning.pytorch.cli.instantiate_module"},
        "class_path": MODEL,
        "pytorch-lightning_version": lightning.__version__,
        "epoch": 0,
        "global_step": 0,
        "loops": {},
    }


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def pickles(folder: Path) -> dict[str, bytes]:
    trace = str(folder / "PWNED")
    touch, code = f"touch {trace}", f"__import__('pathlib').Path({trace!r}).touch()"
    system = pickle.dumps(Calls(os.system, touch))
    calls = {
        "os.system": Calls(os.system, touch),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "Popen": Calls(subprocess.Popen, ["touch", trace]),
        "script": Calls(runpy.run_path, str(folder / "evil_mod.py")),
        "import": Calls(builtins.__import__, "evil_mod"),
        "open": Calls(open, trace, "w"),
        "method": Calls(pathlib.Path.touch, Calls(pathlib.Path, trace)),
        "partial": Calls(functools.partial(os.system, touch)),
        "pickle within": Calls(pickle.loads, system),
        "storage within": Calls(torch.storage._load_from_bytes, system),
        "torch.load": Calls(functools.partial(torch.load, weights_only=False), io.BytesIO(system)),
        "torch.hub": Calls(functools.partial(torch.hub.load, source="local"), str(folder), "build"),
        "from_file": Calls(torch.from_file, trace, True, 8),
        "storage from a file": Calls(torch.UntypedStorage.from_file, trace, True, 8),
        "address": Calls(__import__("urllib.request").request.urlopen, "http://127.0.0.1:9/x"),
        "key": {Calls(os.system, touch): 1},
    }
    found = {name: pickle.dumps({"state_dict": {}, "args": value}, 2) for name, value in calls.items()}
    found["newer pickle"] = pickle.dumps({"state_dict": {}, "args": calls["method"]}, 4)
    line = touch.encode()
    return found | {
        "INST": b"(S'" + line + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + line + b"'\no.",
        "REDUCE": b"cos\nsystem\n(S'" + line + b"'\ntR.",
        "path through a module": b"\x80\x04\x8c\x1dlightning_idc.core.checkpoint_io\x8c\x09os.system\x93\x8c"
        + bytes([len(line)]) + line + b"\x85R.",
        "BUILD": b"\x80\x02cevil_mod\nbuild\n)\x81}X\x01\x00\x00\x00aK\x01sb.",
        "extension code": b"\x80\x02\x82\x01.",
        "persistent id": b"Pos.system\n.",
    }  # fmt: skip


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in (*members, ("archive/version", b"3\n"), ("archive/byteorder", b"little")):
            made.writestr(name, content)
    return buffer.getvalue()


def before_zip(content: bytes) -> bytes:
    magic, version, system = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
    return b"".join([*(pickle.dumps(part, 2) for part in (magic, version, system)), content, pickle.dumps([], 2)])


TRACE = "PWNED"
SYSTEM = pickle.dumps(Calls(os.system, f"touch {TRACE}"))

WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "before zip": before_zip,
    "zip": lambda content: archive(("archive/data.pkl", content)),
    "TorchScript": lambda content: archive(("archive/data.pkl", content), ("archive/constants.pkl", b")." + content)),
}


class Scripted(torch.nn.Module):
    """Writes a file when its TorchScript archive is loaded."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.weight = path, torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[str, torch.Tensor, bool]:
        return self.path, self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, torch.Tensor, bool]) -> None:
        self.path, self.training = state[0], state[2]
        self.weight = torch.from_file(state[0], True, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


ODD: dict[str, Any] = {
    "none": None,
    "text": "x",
    "list": [],
    "dict": {"a": 1},
    "minus": -1,
    "nan": float("nan"),
}


def broken_files(content: Any, trace: Path) -> dict[str, Writer]:
    """Functions that each write a damaged or unexpected file, whatever the reader expects."""

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
        **{f"flip {seed}": changed(flipped(seed)) for seed in range(3)},
        **{f"value {name}": saved(value) for name, value in ODD.items()},
        "tensor": saved(torch.zeros(3)),
        "gadget in zip": saved({**content, "x": Calls(os.system, f"touch {trace}")}),
        "module": saved(torch.nn.Linear(1, 1)),
        "function": saved({**content, "x": os.system}),
    }


def mutated(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Variants of a checkpoint that differ in one value: a top-level entry, a hyper-parameter, or a weight."""
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


def header(about: Any, data: bytes = b"") -> bytes:
    text = json.dumps(about).encode()
    return len(text).to_bytes(8, "little") + text + data


SAFE: dict[str, bytes] = {
    "offsets out of the file": header({"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 1 << 40]}}),
    "shape of an exabyte": header(
        {"w": {"dtype": "F32", "shape": [1 << 30, 1 << 30], "data_offsets": [0, 4]}}, b"abcd"
    ),
    "tensors that overlap": header(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"}, b"abcd"
    ),
    "header of a terabyte": (1 << 40).to_bytes(8, "little") + b"{}",
    "type with code": header({"w": {"dtype": "os.system", "shape": [1], "data_offsets": [0, 4]}}, b"abcd"),
    "pickle": pickle.dumps(Calls(os.system, "touch PWNED")),
}


def lying_folder(name: str, folder: Path) -> None:
    """Write a folder in the layout of ``save_pretrained`` whose safetensors file is invalid."""
    (folder / "model.safetensors").write_bytes(SAFE[name])
    content = good_checkpoint()
    hparams = {key: value for key, value in content["hyper_parameters"].items() if not key.startswith("_")}
    (folder / "config.json").write_text(json.dumps({"class_path": content["class_path"], "init_args": hparams}))

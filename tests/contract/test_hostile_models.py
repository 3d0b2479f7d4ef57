"""Files of weights, and folders of models, that try to run something: none of it happens, whoever reads them."""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import pathlib
import pickle
import runpy
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hostile import watched
from open_clip import factory
from safetensors.torch import save as safetensors_bytes
from test_hostile_checkpoints import LORA, gadgets, good, in_adapters  # noqa: F401
from test_no_remote_code import CODE, readers

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.checkpoints.restricted import read_foreign_checkpoint, read_torchscript
from lightning_idc.cli.checkpoint_data import with_stored_data
from lightning_idc.methods.clip4idc.convert import convert
from lightning_idc.methods.clip4idc.module import Clip4Idc
from lightning_idc.methods.namc.dual_encoder import load_dual_encoder
from lightning_idc.methods.policy.cached_scores import read_scores
from lightning_idc.methods.procap.official.convert import convert_tokenizer
from lightning_idc.methods.procap.official.encoder import read_weights
from lightning_idc.models.loading import load_captioner, load_module, strip_aux
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.nn.backbones import build_backbone, load_backbone
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.image_tokenizer import load_image_tokenizer
from lightning_idc.nn.vocabulary import ClipVocabulary
from lightning_idc.synthesis.models.diffusion import PromptToPrompt
from lightning_idc.utils.errors import CheckpointError, IDCError

PROGRAM = "import pathlib\npathlib.Path({trace!r}).touch()\ndef build(*a, **k):\n    pathlib.Path({trace!r}).touch()\n"


TOWER = {"layers": 1, "width": 64, "patch_size": 8, "image_size": 16, "head_width": 64}
TEXTS = {"layers": 1, "width": 64, "heads": 1, "context_length": 77, "vocab_size": 49408}


@pytest.fixture(autouse=True)
def tiny_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CLIP that is made in a moment."""
    monkeypatch.setitem(factory._MODEL_CONFIGS, "tiny", {"embed_dim": 8, "vision_cfg": TOWER, "text_cfg": TEXTS})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a download, current, with programs beside the file; secrets lie in a folder beside it."""
    folder = tmp_path / "x" / "download"
    folder.mkdir(parents=True)
    (folder.parent / "secrets").mkdir()
    (folder.parent / "secrets" / "w.safetensors").write_bytes(safetensors_bytes({"w": torch.zeros(2)}))
    for name in ("evil_mod.py", "hubconf.py"):
        (folder / name).write_text(PROGRAM.format(trace=str(folder / "PWNED")))
    monkeypatch.chdir(folder)
    # as under `python -m`, so that an import is not only tried
    monkeypatch.setattr("sys.path", [str(folder), *sys.path])
    return folder


def harmless(place: Path, read: Callable[[], Any], refused: bool = True) -> str:
    """The sentence that a file is refused with; '' where it is read, which it must not be unless it is said so."""
    said = ""
    with watched(place, place.parent / "secrets") as effects, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except IDCError as error:
            said = str(error)
    assert effects == []
    assert not (place / "PWNED").exists()
    assert bool(said) or not refused, "it was read"
    assert "weights_only" not in said and "trust_remote_code" not in said, "advice to run the code"
    return said


def test_side_effects_are_seen(place: Path) -> None:
    """Else nothing below could fail."""
    secrets = place.parent / "secrets"

    def write(path: Path) -> None:
        path.write_text("x")

    def look_for() -> None:
        with suppress(ImportError):
            builtins.__import__("evil_other")

    effects: dict[str, Callable[[], Any]] = {
        "os.system": lambda: os.system("true"),
        "subprocess.Popen": lambda: subprocess.run(["true"], check=True),
        "socket.getaddrinfo": lambda: __import__("socket").getaddrinfo("127.0.0.1", 9),
        "pickle.find_class": lambda: pickle.loads(pickle.dumps(os.getcwd)),
        "exec": lambda: runpy.run_path("hubconf.py"),
        "import": look_for,
        f"open: {secrets}": lambda: (secrets / "w.safetensors").read_bytes(),
        f"open: {place.parent / 'new'}": lambda: write(place.parent / "new"),
        "os.mkdir": lambda: (place.parent / "made").mkdir(),
        "os.remove": lambda: (place.parent / "new").unlink(),
        "files": lambda: torch.from_file(str(secrets / "native"), True, 4),
    }
    for event, cause in effects.items():
        with watched(place, secrets) as seen:
            cause()
        assert any(found.startswith(event) for found in seen), (event, seen)
    with watched(place, secrets) as seen:
        write(place / "inside")
        json.dumps(torch.zeros(2).tolist())
    assert seen == []


# ---- pickles: what they call, and what they are wrapped in -----------------------------------------------


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.found = function, args

    def __reduce__(self) -> Any:
        return self.found


def pickles(place: Path) -> dict[str, bytes]:
    trace = str(place / "PWNED")
    touch, code = f"touch {trace}", f"__import__('pathlib').Path({trace!r}).touch()"
    system = pickle.dumps(Calls(os.system, touch))
    calls = {
        "os.system": Calls(os.system, touch),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "Popen": Calls(subprocess.Popen, ["touch", trace]),
        "script": Calls(runpy.run_path, str(place / "evil_mod.py")),
        "import": Calls(builtins.__import__, "evil_mod"),
        "open": Calls(open, trace, "w"),
        "method": Calls(pathlib.Path.touch, Calls(pathlib.Path, trace)),
        "partial": Calls(functools.partial(os.system, touch)),
        "pickle within": Calls(pickle.loads, system),
        "storage within": Calls(torch.storage._load_from_bytes, system),
        "torch.load": Calls(functools.partial(torch.load, weights_only=False), io.BytesIO(system)),
        "torch.hub": Calls(functools.partial(torch.hub.load, source="local"), str(place), "build"),
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


WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "before zip": before_zip,
    "zip": lambda content: archive(("archive/data.pkl", content)),
    "TorchScript": lambda content: archive(("archive/data.pkl", content), ("archive/constants.pkl", b")." + content)),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "checkpoint": read_checkpoint,
    "captioner": load_captioner,
    "module": lambda path: load_module(PairTransformer, path),
    "add-ons": lambda path: strip_aux(path, path.with_name("out.ckpt")),
    "image tokenizer": load_image_tokenizer,
    "dual encoder": load_dual_encoder,
    "backbone": lambda path: load_backbone(torch.nn.Linear(1, 1), path),
    "CLIP4IDC": convert,
    "VQGAN": convert_tokenizer,
    "ProCap": read_foreign_checkpoint,
    "weights": read_weights,
    "CLIP": lambda path: build_clip("tiny", ClipVocabulary(), str(path)),
    "TorchScript": read_torchscript,
    "scores": lambda path: read_scores(path, "weights"),
}
QUIET = ("ProCap", "weights", "scores")
"""These leave out what they do not know: of a pickle whose every class is inert, or of a cache, nothing is left."""


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("name", pickles(Path()))
def test_pickles_call_nothing(name: str, wrapped: str, place: Path) -> None:
    path = place / "file.ckpt"
    path.write_bytes(WRAPPED[wrapped](pickles(place)[name]))
    said = {reader: harmless(place, lambda r=r: r(path), reader not in QUIET) for reader, r in READERS.items()}
    if name == "os.system" and wrapped != "TorchScript":
        assert "would run code" in said["checkpoint"]


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


@pytest.mark.parametrize("disguise", ["plain", "two lists of members"])
def test_torchscript_runs_nothing(disguise: str, place: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on TorchScript's age
        torch.jit.save(torch.jit.script(Scripted(str(place / "PWNED"))), "file.pt")
        torch.jit.load("file.pt")
    assert (place / "PWNED").exists(), "the gadget works"
    (place / "PWNED").unlink()
    path = place / "file.pt"
    if disguise != "plain":
        # a zip archive of nothing in the comment of the other one: readers differ in which they take
        content, empty = path.read_bytes(), b"PK\x05\x06" + bytes(18)
        path.write_bytes(content[:-2] + len(empty).to_bytes(2, "little") + empty)
    for reader, read in READERS.items():
        harmless(place, lambda r=read: r(path), reader != "scores")


@pytest.mark.parametrize("kind", ["link to secrets", "pipe", "path out of it"])
def test_checkpoints_of_tars_time_unpack_nothing(kind: str, place: Path) -> None:
    with tarfile.open("file.pt", "w") as made:
        first = tarfile.TarInfo("../storages" if kind == "path out of it" else "storages")
        if kind == "link to secrets":
            first.type, first.linkname = tarfile.SYMTYPE, str(place.parent / "secrets" / "w.safetensors")
        elif kind == "pipe":
            first.type = tarfile.FIFOTYPE  # to open it for reading is to wait for ever
        made.addfile(first)
        for name in ("tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = 4
            made.addfile(info, io.BytesIO(b"abcd"))
    for reader, read in READERS.items():
        harmless(place, lambda r=read: r(place / "file.pt"), reader != "scores")


# ---- plain values that name what is to be built ----------------------------------------------------------


@pytest.mark.parametrize("name", gadgets(Path()))
def test_values_of_a_folder_build_nothing(name: str, good: dict[str, Any], place: Path) -> None:  # noqa: F811
    hparams = {key: value for key, value in good["hyper_parameters"].items() if not key.startswith("_")}
    config = {"class_path": good["class_path"], "init_args": hparams | gadgets(place / "PWNED")[name]}
    (place / "config.json").write_text(json.dumps(config))
    (place / "config.yaml").write_text("model: {class_path: evil_mod.build}\ndata: {class_path: evil_mod.build}\n")
    state = {key: value.clone() for key, value in good["state_dict"].items()}
    (place / "model.safetensors").write_bytes(safetensors_bytes(state))
    # those that only matter to training are left out, and the captioner is as good as without them
    harmless(place, lambda: load_captioner(place), refused=False)


@pytest.mark.parametrize("key", ["dual_encoder", "image_tokenizer", "hyper_parameters"])
@pytest.mark.parametrize("name", ["sympy in adapters", "popen in adapters", "module in adapters"])
def test_values_beside_the_weights_build_nothing(key: str, name: str, place: Path) -> None:
    value = gadgets(place / "PWNED")[name]["adapters"]["a"]["x"]
    options = {"width": value, "backbone": value, "vocabulary": value, "class_path": value}
    torch.save({"state_dict": {"net.w": torch.zeros(1)}, "hyper_parameters": {}, key: options}, "file.ckpt")
    for reader in ("captioner", "module", "image tokenizer", "dual encoder", "backbone", "CLIP4IDC"):
        harmless(place, lambda r=READERS[reader]: r(place / "file.ckpt"))


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


@pytest.mark.parametrize("name", STORED)
def test_data_of_a_checkpoint_build_nothing(name: str, place: Path) -> None:
    found: list[Any] = []
    harmless(place, lambda: found.append(with_stored_data({"model": {}}, {"data": STORED[name]})), refused=False)
    assert found == [{"model": {}}]


@pytest.mark.parametrize("written", ["/made", "../made", "~/made", "cache/../../made", ".", 5])
@pytest.mark.parametrize("option", ["cache_images", "cache_dir"])
def test_data_of_a_checkpoint_write_nothing_outside(option: str, written: Any, place: Path) -> None:
    stored = {"class_path": "FolderPairs", "init_args": {"root": "pairs", option: written}}
    assert with_stored_data({}, {"data": stored})["data"]["init_args"] == {"root": "pairs"}
    stored["init_args"] = {"root": "pairs", option: "cache/x"}  # type: ignore[assignment]
    assert with_stored_data({}, {"data": stored})["data"] == stored


@pytest.mark.parametrize("name", ["hf-hub:evil/clip", "local-dir:../secrets", "hf-hub:http://127.0.0.1:9/x"])
@pytest.mark.parametrize("hparam", ["clip", "backbone", "tower"])
def test_names_in_a_checkpoint_fetch_nothing(hparam: str, name: str, place: Path) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "clip": lambda: Clip4Idc(clip=name, vocabulary="clip").build(),
        "backbone": lambda: build_backbone(name),
        "tower": lambda: build_clip(name, ClipVocabulary(), "openai"),
    }
    (place.parent / "secrets" / "open_clip_config.json").write_text("{}")
    harmless(place, makers[hparam])


# ---- adapters and safetensors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        {"../../secrets": {"class_path": LORA, "init_args": {}}},
        {"a": {"class_path": "evil_mod.build", "init_args": {}}},
        {"a": {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "PWNED"]}}},
        {"a": {"class_path": LORA, "init_args": {"targets": {"class_path": "evil_mod.build"}}}},
        {"a": {"class_path": LORA, "init_args": {"freeze": ["__class__.__init__"], "targets": "(("}}},
        {"a": {"class_path": "lightning_idc.models.adapter.os", "init_args": {}}},
        {"a": {"class_path": "lightning_idc.callbacks.LoRA", "init_args": {}, "_instantiator": "evil_mod.build"}},
        {"a": {"class_path": "lightning_idc.__main__", "init_args": {}}},
    ],
)
def test_folders_of_adapters_build_nothing(records: dict[str, Any], good: dict[str, Any], place: Path) -> None:  # noqa: F811
    torch.save(good, "file.ckpt")
    model = load_captioner("file.ckpt")
    for name in ("a", "../secrets"):
        (place / name).mkdir(exist_ok=True)
    (place / "adapters.json").write_text(json.dumps(records))
    (place / "a" / "adapter_config.json").write_text(json.dumps({"auto_mapping": {"parent_library": "evil_mod"}}))
    harmless(place, lambda: model.load_adapters(place))
    torch.save({**good, "hyper_parameters": {**good["hyper_parameters"], "adapters": records}}, "file.ckpt")
    harmless(place, lambda: load_captioner("file.ckpt"))


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


@pytest.mark.parametrize("name", SAFE)
def test_safetensors_of_lies(name: str, good: dict[str, Any], place: Path) -> None:  # noqa: F811
    path = place / "model.safetensors"
    path.write_bytes(SAFE[name])
    plain = {key: value for key, value in good["hyper_parameters"].items() if not key.startswith("_")}
    (place / "config.json").write_text(json.dumps({"class_path": good["class_path"], "init_args": plain}))
    harmless(place, lambda: load_captioner(place))
    harmless(place, lambda: read_weights(path))


# ---- folders of transformers -----------------------------------------------------------------------------

TYPE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1}
TYPE |= {"num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8}
KINDS = ("AutoConfig", "AutoModelForCausalLM", "AutoProcessor", "AutoModelForImageTextToText")
HERE = {kind: "evil_mod.Config" for kind in KINDS} | {"AutoTokenizer": ["evil_mod.Config", None]}
FOLDERS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_transformers_run_nothing(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(prompt: str = "") -> str:
        raise AssertionError(f"a terminal was asked: {prompt}")

    monkeypatch.setattr(builtins, "input", asked)
    (place / "evil_mod.py").write_text(CODE.format(trace=str(place / "PWNED")))
    for file, content in FOLDERS[name].items():
        if content is ...:
            torch.save({"w": Calls(os.system, f"touch {place / 'PWNED'}")}, file)
        else:
            (place / file).write_text(content if isinstance(content, str) else json.dumps(content))
    for read in readers(place).values():
        harmless(place, read)


def test_parts_of_a_diffusion_pipeline_are_not_imported(place: Path) -> None:
    pipeline = {"_class_name": "StableDiffusionXLPipeline", "unet": ["evil_mod", "Config"], "vae": ["os", "system"]}
    (place / "model_index.json").write_text(json.dumps(pipeline))
    (place / "vae").mkdir()
    harmless(place, lambda: PromptToPrompt(str(place)).read("StableDiffusionXLPipeline"))


def test_a_file_that_no_reader_knows_is_named(place: Path) -> None:
    (place / "file.ckpt").write_text("import os")
    with pytest.raises(CheckpointError, match=r"file\.ckpt"):
        load_captioner(place / "file.ckpt")

"""Every reader on every bad file of its kind: a one-line error or a valid result, no side effect, bounded resources."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bad_files import archives, images, models, tables, weights
from helpers.bad_files.weights import Writer, good_checkpoint
from helpers.sandbox import Sandbox
from helpers.weight_readers import WEIGHT_READERS, Reader
from test_no_remote_code import CODE
from test_no_remote_code import readers as transformers_readers

from lightning_idc.checkpoints.restricted import read_state_dict
from lightning_idc.cli.configuration import gather, parse_value, read_yaml
from lightning_idc.cli.recipes.compose import load as load_recipe
from lightning_idc.data import HuggingFaceTable
from lightning_idc.data.store.manifest import FORMAT, MANIFEST
from lightning_idc.data.store.reader import Store
from lightning_idc.data.tables.prepare import unpack
from lightning_idc.images.read import read_image
from lightning_idc.methods.clip4idc.module import Clip4Idc
from lightning_idc.methods.procap.official.convert import _read_word_ids
from lightning_idc.models.loading import load_captioner
from lightning_idc.nn.backbones import build_backbone
from lightning_idc.nn.clip import build_clip
from lightning_idc.nn.vocabulary import BertVocabulary, ClipVocabulary
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.synthesis.models.diffusion import PromptToPrompt
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.files import digest


@dataclass(frozen=True)
class Case:
    """A bad file and its readers.

    Args:
        kind: kind of file.
        name: name of its fault.
        write: writes the file below a folder.
        readers: readers by name; each takes the folder.
        fails: readers that must refuse it; None for all.
    """

    kind: str
    name: str
    write: Writer
    readers: Mapping[str, Reader]
    fails: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def cases() -> Iterator[Case]:
    yield from weight_cases()
    yield from model_cases()
    yield from table_cases()
    yield from other_cases()


# ---- weights ---------------------------------------------------------------------------------------------

WEIGHTS = "file.ckpt"
UNPICKLERS = ("checkpoint", "ProCap", "TorchScript")
"""Every other reader calls one of these."""
LENIENT = ("ProCap", "weights", "scores")
"""Readers that skip unknown content: a pickle with only inert classes, or a cache, is read as empty."""
STRICT = tuple(name for name in WEIGHT_READERS if name not in LENIENT)
THROUGH_ALL = ("os.system", "newer pickle", "REDUCE", "BUILD", "persistent id")
"""Pickles that are tried with every reader, one for each group of opcodes; the others only with the unpicklers."""


def in_folder(readers: Mapping[str, Reader], file: str) -> dict[str, Reader]:
    return {name: lambda folder, read=read: read(folder / file) for name, read in readers.items()}


def weight_cases() -> Iterator[Case]:
    every = in_folder(WEIGHT_READERS, WEIGHTS)
    unpicklers = {name: every[name] for name in UNPICKLERS}
    for name in weights.pickles(Path()):
        for wrapped, wrap in weights.WRAPPED.items():
            readers = every if name in THROUGH_ALL else unpicklers

            def write(folder: Path, name: str = name, wrap: Callable[[bytes], bytes] = wrap) -> None:
                (folder / WEIGHTS).write_bytes(wrap(weights.pickles(folder)[name]))

            fails = tuple(reader for reader in STRICT if reader in readers)
            yield Case("pickle", f"{name}, {wrapped}", write, readers, fails)
    for name in weights.broken_files({}, Path()):

        def write_broken(folder: Path, name: str = name) -> None:
            weights.broken_files(good_checkpoint(), folder / "PWNED")[name](folder / WEIGHTS)

        must = name in ("empty", "words", "zeros", "noise", "cut to 1 %", "cut to 50 %", "gadget in zip", "function")
        fails = tuple(reader for reader in STRICT if reader != "scores") if must else ()
        yield Case("weights", name, write_broken, every, fails)
    not_scores = tuple(name for name in every if name != "scores")
    for name in ("plain", "two lists of members"):
        yield Case("TorchScript", name, lambda folder, name=name: torchscript(name, folder), every, not_scores)
    for name in ("link to secrets", "pipe", "path out of it"):
        yield Case("tar", name, lambda folder, name=name: old_tar(name, folder), every, not_scores)


def torchscript(disguise: str, folder: Path) -> None:
    """Write a TorchScript archive whose program writes a file when torch loads it."""
    path = folder / WEIGHTS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        torch.jit.save(torch.jit.script(weights.Scripted(str(folder / "PWNED"))), path)
        torch.jit.load(path)
    assert (folder / "PWNED").exists(), "the gadget works"
    (folder / "PWNED").unlink()
    if disguise != "plain":
        # an empty zip archive in the comment of the other one: readers differ in which one they open
        content, empty = path.read_bytes(), b"PK\x05\x06" + bytes(18)
        path.write_bytes(content[:-2] + len(empty).to_bytes(2, "little") + empty)


def old_tar(kind: str, folder: Path) -> None:
    """Write a checkpoint in torch's first format, a tar archive."""
    with tarfile.open(folder / WEIGHTS, "w") as archive:
        first = tarfile.TarInfo("../storages" if kind == "path out of it" else "storages")
        if kind == "link to secrets":
            first.type, first.linkname = tarfile.SYMTYPE, str(folder.parent / "secrets" / "w.safetensors")
        elif kind == "pipe":
            first.type = tarfile.FIFOTYPE  # opening it for reading blocks forever
        archive.addfile(first)
        for name in ("tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"abcd"))


# ---- folders and values of models ------------------------------------------------------------------------


def model_cases() -> Iterator[Case]:
    for name in weights.SAFE:
        readers = {"captioner": load_captioner, "weights": lambda folder: read_state_dict(folder / "model.safetensors")}
        yield Case("safetensors", name, lambda folder, name=name: weights.lying_folder(name, folder), readers)
    for name in models.gadgets(Path()):

        def write(folder: Path, name: str = name) -> None:
            models.gadget_folder(name, good_checkpoint(), folder)

        # training options are ignored, so the captioner loads without them
        yield Case("options", name, write, {"captioner": load_captioner}, ())
    of_values = ("captioner", "module", "image tokenizer", "dual encoder", "backbone", "CLIP4IDC")
    beside = in_folder({name: WEIGHT_READERS[name] for name in of_values}, WEIGHTS)
    for key in ("dual_encoder", "image_tokenizer", "hyper_parameters"):
        for name in ("sympy in adapters", "popen in adapters", "module in adapters"):

            def write_beside(folder: Path, key: str = key, name: str = name) -> None:
                value = models.gadgets(folder / "PWNED")[name]["adapters"]["a"]["x"]
                options = {"width": value, "backbone": value, "vocabulary": value, "class_path": value}
                content = {"state_dict": {"net.w": torch.zeros(1)}, "hyper_parameters": {}, key: options}
                torch.save(content, folder / WEIGHTS)

            yield Case("values", f"{key}, {name}", write_beside, beside)
    for name in models.ADAPTERS:
        readers = {"adapters": load_adapters, "captioner": lambda folder: load_captioner(folder / "file.ckpt")}
        yield Case("adapters", name, lambda folder, name=name: write_adapters(name, folder), readers)
    for name in models.TRANSFORMERS:

        def write_transformers(folder: Path, name: str = name) -> None:
            models.write_transformers(name, CODE.format(trace=str(folder / "PWNED")), folder)

        readers = {
            reader: lambda folder, reader=reader: transformers_readers(folder)[reader]()
            for reader in ("model", "skeleton", "language model", "judge", "slot")
        }
        yield Case("transformers", name, write_transformers, readers)
    read = {"diffusion": lambda folder: PromptToPrompt(str(folder)).read("StableDiffusionXLPipeline")}
    yield Case("diffusers", "parts that are imported", write_pipeline, read)
    for name in ("hf-hub:evil/clip", "local-dir:../secrets", "hf-hub:http://127.0.0.1:9/x"):
        makers: dict[str, Reader] = {
            "clip": lambda folder, name=name: Clip4Idc(clip=name, vocabulary="clip").build(),
            "backbone": lambda folder, name=name: build_backbone(name),
            "tower": lambda folder, name=name: build_clip(name, ClipVocabulary(), "openai"),
        }
        yield Case("name of a network", name, write_secret_config, makers)
    for name in ("../secrets", "evil/../../secrets", "org/name;touch PWNED", "a/b/c", "file://x/y.ckpt"):
        opened = {"model": lambda folder, name=name: ModelOptions(name, "cpu").open()}
        yield Case("name of a model", name, lambda folder: None, opened)


def load_adapters(folder: Path) -> None:
    torch.save(good_checkpoint(), folder / "good.ckpt")
    try:
        load_captioner(folder / "good.ckpt").load_adapters(folder)
    finally:
        (folder / "good.ckpt").unlink()


def write_adapters(name: str, folder: Path) -> None:
    records, good = models.ADAPTERS[name], good_checkpoint()
    for child in ("a", "../secrets"):
        (folder / child).mkdir(exist_ok=True)
    (folder / "adapters.json").write_text(json.dumps(records))
    config = {"auto_mapping": {"parent_library": "evil_mod"}}
    (folder / "a" / "adapter_config.json").write_text(json.dumps(config))
    hparams = {**good["hyper_parameters"], "adapters": records}
    torch.save({**good, "hyper_parameters": hparams}, folder / "file.ckpt")


def write_pipeline(folder: Path) -> None:
    pipeline = {"_class_name": "StableDiffusionXLPipeline", "unet": ["evil_mod", "Config"], "vae": ["os", "system"]}
    (folder / "model_index.json").write_text(json.dumps(pipeline))
    (folder / "vae").mkdir()


def write_secret_config(folder: Path) -> None:
    (folder.parent / "secrets" / "open_clip_config.json").write_text("{}")


# ---- tables, stores, archives, YAML, images --------------------------------------------------------------

OF_EACH_TABLE = ("parent", "absolute", "parent within", "link", "address", "file address", "device", "NUL")
"""Paths that are tried in every table; the others only in the CSV file."""

TABLE_FILES = {
    "CSV": "pairs.csv",
    "JSONL": "pairs.jsonl",
    "preferences": "preferences.jsonl",
    "table of JSON": "t.jsonl",
    "Parquet": "t.parquet",
}


def table_cases() -> Iterator[Case]:
    for table, read in tables.TABLES.items():
        for name in tables.PATHS if table == "CSV" else OF_EACH_TABLE:

            def write_files(folder: Path, name: str = name, table: str = table) -> None:
                (folder / TABLE_FILES[table]).touch()  # the reader fills it
                write_link(name, folder)

            def read_path(folder: Path, name: str = name, read: Callable[[str, Path], Any] = read) -> None:
                read(tables.PATHS[name].format(secrets=folder.parent / "secrets"), folder)

            yield Case("path", f"{name} in {table}", write_files, {table: read_path})
    for name, write in tables.FOLDERS.items():

        def write_table(folder: Path, write: Writer = write) -> None:
            (folder / "table").mkdir()
            write(folder / "table")

        yield Case("table", name, write_table, {"table": read_table}, ())
    for name, make in tables.STORES.items():
        yield Case("store", name, make, {"store": read_store})
    for shards in (-1, 10**12, "../secrets/s", [1], 1.5, {"../secrets/s.arrow": 1}, {"x": "y"}):

        def write_shards(folder: Path, shards: Any = shards) -> None:
            content = {"format": FORMAT, "identity": {}, "notes": {}, "shards": shards}
            checksum = digest(json.dumps(content, sort_keys=True))
            (folder / MANIFEST).write_text(json.dumps({**content, "checksum": checksum}))

        yield Case("manifest", f"shards {shards}", write_shards, {"store": Store})


def write_link(name: str, folder: Path) -> None:
    if name == "link":  # only for this case, since the link alone would make the others fail
        (folder / "link.png").symlink_to(folder.parent / "secrets" / "s.png")
    elif name == "link to a folder":
        (folder / "linked").symlink_to(folder.parent / "secrets")


def read_table(folder: Path) -> None:
    path = folder / "table" / "t.parquet"
    data = HuggingFaceTable(path if path.is_file() else folder / "table", "before", "after", "caption", image_size=8)
    assert data.pairs_of("train").captions(0) == ["x"]


def read_store(folder: Path) -> None:
    for record in RecordStore(folder / "store"):
        record.encoded("early")


def other_cases() -> Iterator[Case]:
    for name, write in archives.ARCHIVES.items():
        file = "a.zip" if name.startswith("zip") else "a.tar.gz"
        # the name of a member ends at a NUL
        fails = () if "NUL" in name else None
        readers = {"unpack": lambda folder, file=file: unpack_below(folder / file, folder / "target")}
        yield Case("archive", name, lambda folder, write=write, file=file: write(folder / file), readers, fails)
    for name, value in archives.YAML_VALUES.items():
        text = f"recipe: {{title: x}}\nbase: {{x: {value}}}\nstages: {{a: {{run: fit}}}}\n"
        readers = {
            **in_folder(YAML_READERS, "x.yaml"),
            "value": lambda folder, value=value: parse_value(value),
            "image option": lambda folder, value=value: ModelOptions("clevr", "cpu", image=[f"page={value}"]).open(),
        }
        fails = () if name == "laughs" else ("image option",)
        yield Case("YAML", name, lambda folder, text=text: (folder / "x.yaml").write_text(text), readers, fails)
    for name in ("../secrets/w", "/etc/passwd", "http://127.0.0.1:9/x", "evil_mod.py", "~/x"):
        text = f"recipe: {{title: x}}\ndefaults: [{name}]\nstages: {{a: {{run: fit}}}}\n"
        readers = in_folder({"recipe": load_recipe}, "x.yaml")
        yield Case("defaults", name, lambda folder, text=text: (folder / "x.yaml").write_text(text), readers)
    for name, content in images.IMAGES.items():
        # these two contain a valid image, which may be read
        fails = () if "text of" in name or "circle" in name else None
        readers = in_folder({"image": read_image}, "innocent.png")
        write = lambda folder, content=content: (folder / "innocent.png").write_bytes(content())  # noqa: E731
        yield Case("image", name, write, readers, fails)
    for name in PATHS_OF_AGENTS:
        read = {"pair": lambda folder, name=name: clevr_input().read(name, str(folder / "after.png"))}
        yield Case("path of an agent", name[:30], lambda folder: os.mkfifo(folder / "pipe"), read)
    words = (weights.SYSTEM, b"\xff\xfe\x00", b"[PAD]\n" * 10, b"../secrets/w\n", b"{", b"")
    for content in words:
        readers = {"BERT": BertVocabulary.from_file, "ProCap": lambda folder: _read_word_ids(folder / "vocab.txt")}
        write = lambda folder, content=content: (folder / "vocab.txt").write_bytes(content)  # noqa: E731
        yield Case("vocabulary", repr(content[:12]), write, readers)


YAML_READERS: dict[str, Reader] = {
    "file": read_yaml,
    "recipe": load_recipe,
    "configuration": lambda path: gather(["--config", str(path)]),
}
PATHS_OF_AGENTS = (
    *("http://127.0.0.1:9/x.png", "file:///etc/passwd", "/dev/zero", "/proc/self/environ", ".", "pipe", "a\0b"),
    *("|touch PWNED", "$(touch PWNED)", "x" * 5000, "~/x.png", "-"),
)
_INPUT: list[Any] = []


def clevr_input() -> Any:
    if not _INPUT:
        _INPUT.append(ModelOptions("clevr", "cpu").open().input_spec)
    return _INPUT[0]


def unpack_below(archive: Path, target: Path) -> None:
    try:
        unpack(archive, target)
    finally:
        names = {path.name for path in target.rglob("*") if path.is_file()}
        assert names <= {"first.txt", "a"}, "members of the archive alone"
        shutil.rmtree(target, ignore_errors=True)


# ---- the table -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny_clip")
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_a_bad_file_is_refused_or_read(case: Case, sandbox: Sandbox) -> None:
    case.write(sandbox.folder)
    for name, read in case.readers.items():
        message = sandbox.read(lambda read=read: read(sandbox.folder))
        assert message or (case.fails is not None and name not in case.fails), f"{name} read it"
        assert "trust_remote_code" not in message, "transformers advises to run the code"
        if str(case) in ("pickle: os.system, raw", "pickle: os.system, zip") and name == "checkpoint":
            assert "would run code" in message


@pytest.mark.parametrize("table", tables.TABLES)
def test_good_paths_are_read(table: str, sandbox: Sandbox) -> None:
    """The same tables with good paths are read, so the path is the reason that the bad ones are refused."""
    samples: list[Any] = []
    sandbox.read(lambda: samples.append(tables.TABLES[table]("before.png", sandbox.folder)))
    assert samples[0].before.shape == (3, 8, 8)

"""Data, pictures, archives, recipes and requests that try to reach out: a sentence or a good result, no side effect."""

from __future__ import annotations

import base64
import io
import json
import pickle
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.hostile import watched
from PIL import Image
from test_hostile_models import Calls, harmless, pickles, place  # noqa: F401

from lightning_idc.cli.configuration import gather, parse_value, read_yaml
from lightning_idc.cli.recipe import load
from lightning_idc.data import FolderPairs, HuggingFaceTable, PreferencePairs
from lightning_idc.data.store.building import complete
from lightning_idc.data.store.manifest import FORMAT, MANIFEST, Manifest, fingerprint_of, read_manifest
from lightning_idc.data.store.reader import Store, shards_in
from lightning_idc.data.tables.prepare import unpack
from lightning_idc.images.read import read_image
from lightning_idc.methods.procap.official.convert import _word_numbers
from lightning_idc.metrics.reading import read_predictions, read_truths, read_vocabulary
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.nn.vocabulary import BertVocabulary
from lightning_idc.report.html import Entry, write_report
from lightning_idc.serve.formats import write_junit, write_reg
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.synthesis import store as store_module
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.store import RecordStore, write_records
from lightning_idc.utils.files import digest
from lightning_idc.utils.text import markdown, plain, printable

TRACE = "PWNED"
SYSTEM = pickle.dumps(Calls(__import__("os").system, f"touch {TRACE}"))


@pytest.fixture
def root(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """The place with a good pair, and a picture among the secrets; caches of `datasets` lie in it, too."""
    import datasets

    for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "DOWNLOADED_DATASETS_PATH", "EXTRACTED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, name, str(place / "cache" / name), raising=False)
    for name in ("before.png", "after.png", "../secrets/s.png"):
        Image.new("RGB", (8, 8), "red").save(place / name)
    return place


# ---- paths in annotations --------------------------------------------------------------------------------

PATHS = {
    "parent": "../secrets/s.png",
    "absolute": "{secrets}/s.png",
    "parent within": "a/../../secrets/s.png",
    "link": "link.png",
    "link to a folder": "linked/s.png",
    "address": "http://127.0.0.1:9/s.png",
    "file address": "file://{secrets}/s.png",
    "share": "\\\\127.0.0.1\\secrets\\s.png",
    "home": "~/s.png",
    "NUL": "before.png\0../secrets/s.png",
    "percent": "..%2fsecrets%2fs.png",
    "command": "$(touch PWNED).png",
    "pipe": "|touch PWNED",
    "device": "/dev/zero",
    "process": "/proc/self/environ",
    "too long": "x" * 5000,
    "chain of addresses": "zip://s.png::http://127.0.0.1:9/a.zip",
}


def rows_csv(path: str, root: Path) -> Any:
    if "\0" in path:
        (root / "pairs.csv").write_text(f"id,before,after,caption,split\np,{path},after.png,x,train\n")
    else:
        (root / "pairs.csv").write_text(f'id,before,after,caption,split\np,"{path}",after.png,x,train\n')
    return FolderPairs(root, image_size=8).dataset("train")[0]


def rows_jsonl(path: str, root: Path) -> Any:
    row = {"id": "p", "before": path, "after": "after.png", "captions": ["x"], "split": "train"}
    (root / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    return FolderPairs(root, image_size=8).dataset("train")[0]


def preferences(path: str, root: Path) -> Any:
    row = {"before": path, "after": "after.png", "chosen": "x", "rejected": "y", "split": "train"}
    (root / "preferences.jsonl").write_text(json.dumps(row) + "\n")
    return PreferencePairs(root, image_size=8).dataset("train")[0]


def table_jsonl(path: str, root: Path) -> Any:
    (root / "t.jsonl").write_text(json.dumps({"before": path, "after": "after.png", "caption": "x"}) + "\n")
    return HuggingFaceTable(root / "t.jsonl", "before", "after", "caption", image_size=8).dataset("train")[0]


def table_parquet(path: str, root: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [pa.array([{"bytes": None, "path": name}], kind) for name in (path, "after.png")]
    table = pa.table({"before": images[0], "after": images[1], "caption": ["x"]})
    feature = {"_type": "Image", "decode": True}
    features = {"before": feature, "after": feature, "caption": {"dtype": "string", "_type": "Value"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(about), root / "t.parquet")
    return HuggingFaceTable(root / "t.parquet", "before", "after", "caption", image_size=8).dataset("train")[0]


TABLES = {
    "CSV": rows_csv,
    "JSONL": rows_jsonl,
    "preferences": preferences,
    "table of JSON": table_jsonl,
    "Parquet": table_parquet,
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", PATHS)
def test_paths_stay_in_their_folder(name: str, table: str, root: Path) -> None:
    path = PATHS[name].format(secrets=root.parent / "secrets")
    if "link" in path:  # not for the others, which would be refused for it
        link = root / Path(path).parts[0]
        link.symlink_to(root.parent / "secrets" / ("" if link.name == "linked" else "s.png"))
    harmless(root, lambda: TABLES[table](path, root))


@pytest.mark.parametrize("table", TABLES)
def test_good_paths_are_read(table: str, root: Path) -> None:
    """Else the ones above could be refused for another reason."""
    with watched(root, root.parent / "secrets") as effects:
        sample = TABLES[table]("before.png", root)
    assert effects == [] and sample.before.shape == (3, 8, 8)


# ---- tables that bring more than rows --------------------------------------------------------------------


def pickled_extension(root: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    about = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": SYSTEM}
    field = pa.field("before", pa.string(), metadata=about)
    schema = pa.schema([field, ("after", pa.string()), ("caption", pa.string())])
    parquet.write_table(pa.table([["before.png"], ["after.png"], ["x"]], schema=schema), root / "t.parquet")


def saved(root: Path, state: dict[str, Any], features: dict[str, Any] | None = None) -> None:
    import datasets

    datasets.Dataset.from_dict({"before": ["before.png"], "after": ["after.png"], "caption": ["x"]}).save_to_disk(root)
    found = json.loads((root / "state.json").read_text())
    (root / "state.json").write_text(json.dumps({**found, **state}))
    if features is not None:
        (root / "dataset_info.json").write_text(json.dumps({"features": features}))


def card(text: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / "README.md").write_text(f"---\n{text}\n---\n")
        (root / "train.jsonl").write_text('{"before": "before.png", "after": "after.png", "caption": "x"}\n')

    return write


def script(root: Path) -> None:
    card("license: mit")(root)
    (root / f"{root.name}.py").write_text("import pathlib\npathlib.Path('PWNED').touch()\n")
    (root / "dataset.py").write_text("import pathlib\npathlib.Path('PWNED').touch()\n")


FOLDERS: dict[str, Callable[[Path], None]] = {
    "script": script,
    "type that is unpickled": pickled_extension,
    "rows of another folder": lambda root: saved(root, {"_data_files": [{"filename": "../secrets/s.arrow"}]}),
    "rows of the network": lambda root: saved(root, {"_data_files": [{"filename": "http://127.0.0.1:9/s.arrow"}]}),
    "formatter": lambda root: saved(root, {"_format_type": "evil_mod", "_format_kwargs": {"class_path": "os.system"}}),
    "features of a class": lambda root: saved(root, {}, {"before": {"_type": "os.system", "command": "touch PWNED"}}),
    "card with code": card("a: !!python/object/apply:os.system ['touch PWNED']"),
    "card with secrets": card("configs: [{config_name: default, data_files: ../secrets/*}]"),
    "card with an address": card("configs: [{config_name: default, data_files: 'http://127.0.0.1:9/x.jsonl'}]"),
    "card with a builder": card("builder_script: evil_mod.py\nconfigs: [{config_name: x, data_dir: /etc}]"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_bring_no_code_and_no_other_files(name: str, root: Path) -> None:
    folder = root / "table"
    folder.mkdir()
    (root.parent / "secrets" / "s.jsonl").write_text('{"before": "s.png", "after": "s.png", "caption": "secret"}\n')
    FOLDERS[name](folder)
    found = folder / "t.parquet" if (folder / "t.parquet").is_file() else folder
    captions: list[str] = []

    def read() -> None:
        data = HuggingFaceTable(found, "before", "after", "caption", image_size=8)
        captions.extend(data.pairs_of("train").captions(0))

    harmless(root, read, refused=False)
    assert captions in ([], ["x"])


# ---- stores ----------------------------------------------------------------------------------------------


def record_store(root: Path, records: Sequence[Record], **notes: Any) -> Path:
    """A store of records, as a hostile author may write it."""
    store, identity = root / "store", {"stage": "s", "source": "x"}
    store.mkdir()
    write_records(store, fingerprint_of(identity), 0, records)
    complete(store, identity, shards_in(store, Manifest(identity)), source=None, **notes)
    return store


def object_array(root: Path) -> Path:
    record = Record("r", {})
    record.arrays["x"] = np.zeros(len(SYSTEM))
    row = {"name": "x", "dtype": "|O", "shape": [1], "data": SYSTEM}
    with pytest.MonkeyPatch.context() as patch:
        plain = store_module._row
        patch.setattr(store_module, "_row", lambda record: {**plain(record), "arrays": [row]})
        return record_store(root, [record])


def pickled_shard(root: Path) -> Path:
    store = record_store(root, [Record("r", {})])
    (shard,) = store.glob("*.arrow")
    shard.write_bytes(SYSTEM)
    return store


def of_a_parent(source: str) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        record = Record("r", {})
        record.origin = 0
        store = record_store(root, [record])
        manifest = read_manifest(store)
        Manifest(manifest.identity, manifest.shards, {"source": source}).write(store)
        return store

    return write


STORES: dict[str, Callable[[Path], Path]] = {
    "array of objects": object_array,
    "pickle as a shard": pickled_shard,
    "parent that is not a store": of_a_parent("../cache"),
    "parent at an absolute path": of_a_parent("/proc/self"),
    "parent of itself": of_a_parent("."),
}


@pytest.mark.parametrize("name", STORES)
def test_stores_run_nothing_and_stay_in_their_folder(name: str, root: Path) -> None:
    store = STORES[name](root)

    def read() -> None:
        for record in RecordStore(store):
            record.encoded("early")

    harmless(root, read)


@pytest.mark.parametrize("shards", [-1, 10**12, "../secrets/s", [1], 1.5, {"../secrets/s.arrow": 1}, {"x": "y"}])
def test_manifests_of_lies(shards: Any, root: Path) -> None:
    content = {"format": FORMAT, "identity": {}, "notes": {}, "shards": shards}
    (root / MANIFEST).write_text(json.dumps({**content, "checksum": digest(json.dumps(content, sort_keys=True))}))
    harmless(root, lambda: Store(root))


# ---- archives --------------------------------------------------------------------------------------------


def zipped(name: str, mode: int = 0, content: bytes = b"x", **about: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with zipfile.ZipFile(path, "w", **about) as made:
            made.writestr("first.txt", b"good")
            made.writestr(info, content)

    return write


def tarred(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with tarfile.open(path, "w:gz") as made:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = 1 if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(b"x"))

    return write


def lying(path: Path) -> None:
    """A member that says it is small and unpacks to 100 MB."""
    zipped("big.bin", content=bytes(100_000_000), compression=zipfile.ZIP_DEFLATED)(path)
    content = bytearray(path.read_bytes())
    size = (100_000_000).to_bytes(4, "little")
    while (at := content.find(size)) >= 0:
        content[at : at + 4] = (10).to_bytes(4, "little")
    path.write_bytes(content)


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "zip: parent": zipped("../secrets/new"),
    "zip: absolute": zipped("/tmp/evil/new"),
    "zip: parent within": zipped("a/../../secrets/new"),
    "zip: link": zipped("link", stat.S_IFLNK | 0o777, b"../secrets"),
    "zip: NUL": zipped("a\0/../../secrets/new"),
    "zip: too long": zipped("x" * 5000),
    "zip: over its own root": zipped(".."),
    "zip: size that lies": lying,
    "tar: parent": tarred("../secrets/new"),
    "tar: absolute": tarred("/tmp/evil/new"),
    "tar: parent within": tarred("a/../../secrets/new"),
    "tar: symbolic link": tarred("l", tarfile.SYMTYPE, "../secrets"),
    "tar: hard link": tarred("l", tarfile.LNKTYPE, "../secrets/s.png"),
    "tar: pipe": tarred("p", tarfile.FIFOTYPE),
    "tar: device": tarred("d", tarfile.CHRTYPE),
    "tar: block device": tarred("d", tarfile.BLKTYPE),
    "tar: too long": tarred("x" * 5000),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_are_unpacked_below_their_target_or_not_at_all(name: str, root: Path) -> None:
    archive = root / ("a.zip" if name.startswith("zip") else "a.tar.gz")
    ARCHIVES[name](archive)
    target = root / "target"
    # what follows a NUL in the name of a member is not part of it
    harmless(root, lambda: unpack(archive, target), refused="NUL" not in name)
    assert {path.name for path in target.rglob("*") if path.is_file()} <= {"first.txt", "a"}


# ---- recipes and configurations --------------------------------------------------------------------------

VALUES = {
    "apply": "!!python/object/apply:os.system ['touch PWNED']",
    "new": "!!python/object/new:subprocess.Popen [['touch', 'PWNED']]",
    "object": "!!python/object:evil_mod.Config {a: 1}",
    "name": "!!python/name:os.system",
    "module": "!!python/module:evil_mod",
    "tuple": "!!python/tuple [1, !!python/object/apply:eval [\"open('PWNED', 'w')\"]]",
    "own tag": "!evil_mod.build x",
    "include": "!include ../secrets/w.safetensors",
    "environment": "${oc.env:HOME}",
    "decode": "${oc.decode:'!!python/name:os.system'}",
    "create": "${oc.create:{a: 1}}",
    "interpolated call": "${evil_mod:build}",
    "laughs": "&a [*a, *a]",
    "merge": "{<<: !!python/object/apply:os.system ['touch PWNED']}",
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_yaml_are_values(name: str, root: Path) -> None:
    text = f"recipe: {{title: x}}\nbase: {{x: {VALUES[name]}}}\nstages: [{{name: a, run: fit}}]\n"
    (root / "x.yaml").write_text(text)
    for read in (read_yaml, load, lambda path: gather(["--config", str(path)])):
        harmless(root, lambda r=read: r(root / "x.yaml"), refused=False)
    harmless(root, lambda: parse_value(VALUES[name]), refused=False)
    harmless(root, lambda: ModelOptions("clevr", "cpu", image=[f"page={VALUES[name]}"]).open(), name != "laughs")


@pytest.mark.parametrize("default", ["../secrets/w", "/etc/passwd", "http://127.0.0.1:9/x", "evil_mod.py", "~/x"])
def test_recipes_name_no_other_files(default: str, root: Path) -> None:
    (root / "x.yaml").write_text(f"recipe: {{title: x}}\ndefaults: [{default}]\nstages: [{{name: a, run: fit}}]\n")
    harmless(root, lambda: load(root / "x.yaml"))


# ---- pictures --------------------------------------------------------------------------------------------


def png(width: int, height: int, data: bytes = b"", chunks: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), *chunks, (b"IDAT", data or zlib.compress(b"")), (b"IEND", b"")):
        found += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return found


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + struct.pack("<I", following)


def of_pillow(kind: str, size: tuple[int, int] = (16, 16), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, kind, **options)
    return buffer.getvalue()


def dicom(rows: int, columns: int, frames: int = 1) -> bytes:
    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += b" " * (len(value) % 2)
        return struct.pack("<HH", group, number) + kind + struct.pack("<H", len(value)) + value

    meta = element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1\0")
    parts = element(0x28, 2, b"US", struct.pack("<H", 1)) + element(0x28, 4, b"CS", b"MONOCHROME2")
    parts += element(0x28, 8, b"IS", str(frames).encode()) + element(0x28, 0x10, b"US", struct.pack("<H", rows))
    parts += element(0x28, 0x11, b"US", struct.pack("<H", columns)) + element(0x28, 0x100, b"US", b"\x10\0")
    parts += element(0x28, 0x101, b"US", b"\x10\0") + element(0x28, 0x103, b"US", b"\0\0")
    parts += struct.pack("<HH", 0x7FE0, 0x10) + b"OW\0\0" + struct.pack("<I", 4) + b"abcd"
    return bytes(128) + b"DICM" + element(2, 0, b"UL", struct.pack("<I", len(meta))) + meta + parts


WIDE, HIGH = (256, 4, 1, 60000), (257, 4, 1, 60000)
PICTURES: dict[str, Callable[[], bytes]] = {
    "icon": lambda: of_pillow("ICO"),
    "macOS icon": lambda: b"icns" + bytes(64),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(PWNED) (w) file\nshowpage\n%%EOF\n",
    "PostScript of DOS": lambda: b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, 9) + bytes(20) + b"%!PS\nquit",
    "PDF": lambda: b"%PDF-1.7\n1 0 obj <</OpenAction <</S /Launch /F (touch PWNED)>>>> endobj",
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:9/x"/></svg>',
    "XML entity": lambda: b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><svg>&e;</svg>',
    "web page": lambda: b"<!doctype html><script>alert(1)</script>",
    "WMF": lambda: b"\xd7\xcd\xc6\x9a" + bytes(80),
    "XBM": lambda: b"#define x_width 60000\n#define x_height 60000\nstatic char x_bits[] = {0x00};",
    "FITS": lambda: b"SIMPLE  =                    T" + b" " * 2850,
    "HDF5": lambda: b"\x89HDF\r\n\x1a\n" + bytes(64),
    "pickle": lambda: SYSTEM,
    "object array": lambda: b"\x93NUMPY\x01\0\x76\0{'descr': '|O', 'fortran_order': False, 'shape': (1,), }" + SYSTEM,
    "PNG of 2^62 pixels": lambda: png(2**31 - 1, 2**31 - 1),
    "PNG of 3.6 G pixels": lambda: png(60000, 60000, zlib.compress(bytes(1_000_000))),
    "PNG with a text of a gigabyte": lambda: png(
        4, 4, zlib.compress(bytes(52)), ((b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 27), 9)),)
    ),
    "PNG with a profile that is a bomb": lambda: png(
        4, 4, zlib.compress(b"\0" * 10), ((b"iCCP", b"k\0\0" + zlib.compress(bytes(1 << 27), 9)),)
    ),
    "GIF of 65,535 pixels each way": lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\0;",
    "BMP of 2^31 rows": lambda: b"BM" + bytes(8) + struct.pack("<IIiiHH", 54, 40, 60000, -(2**31), 1, 24) + bytes(24),
    "PPM of many pixels": lambda: b"P6 60000 60000 255\n",
    "JPEG of 65,500 pixels": lambda: of_pillow("JPEG").replace(b"\0\x10\0\x10\x03", b"\xff\xdc\xff\xdc\x03", 1),
    "WebP of 16,383 pixels": lambda: b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\xff\xff\xff\x0f" + bytes(8),
    "QOI of many pixels": lambda: b"qoif" + struct.pack(">IIBB", 60000, 60000, 3, 0) + bytes(8),
    "TIFF of many pixels": lambda: tiff(WIDE, HIGH, (273, 4, 1, 8), (279, 4, 1, 4)),
    "TIFF whose pages are a circle": lambda: tiff((256, 4, 1, 4), (257, 4, 1, 4), following=8),
    "TIFF of 13 bands and many pixels": lambda: tiff(WIDE, HIGH, (277, 3, 1, 13), (273, 4, 1, 8), (279, 4, 1, 4)),
    "TIFF with an array of 4 G entries": lambda: tiff((256, 4, 1, 4), (257, 4, 1, 4), (273, 4, 2**32 - 1, 8)),
    "DICOM of 65,535 rows": lambda: dicom(65535, 65535),
    "DICOM of a billion frames": lambda: dicom(8, 8, 10**9),
    "DICOM without pixels": lambda: bytes(128) + b"DICM" + bytes(64),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_reach_nothing(name: str, root: Path) -> None:
    path = root / "innocent.png"
    path.write_bytes(PICTURES[name]())
    harmless(root, lambda: read_image(path), refused="text of" not in name and "circle" not in name)


# ---- texts: reports, terminals, XML, words ---------------------------------------------------------------

TEXTS = {
    "script": "<script>fetch('http://127.0.0.1:9')</script>",
    "end of a script": "</script><script>alert(1)</script>",
    "comment": "<!--<script>",
    "image": "<img src=x onerror=alert(1)>",
    "link": "[x](javascript:alert(1))",
    "template": "{{ ''.__class__.__mro__[1].__subclasses__() }}{% include '/etc/passwd' %}",
    "title of the window": "\x1b]0;evil\x07",
    "clear": "\x1b[2J\x1b[1;1H",
    "copy to the clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "C1 control": "\x9b2J\x9d0;evil\x9c",
    "other direction": "\u202egnp.exe",
    "line of its own": "a\u2028b\rc\x0bd",
    "half of a sign": "\ud800",
    "formula": "=cmd|'/c calc'!A1",
    "XML": "]]><!ENTITY x SYSTEM 'file:///etc/passwd'>&x;",
    "brackets": "(" * 5000 + "-LRB- \\/ `` ''",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_text_wherever_they_are_shown(name: str, root: Path) -> None:
    text = TEXTS[name]
    texts = [write(root, value).count("<") for value in (text, "harmless") for write in [page]]
    assert texts[0] == texts[1], "the page has other elements than one with a harmless text"
    for shown in (printable(text), plain(text), markdown(text)):
        assert not any(sign in shown for sign in "\x1b\x9b\x9d\x07\r\x0b\u202e\u2028\ud800")
    assert "<" not in markdown(text) and "](" not in markdown(text)
    record = {"id": text, "status": "changed", "caption": text, "error": None, "boxes": [], "described": True}
    record |= {"before": str(root / "before.png"), "after": str(root / "after.png")}
    harmless(root, lambda: write_junit([record], root / "junit.xml"), refused=False)
    from xml.etree import ElementTree

    (case,) = ElementTree.parse(root / "junit.xml").getroot().iter("testcase")
    assert len(case) == 1 and len(case[0]) == 0
    if name != "half of a sign":
        harmless(root, lambda: write_reg([record], str(root), str(root), root / "reg.json"), refused=False)
        assert list(json.loads((root / "reg.json").read_text())["captions"].values()) == [text]
        (root / "c.json").write_text(json.dumps({"p": text}))
        for read in (read_predictions, read_truths, read_vocabulary):
            harmless(root, lambda r=read: r(root / "c.json"), refused=False)
    harmless(root, lambda: ptb_tokenize(text), refused=False)


def page(root: Path, text: str) -> str:
    target = root / "report.html"
    with watched(root, root.parent / "secrets") as effects:
        write_report(target, text, [Entry(text, text, [text], text)], about={text: text}, subtitle=text)
    assert effects == []
    return target.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [SYSTEM, b"\xff\xfe\x00", b"[PAD]\n" * 10, b"../secrets/w\n", b"{", b""])
def test_lists_of_words_are_words(content: bytes, root: Path) -> None:
    (root / "vocab.txt").write_bytes(content)
    harmless(root, lambda: BertVocabulary.from_file(root))
    harmless(root, lambda: _word_numbers(root / "vocab.txt"))


# ---- requests --------------------------------------------------------------------------------------------

GOOD = "data:image/png;base64," + base64.b64encode(b"x").decode()
ADDRESSES: dict[str, Any] = {
    "http": "http://127.0.0.1:9/x.png",
    "https": "https://127.0.0.1:9/x.png",
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/x.png",
    "path": "/etc/passwd",
    "page": "data:text/html;base64,PHNjcmlwdD4=",
    "not packed": "data:image/svg+xml,<svg/>",
    "not base64": "data:image/png;base64,$(touch PWNED)",
    "number": 5,
    "object": {"url": {"url": "http://127.0.0.1:9"}},
    "nothing": None,
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_in_requests_are_never_fetched(name: str, root: Path) -> None:
    pytest.importorskip("starlette", reason="of the extra serve")
    from lightning_idc.serve.front import Refused, chat_images

    parts = [{"type": "image_url", "image_url": url} for url in ({"url": GOOD}, {"url": ADDRESSES[name]})]
    with watched(root, root.parent / "secrets") as effects, pytest.raises(Refused):
        chat_images({"messages": [{"role": "user", "content": parts}]})
    assert effects == []


@pytest.mark.parametrize(
    "path",
    ["http://127.0.0.1:9/x.png", "file:///etc/passwd", "/dev/zero", "/proc/self/environ", ".", "pipe", "a\0b",
     "|touch PWNED", "$(touch PWNED)", "x" * 5000, "~/x.png", "-"],
)  # fmt: skip
def test_paths_that_an_agent_names_are_pictures_or_refused(path: str, root: Path) -> None:
    __import__("os").mkfifo(root / "pipe")
    spec = ModelOptions("clevr", "cpu").open().input_spec if not SPEC else SPEC[0]
    SPEC[:] = [spec]
    harmless(root, lambda: spec.read(path, str(root / "after.png")))


SPEC: list[Any] = []


@pytest.mark.parametrize(
    "model", ["../secrets", "evil/../../secrets", "org/name;touch PWNED", "a/b/c", "file://x/y.ckpt"]
)
def test_names_of_models_reach_nothing(model: str, root: Path) -> None:
    harmless(root, lambda: ModelOptions(model, "cpu").open())


def test_the_corpus_has_its_size() -> None:
    models = 4 * len(pickles(Path()))
    files = [PATHS, FOLDERS, STORES, ARCHIVES, VALUES, PICTURES, TEXTS, ADDRESSES]
    assert models >= 90 and len(TABLES) * len(PATHS) + sum(map(len, files[1:])) >= 150

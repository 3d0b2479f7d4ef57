"""Tables whose paths leave their folder or that contain more than rows, and stores from a hostile author."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.bad_files.weights import SYSTEM
from lightning_idc.data import FolderPairs, HuggingFaceTable, PreferencePairs
from lightning_idc.data.store.building import write_manifest
from lightning_idc.data.store.manifest import Manifest, fingerprint_of, read_manifest
from lightning_idc.data.store.reader import shards_in
from lightning_idc.synthesis import store as store_module
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.store import write_records

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


def record_store(root: Path, records: Sequence[Record], **notes: Any) -> Path:
    """Write a store of records as a hostile author might."""
    store, identity = root / "store", {"stage": "s", "source": "x"}
    store.mkdir()
    write_records(store, fingerprint_of(identity), 0, records)
    write_manifest(store, identity, shards_in(store, Manifest(identity)), source=None, **notes)
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

"""Stores check shards on first open, close maps, and take rows of several processes. Oracle: the rows written."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_idc.data.store import shards
from lightning_idc.data.store.building import Plan, build, write_manifest
from lightning_idc.data.store.growing import GrowingStore, KeyedStore
from lightning_idc.data.store.manifest import MANIFEST, Manifest, ShardName, fingerprint_of, numbered
from lightning_idc.data.store.reader import Store, faults, stores_below
from lightning_idc.data.store.shards import OPEN_SHARDS, Shard, tensor_batch, write_shard
from lightning_idc.utils.errors import StoreError

ROWS = 5


def rows_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (ROWS, 3, 7), dtype=np.uint8)


def write(folder: Path, count: int, identity: str) -> list[Shard]:
    folder.mkdir(parents=True, exist_ok=True)
    store = fingerprint_of({"made by": identity})
    return [
        write_shard(
            folder,
            store,
            (tensor_batch(pixels=rows_of(number)[row : row + 2], start=[row] * len(rows_of(number)[row : row + 2]))
             for row in range(0, ROWS, 2)),
            table="rows",
            part=numbered(number),
        )
        for number in range(count)
    ]  # fmt: skip


def make(folder: Path, count: int = 3, identity: str = "a") -> Store:
    write_manifest(folder, {"made by": identity}, write(folder, count, identity))
    return Store(folder)


def file(folder: Path, number: int) -> Path:
    (path,) = folder.glob(f"rows-{number:05}-*.arrow")
    return path


def maps(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def flip(path: Path, where: int = -40) -> None:
    """Flip one bit without a change of the file's size or modification time, as on a failing disk."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def new_process() -> None:
    """Clear the record of checked shards, as in a new process."""
    shards._checked.clear()
    shards.open_shard.cache_clear()


def test_rows_are_read_without_copy(tmp_path: Path) -> None:
    table = pickle.loads(pickle.dumps(make(tmp_path / "s"))).table("rows")
    assert len(table) == 15
    pixels, start = table.column("pixels"), table.column("start")
    for index in range(15):
        assert np.array_equal(pixels[index], rows_of(index // ROWS)[index % ROWS])
        assert start[index] == index % ROWS // 2 * 2
    assert not pixels[0].flags.writeable and not pixels[0].flags.owndata
    for index in (-1, 15):
        with pytest.raises(IndexError):
            pixels[index]
    assert len(Store(tmp_path / "s").table("nothing")) == 0


def test_a_store_of_equal_rows_has_equal_bytes(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a"), make(tmp_path / "b")
    assert one.fingerprint == other.fingerprint != make(tmp_path / "c", identity="b").fingerprint
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_shards_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [ShardName("rows", numbered(number), 1, "0" * 16) for number in (99_999, 100_000, 0)]
    assert sorted(names, key=lambda name: name.order) == [names[2], names[0], names[1]]


@pytest.mark.slow
def test_memory_maps_are_closed(tmp_path: Path) -> None:
    table = make(tmp_path / "s", OPEN_SHARDS + 40).table("rows")
    pixels, opened = table.column("pixels"), len(os.listdir("/proc/self/fd"))
    first = pixels[0]
    for index in range(0, len(table), ROWS):
        pixels[index]
    assert 1 <= maps(tmp_path) <= OPEN_SHARDS + 1  # one more is held by the row that is in use
    assert len(os.listdir("/proc/self/fd")) == opened
    assert np.array_equal(first, rows_of(0)[0]), "a row outlives the map of its shard"


def test_a_shard_is_read_and_checked_once_when_it_is_opened(tmp_path: Path) -> None:
    make(tmp_path / "s")
    flip(file(tmp_path / "s", 1))
    new_process()
    start = Store(tmp_path / "s").table("rows").column("start")
    assert [start[index] for index in (0, 1, 0, 14)] == [0, 0, 0, 4], "the others are as they were"
    with pytest.raises(
        StoreError, match=r"rows-00001-5-\w+.arrow is damaged: it does not match its checksum; remove it"
    ):
        start[7]
    assert len(shards._checked) == 2
    assert len(faults(tmp_path / "s")) == 1


def test_changed_file_is_checked_again(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    assert store.table("rows").column("start")[0] == 0
    content = bytearray(file(tmp_path / "s", 0).read_bytes())
    content[-40] ^= 1
    file(tmp_path / "s", 0).write_bytes(content)
    shards.open_shard.cache_clear()
    with pytest.raises(StoreError, match="is damaged"):
        store.table("rows").column("start")[0]


def test_renamed_swapped_and_foreign_shards_are_rejected(tmp_path: Path) -> None:
    make(tmp_path / "s")
    (other,) = write(tmp_path / "t", 1, "b")
    first, second = file(tmp_path / "s", 0), file(tmp_path / "s", 1)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    (tmp_path / "s" / other.path.name).write_bytes(other.path.read_bytes())
    messages = faults(tmp_path / "s")
    assert len(messages) == 3 and "does not belong to the store" in messages[-1]


def in_child(work: object) -> int:
    process = multiprocessing.get_context("fork").Process(target=work)  # type: ignore[arg-type]
    process.start()
    process.join(60)
    return process.exitcode or 0


@pytest.mark.slow
def test_forked_worker_reads_open_shards_of_its_parent(tmp_path: Path) -> None:
    pixels = make(tmp_path / "s", 70).table("rows").column("pixels")
    pixels[0]

    def work() -> None:
        assert all(np.array_equal(pixels[i], rows_of(i // ROWS)[i % ROWS]) for i in range(len(pixels)))

    assert in_child(work) == 0
    assert np.array_equal(pixels[0], rows_of(0)[0])


def test_concurrent_appends_and_partial_shards(tmp_path: Path) -> None:
    identity = {"made by": "a"}
    store = KeyedStore(tmp_path / "s", identity=identity)
    store.add(["x0", "x1"], values=np.zeros((2, 4), np.float32))

    def work() -> None:
        for number in range(3):
            store.add([f"child{number}"], values=np.full((1, 4), number + 1, np.float32))
        os._exit(0)

    assert in_child(work) == 0
    store.add(["x2"], values=np.full((1, 4), 9, np.float32))
    assert store.value("x2", "values")[0] == 9 and "child0" not in store
    store.add(["x0"], values=np.full((1, 4), 5, np.float32))
    again = KeyedStore(tmp_path / "s", identity=identity)
    assert {key: again.value(key, "values")[0] for key in ("x0", "x1", "x2", "child0", "child1", "child2")} == {
        "x0": 5, "x1": 0, "x2": 9, "child0": 1, "child1": 2, "child2": 3
    }  # fmt: skip
    assert len(again) == 6
    with pytest.raises(StoreError, match="made with other settings"):
        KeyedStore(tmp_path / "s", identity={"made by": "b"})
    # as if killed while writing a shard, and between writing the rows and their keys
    (tmp_path / "s" / "rows-0.partial").write_bytes(b"half")
    next(iter(sorted((tmp_path / "s").glob("keys-*")))).unlink()
    cut = KeyedStore(tmp_path / "s")
    assert "x1" not in cut and cut.value("x0", "values")[0] == 5


def test_damaged_shards_of_a_keyed_store_are_removed(tmp_path: Path) -> None:
    store = KeyedStore(tmp_path / "s", identity={})
    store.add(["a"], values=np.zeros((1, 4)))
    store.add(["b"], values=np.ones((1, 4)))
    rows = sorted((tmp_path / "s").glob("rows-*"))
    flip(rows[0])
    new_process()
    with pytest.raises(StoreError, match="is damaged"):
        store.value("a", "values")
    assert store.remove_damaged() == [rows[0]]
    assert "a" not in store and store.value("b", "values")[0] == 1
    assert "a" not in KeyedStore(tmp_path / "s")


def test_append_rows_without_keys(tmp_path: Path) -> None:
    for value in (1, 2):
        GrowingStore(tmp_path / "s", identity={"a": 1}).append("scores", tensor_batch(value=[value, -value]))
    table = GrowingStore(tmp_path / "s").table("scores")
    assert [row["value"] for batch in table.batches() for row in batch.to_pylist()] == [1, -1, 2, -2]
    (tmp_path / "s" / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"has no rows: manifest\.json is missing"):
        GrowingStore(tmp_path / "s")


def test_invalid_manifests_are_errors(tmp_path: Path) -> None:
    make(tmp_path / "s")
    manifest = tmp_path / "s" / MANIFEST
    written = manifest.read_text()
    with pytest.raises(StoreError, match=r"other settings \(made by is 'a', expected 'b'\)"):
        Store(tmp_path / "s", identity={"made by": "b"})
    for text, message in (
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "has format None, expected 3"),
        ('{"format": 2}', "has format 2, expected 3"),
        (written.replace('"a"', '"b"'), "is damaged: it does not match its checksum"),
    ):
        manifest.write_text(text)
        with pytest.raises(StoreError, match=rf"manifest\.json {message}"):
            Store(tmp_path / "s")
    manifest.unlink()
    with pytest.raises(StoreError, match=r"has no rows: manifest\.json is missing"):
        Store(tmp_path / "s")
    manifest.write_text(written)
    file(tmp_path / "s", 1).unlink()
    with pytest.raises(StoreError, match=r"rows-00001-5-\w+\.arrow is missing"):
        Store(tmp_path / "s")
    assert stores_below(tmp_path) == [tmp_path / "s"]


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "rows-0-1-0000000000000000.arrow/../x", "", "rows"])
def test_manifest_cannot_list_files_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    hostile = Manifest({}, {name: 3})  # type: ignore[dict-item]
    hostile.write(folder)
    with pytest.raises(StoreError, match="lists a shard that is not a file of this store"):
        Store(folder)


def plan(folder: Path, size: int = 1) -> Plan:
    return Plan(folder, {"made by": "a"}, "rows", size, "choose another folder")


def test_unusable_store_is_rebuilt_and_failed_build_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    def fails(draft: Path) -> list[Shard]:
        (draft / "half").write_text("")
        raise KeyboardInterrupt

    def fill(draft: Path) -> list[Shard]:
        return write(draft, 3, "a")

    with pytest.raises(KeyboardInterrupt):
        build(plan(folder), fails)
    assert [path.name for path in tmp_path.iterdir()] == ["s.lock"]
    build(plan(folder), fill)
    build(plan(folder), fails)  # does nothing, since the store exists
    for damage in (folder / MANIFEST, file(folder, 2)):
        damage.unlink()
        build(plan(folder), fill)
        assert len(plan(folder).open().table("rows")) == 15
    with pytest.raises(StoreError, match=r"needs .* MB are free; free some disk space, or choose another folder"):
        build(replace(plan(tmp_path / "t"), size=1 << 60), fill)

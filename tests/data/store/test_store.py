"""The store: shards are checked when first opened, maps are closed, processes add at once. Oracle: the rows written."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from lightning_idc.data.store import shards
from lightning_idc.data.store.growing_store import GrowingStore
from lightning_idc.data.store.shards import OPEN_SHARDS, StoreError, columns, write_shard
from lightning_idc.data.store.store import Store, build, faults, shard_name, stores_below, write_manifest

ROWS = 5


def rows_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (ROWS, 3, 7), dtype=np.uint8)


def make(folder: Path, count: int = 3, identity: str = "a") -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    store = write_manifest(folder, {"made by": identity}, count)
    for number in range(count):
        batches = (columns(pixels=rows_of(number)[row : row + 2], place=[row] * len(rows_of(number)[row : row + 2]))
                   for row in range(0, ROWS, 2))  # fmt: skip
        write_shard(folder / f"{shard_name(number)}.arrow", store, batches)
    return Store(folder)


def maps(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def flip(path: Path, where: int = -40) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def test_rows_come_back_without_a_copy(tmp_path: Path) -> None:
    store = pickle.loads(pickle.dumps(make(tmp_path / "s")))
    assert len(store) == 15
    pixels, place = store.column("pixels"), store.column("place")
    for index in range(15):
        assert np.array_equal(pixels[index], rows_of(index // ROWS)[index % ROWS])
        assert place[index] == index % ROWS // 2 * 2
    assert not pixels[0].flags.writeable and not pixels[0].flags.owndata
    assert pixels[4, 1, 2] == rows_of(0)[4, 1, 2]
    for index in (-1, 15):
        with pytest.raises(IndexError):
            pixels[index]


def test_a_store_of_equal_rows_has_equal_bytes(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a"), make(tmp_path / "b")
    assert one.fingerprint == other.fingerprint != make(tmp_path / "c", identity="b").fingerprint
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_maps_are_closed(tmp_path: Path) -> None:
    store = make(tmp_path / "s", OPEN_SHARDS + 40)
    pixels, opened = store.column("pixels"), len(os.listdir("/proc/self/fd"))
    kept = pixels[0]
    for index in range(0, len(store), ROWS):
        pixels[index]
    assert 1 <= maps(tmp_path) <= OPEN_SHARDS + 1  # one more is held by the row that is in use
    assert len(os.listdir("/proc/self/fd")) == opened
    assert np.array_equal(kept, rows_of(0)[0]), "a row outlives the map of its shard"


def test_a_shard_is_hashed_once_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "s")
    hashed: list[str] = []
    real = shards.file_digest
    monkeypatch.setattr(shards, "file_digest", lambda path, *span: (hashed.append(path.stem), real(path, *span))[1])
    store = Store(tmp_path / "s")
    store.check()
    assert hashed == [], "sizes and times are as they were left"
    assert [store.column("place")[index] for index in (0, 1, 0, 14)] == [0, 0, 0, 4]
    again = Store(tmp_path / "s")
    assert [again.column("place")[index] for index in (0, 14)] == [0, 4]
    assert hashed == ["shard-00000", "shard-00002"]


def test_what_was_changed_later_is_found(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    assert store.column("place")[0] == 0
    time.sleep(0.02)
    path = tmp_path / "s" / "shard-00000.arrow"
    flip(path)
    with pytest.raises(StoreError, match=r"shard-00000\.arrow is damaged: its bytes are not those .*; remove it"):
        Store(tmp_path / "s").check()
    # a disk that rots changes no time
    stat = os.stat(tmp_path / "s" / "shard-00001.arrow")
    flip(tmp_path / "s" / "shard-00001.arrow")
    os.utime(tmp_path / "s" / "shard-00001.arrow", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(StoreError, match=r"shard-00001.arrow is damaged"):
        Store(tmp_path / "s").column("place")[7]
    assert len(faults(tmp_path / "s")) == 2


def in_child(work: object) -> int:
    process = multiprocessing.get_context("fork").Process(target=work)  # type: ignore[arg-type]
    process.start()
    process.join(60)
    return process.exitcode or 0


def test_a_forked_worker_reads_what_its_parent_has_open(tmp_path: Path) -> None:
    store = make(tmp_path / "s", 70)
    pixels = store.column("pixels")
    pixels[0]

    def work() -> None:
        assert all(np.array_equal(pixels[i], rows_of(i // ROWS)[i % ROWS]) for i in range(len(store)))

    assert in_child(work) == 0
    assert np.array_equal(pixels[0], rows_of(0)[0])


def test_processes_add_to_one_store_and_a_torn_tail_is_not_read(tmp_path: Path) -> None:
    store = GrowingStore(tmp_path / "s", identity={"made by": "a"})
    store.add(["x0", "x1"], values=np.zeros((2, 4), np.float32))

    def work() -> None:
        for number in range(3):
            store.add([f"child{number}"], values=np.full((1, 4), number + 1, np.float32))
        os._exit(0)

    assert in_child(work) == 0
    store.add(["x2"], values=np.full((1, 4), 9, np.float32))
    values = store.column("values")
    assert [values[store.rows[name], 0] for name in ("x0", "x2")] == [0, 9] and "child0" not in store
    found = GrowingStore(tmp_path / "s", identity={"made by": "a"})
    assert {name: found.column("values")[row, 0] for name, row in found.rows.items()} == {
        "x0": 0, "x1": 0, "x2": 9, "child0": 1, "child1": 2, "child2": 3
    }  # fmt: skip
    assert len(GrowingStore(tmp_path / "s", identity={"made by": "b"})) == 0, "rows of something else are not read"
    # killed in the middle of a line, and of a segment
    (own,) = (path for path in (tmp_path / "s").glob("*.json") if '"x2"' in path.read_text())
    own.write_text(own.read_text()[:-9])
    cut = GrowingStore(tmp_path / "s", identity={"made by": "a"})
    assert "x1" in cut and "x2" not in cut and cut.column("values")[cut.rows["x1"], 0] == 0
    # what was appended to since is not appended to again
    store.add(["x3"], values=np.full((1, 4), 3, np.float32))
    assert store.column("values")[store.rows["x3"], 0] == 3


def test_damaged_shards_of_a_growing_store_are_forgotten(tmp_path: Path) -> None:
    store = GrowingStore(tmp_path / "s", identity={})
    store.write("one", ["a"], values=np.zeros((1, 4)))
    store.write("two", ["b"], values=np.ones((1, 4)))
    flip(tmp_path / "s" / "one.arrow")
    with pytest.raises(StoreError, match=r"one.arrow is damaged"):
        store.column("values")[0]
    assert [Path(path).name for path in store.discard_damaged()] == ["one.arrow"]
    assert "a" not in store and store.column("values")[store.rows["b"], 0] == 1
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["manifest.json", "two.arrow", "two.json"]


def test_manifests_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path / "s")
    manifest = tmp_path / "s" / "manifest.json"
    written = manifest.read_text()
    with pytest.raises(StoreError, match=r"other settings \(made by is 'a', expected 'b'\)"):
        Store(tmp_path / "s", identity={"made by": "b"})
    for text in ("", "{", "[]", "{}", written.replace('"a"', '"b"'), '{"format": 1, "version": 1}', "\x00" * 20):
        manifest.write_text(text)
        with pytest.raises(StoreError, match=r"no readable manifest\.json.*damaged"):
            Store(tmp_path / "s")
    manifest.unlink()
    with pytest.raises(StoreError, match=r"holds no rows: there is no readable manifest.json"):
        Store(tmp_path / "s")
    manifest.write_text(written)
    (tmp_path / "s" / "shard-00001.json").unlink()
    with pytest.raises(StoreError, match=r"lacks shard-00001 \(1 of 3 shards\): shard-00001.json is missing"):
        Store(tmp_path / "s")
    assert stores_below(tmp_path) == [tmp_path / "s"]


def test_an_unusable_folder_is_built_anew_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    def usable() -> bool:
        return (folder / "manifest.json").is_file()

    def fails(draft: Path) -> None:
        (draft / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(folder, fails, 1, "rows", "elsewhere", usable)
    assert [path.name for path in tmp_path.iterdir()] == ["s.lock"]
    build(folder, lambda draft: make(draft), 1, "rows", "elsewhere", usable)
    (folder / "manifest.json").unlink()
    build(folder, lambda draft: make(draft), 1, "rows", "elsewhere", usable)
    assert len(Store(folder)) == 15
    with pytest.raises(StoreError, match=r"needs .* MB are free; nothing was kept. Make room, or elsewhere"):
        build(tmp_path / "t", lambda draft: make(draft), 1 << 60, "rows", "elsewhere")

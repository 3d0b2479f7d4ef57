"""Core of the pipeline: batches, workers and interruptions do not change the records of a stage."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.processes import launch
from helpers.toy_stages import Numbers, Shade, digests, everything, run_under_trainer, shard, shards_of

from lightning_idc.data.store import shards
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.stages import MapStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError, StoreError


def number_plus(record: Record) -> Record:
    record.facts["plus"] = record.facts["number"] + 1
    return record


def test_records_are_in_order_with_history(tmp_path: Path) -> None:
    store = run(Shade(), Numbers(23), tmp_path / "a", batch_size=4, shard_size=6)
    records = list(store)
    assert [r.id for r in records[:7]] == ["n000", "n001", "n002", "n003", "n004", "n005/a", "n005/b"]
    assert len(store) == 23 + 4  # 5, 10, 15, 20 twice; 0 is dropped before
    assert store.counts() == (23, {"multiple of seven": 4})
    first, second = records[0], records[1]
    assert first.dropped == {"stage": "Shade", "reason": "multiple of seven", "value": 0, "limit": "others"}
    step = second.history[0]
    assert (step["stage"], step["most"], step["seed"]) == ("Shade", 9, 0)
    shade = second.image("shaded").int() - second.image("picture").int()
    assert (shade == int(step["scores"]["offset"])).all()


def test_later_stage_keeps_dropped_records_and_inherits_images(tmp_path: Path) -> None:
    run(Shade(), Numbers(23), tmp_path / "a", shard_size=6)
    store = run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "b", shard_size=5)
    records = {r.id: r for r in store}
    assert "plus" not in records["n007"].facts and records["n007"].dropped is not None
    assert records["n005/b"].facts["plus"] == 6
    assert records["n001"].images == {}, "an image is written once"
    assert torch.equal(records["n001"].image("picture"), Numbers(23).record(1).image("picture"))
    assert [step["stage"] for step in records["n001"].history] == ["Shade", "number_plus"]
    third = run(MapStage(number_plus), str(tmp_path / "b"), tmp_path / "c")
    assert torch.equal(third.record(1).image("shaded"), records["n001"].image("shaded"))
    (tmp_path / "a").rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="has no records"):
        RecordStore(tmp_path / "b").record(1).image("picture")


def test_replaced_source_is_detected(tmp_path: Path) -> None:
    run(Shade(), Numbers(23), tmp_path / "a", shard_size=6)
    store = run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "b", shard_size=5)
    (tmp_path / "a").rename(tmp_path / "moved")
    run(Shade(seed=1), Numbers(23), tmp_path / "a", shard_size=6)
    with pytest.raises(StoreError, match="was made from other records than"):
        RecordStore(store.folder).record(1).image("picture")


def test_a_store_or_a_path_as_the_source_is_its_folder(tmp_path: Path) -> None:
    store = run(Shade(), Numbers(23), tmp_path / "a", shard_size=6)
    sources: dict[str, Path | RecordStore] = {"store": store, "path": tmp_path / "a"}
    for name, source in sources.items():
        second = run(MapStage(number_plus), source, tmp_path / name)
        third = run(MapStage(number_plus, reads=("picture",)), second, tmp_path / f"{name}_again")
        assert third.counts() == store.counts()
        assert torch.equal(third.record(1).image("picture"), store.record(1).image("picture"))


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (3, 2), (64, 0)])
def test_neither_batches_nor_workers_change_the_result(tmp_path: Path, batch_size: int, workers: int) -> None:
    usual = run(Shade(), Numbers(23), tmp_path / "a", batch_size=4, shard_size=6)
    other = run(Shade(), Numbers(23), tmp_path / "b", batch_size=batch_size, shard_size=6, num_workers=workers)
    assert everything(usual) == everything(other)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_result_is_equal_after_ten_kills(tmp_path: Path) -> None:
    stage, source = Shade(pause=0.02), Numbers(120)
    run(Shade(pause=0.02), source, tmp_path / "whole", batch_size=4, shard_size=6)
    draw = random.Random(7)
    found_shards = []
    for _ in range(10):
        child = os.fork()
        if child == 0:  # dies without any of pytest's clean-up, as a killed run does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            run(stage, source, tmp_path / "cut", batch_size=4, shard_size=6)
            os._exit(0)
        time.sleep(draw.uniform(0.05, 0.35))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found_shards.append(len(shards_of(tmp_path / "cut")))
    assert found_shards == sorted(found_shards), "no restart may lose a finished shard"
    cut = run(stage, source, tmp_path / "cut", batch_size=4, shard_size=6)
    assert everything(cut) == everything(RecordStore(tmp_path / "whole"))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    assert not list((tmp_path / "cut").glob("*.partial"))


def test_trainer_writes_equal_bytes_and_resumes(tmp_path: Path) -> None:
    sizes = {"batch_size": 4, "shard_size": 6}
    with pytest.raises(StoreError, match="was not finished"):
        run_under_trainer(Shade(), Numbers(60), tmp_path / "a", {"limit_predict_batches": 4}, **sizes)
    assert shards_of(tmp_path / "a") == {0, 1, 2, 3}, "one step per shard"
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("records-*")}
    assert len(run_under_trainer(Shade(), Numbers(60), tmp_path / "a", **sizes)) > 60
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("records-*")}
    assert before.items() <= after.items() and len(after) == 10
    run(Shade(), Numbers(60), tmp_path / "b", **sizes)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_truncated_shard_is_reported_and_processed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(Shade(), Numbers(30), tmp_path / "a", shard_size=6)
    intact = digests(tmp_path / "a")
    cut, lost = shard(tmp_path / "a", 2), shard(tmp_path / "a", 3)
    cut.write_bytes(b"")
    lost.unlink()
    capsys.readouterr()
    with pytest.raises(StoreError, match=rf"{cut.name} has 0 bytes, expected"):
        RecordStore(tmp_path / "a")
    run(Shade(), Numbers(30), tmp_path / "a", shard_size=6)
    output = capsys.readouterr().out
    assert "damaged shards are processed again: " in output and cut.name in output and lost.name in output
    assert digests(tmp_path / "a") == intact
    cut.unlink()
    with pytest.raises(StoreError, match=rf"{cut.name} is missing"):
        RecordStore(tmp_path / "a")


@pytest.mark.slow
def test_corrupt_source_shard_is_an_error(tmp_path: Path) -> None:
    run(Shade(), Numbers(30), tmp_path / "a", shard_size=6)
    run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "b", shard_size=6)
    intact, stage = digests(tmp_path / "b"), MapStage(number_plus, reads=("picture",))
    for source, table in (("a", "records"), ("b", "images")):  # the images of b are stored in a
        flip(shard(tmp_path / "a", 2, table), 0.5)
        forget_checks()
        damaged = rf"a/{table}-00002.* is damaged: .*; remove that file and run its stage again"
        with pytest.raises(StoreError, match=damaged):
            run(stage, str(tmp_path / source), tmp_path / f"{source}c", shard_size=6)
        shard(tmp_path / "a", 2, table).unlink()
        run(Shade(), Numbers(30), tmp_path / "a", shard_size=6)
    run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "ac2", shard_size=6)
    assert digests(tmp_path / "ac2") == intact


@pytest.mark.slow
def test_images_of_many_shards_need_few_maps(tmp_path: Path) -> None:
    run(Shade(), Numbers(200), tmp_path / "a", shard_size=2)
    store = run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "b", shard_size=2)
    assert sum(record.image("picture").sum() > 0 for record in store if record.dropped is None) > 100
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line}
    assert len(mapped) <= shards.OPEN_SHARDS


def test_a_stage_checks_only_what_it_reads(tmp_path: Path) -> None:
    run(Shade(), Numbers(30), tmp_path / "a", shard_size=6)
    run(MapStage(number_plus), str(tmp_path / "a"), tmp_path / "b", shard_size=6)
    forget_checks()
    with pytest.MonkeyPatch.context() as patch:
        checked: list[Path] = []
        real = shards.check_shard
        patch.setattr(shards, "check_shard", lambda shard: (checked.append(shard.path), real(shard))[1])
        run(MapStage(number_plus), str(tmp_path / "b"), tmp_path / "c", shard_size=6)
        run(MapStage(number_plus, seed=1), str(tmp_path / "a"), tmp_path / "d", shard_size=6)
    sources = [path for path in checked if path.parent.name in "ab"]
    assert {path.name.partition("-")[0] for path in sources} == {"records"}, "texts are read without images"
    assert len(sources) == len(set(sources)), "each shard once"


def forget_checks() -> None:
    """Clear the record of checked shards, as in a new process."""
    shards._checked.clear()
    shards.open_shard.cache_clear()


def flip(path: Path, share: float) -> None:
    """Change one byte at a fraction of the length of a file, but not its size or time."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_an_unreadable_image_drops_its_record_and_no_other(tmp_path: Path) -> None:
    store = run(Shade(), Numbers(12, broken=[3, 8]), tmp_path / "a")
    dropped = {r.id: r.dropped for r in store if r.dropped is not None and r.dropped["reason"] == "unreadable image"}
    assert set(dropped) == {"n003", "n008"}
    assert "n003" in str(dropped["n003"]["value"])


def test_other_settings_or_source_are_rejected(tmp_path: Path) -> None:
    run(Shade(), Numbers(12), tmp_path / "a")
    for stage, source, what in (
        (Shade(most=3), Numbers(12), "settings that differ"),
        (Shade(), Numbers(13), "records"),
        (MapStage(number_plus), Numbers(12), "stage"),
    ):
        with pytest.raises(ConfigError, match=what):
            run(stage, source, tmp_path / "a")


def test_other_shard_size_is_rejected(tmp_path: Path) -> None:
    run(Shade(), Numbers(12), tmp_path / "a", shard_size=4)
    with pytest.raises(ConfigError, match="was created with shard_size 4, now 6"):
        run(Shade(), Numbers(12), tmp_path / "a", shard_size=6)


@pytest.mark.parametrize("name", ["batch_size", "shard_size", "limit", "num_workers", "max_failures"])
def test_out_of_range_arguments_create_no_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1; expected at least"):
        run(Shade(), Numbers(12), tmp_path / "a", **{name: -1})
    with pytest.raises(ConfigError, match="limit is 0"):  # which would make an empty store
        run(Shade(), Numbers(12), tmp_path / "a", limit=0)
    assert not (tmp_path / "a").exists()


def test_arrays_round_trip(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    def add(record: Record) -> Record:
        record.arrays["features"] = values
        return record

    assert np.array_equal(run(MapStage(add), Numbers(3), tmp_path / "a").record(2).arrays["features"], values)


def test_shards_are_plain_arrow_files_with_typed_columns(tmp_path: Path) -> None:
    from datasets import Dataset

    run(Shade(), Numbers(12), tmp_path / "a", shard_size=6)
    rows = Dataset.from_file(str(shard(tmp_path / "a", 1)))
    assert rows[0]["id"] == "n006" and rows[0]["history"][0]["scores"][0]["name"] == "offset"
    assert rows[1]["dropped"] == {"stage": "Shade", "reason": "multiple of seven", "value": "7", "limit": "others"}
    images = Dataset.from_file(str(shard(tmp_path / "a", 1, "images")))
    assert images[0]["images"][0]["name"] == "picture" and images[0]["images"][0]["data"].startswith(b"\x89PNG")


@pytest.mark.dist
@pytest.mark.timeout(300)
def test_two_processes_equal_one(tmp_path: Path) -> None:
    run(Shade(), Numbers(40), tmp_path / "one", batch_size=4, shard_size=6)
    launch(Path(__file__).with_name("two_processes_synthesis.py"), tmp_path / "two")
    assert everything(RecordStore(tmp_path / "two")) == everything(RecordStore(tmp_path / "one"))
    assert digests(tmp_path / "two") == digests(tmp_path / "one")

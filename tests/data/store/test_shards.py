"""Cache of decoded images. Oracle: the same pairs, loaded from their files."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_idc.data.benchmarks.deeppcb import DeepPCB
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.benchmarks.img_diff import ImgDiff
from lightning_idc.data.source import PairSource
from lightning_idc.data.store import decoded
from lightning_idc.data.store.decoded import DecodedSource, cache_decoded, decode_to_store
from lightning_idc.data.store.shards import Shard
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import IDCError

PAIRS = 70


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    dice = np.random.default_rng(0)
    rows = ["id,before,after,caption,change_type,split"]
    for number in range(PAIRS):
        for side in ("a", "b"):
            Image.fromarray(dice.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(root / f"{number}{side}.png")
        rows.append(f"p{number},{number}a.png,{number}b.png,caption {number},kind,train")
    (root / "pairs.csv").write_text("\n".join(rows))
    return root


def data(root: Path, **options: object) -> FolderPairs:
    return FolderPairs(root, image_size=(10, 12), cache_images=root.parent / "once", **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_cache_equals_files(root: Path) -> None:
    files = FolderPairs(root, image_size=(10, 12)).pairs_of("train")
    store = decode_to_store(files, root.parent / "once", (10, 12), "bilinear")
    shard = pickle.loads(pickle.dumps(DecodedSource(files, store)))
    assert shard.ids == files.ids
    for index in range(PAIRS):
        ours, theirs = shard.load(index), files.load(index)
        assert torch.equal(ours.before, theirs.before) and torch.equal(ours.after, theirs.after)
        assert (ours.id, ours.captions, ours.change_type) == (theirs.id, theirs.captions, theirs.change_type)
    shard.load(0).before.fill_(0)
    assert torch.equal(shard.load(0).before, files.load(0).before)  # loaded images are copies


@pytest.mark.slow
def test_cache_is_rewritten_when_an_image_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = root.parent / "once"
    first = data(root).pairs_of("train")
    written = [path for path in once.iterdir() if path.is_dir()]
    assert len(written) == 1 and isinstance(first, DecodedSource)
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "_write", lambda *_: pytest.fail("written twice"))
        data(root).pairs_of("train")
    Image.new("RGB", (40, 30), (255, 0, 0)).save(root / "3a.png")
    os.utime(root / "3a.png", (time.time() + 5,) * 2)
    again = data(root).pairs_of("train")
    assert again.load(3).before[0].min() == 255
    assert len([path for path in once.iterdir() if path.is_dir()]) == 2
    data(root, limit=5).pairs_of("train")
    data(root, interpolation="bicubic").pairs_of("train")
    assert len([path for path in once.iterdir() if path.is_dir()]) == 4


class Slow(PairSource):
    """A source whose pairs take a given number of seconds to load."""

    def __init__(self, seconds: float) -> None:
        self.ids, self.seconds = [f"{n}" for n in range(20)], seconds

    def captions(self, index: int) -> list[str]:
        return ["x"]

    def change_type(self, index: int) -> str | None:
        return None

    def fingerprint(self) -> str:
        return "slow"

    def load(self, index: int) -> PairSample:
        time.sleep(self.seconds)
        return PairSample(self.ids[index], *torch.zeros(2, 3, 64, 64, dtype=torch.uint8))


def test_faster_source_is_used_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    assert isinstance(cache_decoded(Slow(0.01), tmp_path, (64, 64), "bilinear", told.append), DecodedSource)
    assert "reading the cache" in told[0]
    load = DecodedSource.load
    monkeypatch.setattr(DecodedSource, "load", lambda self, index: (time.sleep(0.03), load(self, index))[1])
    assert isinstance(cache_decoded(Slow(0.0), tmp_path, (64, 64), "bilinear", told.append), Slow)
    assert "reading the files" in told[1]


def test_boxes_are_cached(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a dog"}]
    records = [{"path": f"{n}", "bbox": [0.5, 0.0, 1.0, 0.1 * n], "conversations": turns} for n in range(5)]
    (tmp_path / "img_diff_object_replacement.json").write_text(json.dumps(records))
    for number in range(5):
        for side in (0, 1):
            (tmp_path / "object_replacement").mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (number,) * 3).save(tmp_path / f"object_replacement/{number}_{side}.jpg")
    options = {"official": False, "shares": (1.0, 0.0, 0.0), "image_size": 4}
    files = ImgDiff(tmp_path, **options).pairs_of("train")
    shard = DecodedSource(files, decode_to_store(files, tmp_path / "once", (4, 4), "bilinear"))
    assert all(torch.equal(shard.load(i).boxes, files.load(i).boxes) for i in range(5))
    assert shard.load(2).meta == files.load(2).meta


def test_failed_write_leaves_no_files(root: Path) -> None:
    (root / "69b.png").write_bytes((root / "69b.png").read_bytes()[:100])
    with pytest.raises(IDCError, match="damaged"):
        data(root).pairs_of("train")
    assert not [path for path in (root.parent / "once").iterdir() if path.suffix != ".lock"]


def test_uncacheable_sources_are_errors(root: Path, tmp_path: Path) -> None:
    with pytest.raises(IDCError, match="cache_images needs image_size"):
        FolderPairs(root, cache_images=tmp_path)
    with pytest.raises(IDCError, match="BoardPairs has none"):
        pcb = tmp_path / "pcb"
        (pcb / "group1/1").mkdir(parents=True)
        (pcb / "group1/1_not").mkdir()
        (pcb / "group1/1_not/1.txt").write_text("1 1 9 9 2")
        for name in ("trainval", "test"):
            (pcb / f"{name}.txt").write_text("group1/1/1.jpg group1/1_not/1.txt")
        DeepPCB(pcb, official=False, image_size=64, cache_images=tmp_path / "once").pairs_of("test")


def together(count: int, work: Callable[[int], None]) -> None:
    """Run a function in several processes that start at the same time."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count)
    processes = [context.Process(target=lambda n: (barrier.wait(30), work(n)), args=(n,)) for n in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count


@pytest.mark.slow
def test_concurrent_processes_write_one_shard(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = decoded._write

    def slowly(*given: Any) -> list[Shard]:
        with open(root.parent / "writers", "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)  # the other processes reach the lock meanwhile
        return write(*given)

    monkeypatch.setattr(decoded, "_write", slowly)
    files = FolderPairs(root, image_size=(10, 12)).pairs_of("train")

    def work(number: int) -> None:
        shard = DecodedSource(files, decode_to_store(files, root.parent / "once", (10, 12), "bilinear"))
        torch.save([shard.load(index).after for index in range(PAIRS)], root.parent / f"seen{number}.pt")

    together(3, work)
    assert len((root.parent / "writers").read_text().split()) == 1
    for number in range(3):
        seen = torch.load(root.parent / f"seen{number}.pt")
        assert all(torch.equal(image, files.load(index).after) for index, image in enumerate(seen))


@pytest.mark.slow
def test_files_of_a_killed_writer_are_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, once = FolderPairs(root, image_size=(10, 12)).pairs_of("train"), root.parent / "once"
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "_in_order", lambda *_: os._exit(9))
        process = multiprocessing.get_context("fork").Process(
            target=decode_to_store, args=(files, once, (10, 12), "bilinear")
        )
        process.start()
        process.join(60)
    assert process.exitcode == 9 and [path for path in once.iterdir() if path.name.startswith(".")]
    decode_to_store(files, once, (10, 12), "bilinear")
    assert not [path for path in once.iterdir() if path.name.startswith(".") and path.is_dir()]


@pytest.mark.slow
def test_workers_load_equal_samples(root: Path) -> None:
    batches = {}
    for workers in (0, 2):
        module = data(root, batch_size=16, num_workers=workers, seed=3)
        assert isinstance(module.pairs_of("train"), DecodedSource)
        batches[workers] = list(module.train_dataloader())
    assert len(batches[0]) == len(batches[2]) == 5
    for ours, theirs in zip(batches[0], batches[2], strict=True):
        assert ours["ids"] == theirs["ids"] and torch.equal(ours["images"], theirs["images"])

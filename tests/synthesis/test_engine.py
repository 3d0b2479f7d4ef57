"""Shards are the unit of work: without a Trainer, with several processes, and when a record fails in a stage."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from helpers.processes import TESTS, forking_python
from helpers.toy_stages import Numbers, Shade, digests, everything, shard, shards_of
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.cli.recipes.overrides import with_engine
from lightning_idc.data.store.manifest import ShardName
from lightning_idc.synthesis.launchers import ArrayTask
from lightning_idc.synthesis.models.base import ModelInterface
from lightning_idc.synthesis.progress import PROGRESS, format_rate
from lightning_idc.synthesis.records import THUMBNAIL, Record
from lightning_idc.synthesis.run import Job, run
from lightning_idc.synthesis.sources import Sentences
from lightning_idc.synthesis.stages import MapStage, PipelineStage, Sequential
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError, DataError, StoreError

SIZES = {"batch_size": 4, "shard_size": 6}


def begun(target: Path, count: int = 40) -> tuple[Job, Shade]:
    """Return a job that is ready to process shards, and its stage."""
    job, stage = Job(Numbers(count), target, **SIZES), Shade(pause=0.02)
    job.begin(stage)
    job.open(stage)
    return job, stage


def test_shard_is_processed_once(tmp_path: Path) -> None:
    run(Shade(), Numbers(40), tmp_path / "whole", **SIZES)
    job, stage = begun(tmp_path / "a")
    assert job.process_shard(stage, 3)
    path = shard(tmp_path / "a", 3)
    written = path.stat().st_mtime_ns
    assert not job.process_shard(stage, 3)
    assert path.stat().st_mtime_ns == written
    assert path.read_bytes() == shard(tmp_path / "whole", 3).read_bytes()
    assert shards_of(tmp_path / "a") == {3} and 3 not in job.pending()
    run(Shade(), Numbers(40), tmp_path / "a", **SIZES)
    assert digests(tmp_path / "a") == digests(tmp_path / "whole")


def test_row_count_is_not_mistaken_for_a_shard_number(tmp_path: Path) -> None:
    job, stage = begun(tmp_path / "a")
    other = ShardName("records", "00003", 0, "0" * 16)
    (tmp_path / "a" / str(other).replace("-0-", "-00001-")).touch()
    assert 1 in job.pending() and job.process_shard(stage, 1)


def test_images_of_a_killed_attempt_are_removed(tmp_path: Path) -> None:
    """A record is never stored with images of another attempt, even if the stage is not deterministic."""
    job, stage = begun(tmp_path / "a")
    job.process_shard(stage, 1)
    shard(tmp_path / "a", 1).unlink()
    leftover = shard(tmp_path / "a", 1, "images")
    leftover.rename(leftover.with_name("images-00001-6-0000000000000000.arrow"))
    store = run(Shade(), Numbers(40), tmp_path / "a", **SIZES)
    assert everything(store) == everything(run(Shade(), Numbers(40), tmp_path / "b", **SIZES))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def _running_stage(target: Path, first: int) -> None:
    job, stage = begun(target, 60)
    for number in [*range(first, job.num_shards), *range(first)]:
        if job.process_shard(stage, number):
            (target.parent / f"made-{number}-{os.getpid()}").touch()


@pytest.mark.slow
def test_two_launchers_process_every_shard_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_running_stage, args=(tmp_path / "a", first)) for first in (0, 0, 5)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    made = [path.name.split("-")[1] for path in tmp_path.glob("made-*")]
    assert sorted(made, key=int) == [str(number) for number in range(10)], "none twice, none left out"
    run(Shade(), Numbers(60), tmp_path / "a", **SIZES)
    run(Shade(), Numbers(60), tmp_path / "b", **SIZES)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.slow
def test_killed_worker_loses_no_shard(tmp_path: Path) -> None:
    other = multiprocessing.get_context("fork").Process(target=_running_stage, args=(tmp_path / "a", 0))
    other.start()
    while len(shards_of(tmp_path / "a")) < 3:
        time.sleep(0.005)
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    store = run(Shade(pause=0.02), Numbers(60), tmp_path / "a", **SIZES)
    run(Shade(pause=0.02), Numbers(60), tmp_path / "b", **SIZES)
    assert everything(store) == everything(RecordStore(tmp_path / "b"))


@pytest.mark.slow
def test_ten_killed_workers_lose_or_duplicate_nothing(tmp_path: Path) -> None:
    draw, context = random.Random(5), multiprocessing.get_context("fork")

    def started() -> multiprocessing.process.BaseProcess:
        worker = context.Process(target=_running_stage, args=(tmp_path / "a", draw.randrange(10)))
        worker.start()
        return worker

    workers = [started() for _ in range(3)]
    for _ in range(10):
        time.sleep(draw.uniform(0.02, 0.15))
        index = draw.randrange(3)
        workers[index].kill()
        workers[index].join()
        workers[index] = started()
    for worker in workers:
        worker.join()
    store = run(Shade(pause=0.02), Numbers(60), tmp_path / "a", **SIZES)
    made = [path.name.split("-")[1] for path in tmp_path.glob("made-*")]
    noted = [json.loads(line)["shard"] for line in (tmp_path / "a" / PROGRESS).read_text().splitlines()]
    assert len(made) == len(set(made)) and len(noted) == len(set(noted)) >= 9, "no shard twice"
    assert everything(store) == everything(run(Shade(), Numbers(60), tmp_path / "b", **SIZES))


def test_tasks_of_an_array_share_the_shards_and_the_last_completes(tmp_path: Path) -> None:
    """Task k of n makes the shards k::n; the store is complete when all tasks have run, in any order."""
    for task, made in ((2, {2, 5}), (0, {0, 2, 3, 5, 6}), (1, set(range(7)))):
        store = run(Shade(), Numbers(40), tmp_path / "a", task=task, tasks=3, **SIZES)
        assert shards_of(tmp_path / "a") == made and (store is None) == (task != 1)
        if store is None:
            with pytest.raises(StoreError, match="was not finished"):
                RecordStore(tmp_path / "a")
    run(Shade(), Numbers(40), tmp_path / "b", **SIZES)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert run(Shade(), Numbers(40), tmp_path / "a", task=0, tasks=3, **SIZES) is not None, "any task may run again"
    with pytest.raises(ConfigError, match="task is 3 of 3; expected 0 to 2"):
        run(Shade(), Numbers(40), tmp_path / "a", task=3, tasks=3, **SIZES)


def launch_task(target: Path, count: int, **task: int) -> None:
    ArrayTask(**task).launch(Shade(), Job(Numbers(count), target, **SIZES))


def test_explicit_task_overrides_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ID", "5"), ("MIN", "3"), ("COUNT", "4")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for options, made in (({"task": 1}, {1, 5}), ({"tasks": 3}, {2, 5}), ({}, {2, 6})):
        launch_task(tmp_path / str(options), 40, **options)
        assert shards_of(tmp_path / str(options)) == made


@pytest.mark.parametrize(("number", "last", "count"), [("3", "7", "2"), ("0", "6", "4")])
def test_array_with_gaps_needs_an_explicit_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, last: str, count: str
) -> None:
    """Failed tasks are resubmitted by their numbers, as ``--array=3,7``, and must not become tasks 0 and 1 of 2."""
    for name, value in (("ID", number), ("MIN", number), ("MAX", last), ("COUNT", count)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for options in ({}, {"tasks": 8}):
        with pytest.raises(ConfigError, match=rf"{count} tasks from {number} to {last}.*set task, and set tasks"):
            launch_task(tmp_path, 80, **options)
    launch_task(tmp_path, 80, task=int(number), tasks=8)
    assert shards_of(tmp_path) == {int(number), int(number) + 8}


class Fragile(PipelineStage):
    """Adds 1; raises an error for poisoned numbers and for large batches."""

    def __init__(self, poisoned: set[int], largest: int = 100, kind: type[Exception] = ValueError) -> None:
        super().__init__()
        self.poisoned, self.largest, self.kind = poisoned, largest, kind
        self.batches: list[int] = []

    def process(self, records: list[Record]) -> list[Record]:
        self.batches.append(len(records))
        for record in records:
            record.facts["plus"] = record.facts["number"] + 1  # before the error: this change must be discarded
        bad = [record.facts["number"] for record in records if record.facts["number"] in self.poisoned]
        if bad:
            raise ValueError(f"cannot take {bad[0]}")
        if len(records) > self.largest:
            raise self.kind("no memory for so many")
        return records


def test_failing_batch_drops_only_the_failing_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Fragile({5, 17, 18})
    store = run(stage, Numbers(40), tmp_path / "a", batch_size=16, shard_size=20)
    dropped = {r.id: r.dropped for r in store if r.dropped is not None}
    assert set(dropped) == {"n005", "n017", "n018"}
    assert dropped["n005"] == {
        "stage": "Fragile", "reason": "error", "value": "ValueError: cannot take 5", "limit": "no error"
    }  # fmt: skip
    assert all(r.facts.get("plus") == r.facts["number"] + 1 for r in store if r.dropped is None)
    assert "plus" not in store.record(5).facts and not store.record(5).history
    assert "record n005 failed and is dropped: ValueError: cannot take 5" in capsys.readouterr().err
    assert sum(len(r.history) == 1 for r in store) == 37, "one entry each, however often its batch was tried"


def test_too_many_failures_stop_the_run_and_it_resumes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"3 records failed in Fragile, at most 2 are allowed .*n030.*cannot take 30"):
        run(Fragile({2, 9, 30}), Numbers(40), tmp_path / "a", shard_size=10, max_failures=2)
    assert shards_of(tmp_path / "a") == {0, 1, 2}
    store = run(Fragile({2, 9, 30}), Numbers(40), tmp_path / "a", shard_size=10, max_failures=3)
    assert store.counts() == (37, {"error": 3})
    again = run(Fragile({12}), str(tmp_path / "a"), tmp_path / "b", shard_size=10, max_failures=1)
    assert again.counts() == (36, {"error": 4}), "those of an earlier stage do not count for this one"


def test_failure_of_all_records_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all 5 records of shard 0 failed in Fragile; .*cannot take 0"):
        run(Fragile(set(range(40))), Numbers(40), tmp_path / "a", shard_size=5)


def test_the_stage_that_failed_is_named_within_a_sequence(tmp_path: Path) -> None:
    store = run(Sequential([Shade(), Fragile({3})]), Numbers(10), tmp_path / "a")
    dropped = store.record(3).dropped
    assert dropped is not None and dropped["stage"] == "Fragile"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_halves_the_batch_permanently(tmp_path: Path, kind: type[Exception]) -> None:
    stage = Fragile(set(), largest=5, kind=kind)
    store = run(stage, Numbers(64), tmp_path / "a", batch_size=16, shard_size=32)
    assert store.counts() == (64, {}), "no record is lost"
    assert stage.batches[:3] == [16, 8, 4] and max(stage.batches[3:]) == 4


class Pictured(Numbers):
    """Records with an image of 400 x 300 pixels."""

    def record(self, index: int) -> Record:
        record = super().record(index)
        noise = torch.Generator().manual_seed(index)
        record.put("picture", torch.randint(256, (3, 300, 400), generator=noise, dtype=torch.uint8))
        return record


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["all", "thumbnails", "none"])
def test_keep_dropped(tmp_path: Path, keep: str) -> None:
    store = run(Shade(), Pictured(8), tmp_path / keep, keep_dropped=keep)  # type: ignore[arg-type]
    dropped, alive = store.record(0), store.record(1)
    assert dropped.dropped is not None
    assert torch.equal(alive.image("picture"), Pictured(8).record(1).image("picture")), "without loss"
    if keep == "none":
        assert dropped.images == {}
    else:
        size = (3, 300, 400) if keep == "all" else (3, THUMBNAIL * 3 // 4, THUMBNAIL)
        assert dropped.image("picture").shape == size
        assert keep == "all" or len(dropped.images["picture"]) < len(alive.images["picture"]) / 10


@pytest.mark.slow
@pytest.mark.parametrize(("image_format", "start"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_image_format(tmp_path: Path, image_format: str, start: bytes) -> None:
    store = run(Shade(), Pictured(3), tmp_path / "a", image_format=image_format)  # type: ignore[arg-type]
    assert store.record(1).images["shaded"].startswith(start)
    run(Shade(), Pictured(3), tmp_path / "b", image_format=image_format)  # type: ignore[arg-type]
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    with pytest.raises(ConfigError, match="expected one of all, thumbnails, none"):
        Job(Numbers(3), tmp_path / "c", keep_dropped="some")  # type: ignore[arg-type]


@pytest.mark.slow
def test_many_decoded_images_need_few_open_files(tmp_path: Path) -> None:
    """The paper's filter reads 128 pairs per step; one file descriptor per image would exceed the limit."""
    script = (
        "import resource, sys, torch; from helpers.toy_stages import Numbers, Shade; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); "
        "from lightning_idc.synthesis.run import run; "
        "print(len(run(Shade(), Numbers(1500), sys.argv[1], batch_size=1200, shard_size=1500, num_workers=8)))"
    )
    done = subprocess.run(
        [forking_python(), "-c", script, str(tmp_path / "a")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == str(1500 + 300 - 43), "one of five becomes two, but for multiples of 35"


class Weighted(ModelInterface):
    """A model whose weights come from a file."""

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.weights = weights

    def provenance(self) -> dict[str, str]:
        return {"commit": "abc", "weights": self.weights}


class Uses(Shade):
    def __init__(self, weights: str) -> None:
        super().__init__()
        self.model = Weighted(weights)


def test_provenance_is_stored_and_other_weights_rejected(tmp_path: Path) -> None:
    run(Uses("1111"), Numbers(12), tmp_path / "a", shard_size=4)
    (about,) = RecordStore(tmp_path / "a").manifest.notes["provenance"]
    assert about["models"] == {"model": {"commit": "abc", "weights": "1111"}}
    assert about["versions"]["torch"] == str(torch.__version__).partition("+")[0] and about["device"]
    shard(tmp_path / "a", 1).unlink()
    with pytest.raises(StoreError, match=r"another weights of the model in 'model'"):
        run(Uses("2222"), Numbers(12), tmp_path / "a", shard_size=4)


def test_time_of_every_shard_is_logged(tmp_path: Path) -> None:
    run(MapStage(_as_it_is), Numbers(20), tmp_path / "a", shard_size=8)
    lines = [json.loads(line) for line in (tmp_path / "a" / "progress.jsonl").read_text().splitlines()]
    assert [(line["shard"], line["records"]) for line in lines] == [(0, 8), (1, 8), (2, 4)]
    assert all(line["seconds"] >= 0 for line in lines)
    assert "records per second" in format_rate(tmp_path / "a")


def test_truncated_progress_line_is_ignored(tmp_path: Path) -> None:
    """After a power loss, or on a full disk, only a part of the last line is written."""
    Job(Numbers(20), tmp_path / "a", shard_size=8).begin(MapStage(_as_it_is))
    (tmp_path / "a" / PROGRESS).write_text('{"shard": 0, "rec')
    run(MapStage(_as_it_is), Numbers(20), tmp_path / "a", shard_size=8)
    assert "records per second" in format_rate(tmp_path / "a")


def test_progress_prints_the_remaining_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning_idc.synthesis.progress._INTERVAL", 0)
    run(MapStage(_as_it_is), Numbers(20), tmp_path / "a", shard_size=8)
    assert f"{tmp_path / 'a'}: 2 of 3 shards, 0 min left" in capsys.readouterr().out


def test_launcher_applies_to_record_stages() -> None:
    arguments = with_engine({"engine": "ray", "engine.workers": 4, "model.width": 8})
    launcher = {"class": "RayPool", "workers": 4}
    assert arguments == {"model.width": 8, "data.launcher": launcher}
    for wrong in ({"engine": "spark"}, {"engine.workers": 4}):
        with pytest.raises(ConfigError, match="ray, process, array"):
            with_engine(wrong)


def _as_it_is(record: Record) -> Record:
    return record


@pytest.mark.slow
def test_launchers_write_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a run writes its configuration next to its results
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(5):
        Image.new("RGB", (24, 24), (50 * number, 0, 99)).save(photos / f"{number}.png")

    def predict(target: str, *more: str) -> int:
        source = ["--data.source.class_path", "ImageFolder", "--data.source.init_args.root", str(photos)]
        options = ["--model", "ImageHashes", "--model.images", "[image]", "--data", "Records", *source]
        return main(["predict", *options, "--data.target", str(tmp_path / target), "--data.shard_size", "2", *more])

    assert predict("trainer", "--return_predictions", "false", "--trainer.logger", "false") == 0
    assert predict("process", "--data.launcher", "InProcess") == 0
    for task in ("0", "1"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "0")
        monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
        assert predict("array", "--data.launcher", "ArrayTask") == 0
    assert digests(tmp_path / "process") == digests(tmp_path / "trainer") == digests(tmp_path / "array")


class Letters(PipelineStage):
    """Counts letters."""

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.facts["letters"] = len(record.facts["caption"])
        return records


def test_grown_source_is_rejected(tmp_path: Path) -> None:
    run(Letters(), Sentences(["a", "b", "c"]), tmp_path / "a", shard_size=1)
    with pytest.raises(ConfigError, match="was created with records that differ"):
        run(Letters(), Sentences(["a", "b", "c", "d"]), tmp_path / "a", shard_size=1)


@pytest.mark.slow
def test_memory_stays_flat_over_many_records(tmp_path: Path) -> None:
    """With 30,000 records, memory holds one shard and the memory maps of the source."""
    captions = Sentences([f"caption {number}" for number in range(30_000)])
    run(Letters(), Sentences(["a"]), tmp_path / "warm")
    tracemalloc.start()
    first = run(Letters(), captions, tmp_path / "a", shard_size=2000, batch_size=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(first) == 30_000 and peak < 40e6
    assert first.record(29_999).facts == {"caption": "caption 29999", "letters": 13}

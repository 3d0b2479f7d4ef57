"""Run a stage over a source: chunk k of the source becomes shard k of a store.

One process computes a shard from start to end and writes it atomically, so neither kills nor the number of processes
change its bytes. `run` works in this process; the Trainer, array tasks and Ray workers use the same `Job`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from lightning_idc.data.store.building import write_manifest
from lightning_idc.data.store.manifest import MANIFEST, Manifest, ShardName, numbered, read_manifest
from lightning_idc.data.store.reader import check_sizes, shard_of, shards_in
from lightning_idc.data.store.shards import Shard
from lightning_idc.synthesis.isolation import IsolatedStage
from lightning_idc.synthesis.progress import Progress, format_rate, log_shard
from lightning_idc.synthesis.provenance import record_provenance, stored_provenance
from lightning_idc.synthesis.reading import read_ahead
from lightning_idc.synthesis.records import ImageFormat, KeepDropped, Record, format_counts
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RECORDS, REMEDY, RecordSource, RecordStore, failed_in, write_records
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, StoreError

_POLL = 0.2
"""Seconds between checks for shards of other processes."""
_LOCKS = ".locks"
_PARTIAL = re.compile(r"(^[a-z]+-\d{5,}|\.[0-9a-f]{6}-\d+-\d+)\.partial$")  # of shards, and of atomic_write


class Job:
    """Job that runs a stage over a source and writes a store in shards.

    Args:
        source: a finished store or its folder, or another source of records.
        target: folder of the new store; an unfinished store is resumed.
        batch_size: number of records per step; does not change results.
        shard_size: number of source records per shard, the most that a kill can lose.
        num_workers: number of threads that read and decode images ahead.
        limit: number of source records to use; None for all.
        keep_dropped: images to keep of dropped records: ``all``, ``thumbnails`` or ``none``.
        image_format: format of new images; PNG is lossless, JPEG about a quarter of its size.
        max_failures: number of records that may be dropped because of errors before the run stops.

    Raises:
        ConfigError: a number or a name is out of range.
    """

    def __init__(
        self,
        source: str | Path | RecordSource,
        target: str | Path,
        batch_size: PositiveInt = 16,
        shard_size: PositiveInt = 128,
        num_workers: NonNegativeInt = 0,
        limit: PositiveInt | None = None,
        keep_dropped: KeepDropped = "all",
        image_format: ImageFormat = "png",
        max_failures: NonNegativeInt = 100,
    ) -> None:
        check_arguments(Job.__init__, locals())
        if isinstance(source, RecordStore):
            source = source.folder
        self.source_folder = Path(source).resolve() if isinstance(source, str | Path) else None
        """Absolute folder of the source store, since other processes may have another working directory."""
        self._source: RecordSource | None = None if isinstance(source, str | Path) else source
        self.target = Path(target).resolve()
        self.batch_size, self.shard_size, self.num_workers, self.limit = batch_size, shard_size, num_workers, limit
        self.keep_dropped, self.image_format, self.max_failures = keep_dropped, image_format, max_failures
        self._fingerprint = ""
        self._progress = Progress()

    @property
    def source(self) -> RecordSource:
        """Source of the records; opened on first use, since an earlier stage may have to write it first.

        Raises:
            DataError: the source has no records.
        """
        if self._source is None:
            assert self.source_folder is not None
            self._source = RecordStore(self.source_folder)
        if not len(self._source):
            raise DataError(f"the source of {self.target} has no records")
        return self._source

    @property
    def num_records(self) -> int:
        """Number of source records to process."""
        return len(self.source) if self.limit is None else min(self.limit, len(self.source))

    @property
    def num_shards(self) -> int:
        """Number of shards that the target will have."""
        return -(-self.num_records // self.shard_size)

    def pending(self) -> list[int]:
        """List the numbers of missing shards."""
        names = filter(None, map(ShardName.parse, os.listdir(self.target)))
        present = {name.part for name in names if name.table == RECORDS}
        return [number for number in range(self.num_shards) if numbered(number) not in present]

    @property
    def completed(self) -> bool:
        """Whether the target is finished."""
        return self._manifest().shards is not None

    def run(
        self, stage: BasePipelineStage, *, task: int = 0, tasks: int = 1, device: str | torch.device = "cpu"
    ) -> bool:
        """Process the shards of a task in this process, and complete the target if no shard is missing; see `run`.

        Returns:
            Whether the target is complete.
        """
        if not 0 <= task < tasks:
            raise ConfigError(f"task is {task} of {tasks}; expected 0 to {tasks - 1}")
        self.begin(stage)
        missing = [number for number in self.pending() if number % tasks == task]
        if missing:
            self.open(stage, device)
            self.process_shards(stage, missing, wait=tasks == 1)
        return self.finish(stage)

    def begin(self, stage: BasePipelineStage) -> None:
        """Create the target, or check that of an interrupted run; any process may call it.

        Raises:
            ConfigError: the target belongs to another stage, other settings or another source.
            StoreError: the target is damaged.
        """
        identity = self._identity(stage)
        self.target.mkdir(parents=True, exist_ok=True)
        manifest = self.target / MANIFEST
        other_files = [path for path in self.target.iterdir() if not path.name.startswith(MANIFEST)]
        if manifest.exists():  # checked last, since another process may create the target concurrently
            self._check_identity(identity)
            self._remove_damaged()
        elif other_files:
            raise ConfigError(f"{self.target} is not empty and contains no store; choose another target")
        else:
            Manifest(identity, notes=self._notes()).write(self.target)

    def open(self, stage: BasePipelineStage, device: str | torch.device = "cpu") -> None:
        """Load the models of a stage, and prepare it for the source.

        Args:
            stage: stage whose models are not loaded yet.
            device: device of the models.

        Raises:
            StoreError: the target was created with other weights of a model.
        """
        stage.setup("predict")
        self.attach(stage.to(device))

    def attach(self, stage: BasePipelineStage) -> None:
        """Prepare a stage with loaded models for the source; see `open`."""
        # not in `begin`, which only one process of a Trainer calls
        self._fingerprint = self._manifest().fingerprint
        record_provenance(self.target, stage)
        stage.eval()
        stage.prepare(self.source)

    def process_shard(self, stage: BasePipelineStage, number: int) -> bool:
        """Process one shard, unless it exists or another process is processing it.

        Args:
            stage: attached stage.
            number: number of the shard.

        Returns:
            Whether this call wrote the shard.

        Raises:
            DataError: more than ``max_failures`` records failed, or all records of the shard.
        """
        (self.target / _LOCKS).mkdir(exist_ok=True)
        lock = FileLock(self.target / _LOCKS / f"{number}.lock", timeout=0)
        try:
            lock.acquire()  # the system releases it if the process dies
        except Timeout:
            return False
        try:
            part = numbered(number)
            # a cheap filter before parsing
            names = [ShardName.parse(name) for name in os.listdir(self.target) if f"-{part}-" in name]
            shards = [name for name in names if name is not None and name.part == part]
            if any(name.table == RECORDS for name in shards):
                return False
            for name in shards:  # images of a process that was killed before writing the records
                (self.target / str(name)).unlink()
            self._process_shard(stage, number)
        finally:
            lock.release()
        self._progress.show(self.target, self.num_shards, self.pending)
        return True

    def _process_shard(self, stage: BasePipelineStage, number: int) -> None:
        start = time.monotonic()
        isolated_stage = IsolatedStage(stage, self._record, self._seal, self.batch_size)
        positions = range(number * self.shard_size, min((number + 1) * self.shard_size, self.num_records))
        records: list[Record] = []
        with torch.inference_mode():
            for indices, batch in read_ahead(
                positions, self.batch_size, self._record, images=stage.reads, threads=self.num_workers
            ):
                records += isolated_stage.transform(indices, batch)
        self.batch_size = isolated_stage.batch_size  # smaller if memory ran out
        self._check_failures(isolated_stage, number)
        write_records(self.target, self._fingerprint, number, records, failed=len(isolated_stage.failed))
        log_shard(self.target, number, len(records), time.monotonic() - start)

    def process_shards(self, stage: BasePipelineStage, numbers: Sequence[int], *, wait: bool) -> None:
        """Process shards.

        Args:
            stage: attached stage.
            numbers: numbers of the shards.
            wait: whether to wait for shards of other processes, and take over those of processes that die.
        """
        while numbers:
            written = [self.process_shard(stage, number) for number in numbers]
            pending = set(self.pending())
            numbers = [number for number in numbers if number in pending]
            if not any(written) and not wait:
                return
            if numbers and not any(written):
                time.sleep(_POLL)

    def finish(self, stage: BasePipelineStage) -> bool:
        """If no shard is missing, complete the target and write the reports; return whether it is complete."""
        if self.pending():
            return False
        with FileLock(self.target / f"{MANIFEST}.lock"):
            notes = {**self._notes(), "provenance": stored_provenance(self.target)}
            write_manifest(self.target, self._identity(stage), self._shards(), **notes)
            shutil.rmtree(self.target / _LOCKS, ignore_errors=True)
            for leftover in self.target.glob("*.partial"):  # of killed processes
                if _PARTIAL.search(leftover.name):
                    leftover.unlink(missing_ok=True)
            store = RecordStore(self.target)
            remaining, reasons = store.counts()
            dropped = f"{sum(reasons.values())} dropped" + (f": {format_counts(reasons)}" if reasons else "")
            print(f"{stage.name}: {remaining} records kept, {dropped}; {format_rate(self.target)}", flush=True)
            stage.finish(store)
        return True

    def __getstate__(self) -> dict[str, Any]:
        # each worker opens the store itself
        return {**self.__dict__, "_source": None if self.source_folder is not None else self._source}

    def _identity(self, stage: BasePipelineStage) -> dict[str, Any]:
        """Return everything that determines the records of the target."""
        images = {"format": self.image_format, "keep_dropped": self.keep_dropped}
        return {
            "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
            "settings": json.loads(json.dumps({**stage.settings(), "seed": stage.seed, "images": images})),
            "source": self.source.fingerprint,
            "records": self.num_records,
            "shard_size": self.shard_size,
        }

    def _notes(self) -> dict[str, Any]:
        # relative, so that the folders of a run can be moved together
        return {"source": None if self.source_folder is None else os.path.relpath(self.source_folder, self.target)}

    def _check_identity(self, identity: dict[str, Any]) -> None:
        earlier = self._manifest().identity
        changed = [name for name in identity if earlier.get(name) != identity[name]]
        if changed == ["shard_size"]:
            raise ConfigError(
                f"{self.target} was created with shard_size {earlier['shard_size']}, now {self.shard_size}; use the "
                "earlier value, choose another target, or remove the folder to start again"
            )
        if changed:
            named = [name for name in changed if name in ("stage", "settings", "records")]
            raise ConfigError(
                f"{self.target} was created with {' and '.join(named) or 'records of the source'} that differ now; "
                "choose another target, or remove the folder to start again"
            )

    def _manifest(self) -> Manifest:
        return read_manifest(self.target, "records", REMEDY)

    def _shards(self) -> list[Shard]:
        return shards_in(self.target, self._manifest(), REMEDY)

    def _remove_damaged(self) -> None:
        """Remove parts with missing shards or wrong file sizes, so that they are processed again."""
        manifest, damaged = self._manifest(), []
        for name in manifest.shards or ():
            try:
                check_sizes([shard_of(self.target, manifest, name)])
            except StoreError:
                damaged.append(name)
        parts = {name.part for name in damaged}
        for shard in self._shards():
            if shard.name.part in parts:
                shard.path.unlink()
        if damaged:
            print(f"{self.target}: damaged shards are processed again: {', '.join(map(str, damaged))}", flush=True)

    def _record(self, index: int) -> Record:
        # images of an earlier stage are looked up in its store rather than copied
        return self.source.linked(index) if isinstance(self.source, RecordStore) else self.source.record(index)

    def _seal(self, record: Record) -> None:
        record.seal(self.image_format, self.keep_dropped)

    def _check_failures(self, isolated_stage: IsolatedStage, number: int) -> None:
        failed, name = len(isolated_stage.failed), isolated_stage.stage.name
        if failed == isolated_stage.num_active > 1:
            raise DataError(f"all {failed} records of shard {number} failed in {name}; {isolated_stage.first_failure}")
        if not failed:
            return
        failed += sum(failed_in(shard) for shard in self._shards() if shard.name.table == RECORDS)
        if failed > self.max_failures:
            raise DataError(
                f"{failed} records failed in {name}, at most {self.max_failures} are allowed (max_failures); "
                f"{isolated_stage.first_failure}"
            )


def run(
    stage: BasePipelineStage,
    source: str | Path | RecordSource,
    target: str | Path,
    *,
    task: int = 0,
    tasks: int = 1,
    device: str | torch.device = "cpu",
    **options: Any,
) -> RecordStore | None:
    """Run a stage in this process; existing shards are not processed again.

    Args:
        stage: stage whose models are not loaded yet.
        source: a finished store or its folder, or another source of records.
        target: folder of the new store; an unfinished store is resumed.
        task: number of this task in an array.
        tasks: number of tasks; each processes every ``tasks``-th shard, and the last to finish completes the store.
        device: device of the models.
        options: further arguments of `Job`.

    Returns:
        The store; None while shards of other tasks are missing.

    Raises:
        ConfigError: ``task`` is out of range.
    """
    job = Job(source, target, **options)
    return RecordStore(job.target) if job.run(stage, task=task, tasks=tasks, device=device) else None

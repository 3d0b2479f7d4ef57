"""The one unit of all pipelines: chunk k of a source goes through a stage and becomes shard k of a store.

A shard is made by one process from its beginning and moved into place as a whole, so neither kills nor the number of
processes nor the launcher change what is in it. A batch that fails is halved down to the record that is the cause.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from lightning_idc.synthesis.claims import claimed
from lightning_idc.synthesis.isolation import IsolatedStage, told
from lightning_idc.synthesis.progress import note_shard, rate
from lightning_idc.synthesis.provenance import record_provenance
from lightning_idc.synthesis.reading import read_ahead
from lightning_idc.synthesis.records import Record, counted
from lightning_idc.synthesis.shards import finished_shards, write_shard
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore, UnfinishedStore
from lightning_idc.synthesis.target import Target
from lightning_idc.utils.errors import DataError

_POLL = 0.2
"""Seconds between looks for shards that other processes make."""


class ShardJob(Target):
    """A target and the stage's work on it; see `Target` for the arguments. No Trainer is needed."""

    def open(self, stage: BasePipelineStage) -> None:
        """Make a stage whose models are loaded ready for shards of this job.

        Raises:
            PairError: the target was begun with other weights of a model.
        """
        record_provenance(self.target, stage)
        stage.eval()
        stage.prepare(self.source)

    def make_shard(self, stage: BasePipelineStage, number: int) -> bool:
        """Make one shard, if nobody has made it and nobody is making it.

        Args:
            stage: ready, see `open`.
            number: of the shard.

        Returns:
            Whether this call made it.

        Raises:
            PairError: more than ``max_failures`` records failed, or all of a shard did.
        """
        if self.finished(number):
            return False
        with claimed(self.target, number) as mine:
            if not mine or self.finished(number):
                return False
            began = time.monotonic()
            records: list[Record] = []
            work = IsolatedStage(stage, self._record, self._seal, self.batch_size)
            end = self._end(number)
            with torch.inference_mode():
                for indices, batch in read_ahead(
                    range(number * self.shard_size, end), self.batch_size, self._record, stage.reads, self.num_workers
                ):
                    records += work.transform(indices, batch)
            self.batch_size = work.batch_size  # smaller where memory ran out
            work.check_not_all(number, records)
            self._check_failures(stage, work.failed)
            write_shard(self.target, number, records, len(work.failed))
            note_shard(self.target, number, len(records), time.monotonic() - began)
        self._progress.show(self)
        return True

    def _end(self, number: int) -> int:
        """Record of the source after the last one of a shard."""
        end = (number + 1) * self.shard_size
        if isinstance(self.source, UnfinishedStore) and end > len(self.source):
            self.source.refresh()
        if number >= self.shards:
            raise DataError(f"{self.target}: shard {number} cannot be made of {len(self)} records of the source")
        return min(end, len(self))

    def make_pending(self, stage: BasePipelineStage, wait: bool = True) -> None:
        """Make what nobody has made, taking over from processes that died.

        Args:
            stage: ready, see `open`.
            wait: until shards that other processes are making are there.
        """
        pending = self.pending()
        while pending:
            made = [self.make_shard(stage, number) for number in pending]
            pending = [number for number in pending if not self.finished(number)]
            if pending and not any(made):
                if not wait:
                    return
                time.sleep(_POLL)

    def finish(self, stage: BasePipelineStage) -> bool:
        """Complete the target, say what is in it, and let the stage write its reports; see `complete`."""
        if not self.complete(stage):
            return False
        store = RecordStore(self.target)
        kept, reasons = store.counts()
        why = f": {counted(reasons)}" if reasons else ""
        found = f"{kept} records kept, {sum(reasons.values())} dropped{why}"
        print(f"{stage.name}: {found}; {rate(self.target)}", flush=True)
        stage.finish(store)
        return True

    def _record(self, index: int) -> Record:
        # what an earlier stage wrote is looked up there and not written again
        return self.source.linked(index) if isinstance(self.source, RecordStore) else self.source.record(index)

    def _seal(self, record: Record) -> None:
        record.seal(self.image_format, self.keep_dropped)

    def _check_failures(self, stage: BasePipelineStage, failed: list[Record]) -> None:
        if not failed:
            return
        done = (shard for shard in finished_shards(self.target, self.shards) if shard is not None)
        count = len(failed) + sum(shard.about.get("failed", 0) for shard in done)
        if count > self.max_failures:
            raise DataError(
                f"{count} records failed in {stage.name}, of which {self.max_failures} are allowed (max_failures); "
                f"{told(failed)}"
            )


def make_shard(
    stage: BasePipelineStage, source: str | RecordSource, number: int, target: str | Path, **options: Any
) -> bool:
    """Make one shard of a store with a stage, without a Trainer; nothing is done where it is there already.

    Args:
        stage: its models are loaded on the first call.
        source: see `ShardJob`, as for ``options``.
        number: of the shard.
        target: folder of the store.
        options: of `ShardJob`.

    Returns:
        Whether this call made it.
    """
    job = ShardJob(source, target, **options)
    job.begin(stage)
    stage.setup("predict")
    job.open(stage)
    return job.make_shard(stage, number)

"""The core of all pipelines: records of a source go through a stage and leave a store behind.

The records of the source are cut into chunks; chunk number k becomes shard number k of the target, made by one process
from its beginning, so neither a kill nor the number of processes changes what is in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_idc.core.distributed import get_rank_world_size
from lightning_idc.core.store import MANIFEST, fingerprint_of, read_manifest, write_manifest
from lightning_idc.core.types import PairError
from lightning_idc.files import remove_partials
from lightning_idc.synthesis.records import UNREADABLE, Record
from lightning_idc.synthesis.stages import Feed, Pass, Work
from lightning_idc.synthesis.store import REMEDY, RecordSource, RecordStore, finished_shards, remove_damaged


class Records(Feed):
    """Records of a source on their way into a store.

    Args:
        source: the folder of a finished store, or a source of records.
        target: folder of the store that is made; one that was begun is continued.
        batch_size: records per step.
        shard_size: records of the source per shard: what is lost by a kill, and what one process takes at a time.
        num_workers: processes that read and decode images.
        limit: only the first records of the source.
    """

    def __init__(
        self,
        source: str | RecordSource,
        target: str,
        batch_size: int = 16,
        shard_size: int = 128,
        num_workers: int = 0,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or shard_size < 1:
            raise PairError(f"batch_size is {batch_size} and shard_size {shard_size}; expected at least 1")
        self.prepare_data_per_node = False  # the target is one folder for all nodes
        self._given = source
        self._source: RecordSource | None = None
        self.target = Path(target)
        self.batch_size, self.shard_size, self.num_workers, self.limit = batch_size, shard_size, num_workers, limit

    @property
    def source(self) -> RecordSource:
        """Where the records come from; opened when first asked for, since an earlier stage may have to make it."""
        if self._source is None:
            self._source = RecordStore(self._given) if isinstance(self._given, str) else self._given
            if not len(self._source):
                raise PairError(f"the source {self._given!r} has no records, so there is nothing to make")
        return self._source

    def __len__(self) -> int:
        return len(self.source) if self.limit is None else min(self.limit, len(self.source))

    @property
    def shards(self) -> int:
        """Number of shards that the target will have."""
        return -(-len(self) // self.shard_size)

    def prepare_data(self) -> None:
        """Look through the source, then begin the target, or look through what a stopped run left there.

        Raises:
            PairError: the source is damaged, or the target was made by another stage, with other settings or from
                another source.
        """
        identity = self._identity()
        if isinstance(self.source, RecordStore):
            self.source.check()
        self.target.mkdir(parents=True, exist_ok=True)
        remove_partials(self.target)
        if (self.target / MANIFEST).exists():
            found = read_manifest(self.target, "records", REMEDY)
            if found["fingerprint"] != fingerprint_of(identity):
                known = found["identity"]
                changed = [key for key in ("stage", "settings", "records") if known.get(key) != identity[key]]
                raise PairError(
                    f"{self.target} was begun with {' and '.join(changed) or 'records of the source'} that are "
                    "different now; name another target, or remove that folder to begin anew"
                )
            damaged = remove_damaged(self.target, self.shards)
            if damaged:
                print(f"{self.target}: damaged, made again: {', '.join(damaged)}", flush=True)
        elif any(self.target.iterdir()):
            raise PairError(f"{self.target} is not empty and holds no store; name another target")
        else:
            self._write_manifest(complete=False)

    def complete(self) -> bool:
        """Mark the target as finished if all shards are there, and say whether they are."""
        if None in finished_shards(self.target, self.shards):
            return False  # limited to some batches by the Trainer
        self._write_manifest(complete=True)
        return True

    def predict_dataloader(self) -> DataLoader[Work]:
        pending = [number for number, shard in enumerate(finished_shards(self.target, self.shards)) if shard is None]
        stage = self._stage()
        steps = _Steps(self, stage.reads)
        done = self.shards - len(pending)
        if done and self.trainer is not None and self.trainer.is_global_zero:
            print(f"{self.target}: {done} of {self.shards} shards are there already", flush=True)
        return DataLoader(
            steps,
            batch_size=None,
            sampler=ShardSampler(steps.order, pending),
            num_workers=self.num_workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # of items, without batch_size
        )

    def _stage(self) -> Pass:
        stage = self.trainer.lightning_module if self.trainer is not None else None
        if not isinstance(stage, Pass):
            raise PairError(f"Records are read by a Stage; this is a {type(stage).__name__}")
        return stage

    def _identity(self) -> dict[str, Any]:
        """All that decides the records of the target."""
        stage = self._stage()
        return {
            "stage": f"{type(stage).__module__}.{type(stage).__qualname__}",
            "settings": json.loads(json.dumps({**stage.settings(), "seed": stage.seed})),
            "source": self.source.fingerprint,
            "records": len(self),
            "shard_size": self.shard_size,
        }

    def _write_manifest(self, complete: bool) -> None:
        earlier = self.source.folder if isinstance(self.source, RecordStore) else None
        # relative, so that all folders of a run may be moved together
        source = None if earlier is None else os.path.relpath(earlier.resolve(), self.target.resolve())
        write_manifest(self.target, self._identity(), self.shards, source=source, complete=complete)


class _Steps(Dataset[Work]):
    """The steps of all shards; number -1 is a step without records."""

    def __init__(self, data: Records, reads: Sequence[str]) -> None:
        self.source, self.reads = data.source, tuple(reads)
        self.chained = isinstance(data.source, RecordStore)
        self.order: list[list[int]] = []
        self.spans: list[tuple[int, int, int, bool]] = []
        for shard in range(data.shards):
            first, end = shard * data.shard_size, min((shard + 1) * data.shard_size, len(data))
            starts = range(first, end, data.batch_size)
            self.order.append(list(range(len(self.spans), len(self.spans) + len(starts))))
            for start in starts:
                stop = min(start + data.batch_size, end)
                self.spans.append((shard, start, stop, stop == end))

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> Work:
        if number < 0:
            return Work(-1, [], False)
        shard, start, stop, last = self.spans[number]
        return Work(shard, [self._read(index) for index in range(start, stop)], last)

    def _read(self, index: int) -> Record:
        record = self.source.record(index)
        if self.chained:
            # what an earlier stage wrote is looked up there and not written again
            store: Any = self.source
            record.inherit, record.images, record.origin = partial(store.lookup, index), {}, index
        if record.dropped is None:
            try:
                for name in self.reads:
                    record.image(name)
            except PairError as error:
                record.drop(UNREADABLE, str(error))
        return record


def _as_it_is(work: Work) -> Work:
    return work


class ShardSampler(DistributedSampler[int]):
    """Deals whole shards to the processes, so that none waits for another; each takes one empty step at the end.

    The empty step lets a process without any shard left take part. Being a DistributedSampler it is left alone by
    Lightning.

    Args:
        steps: numbers of the steps of every shard.
        pending: shards that are still to be made.
    """

    def __init__(self, steps: Sequence[Sequence[int]], pending: Sequence[int]) -> None:
        rank, world = get_rank_world_size()
        super().__init__(range(len(pending)), num_replicas=world, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self.numbers = [number for shard in pending[rank::world] for number in steps[shard]] + [-1]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def run(
    stage: Pass,
    source: str | RecordSource,
    target: str | Path,
    batch_size: int = 16,
    shard_size: int = 128,
    num_workers: int = 0,
    limit: int | None = None,
    **trainer: Any,
) -> RecordStore:
    """Run one stage from a script and return what it made.

    Args:
        stage: what is done.
        source: see `Records`, as for the five arguments below.
        target: folder of the store.
        batch_size: records per step.
        shard_size: records per shard.
        num_workers: processes that read images.
        limit: only the first records.
        trainer: options of the Trainer.
    """
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    data = Records(source, str(target), batch_size, shard_size, num_workers, limit)
    Trainer(**{**quiet, **trainer}).predict(stage, datamodule=data, return_predictions=False)
    return RecordStore(target)

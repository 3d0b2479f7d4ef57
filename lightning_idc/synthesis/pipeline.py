"""The core of all pipelines: a stage reads records, works on batches of them, and leaves a store behind.

A stage is a LightningModule, run by ``trainer.predict(stage, Records(source, target))``, so that devices, nodes,
precision and logging are the Trainer's business. The records of the source are cut into chunks; chunk number k becomes
shard number k of the target, made by one process from its beginning, so neither a kill nor the number of processes
changes what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_idc.pairs import PairError
from lightning_idc.synthesis.records import UNREADABLE, Record, counted
from lightning_idc.synthesis.slots.base import Slot
from lightning_idc.synthesis.store import (
    FORMAT,
    MANIFEST,
    RecordSource,
    RecordStore,
    read_manifest,
    remove_damaged,
    save_manifest,
    shard_about,
    write_shard,
)


class Work:
    """Records that a stage takes in one step; a plain class, so that Lightning leaves its images where they are.

    Args:
        shard: that the results go to; -1 for a step without records.
        records: in order, the dropped ones among them.
        last: whether the shard is whole after this step.
    """

    def __init__(self, shard: int, records: Sequence[Record], last: bool) -> None:
        self.shard, self.records, self.last = shard, list(records), last

    def __len__(self) -> int:
        return len(self.records)


class Stage(LightningModule):
    """One step of a pipeline. A subclass writes :meth:`process`, and names the images that it reads.

    Args:
        seed: of all random choices, which depend on it and on a record's id.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    """Images that are decoded in the loader's workers; a record whose image cannot be read is dropped there."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._made: list[Record] = []
        self._settings: dict[str, Any] | None = None

    def process(self, records: list[Record]) -> Sequence[Record | Sequence[Record]]:
        """Work on records that were not dropped so far: change them, drop them, or make several of one.

        Args:
            records: of one batch; their number differs from batch to batch.

        Returns:
            For each record, in order, the record or the records made of it.
        """
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What decides the outcome: models, revisions, thresholds. Plain values; kept with every record."""
        return {}

    def slot_settings(self) -> dict[str, Any]:
        """Settings of the models in this stage, by the name of their slot."""
        return {name: slot.settings() for name, slot in self.named_children() if isinstance(slot, Slot)}

    def finish(self, store: RecordStore) -> None:
        """Called once, by one process, when all shards are there: reports and exports."""

    @property
    def name(self) -> str:
        """Of the stage, as records tell it."""
        return type(self).__name__

    # ---- Lightning's part -------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Read the weights of all slots, before the stage is moved to its device."""
        for module in reversed(list(self.modules())):  # a slot within a slot comes first
            if isinstance(module, Slot):
                module.load()

    def on_predict_start(self) -> None:
        self._made = []
        self._settings = {"stage": self.name, **self.settings(), "seed": self.seed}

    def predict_step(self, batch: Work, batch_idx: int = 0) -> int:
        made = self.work_on(batch.records)
        for record in made:
            record.decoded = {}  # a shard may hold a thousand records; their files are enough
        self._made += made
        if batch.last:
            write_shard(self._data().target, batch.shard, self._made)
            self._made = []
        return len(batch)

    def work_on(self, records: Sequence[Record]) -> list[Record]:
        """Results of a batch, in order: dropped records as they are, every other with this stage in its history."""
        settings = self._settings or {"stage": self.name, **self.settings(), "seed": self.seed}
        alive = [record.dropped is None for record in records]
        live = [record for record, here in zip(records, alive, strict=True) if here]
        for record in live:
            record.history.append({**settings, "scores": {}})
        made = list(self.process(live)) if live else []
        if len(made) != len(live):
            raise PairError(
                f"{self.name}.process made {len(made)} results of {len(live)} records; expected one for each"
            )
        results: list[Record] = []
        for record, here in zip(records, alive, strict=True):
            result = made.pop(0) if here else record
            results += [result] if isinstance(result, Record) else result
        return results

    def on_predict_end(self) -> None:
        data = self._data()
        self.trainer.strategy.barrier("shards")
        if self.trainer.is_global_zero and data.complete():
            store = RecordStore(data.target)
            kept, reasons = store.counts()
            told = f": {counted(reasons)}" if reasons else ""
            print(f"{self.name}: {kept} records kept, {sum(reasons.values())} dropped{told}", flush=True)
            self.finish(store)
        self.trainer.strategy.barrier("manifest")

    def _data(self) -> Records:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, Records):
            raise PairError(
                f"{self.name} is a stage of a pipeline; predict with it on a Records data module, not on {data!r}"
            )
        return data


class Apply(Stage):
    """A stage that is a plain function of one record.

    Args:
        function: changes or drops a record and returns it, or returns several.
        reads: images that it looks at.
        seed: see `Stage`.
    """

    def __init__(
        self,
        function: Callable[[Record], Record | Sequence[Record]],
        reads: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.function = function
        self.reads = tuple(reads)  # type: ignore[misc]  # of this instance

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def settings(self) -> dict[str, Any]:
        return {"function": f"{self.function.__module__}.{self.name}"}

    def process(self, records: list[Record]) -> list[Record | Sequence[Record]]:
        return [self.function(record) for record in records]


class Chain(Stage):
    """Several stages in one pass over the records, with one store at the end instead of one for each.

    All of their models have to fit into memory at once, and a change of one stage's settings makes all of them anew.

    Args:
        stages: in order; the first one's images are read, the others find theirs in the records.
        seed: not used; each stage has its own.
    """

    def __init__(self, stages: list[Stage], seed: int = 0) -> None:
        super().__init__(seed)
        if not stages:
            raise PairError("a chain needs at least one stage")
        self.stages = nn.ModuleList(stages)
        self.reads = stages[0].reads  # type: ignore[misc]  # of this instance

    @property
    def parts(self) -> list[Stage]:
        """The stages, as what they are."""
        return [part for part in self.stages if isinstance(part, Stage)]

    def settings(self) -> dict[str, Any]:
        return {"stages": [{"stage": part.name, **part.settings(), "seed": part.seed} for part in self.parts]}

    def setup(self, stage: str) -> None:
        for part in self.parts:
            part.trainer = self.trainer  # Lightning hands it to direct children only
            part.setup(stage)

    def on_predict_start(self) -> None:
        super().on_predict_start()
        for part in self.parts:
            part.on_predict_start()

    def work_on(self, records: Sequence[Record]) -> list[Record]:
        made = list(records)
        for part in self.parts:
            made = part.work_on(made)
        return made

    def slot_settings(self) -> dict[str, Any]:
        """Settings of the models in this stage, by the name of their slot."""
        return {name: slot.settings() for name, slot in self.named_children() if isinstance(slot, Slot)}

    def finish(self, store: RecordStore) -> None:
        for part in self.parts:
            part.finish(store)


class Records(LightningDataModule):
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
        """Begin the target, or look through what a stopped run left there.

        Raises:
            PairError: the target was made by another stage, with other settings or from another source.
        """
        about = self._about()
        self.target.mkdir(parents=True, exist_ok=True)
        if (self.target / MANIFEST).exists():
            found = read_manifest(self.target)
            if found["fingerprint"] != about["fingerprint"]:
                changed = [key for key in ("stage", "settings", "records") if found.get(key) != about[key]]
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
            save_manifest(self.target / MANIFEST, about)

    def complete(self) -> bool:
        """Mark the target as finished if all shards are there, and say whether they are."""
        found = [shard_about(self.target, number) for number in range(self.shards)]
        if None in found:
            return False  # limited to some batches by the Trainer
        save_manifest(self.target / MANIFEST, {**self._about(), "complete": True})
        return True

    def predict_dataloader(self) -> DataLoader[Work]:
        pending = [number for number in range(self.shards) if shard_about(self.target, number) is None]
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

    def _stage(self) -> Stage:
        stage = self.trainer.lightning_module if self.trainer is not None else None
        if not isinstance(stage, Stage):
            raise PairError(f"Records are read by a Stage; this is a {type(stage).__name__}")
        return stage

    def _about(self) -> dict[str, Any]:
        stage = self._stage()
        settings = {**stage.settings(), "seed": stage.seed}
        kind = f"{type(stage).__module__}.{type(stage).__qualname__}"
        decides = [FORMAT, kind, settings, self.source.fingerprint, self.shard_size, len(self)]
        earlier = self.source.folder if isinstance(self.source, RecordStore) else None
        return {
            "format": FORMAT,
            "stage": kind,
            "settings": json.loads(json.dumps(settings)),
            # relative, so that all folders of a run may be moved together
            "source": None if earlier is None else os.path.relpath(earlier.resolve(), self.target.resolve()),
            "records": len(self),
            "shard_size": self.shard_size,
            "shards": self.shards,
            "fingerprint": hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest(),
            "complete": False,
        }


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
        running = distributed.is_available() and distributed.is_initialized()
        world, rank = (distributed.get_world_size(), distributed.get_rank()) if running else (1, 0)
        super().__init__(range(len(pending)), num_replicas=world, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self.numbers = [number for shard in pending[rank::world] for number in steps[shard]] + [-1]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def run(
    stage: Stage,
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

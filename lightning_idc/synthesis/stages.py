"""What runs in a pipeline: a stage works on batches of records; several of them may make one pass.

A stage is a LightningModule, run by ``trainer.predict(stage, Records(source, target))``, so that devices, nodes,
precision and logging are the Trainer's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from lightning_idc.core.types import PairError
from lightning_idc.synthesis.records import Record, counted
from lightning_idc.synthesis.slots.base import Slot
from lightning_idc.synthesis.store import RecordSource, RecordStore, write_shard


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


class Feed(LightningDataModule, ABC):
    """What a pass asks of the data module that it runs on; `pipeline.Records` is it."""

    target: Path
    """Folder of the store that is made."""

    @property
    @abstractmethod
    def source(self) -> RecordSource:
        """Where the records come from."""

    @abstractmethod
    def complete(self) -> bool:
        """Mark the target as finished if all shards are there, and say whether they are."""


class Pass(LightningModule, ABC):
    """Takes all records of a source once and leaves a store behind: a `Stage`, or a `Chain` of them.

    Args:
        seed: of all random choices, which depend on it and on a record's id.
    """

    reads: tuple[str, ...] = ()
    """Images that are decoded in the loader's workers; a record whose image cannot be read is dropped there."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._made: list[Record] = []

    @abstractmethod
    def work_on(self, records: Sequence[Record]) -> list[Record]:
        """Results of a batch, in order, the dropped records among them."""

    def settings(self) -> dict[str, Any]:
        """What decides the outcome: models, revisions, thresholds. Plain values; kept with every record."""
        return {}

    def finish(self, store: RecordStore) -> None:
        """Called once, by one process, when all shards are there: reports and exports."""

    @property
    def name(self) -> str:
        """As records tell it."""
        return type(self).__name__

    def setup(self, stage: str) -> None:
        """Read the weights of all slots, before the pass is moved to its device."""
        for module in reversed(list(self.modules())):  # a slot within a slot comes first
            if isinstance(module, Slot):
                module.load()

    def on_predict_start(self) -> None:
        self._made = []

    def predict_step(self, batch: Work, batch_idx: int = 0) -> int:
        made = self.work_on(batch.records)
        for record in made:
            record.decoded = {}  # a shard may hold a thousand records; their files are enough
        self._made += made
        if batch.last:
            write_shard(self.feed().target, batch.shard, self._made)
            self._made = []
        return len(batch)

    def on_predict_end(self) -> None:
        feed = self.feed()
        self.trainer.strategy.barrier("shards")
        if self.trainer.is_global_zero and feed.complete():
            store = RecordStore(feed.target)
            kept, reasons = store.counts()
            told = f": {counted(reasons)}" if reasons else ""
            print(f"{self.name}: {kept} records kept, {sum(reasons.values())} dropped{told}", flush=True)
            self.finish(store)
        self.trainer.strategy.barrier("manifest")

    def feed(self) -> Feed:
        """The data module of this run.

        Raises:
            PairError: it is of another kind.
        """
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, Feed):
            raise PairError(
                f"{self.name} is a stage of a pipeline; predict with it on a Records data module, not on {data!r}"
            )
        return data


class Stage(Pass):
    """One step of a pipeline. A subclass writes :meth:`process`, and names the images that it reads.

    Args:
        seed: of all random choices, which depend on it and on a record's id.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._settings: dict[str, Any] | None = None

    @abstractmethod
    def process(self, records: list[Record]) -> Sequence[Record | Sequence[Record]]:
        """Work on records that were not dropped so far: change them, drop them, or make several of one.

        Args:
            records: of one batch; their number differs from batch to batch.

        Returns:
            For each record, in order, the record or the records made of it.
        """

    def slot_settings(self) -> dict[str, Any]:
        """Settings of the models in this stage, by the name of their slot."""
        return {name: slot.settings() for name, slot in self.named_children() if isinstance(slot, Slot)}

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._settings = {"stage": self.name, **self.settings(), "seed": self.seed}

    def work_on(self, records: Sequence[Record]) -> list[Record]:
        """See `Pass`; dropped records stay as they are, every other gets this stage into its history."""
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
        self.reads = tuple(reads)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def settings(self) -> dict[str, Any]:
        return {"function": f"{self.function.__module__}.{self.name}"}

    def process(self, records: list[Record]) -> list[Record | Sequence[Record]]:
        return [self.function(record) for record in records]


class Chain(Pass):
    """Several stages in one pass over the records, with one store at the end instead of one for each.

    All of their models have to fit into memory at once, and a change of one stage's settings makes all of them anew.

    Args:
        stages: in order; the first one's images are read, the others find theirs in the records.
        seed: not used; each stage has its own.
    """

    def __init__(self, stages: list[Pass], seed: int = 0) -> None:
        super().__init__(seed)
        if not stages:
            raise PairError("a chain needs at least one stage")
        self.stages = nn.ModuleList(stages)
        self.reads = stages[0].reads

    @property
    def parts(self) -> list[Pass]:
        """The stages, as what they are."""
        return [part for part in self.stages if isinstance(part, Pass)]

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

    def finish(self, store: RecordStore) -> None:
        for part in self.parts:
            part.finish(store)

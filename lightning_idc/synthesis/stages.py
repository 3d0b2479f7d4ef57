"""What runs in a pipeline: a stage takes batches of records; several of them may make one pass.

A stage is a LightningModule, so that its models are moved and counted like any other, but it needs no Trainer: see
`run.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from lightning_idc.synthesis.models.base import ModelInterface
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.store import RecordSource, RecordStore
from lightning_idc.utils.errors import ConfigError, DataError


class BasePipelineStage(LightningModule, ABC):
    """Takes all records of a source once and leaves a store behind: a `PipelineStage`, or a `Sequential` of them.

    Args:
        seed: of all random choices, which depend on it and on a record's id.
    """

    reads: tuple[str, ...] = ()
    """Images that are decoded ahead, in threads; a record whose image cannot be read is dropped there."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    @abstractmethod
    def transform(self, records: Sequence[Record]) -> list[Record]:
        """Results of a batch, in order, the dropped records among them."""

    def settings(self) -> dict[str, Any]:
        """What decides the outcome: models, revisions, thresholds. Plain values; kept with every record."""
        return {}

    def requirements(self) -> list[str]:
        """Problems that would stop this stage, known before any model is read; see `preflight`."""
        return [problem for part in self.interfaces() for problem in part.requirements()]

    def pixels_per_record(self) -> int:
        """Pixels of the pictures that are written for a record, roughly, to know the disk that a run needs."""
        return 0

    def prepare(self, source: RecordSource) -> None:
        """Called once by each process, before its first batch and after :meth:`setup`."""

    def finish(self, store: RecordStore) -> None:
        """Called once, by one process, when all shards are there: reports and exports."""

    @property
    def name(self) -> str:
        """As records tell it."""
        return type(self).__name__

    @property
    def at_work(self) -> str:
        """Name of the stage that raised an error, where this is several in one."""
        return self.name

    def interfaces(self) -> list[ModelInterface]:
        """All models of this stage; one within another comes first."""
        return [module for module in reversed(list(self.modules())) if isinstance(module, ModelInterface)]

    def setup(self, stage: str) -> None:
        """Read the weights of all models, before the stage is moved to its device."""
        for part in self.interfaces():
            part.load()

    def on_predict_start(self) -> None:
        self._job().attach(self)

    def predict_step(self, batch: int, batch_idx: int = 0) -> int:
        if batch >= 0:  # -1 lets a process without shards take part
            self._job().make(self, batch)
        return batch

    def on_predict_end(self) -> None:
        # no collectives: the shards on disk are the truth, so a long finish lets nobody time out
        job = self._job()
        if self.trainer.limit_predict_batches == 1.0:
            job.make_all(self, job.pending(), wait=self.trainer.is_global_zero)
        if self.trainer.is_global_zero:
            job.finish(self)

    def _job(self) -> Any:
        """`run.Job` of the data module."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "job"):
            raise ConfigError(f"{self.name} is a stage of a pipeline; predict with it on a Records data module")
        return data.job


class PipelineStage(BasePipelineStage):
    """One step of a pipeline. A subclass writes :meth:`process`, and names the images that it reads.

    Args:
        seed: of all random choices, which depend on it and on a record's id.
    """

    @abstractmethod
    def process(self, records: list[Record]) -> Sequence[Record | Sequence[Record]]:
        """Work on records that were not dropped so far: change them, drop them, or make several of one.

        Args:
            records: of one batch; their number differs from batch to batch.

        Returns:
            For each record, in order, the record or the records made of it.
        """

    def model_settings(self) -> dict[str, Any]:
        """Settings of the models in this stage, by the name of their attribute."""
        return {name: part.settings() for name, part in self.named_children() if isinstance(part, ModelInterface)}

    def refuse(self, record: Record, model: ModelInterface) -> None:
        """Drop a record that a model cannot answer about, with the model's reason."""
        reason = model.refusal(record.facts)
        if reason is not None:
            record.drop("unknown to the model", reason)

    def transform(self, records: Sequence[Record]) -> list[Record]:
        """See `BasePipelineStage`; dropped records stay as they are, every other gets this stage into its history."""
        settings = {"stage": self.name, **self.settings(), "seed": self.seed}
        alive = [record.dropped is None for record in records]
        live = [record for record, here in zip(records, alive, strict=True) if here]
        for record in live:
            record.history.append({**settings, "scores": {}})
        made = list(self.process(live)) if live else []
        if len(made) != len(live):
            raise DataError(
                f"{self.name}.process made {len(made)} results of {len(live)} records; expected one for each"
            )
        results: list[Record] = []
        for record, here in zip(records, alive, strict=True):
            result = made.pop(0) if here else record
            results += [result] if isinstance(result, Record) else result
        return results


class MapStage(PipelineStage):
    """A stage that is a plain function of one record.

    Args:
        function: changes or drops a record and returns it, or returns several.
        reads: images that it asks for.
        seed: see `PipelineStage`.
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


class Sequential(BasePipelineStage):
    """Several stages in one pass over the records, with one store at the end instead of one for each.

    All of their models have to fit into memory at once, and a change of one stage's settings makes all of them anew.

    Args:
        stages: in order; the first one's images are read ahead, the others find theirs in the records.
        seed: not used; each stage has its own.
    """

    def __init__(self, stages: list[BasePipelineStage], seed: int = 0) -> None:
        super().__init__(seed)
        if not stages:
            raise ConfigError("a Sequential needs at least one stage")
        self.stages = nn.ModuleList(stages)
        self.reads = stages[0].reads
        self._at_work = stages[0].name

    @property
    def at_work(self) -> str:
        return self._at_work

    @property
    def parts(self) -> list[BasePipelineStage]:
        """The stages, as what they are."""
        return [part for part in self.stages if isinstance(part, BasePipelineStage)]

    def settings(self) -> dict[str, Any]:
        return {"stages": [{"stage": part.name, **part.settings(), "seed": part.seed} for part in self.parts]}

    def requirements(self) -> list[str]:
        return [problem for part in self.parts for problem in part.requirements()]

    def pixels_per_record(self) -> int:
        return sum(part.pixels_per_record() for part in self.parts)

    def setup(self, stage: str) -> None:
        for part in self.parts:
            part.setup(stage)

    def prepare(self, source: RecordSource) -> None:
        for part in self.parts:
            part.prepare(source)

    def transform(self, records: Sequence[Record]) -> list[Record]:
        made = list(records)
        for part in self.parts:
            self._at_work = part.name
            made = part.transform(made)
        return made

    def finish(self, store: RecordStore) -> None:
        for part in self.parts:
            part.finish(store)

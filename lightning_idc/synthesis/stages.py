"""Stages of a pipeline, which process batches of records; `Sequential` combines several stages in one pass.

A stage is a LightningModule, so that its models move between devices like any other, but it needs no Trainer: see
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
    """Processes all records of a source once into a store; base of `PipelineStage` and `Sequential`.

    Args:
        seed: seed of all random choices, combined with the id of a record.
    """

    reads: tuple[str, ...] = ()
    """Names of the images to decode ahead in threads; a record with an unreadable image is dropped."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    @abstractmethod
    def transform(self, records: Sequence[Record]) -> list[Record]:
        """Process a batch and return the results in order, including dropped records."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine results, such as models and thresholds, as plain values."""
        return {}

    def requirements(self) -> list[str]:
        """List problems that would stop this stage, without loading models; see `preflight`."""
        return [problem for part in self.interfaces() for problem in part.requirements()]

    def pixels_per_record(self) -> int:
        """Estimate the number of pixels written per record, to estimate the disk space of a run."""
        return 0

    def prepare(self, source: RecordSource) -> None:
        """Hook that each process calls once, after :meth:`setup` and before its first batch."""

    def finish(self, store: RecordStore) -> None:
        """Hook that one process calls after the last shard, for reports and exports."""

    @property
    def name(self) -> str:
        """Name of the stage in the history of records."""
        return type(self).__name__

    @property
    def running_stage(self) -> str:
        """Name of the stage that is running, for error messages of combined stages."""
        return self.name

    def interfaces(self) -> list[ModelInterface]:
        """List all models of this stage; nested models come before the model that contains them."""
        return [module for module in reversed(list(self.modules())) if isinstance(module, ModelInterface)]

    def setup(self, stage: str) -> None:
        """Load the weights of all models, before the stage moves to its device."""
        for part in self.interfaces():
            part.load()

    def on_predict_start(self) -> None:
        self._job().attach(self)

    def predict_step(self, batch: int, batch_idx: int = 0) -> int:
        if batch >= 0:  # -1 is a step without work for processes without shards
            self._job().process_shard(self, batch)
        return batch

    def on_predict_end(self) -> None:
        # no collectives: processes synchronise through the shards on disk, so that a long finish causes no time-out
        job = self._job()
        if self.trainer.limit_predict_batches == 1.0:
            job.process_shards(self, job.pending(), wait=self.trainer.is_global_zero)
        if self.trainer.is_global_zero:
            job.finish(self)

    def _job(self) -> Any:
        """Return the `run.Job` of the data module."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "job"):
            raise ConfigError(f"{self.name} is a pipeline stage; call Trainer.predict with a Records data module")
        return data.job


class PipelineStage(BasePipelineStage):
    """Single step of a pipeline. A subclass implements :meth:`process` and lists its images in ``reads``.

    Args:
        seed: seed of all random choices, combined with the id of a record.
    """

    @abstractmethod
    def process(self, records: list[Record]) -> Sequence[Record | Sequence[Record]]:
        """Process records that were not dropped: modify them, drop them, or derive several records from one.

        Args:
            records: batch of records; batches vary in size.

        Returns:
            For each record, in order, the record itself or the records derived from it.
        """

    def model_settings(self) -> dict[str, Any]:
        """Collect the settings of the models of this stage by attribute name."""
        return {name: part.settings() for name, part in self.named_children() if isinstance(part, ModelInterface)}

    def drop_unsupported(self, record: Record, model: ModelInterface) -> None:
        """Drop a record that a model does not support, with the model's reason."""
        reason = model.unsupported_reason(record.facts)
        if reason is not None:
            record.drop("not supported by the model", reason)

    def transform(self, records: Sequence[Record]) -> list[Record]:
        """See `BasePipelineStage`; adds this stage to the history of each record that was not dropped before."""
        settings = {"stage": self.name, **self.settings(), "seed": self.seed}
        is_active = [record.dropped is None for record in records]
        active = [record for record, is_alive in zip(records, is_active, strict=True) if is_alive]
        for record in active:
            record.history.append({**settings, "scores": {}})
        processed = list(self.process(active)) if active else []
        if len(processed) != len(active):
            raise DataError(
                f"{self.name}.process returned {len(processed)} results for {len(active)} records; "
                "expected one for each record"
            )
        results: list[Record] = []
        for record, is_alive in zip(records, is_active, strict=True):
            result = processed.pop(0) if is_alive else record
            results += [result] if isinstance(result, Record) else result
        return results


class MapStage(PipelineStage):
    """Stage that applies a function to each record.

    Args:
        function: function that modifies or drops a record and returns it, or returns several records.
        reads: names of the images that the function reads.
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
    """Several stages in one pass over the records, with a single store instead of one per stage.

    All models must fit into memory together, and a change in the settings of one stage requires a new run of all.

    Args:
        stages: stages in order; only the images of the first stage are decoded ahead.
        seed: unused; each stage has its own seed.
    """

    def __init__(self, stages: list[BasePipelineStage], seed: int = 0) -> None:
        super().__init__(seed)
        if not stages:
            raise ConfigError("stages is empty; expected at least one stage")
        self.stages = nn.ModuleList(stages)
        self.reads = stages[0].reads
        self._running_stage = stages[0].name

    @property
    def running_stage(self) -> str:
        return self._running_stage

    @property
    def parts(self) -> list[BasePipelineStage]:
        """The stages, with their type."""
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
        results = list(records)
        for part in self.parts:
            self._running_stage = part.name
            results = part.transform(results)
        return results

    def finish(self, store: RecordStore) -> None:
        for part in self.parts:
            part.finish(store)

"""A record that a stage cannot take costs itself and no other: a batch that fails is halved down to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from lightning_idc.data.store.shards import StoreError
from lightning_idc.synthesis.memory import is_out_of_memory, release_memory
from lightning_idc.synthesis.reading import decoded
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import BasePipelineStage, Sequential
from lightning_idc.utils.errors import ConfigError, DataError

FAILED = "error"
"""Reason of records that were dropped since a stage raised an error."""


class IsolatedStage:
    """A stage that drops the records it fails on, with the error as the reason.

    Args:
        stage: at work.
        read: gives the record at a position anew, since a stage changes records in place.
        seal: ends the work on a result; see `Record.seal`.
        batch_size: of the batches; halved where memory runs out.
    """

    def __init__(
        self,
        stage: BasePipelineStage,
        read: Callable[[int], Record],
        seal: Callable[[Record], None],
        batch_size: int,
    ) -> None:
        self.stage, self.read, self.seal, self.batch_size = stage, read, seal, batch_size
        self.failed: list[Record] = []

    def transform(self, positions: list[int], records: list[Record]) -> list[Record]:
        """Results of a batch, in order.

        Args:
            positions: of the records in their source.
            records: with their images decoded.
        """
        if len(positions) > self.batch_size:  # since memory ran out; these were read before
            return self._parts(positions, self.batch_size)
        try:
            made = self.stage.transform(records)
            for record in made:
                self.seal(record)
            return made
        except (StoreError, ConfigError):
            raise  # no record is the cause, so none is dropped
        except Exception as error:
            failure = error
        if is_out_of_memory(failure):
            release_memory(failure)
            self.batch_size = max(1, len(positions) // 2)
        if len(positions) > 1:
            return self._parts(positions, -(-len(positions) // 2))
        return [self._dropped(self.read(positions[0]), failure)]

    def _parts(self, positions: list[int], size: int) -> list[Record]:
        parts = [positions[start : start + size] for start in range(0, len(positions), size)]
        return [
            result
            for part in parts
            for result in self.transform(part, [decoded(self.read(index), self.stage.reads) for index in part])
        ]

    def _dropped(self, record: Record, failure: Exception) -> Record:
        message = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, KeyError) and failure.args and failure.args[0] not in record.facts:
            known = ", ".join(record.facts) or "none"
            message += (
                f"; the record has no fact {failure} (it has {known}); where that is meant, a stage that writes it has "
                "to run before"
            )
        name = self.stage.at_work
        print(f"{name}: record {record.id} failed and is dropped: {message}", file=sys.stderr, flush=True)
        record.dropped = {"stage": name, "reason": FAILED, "value": message, "limit": "no error"}
        self.seal(record)
        self.failed.append(record)
        return record

    def check_not_all(self, number: int, records: Sequence[Record]) -> None:
        """Refuse a shard of which every record failed that was not dropped before.

        Args:
            number: of the shard.
            records: of the shard.

        Raises:
            DataError: they all did, so that the stage or its settings are the cause.
        """
        names, count = names_of(self.stage), len(self.failed)
        taken = [record for record in records if record.dropped is None or record.dropped["stage"] in names]
        if count == len(taken) > 1:
            raise DataError(f"all {count} records of shard {number} failed in {self.stage.name}; {told(self.failed)}")


def told(failed: Sequence[Record]) -> str:
    """The first of some failures in words."""
    first = failed[0]
    return f"the first is record {first.id}: {first.dropped['value'] if first.dropped else ''}"


def names_of(stage: BasePipelineStage) -> set[str]:
    """Name of a stage and of those that it is made of, as records that they drop tell it."""
    parts = stage.parts if isinstance(stage, Sequential) else []
    return {stage.name}.union(*(names_of(part) for part in parts))

"""Isolate failures: a failing batch is halved until only the failing record is dropped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from lightning_idc.synthesis.memory import is_out_of_memory, release_memory
from lightning_idc.synthesis.reading import with_decoded_images
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import BasePipelineStage
from lightning_idc.utils.errors import ConfigError, StoreError

FAILED = "error"
"""Reason of records that were dropped because a stage raised an error."""


class IsolatedStage:
    """Wrapper of a stage that drops the records on which the stage fails, with the error as the reason.

    Args:
        stage: stage to run.
        read: function that re-reads the record at an index, since a stage modifies records in place.
        seal: function that finalises a result; see `Record.seal`.
        batch_size: largest batch; halved if memory runs out.
    """

    def __init__(
        self,
        stage: BasePipelineStage,
        read: Callable[[int], Record],
        seal: Callable[[Record], None],
        batch_size: int,
    ) -> None:
        self.stage, self.read, self.seal, self.batch_size = stage, read, seal, batch_size
        self.num_active = 0
        """Number of processed records that earlier stages did not drop."""
        self.failed: list[Record] = []

    def transform(self, indices: list[int], records: Sequence[Record]) -> list[Record]:
        """Process a batch and return the results in order.

        Args:
            indices: indices of the records in their source.
            records: records with decoded images.
        """
        self.num_active += sum(record.dropped is None for record in records)
        return self._transform(indices, records)

    def _transform(self, indices: list[int], records: Sequence[Record]) -> list[Record]:
        if len(indices) > self.batch_size:  # the batch size was reduced after these were read
            return self._in_parts(indices, self.batch_size)
        try:
            results = self.stage.transform(records)
            for record in results:
                self.seal(record)
            return results
        except (StoreError, ConfigError):
            raise  # not caused by a record, so no record may be dropped
        except Exception as error:
            failure = error
        if is_out_of_memory(failure):
            release_memory(failure)
            self.batch_size = max(1, len(indices) // 2)
        if len(indices) > 1:
            return self._in_parts(indices, -(-len(indices) // 2))
        return [self._drop(self.read(indices[0]), failure)]

    def _in_parts(self, indices: list[int], size: int) -> list[Record]:
        parts = [indices[start : start + size] for start in range(0, len(indices), size)]
        return [
            result
            for part in parts
            for result in self._transform(
                part, [with_decoded_images(self.read(index), self.stage.reads) for index in part]
            )
        ]

    def _drop(self, record: Record, failure: Exception) -> Record:
        name, message = self.stage.running_stage, f"{type(failure).__name__}: {failure}"
        print(f"{name}: record {record.id} failed and is dropped: {message}", file=sys.stderr, flush=True)
        record.dropped = {"stage": name, "reason": FAILED, "value": message, "limit": "no error"}
        self.seal(record)
        self.failed.append(record)
        return record

    @property
    def first_failure(self) -> str:
        """Description of the first failed record and its error, for messages."""
        first = self.failed[0]
        return f"the first is record {first.id}: {first.dropped['value'] if first.dropped else ''}"

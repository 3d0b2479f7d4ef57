"""RecordMetric: a torchmetrics Metric whose state is captions and references, gathered from all processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from lightning_idc.metrics.captions import References

T = TypeVar("T")


class RecordMetric(Metric):
    """Collects records (JSON objects), gathers them over processes, and computes once for all processes.

    A corpus score cannot be averaged over processes, since CIDEr-D weighs words by all references. Therefore captions
    are gathered, and the first process scores them.
    """

    full_state_update = False
    payload: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # validation scores the same references after every epoch
        self._prepared: tuple[dict[str, list[str]], References] | None = None
        # torchmetrics gathers only tensors, so records are stored as bytes, one JSON document per line
        self.add_state("payload", default=[], dist_reduce_fx="cat")

    def sync(self, *args: Any, **options: Any) -> None:
        """Gather over processes; a process without records sends no bytes instead of torchmetrics' float tensor."""
        if isinstance(self.payload, list) and not self.payload:
            self.payload.append(torch.zeros(0, dtype=torch.uint8, device=self.device))
        super().sync(*args, **options)

    def append(self, lines: Iterable[str]) -> None:
        """Add records, each a JSON document without line breaks."""
        text = "".join(f"{line}\n" for line in lines)
        # frombuffer rejects an empty buffer
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.zeros(0).byte()
        self.payload.append(data.to(self.device))

    def collected(self) -> list[Any]:
        """All records in the order of processes and updates; before synchronisation those of this process."""
        parts = self.payload if isinstance(self.payload, list) else [self.payload]
        # `set_dtype` of a collection converts the bytes, too
        data = b"".join(bytes(part.cpu().to(torch.uint8).numpy()) for part in parts)
        return [json.loads(line) for line in data.splitlines()]

    def prepare(self, references: Mapping[str, list[str]]) -> References:
        """Tokenised references, cached until the references change."""
        if self._prepared is None or self._prepared[0] != references:
            self._prepared = dict(references), References(references)
        return self._prepared[1]

    def once(self, compute: Callable[[], T]) -> T:
        """Result of ``compute``, which only the first of several synchronised processes calls.

        Raises:
            Exception: ``compute`` failed, raised in every process.
        """
        if not self._is_synced:
            return compute()
        outcome: list[Any] = [None]
        first = 0 if self.process_group is None else dist.get_global_rank(self.process_group, 0)
        if dist.get_rank() == first:
            try:
                outcome = [compute()]
            except Exception as error:  # the other processes wait for the broadcast
                outcome = [error]
        dist.broadcast_object_list(outcome, src=first, group=self.process_group)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        result: T = outcome[0]
        return result

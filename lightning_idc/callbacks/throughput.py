"""Throughput: inference speed of a trained captioner, in generated tokens and in pairs a second."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_idc.images.types import PairBatch
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.utils.bounds import NonNegativeInt, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

T = TypeVar("T")


class Throughput(Callback):
    """Measures the inference speed of a captioner on batches of the test split.

    After a batch of the test it encodes and decodes the same batch once more and takes the time of both, so that the
    computation of losses and scores does not count. Decoding is that of the captioner (``num_beams``). The batches are
    on the device already; reading and preparing images does not count either. Logged as

    - ``test/tokens_per_second`` and ``test/pairs_per_second``: encoding and decoding,
    - ``test/decoding_tokens_per_second`` and ``test/decoding_pairs_per_second``: decoding alone.

    The tokens are the generated ones, the end token included. Of several processes the numbers of tokens and pairs are
    added, and the longest time counts.

    Args:
        batches: maximum number of batches that are measured on each process.
        warmup: number of batches before them, which allocate memory and choose kernels.

    Raises:
        ConfigError: a number is out of range, or the model is not a PairCaptioner.
    """

    def __init__(self, batches: PositiveInt = 20, warmup: NonNegativeInt = 2) -> None:
        check_arguments(Throughput.__init__, locals())
        self.batches, self.warmup = batches, warmup

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"Throughput needs a PairCaptioner, not a {type(pl_module).__name__}")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.num_tokens = self.num_pairs = 0
        self.encoding_seconds = self.decoding_seconds = 0.0

    @torch.no_grad()
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: PairBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # also during the warm-up, whose batches are not counted
        if batch_idx >= self.warmup + self.batches:
            return
        assert isinstance(pl_module, PairCaptioner)
        features, encoding = timed(pl_module.device, lambda: pl_module.encode(batch))
        decoded, decoding = timed(pl_module.device, lambda: pl_module.decoder.search(features))
        if batch_idx < self.warmup:
            return
        self.encoding_seconds += encoding
        self.decoding_seconds += decoding
        self.num_tokens += sum(map(len, decoded.ids))
        self.num_pairs += len(batch)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        local = (self.num_tokens, self.num_pairs, self.encoding_seconds + self.decoding_seconds, self.decoding_seconds)
        tokens, pairs, seconds, decoding = zip(*all_gather_object(local), strict=True)
        if not sum(pairs):
            rank_zero_warn(
                f"Throughput measured nothing: the test has at most {self.warmup} batches, which are the warm-up; "
                "lower `warmup`, or test more pairs"
            )
            return
        rates = {
            "tokens_per_second": sum(tokens) / max(seconds),
            "pairs_per_second": sum(pairs) / max(seconds),
            "decoding_tokens_per_second": sum(tokens) / max(decoding),
            "decoding_pairs_per_second": sum(pairs) / max(decoding),
        }
        for name, rate in rates.items():
            pl_module.log(f"test/{name}", rate, sync_dist=True)


def timed(device: torch.device, function: Callable[[], T]) -> tuple[T, float]:
    """Result of a function, and its seconds until the device is idle."""
    synchronize(device)
    start = perf_counter()
    result = function()
    synchronize(device)
    return result, perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until a GPU is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

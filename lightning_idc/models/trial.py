"""trial_features: the features of one batch before training, for callbacks that need their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.models.captioner import PairCaptioner


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Set a module to eval mode; afterwards each of its modules has its previous mode."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode


@torch.no_grad()
def trial_features(captioner: PairCaptioner, batch: PairBatch) -> PairFeatures:
    """Features of a batch in eval mode; running statistics and the mode of every module are unchanged.

    Args:
        captioner: a captioner whose network is built.
        batch: on any device.
    """
    # captioner.device names the accelerator before Lightning moves the weights there
    device = next(captioner.parameters()).device
    with in_eval_mode(captioner):
        return captioner.encode(batch.to(device))

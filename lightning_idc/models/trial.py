"""Features of a pair before training, to learn what shapes a captioner makes."""

from __future__ import annotations

import torch

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.models.captioner import PairCaptioner


@torch.no_grad()
def trial_features(host: PairCaptioner, batch: PairBatch) -> PairFeatures:
    """Features of a batch as at evaluation; running statistics, and the mode of every module, stay as they are.

    Args:
        host: with its network.
        batch: on any device.
    """
    modes = {module: module.training for module in host.modules()}
    host.eval()
    # host.device names the accelerator before Lightning moves the weights there
    device = next(host.parameters()).device
    try:
        return host.encode(batch.to(device))
    finally:
        for module, mode in modes.items():
            module.training = mode

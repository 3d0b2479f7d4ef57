"""trial_features: the features of one batch before training, for callbacks that need their shapes."""

from __future__ import annotations

import torch

from lightning_idc.images.types import PairBatch, PairFeatures
from lightning_idc.models.captioner import PairCaptioner


@torch.no_grad()
def trial_features(captioner: PairCaptioner, batch: PairBatch) -> PairFeatures:
    """Features of a batch in eval mode; running statistics and the mode of every module are unchanged.

    Args:
        captioner: a captioner whose network is built.
        batch: on any device.
    """
    modes = {module: module.training for module in captioner.modules()}
    captioner.eval()
    # captioner.device names the accelerator before Lightning moves the weights there
    device = next(captioner.parameters()).device
    try:
        return captioner.encode(batch.to(device))
    finally:
        for module, mode in modes.items():
            module.training = mode

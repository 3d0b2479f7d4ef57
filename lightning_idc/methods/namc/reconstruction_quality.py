"""ReconstructionQuality: PSNR and SSIM of the patches that MIR reconstructs (NAMC, appendix A and Table 9)."""

from __future__ import annotations

from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.namc.reconstruction import ImageTokens, MaskedReconstructionAddon
from lightning_idc.models.addon import AUX, AddonSteps, TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict
from lightning_idc.utils.errors import CheckpointError, ConfigError

COMPARISONS = ("mir_vqgan", "vqgan_raw", "mir_raw")
"""MIR's reconstruction against the tokenizer's, the tokenizer's against the image, and MIR's against the image."""


class ReconstructionQuality(Callback):
    """Logs PSNR and SSIM of masked patches at validation, as in Table 9: ``val/mir_vqgan/psnr`` and so on.

    An image is decoded from the predicted ids of masked cells and the true ids of all others. Both scores are computed
    over the pixels of masked cells of an image and averaged over images. The paper does not state the pixels.

    Args:
        of: name of the `MaskedReconstruction`, whose target must be an image tokenizer.

    Raises:
        CheckpointError: the checkpoint has no weights of the `MaskedReconstruction`.
    """

    def __init__(self, of: str = "masked_reconstruction") -> None:
        self.of = of
        self._scores: dict[str, Tensor] = {}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        has_weights = any(name.startswith(f"{AUX}.{self.of}.") for name in checkpoint["state_dict"])
        if trainer.validating and not has_weights:
            raise CheckpointError(
                f"{trainer.ckpt_path} holds no weights of {self.of!r}, so an untrained one would be measured; use a "
                "checkpoint that was trained with MaskedReconstruction, or leave ReconstructionQuality out"
            )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._scores = {}

    @torch.no_grad()
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        addon = addons_of(pl_module).get(self.of)
        if not isinstance(addon, MaskedReconstructionAddon) or not isinstance(addon.target, ImageTokens):
            raise ConfigError(
                f"ReconstructionQuality needs a MaskedReconstruction with a tokenizer called {self.of!r}; add one to "
                f"the callbacks, or leave ReconstructionQuality out"
            )
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"ReconstructionQuality measures a PairCaptioner; this is a {type(pl_module).__name__}")
        assert isinstance(batch, PairBatch)
        steps = AddonSteps(pl_module, batch, batch_idx)
        steps.change_features(pl_module.encode(steps.change_batch()))
        tokens, _, masked = addon.encode_masked(cast(TrainingStep[PairCaptioner], steps.contexts[self.of]))
        images = batch.images.flatten(0, 1)
        true_ids, per_side = addon.target.true_ids(images), addon.target.per_side  # (2B, h, w)
        id_mask = masked.unflatten(1, addon.grid).repeat_interleave(per_side, 1).repeat_interleave(per_side, 2)
        rebuilt_ids = torch.where(id_mask, addon.target.predicted_ids(tokens, addon.grid), true_ids)
        mir, vqgan, raw = addon.target.decode(rebuilt_ids), addon.target.decode(true_ids), images / 255
        pixel_mask = torch.nn.functional.interpolate(id_mask[:, None].float(), raw.shape[-2:]).bool()[:, 0]
        comparisons = ((mir, vqgan), (vqgan, raw), (mir, raw))
        scores = torch.stack([masked_quality(*pair, pixel_mask) for pair in comparisons], 1)  # (2B, 3, 2)
        has_mask = pixel_mask.flatten(1).any(1).unflatten(0, (-1, 2))  # (B, 2)
        rows = zip(batch.ids, scores.unflatten(0, (-1, 2)), has_mask, strict=True)
        self._scores |= {id: pair_scores[mask].cpu() for id, pair_scores, mask in rows}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        means = torch.cat(list(all_gather_dict(self._scores).values())).mean(0)
        for name, (psnr, ssim) in zip(COMPARISONS, means.tolist(), strict=True):
            pl_module.log_dict({f"val/{name}/psnr": psnr, f"val/{name}/ssim": ssim}, sync_dist=True)


def masked_quality(prediction: Tensor, target: Tensor, masked: Tensor) -> Tensor:
    """PSNR and SSIM over masked pixels, ``(N, 2)``.

    Args:
        prediction: images ``(N, 3, H, W)`` with values from 0 to 1.
        target: images ``(N, 3, H, W)`` with values from 0 to 1.
        masked: bool ``(N, H, W)``, True at pixels that count.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    count = masked.flatten(1).sum(1).clamp(min=1)
    error = ((prediction - target).square().mean(1) * masked).flatten(1).sum(1) / count
    _, similarity = structural_similarity_index_measure(prediction, target, data_range=1.0, return_full_image=True)
    ssim = (similarity.mean(1) * masked).flatten(1).sum(1) / count
    return torch.stack([-10 * error.clamp(min=1e-10).log10(), ssim], 1)

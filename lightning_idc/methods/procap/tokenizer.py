"""TokenizerTraining: trains the image tokenizer, a VQGAN with a codebook, on the images of any pairs.

One training step (:meth:`TokenizerTraining.reconstruct`):

1. encode the images and replace each cell by its nearest codebook entry (straight-through gradient),
2. decode them and compute reconstruction, codebook and commitment losses, and
3. every ``revive_every`` steps, move unused codebook entries to features of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from lightning_idc.models.distributed import is_distributed
from lightning_idc.models.module import PairModule
from lightning_idc.models.pretraining.cell_classification import cell_accuracy, check_labels, naming_loss
from lightning_idc.nn.image_tokenizer import CONFIG_KEY, ImageTokenizer, as_pixels, load_image_tokenizer
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, TwoOrMore, check_arguments
from lightning_idc.utils.errors import DataError


class TokenizerNet(nn.Module):
    """An image tokenizer in training, and the heads that are trained with it."""

    def __init__(self, tokenizer: ImageTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer


class TokenizerTraining(PairModule):
    """Trains an :class:`~lightning_idc.nn.image_tokenizer.ImageTokenizer` to reconstruct images from their ids.

    The loss is the absolute error of pixels plus the codebook loss and the commitment loss (Esser et al. 2021, Eq. 4,
    without its perceptual and adversarial terms, which need a pretrained network and hours of training).

    Args:
        codebook_size: number of codebook entries.
        latent: width of a codebook entry.
        width: channels of the finest level.
        multipliers: channels of each level as multiples of ``width``.
        blocks: number of residual blocks per level.
        patch_size: side of the patches of pixels that are merged into channels first.
        attention: whether the coarsest level has attention among its cells.
        commitment: weight of the commitment loss.
        squared: weight of the squared error of pixels; the absolute error alone may ignore small objects.
        start: checkpoint of a tokenizer with the initial weights; its sizes replace those above.
        revive_every: number of steps between two resets of unused codebook entries; 0 for no resets.
        options: further arguments of :class:`~lightning_idc.models.module.PairModule`.
    """

    vision_modules = ("net",)
    not_stored = ("start",)
    code_counts: Tensor
    val_code_counts: Tensor

    def __init__(
        self,
        codebook_size: PositiveInt = 1024,
        latent: PositiveInt = 256,
        width: PositiveInt = 128,
        multipliers: Sequence[PositiveInt] = (1, 1, 2, 2, 4),
        blocks: PositiveInt = 2,
        patch_size: PositiveInt = 1,
        attention: bool = False,
        commitment: NonNegativeFloat = 0.25,
        squared: NonNegativeFloat = 0.0,
        start: str | None = None,
        revive_every: NonNegativeInt = 50,
        **options: Any,
    ) -> None:
        check_arguments(TokenizerTraining.__init__, locals())
        super().__init__(**options)
        self._start = start
        self.build()
        self.commitment, self.squared, self.revive_every = commitment, squared, revive_every
        self._revived_in = -1
        self.register_buffer("code_counts", torch.zeros(self.tokenizer.codebook_size, dtype=torch.long))
        self.register_buffer(
            "val_code_counts", torch.zeros(self.tokenizer.codebook_size, dtype=torch.long), persistent=False
        )

    def on_train_start(self) -> None:
        super().on_train_start()
        self._revived_in = -1  # step numbers start again in each run

    def make_net(self) -> TokenizerNet:
        if self._start is not None:
            tokenizer = load_image_tokenizer(self._start).requires_grad_(True).train()
        else:
            names = ("codebook_size", "latent", "width", "multipliers", "blocks", "patch_size", "attention")
            tokenizer = ImageTokenizer(**{name: self.hparams[name] for name in names})
        self.store_hparams(**tokenizer.config)  # a tokenizer of `start` has its own sizes
        return TokenizerNet(tokenizer)

    @property
    def tokenizer(self) -> ImageTokenizer:
        """The image tokenizer in training."""
        tokenizer: ImageTokenizer = self.built_net.tokenizer
        return tokenizer

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        return self.reconstruct(batch["images"].flatten(0, 1))[0]

    def reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of uint8 images ``(N, 3, H, W)``, and their encoder features ``(N, latent, h, w)``."""
        pixels = self._pixels(images)
        features = self.tokenizer.features(pixels)
        quantized = self.tokenizer.code(features)
        reconstructed = self.tokenizer.pixels_of(quantized.vectors)
        reconstruction = F.l1_loss(reconstructed, pixels) + self.squared * F.mse_loss(reconstructed, pixels)
        loss = reconstruction + quantized.codebook_loss + self.commitment * quantized.commitment_loss
        self._count(quantized.ids, self.code_counts)
        # once per optimizer step, whatever the number of accumulated batches
        if self.revive_every and (step := self.global_step + 1) % self.revive_every == 0 and step != self._revived_in:
            self._revived_in = step
            self._revive(self.tokenizer.quant_conv(features.detach()).detach())
        return loss, features

    def _pixels(self, images: Tensor) -> Tensor:
        """Pixels of uint8 images in the precision of the weights."""
        return as_pixels(images, self.tokenizer.codebook.weight.dtype)

    def _count(self, ids: Tensor, counts: Tensor) -> None:
        """Add the number of occurrences of each id, on all processes, to ``counts``."""
        new_counts = torch.bincount(ids.flatten(), minlength=len(counts))
        if is_distributed():
            distributed.all_reduce(new_counts)
        counts += new_counts

    @torch.no_grad()
    def _revive(self, z: Tensor) -> None:
        """Replace unused codebook entries by random cells of ``z (N, latent, h, w)``, equal on all processes."""
        unused = (self.code_counts == 0).nonzero()[:, 0]
        cells = z.movedim(1, -1).flatten(0, -2)  # (N h w, latent)
        new_entries = cells[torch.randint(len(cells), (len(unused),), device=cells.device)]
        if is_distributed():
            distributed.broadcast(new_entries, 0)
        entries = self.tokenizer.codebook.weight
        entries[unused] = new_entries.to(entries.dtype)  # under autocast, cells differ in precision from weights
        self.code_counts.zero_()

    def on_validation_epoch_start(self) -> None:
        self.val_code_counts.zero_()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.measure(batch["images"].flatten(0, 1))

    def measure(self, images: Tensor) -> None:
        """Log PSNR and SSIM of uint8 images ``(N, 3, H, W)`` reconstructed from their ids."""
        from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

        ids = self.tokenizer.encode(images)
        self._count(ids, self.val_code_counts)
        reconstructed, target = self.tokenizer.decode(ids).float(), images.float() / 255
        scores = {
            # PSNR of each image, averaged over images, as is usual
            "val/psnr": peak_signal_noise_ratio(reconstructed, target, data_range=1.0, dim=(1, 2, 3)),
            "val/ssim": structural_similarity_index_measure(reconstructed, target, data_range=1.0),
        }
        self.log_dict(scores, prog_bar=True, sync_dist=True, batch_size=len(images))  # type: ignore[arg-type]

    def on_validation_epoch_end(self) -> None:
        frequency = self.val_code_counts.double() / self.val_code_counts.sum().clamp(min=1)
        self.log("val/codes_used", (frequency > 0).float().mean(), sync_dist=True)
        self.log("val/code_perplexity", torch.special.entr(frequency).sum().exp().float(), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CONFIG_KEY] = self.tokenizer.config


class NamingTokenizer(TokenizerTraining):
    """An image tokenizer whose features also classify the object in each cell.

    These features are the only input of the captioner. A VQGAN trained on millions of photographs represents objects; a
    tokenizer trained on a few thousand images represents colors and edges. Labels of cells (from a renderer or a
    detector) compensate for that, as ``ObjectNaming`` does for PairTransformer's backbone. Batches are
    ``(images uint8 (N, 3, H, W), cells int64 (N, A, h, w))``; label 0 is an empty cell, -100 an unknown label.

    Args:
        classes: number of classes of each of the A attributes, the class "empty" included.
        naming: weight of the classification loss, a sum over attributes.
        options: further arguments of :class:`TokenizerTraining`.
    """

    def __init__(
        self, classes: Sequence[TwoOrMore] = (3, 9, 3, 4), naming: NonNegativeFloat = 1.0, **options: Any
    ) -> None:
        check_arguments(NamingTokenizer.__init__, locals())
        super().__init__(**options)
        self.classes, self.naming = list(classes), naming

    def make_net(self) -> TokenizerNet:
        net = super().make_net()
        net.head = nn.Conv2d(net.tokenizer.latent, sum(self.hparams["classes"]), 1)
        return net

    @property
    def head(self) -> nn.Module:
        """Classifier of cells."""
        head: nn.Module = self.built_net.head
        return head

    def class_logits(self, features: Tensor) -> list[Tensor]:
        """Logits ``(N, classes, h, w)`` of each attribute, from encoder features ``(N, latent, h, w)``."""
        return list(self.head(features).split(self.classes, 1))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        check_labels(batch[1], self.classes)
        return batch

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        images, cells = batch
        loss, features = self.reconstruct(images)
        logits = self.class_logits(features)
        if cells.shape[1] != len(logits) or cells.shape[-2:] != features.shape[-2:]:
            raise DataError(
                f"the labels have {cells.shape[1]} attributes of {cells.shape[-2]}x{cells.shape[-1]} cells; the "
                f"tokenizer has {len(logits)} and {features.shape[-2]}x{features.shape[-1]}; set `classes`, and the "
                "data module's `grid`"
            )
        return loss + self.naming * naming_loss(logits, cells)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, cells = batch
        self.measure(images)
        logits = self.class_logits(self.tokenizer.features(self._pixels(images)))
        accuracy, count = cell_accuracy(logits, cells)
        self.log("val/cells_named", accuracy, prog_bar=True, sync_dist=True, batch_size=count)

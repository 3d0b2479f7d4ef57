"""TokenizerTraining: the image tokenizer, learned from any pairs of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from lightning_idc.models.distributed import is_distributed
from lightning_idc.models.module import PairModule
from lightning_idc.models.pretraining.cell_classification import cells_named, naming_loss, refuse_other_labels
from lightning_idc.nn.image_tokenizer import CONFIG_KEY, ImageTokenizer, as_pixels, load_image_tokenizer
from lightning_idc.utils.errors import DataError


class TokenizerNet(nn.Module):
    """An image tokenizer that is trained, with what else is trained beside it."""

    def __init__(self, tokenizer: ImageTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer


class TokenizerTraining(PairModule):
    """Trains an :class:`~lightning_idc.nn.image_tokenizer.ImageTokenizer` to give images back from their ids.

    The loss is L1 on pixels plus the codebook's and the commitment loss (Esser et al. 2021, eq. 4, without its
    perceptual and adversarial terms: they need a pretrained network and hours).

    Args:
        codebook_size: number of entries.
        latent: width of an entry.
        width: channels of the finest level.
        multipliers: channels of each level as multiples of ``width``.
        blocks: residual blocks per level.
        fold: pixels per side folded into channels first.
        attention: attention among the cells of the coarsest level.
        commitment: weight of the commitment loss.
        squared: weight of the squared error of pixels beside the absolute one, which may leave out what is small.
        start: checkpoint with a tokenizer to go on from, whose sizes count instead of those above.
        revive_every: steps after which entries that nothing chose meanwhile move to cells of the batch; 0 leaves them.
        options: of :class:`~lightning_idc.models.module.PairModule`.
    """

    vision_modules = ("net",)
    chosen: Tensor
    val_chosen: Tensor

    def __init__(
        self,
        codebook_size: int = 1024,
        latent: int = 256,
        width: int = 128,
        multipliers: Sequence[int] = (1, 1, 2, 2, 4),
        blocks: int = 2,
        fold: int = 1,
        attention: bool = False,
        commitment: float = 0.25,
        squared: float = 0.0,
        start: str | None = None,
        revive_every: int = 50,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # what was loaded describes itself, and a checkpoint must not ask for the file again
        self._start: str | None = self.hparams.pop("start")
        self.build()
        self.commitment, self.squared, self.revive_every = commitment, squared, revive_every
        self._revived_in = -1
        self.register_buffer("chosen", torch.zeros(self.tokenizer.codebook_size, dtype=torch.long))
        self.register_buffer(
            "val_chosen", torch.zeros(self.tokenizer.codebook_size, dtype=torch.long), persistent=False
        )

    def on_train_start(self) -> None:
        super().on_train_start()
        self._revived_in = -1  # steps of an earlier run have the same numbers

    def make_net(self) -> TokenizerNet:
        if self._start is not None:
            tokenizer = load_image_tokenizer(self._start).requires_grad_(True).train()
        else:
            names = ("codebook_size", "latent", "width", "multipliers", "blocks", "fold", "attention")
            tokenizer = ImageTokenizer(**{name: self.hparams[name] for name in names})
        self.hparams.update(tokenizer.config)
        return TokenizerNet(tokenizer)

    @property
    def tokenizer(self) -> ImageTokenizer:
        """The tokenizer."""
        found: ImageTokenizer = self.built_net.tokenizer
        return found

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        return self.reconstruct(batch["images"].flatten(0, 1))[0]

    def reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of uint8 images ``(N, 3, H, W)``, and the encoder's features of them."""
        pixels = self._pixels(images)
        features = self.tokenizer.features(pixels)
        coded = self.tokenizer.code(features)
        given = self.tokenizer.pixels_of(coded.vectors)
        reconstruction = F.l1_loss(given, pixels) + self.squared * F.mse_loss(given, pixels)
        loss = reconstruction + coded.codebook_loss + self.commitment * coded.commitment_loss
        self._count(coded.ids, self.chosen)
        # once in a step: of the batches that it may accumulate each is too few to say what nothing chooses
        if self.revive_every and (step := self.global_step + 1) % self.revive_every == 0 and step != self._revived_in:
            self._revived_in = step
            self._revive(self.tokenizer.to_code(features.detach()).detach())
        return loss, features

    def _pixels(self, images: Tensor) -> Tensor:
        """Pixels of uint8 images in the precision of the weights."""
        return as_pixels(images, self.tokenizer.codebook.weight.dtype)

    def _count(self, ids: Tensor, into: Tensor) -> None:
        counts = torch.bincount(ids.flatten(), minlength=len(into))
        if is_distributed():
            distributed.all_reduce(counts)
        into += counts

    @torch.no_grad()
    def _revive(self, z: Tensor) -> None:
        """Move entries that nothing chose to cells of this batch; the same ones on all processes."""
        unused = (self.chosen == 0).nonzero()[:, 0]
        cells = z.movedim(1, -1).flatten(0, -2)
        moved = cells[torch.randint(len(cells), (len(unused),), device=cells.device)]
        if is_distributed():
            distributed.broadcast(moved, 0)
        entries = self.tokenizer.codebook.weight
        entries[unused] = moved.to(entries.dtype)  # autocast computes cells in another precision than it keeps weights
        self.chosen.zero_()

    def on_validation_epoch_start(self) -> None:
        self.val_chosen.zero_()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.measure(batch["images"].flatten(0, 1))

    def measure(self, images: Tensor) -> None:
        """Log how well uint8 images ``(N, 3, H, W)`` come back from their ids."""
        from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

        ids = self.tokenizer.encode(images)
        self._count(ids, self.val_chosen)
        given, truth = self.tokenizer.decode(ids).float(), images.float() / 255
        scores = {
            # a mean over images of the logarithm, as PSNR is reported
            "val/psnr": peak_signal_noise_ratio(given, truth, data_range=1.0, dim=(1, 2, 3)),
            "val/ssim": structural_similarity_index_measure(given, truth, data_range=1.0),
        }
        self.log_dict(scores, prog_bar=True, sync_dist=True, batch_size=len(images))  # type: ignore[arg-type]

    def on_validation_epoch_end(self) -> None:
        share = self.val_chosen.double() / self.val_chosen.sum().clamp(min=1)
        self.log("val/codes_used", (share > 0).float().mean(), sync_dist=True)
        self.log("val/code_perplexity", torch.special.entr(share).sum().exp().float(), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CONFIG_KEY] = self.tokenizer.config


class NamingTokenizer(TokenizerTraining):
    """An image tokenizer whose features also name the object in each cell.

    The captioner sees nothing but these features. VQGAN's, trained on millions of photographs, know objects; those of
    a tokenizer that has only given a few thousand images back know colors and edges. Labels of the cells (a
    renderer's, or a detector's) make up for it, as ``ObjectNaming`` does for PairTransformer's backbone. Batches are
    ``(images uint8 (N, 3, H, W), cells int64 (N, A, h, w))``; label 0 says that nothing stands in the cell, -100 that
    it is unknown.

    Args:
        classes: number of classes of each of the A attributes, "nothing here" included.
        naming: weight of the naming loss, a sum over attributes.
        options: of :class:`TokenizerTraining`.
    """

    def __init__(self, classes: Sequence[int] = (3, 9, 3, 4), naming: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.classes, self.naming = list(classes), naming

    def make_net(self) -> TokenizerNet:
        net = super().make_net()
        net.head = nn.Conv2d(net.tokenizer.latent, sum(self.hparams["classes"]), 1)
        return net

    @property
    def head(self) -> nn.Module:
        """What names cells."""
        found: nn.Module = self.built_net.head
        return found

    def names(self, features: Tensor) -> list[Tensor]:
        """Logits per attribute, ``(N, classes, h, w)``, of the encoder's features."""
        return list(self.head(features).split(self.classes, 1))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        refuse_other_labels(batch[1], self.classes)
        return batch

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        images, cells = batch
        loss, features = self.reconstruct(images)
        logits = self.names(features)
        if cells.shape[1] != len(logits) or cells.shape[-2:] != features.shape[-2:]:
            raise DataError(
                f"the labels name {cells.shape[1]} attributes of {cells.shape[-2]}x{cells.shape[-1]} cells; the "
                f"tokenizer has {len(logits)} and {features.shape[-2]}x{features.shape[-1]}; set `classes`, and the "
                "data module's `grid`"
            )
        return loss + self.naming * naming_loss(logits, cells)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, cells = batch
        self.measure(images)
        logits = self.names(self.tokenizer.features(self._pixels(images)))
        right, count = cells_named(logits, cells)
        self.log("val/cells_named", right, prog_bar=True, sync_dist=True, batch_size=count)

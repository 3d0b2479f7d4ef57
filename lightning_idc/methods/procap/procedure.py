"""ProCap, first stage: explicit procedure modelling by masked reconstruction (section 3.1).

One training step:

1. :meth:`ProcedureModel.collate` samples k keyframes of each procedure (Eq. 2 and 3, ``keyframes.py``), a mask
   (Eq. 13 to 17, ``masks.py``), a broken procedure (Eq. 18 to 20, ``warps.py``) and a negative caption,
2. :meth:`ProcedureModel.encode` encodes each sample three times in one pass (Eq. 4, ``procedure_net.py``): unchanged,
   with the negative caption, and with the broken procedure,
3. :meth:`ProcedureModel.losses` computes the losses of masked sequence modelling, alignment and consistency
   (Eq. 6 to 8), and
4. :meth:`ProcedureModel.training_loss` is their weighted sum (Eq. 5).

Shapes: B pairs, F = k + 2 frames, n patches per frame, D channels of tokens, T words.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.methods.procap.keyframes import CLIP_SCALE, Keyframes, Similarities
from lightning_idc.methods.procap.losses import (
    captions_of_others,
    discrimination_loss,
    masked_sequence_loss,
    mean_consistency_loss,
)
from lightning_idc.methods.procap.masks import PROBABILITIES, RULES, MaskRule, multi_granularity_mask
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.procedure_net import (
    ProcedureNet,
    ProcedureReader,
)
from lightning_idc.methods.procap.stages import (
    frames_of_other_images,
    image_size_of,
    start_from_clip,
    tokenizer_of,
)
from lightning_idc.methods.procap.warps import shifted_color, warp
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.schedules import Warmup
from lightning_idc.nn.image_tokenizer import CONFIG_KEY
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, ShareBelowOne, check_arguments
from lightning_idc.utils.errors import ConfigError, DataError


@dataclass(frozen=True)
class WarmupHold(Warmup):
    """Linear warm-up, then constant; in the paper from 1e-6 to 1e-4 in 5,000 steps.

    Args:
        warmup: fraction of the run that is warm-up.
        start: multiplier at the first step.
    """

    warmup: float = 0.025
    start: float = 0.01

    def __call__(self, progress: float) -> float:
        return self.start + (1 - self.start) * min(1.0, progress / max(self.warmup, 1e-12))


class ProcedureModel(PairCaptioner):
    """Reconstructs masked frames of a procedure from its caption, and classifies procedures as intact or broken.

    It reads captions and does not generate them; its encoder initialises the second stage. The functions and networks
    named by the class attributes are those of the paper;
    :class:`~lightning_idc.methods.procap.official.module.OfficialProcedureModel` has those of the authors' code.

    Args:
        procedures: folder of ``FrameInterpolator`` with all pairs of the splits in use.
        tokenizer: checkpoint of ``TokenizerTraining``.
        keyframes: k, number of frames to sample from a procedure each time a pair is loaded.
        scale: factor of the similarities in Eq. 2; unused for a mix of similarities.
        encoder_init: file of OpenAI's CLIP weights, whose first visual blocks initialise the layers.
        width: width of the encoder.
        layers: number of layers of the encoder.
        heads: number of attention heads of the encoder.
        dropout: dropout probability.
        loss_weights: weights of masked sequence modelling, alignment and consistency; ``default_loss_weights`` when
            None.
        mask_probabilities: probabilities of entire, random patch, in-block and out-of-block masking.
        first_caption: whether the caption is always the first one of the pair instead of a random one.
        read_caption: whether the caption is read. Without it (Table 10) there is no alignment loss.
        frames: l, number of frames to sample from, if fewer than the folder has (Figure 4).
        relative_position_bias: whether attention has a learned bias by the relative position of two patches, as in
            `PairTransformer`; not in the paper. Must be equal in both stages.
        similarity: similarity by which frames are sampled, as in
            :class:`~lightning_idc.methods.procap.keyframes.Keyframes`.
        options: further arguments of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads",)
    not_stored = ("encoder_init",)
    variant: ClassVar[str] = "paper"
    """``paper`` or ``official``; must be equal in both stages."""
    encoder_class: ClassVar[type[ProcedureEncoder]] = ProcedureEncoder
    net_class: ClassVar[type[ProcedureReader]] = ProcedureNet
    default_loss_weights: ClassVar[tuple[float, float, float]] = (1.0, 1.0, 1.0)
    mask_rules: ClassVar[tuple[MaskRule, ...]] = RULES
    color_shift = staticmethod(shifted_color)
    captions_of_others = staticmethod(captions_of_others)
    consistency_loss = staticmethod(mean_consistency_loss)

    def __init__(
        self,
        procedures: str,
        tokenizer: str | dict[str, Any] | None = None,
        keyframes: NonNegativeInt = 2,
        scale: NonNegativeFloat = CLIP_SCALE,
        encoder_init: str | None = None,
        width: PositiveInt = 768,
        layers: PositiveInt = 12,
        heads: PositiveInt = 12,
        dropout: ShareBelowOne = 0.0,
        loss_weights: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None,
        mask_probabilities: tuple[
            NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat
        ] = PROBABILITIES,
        first_caption: bool = False,
        read_caption: bool = True,
        frames: PositiveInt | None = None,
        similarity: Similarities = None,
        relative_position_bias: bool = False,
        captions_per_pair: PositiveInt = 1,
        **options: Any,
    ) -> None:
        check_arguments(ProcedureModel.__init__, locals())
        super().__init__(captions_per_pair=captions_per_pair, **options)
        if captions_per_pair != 1:
            raise ConfigError(f"captions_per_pair is {captions_per_pair}; expected 1, as a procedure has one caption")
        weights = list(loss_weights or self.default_loss_weights)
        active = weights if read_caption else weights[::2]
        if not any(active):
            raise ConfigError(
                f"loss_weights is {weights}; expected the weights of masked sequence modelling, alignment and "
                "consistency, at least one above 0; without `read_caption` the one of alignment does not count"
            )
        probabilities = list(mask_probabilities)
        if len(probabilities) != len(self.mask_rules) or not any(probabilities):
            raise ConfigError(
                f"mask_probabilities is {probabilities}; expected the probabilities of entire, random patch, in-block "
                "and out-of-block masking, at least one above 0"
            )
        # plain types only: a checkpoint must load without running code
        self.store_hparams(loss_weights=weights, mask_probabilities=probabilities)
        self._encoder_init = encoder_init
        self._keyframes: Keyframes | None = None

    def build_net(self, vocabulary: Vocabulary) -> ProcedureReader:
        options = self.hparams
        tokenizer, config = tokenizer_of(options["tokenizer"])
        self.store_hparams(tokenizer=config)
        encoder = self.encoder_class(
            latent=tokenizer.latent,
            grid=tokenizer.grid(*image_size_of(options)),
            frames=options["keyframes"] + 2,
            width=options["width"],
            layers=options["layers"],
            heads=options["heads"],
            dropout=options["dropout"],
            relative_position_bias=options["relative_position_bias"],
        )
        if self._encoder_init is not None:
            start_from_clip(encoder, self._encoder_init)
        return self.net_class(tokenizer, encoder, len(vocabulary))

    def adopt_hparams(self, hparams: dict[str, Any]) -> None:
        super().adopt_hparams(hparams)
        self.store_hparams(tokenizer=hparams["tokenizer"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CONFIG_KEY] = self.built_net.tokenizer.config

    @property
    def keyframes(self) -> Keyframes:
        """Sampler of the keyframes of a pair."""
        if self._keyframes is None:
            self._keyframes = Keyframes(
                folder=self.hparams["procedures"],
                count=self.hparams["keyframes"],
                scale=self.hparams["scale"],
                length=self.hparams["frames"],
                similarity=self.hparams["similarity"],
            )
        return self._keyframes

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid of a frame."""
        return self.built_net.encoder.grid

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch with keyframes, masks, broken procedures and the index of a negative caption for each pair.

        Random numbers depend only on the seeds of the samples, and not on workers or processes.

        Raises:
            DataError: a pair has no caption, or no procedure.
        """
        if self.hparams["first_caption"]:
            samples = [replace(sample, captions=sample.captions[:1]) for sample in samples]
        batch = super().collate(samples)
        frames = torch.stack([self.keyframes.of(sample) for sample in samples])
        grid = (frames.shape[1], *self.grid)
        probabilities = tuple(self.hparams["mask_probabilities"])
        masked, warped = [], []
        for row, sample in enumerate(samples):
            generator = torch.Generator().manual_seed(_seed(sample))
            masked.append(multi_granularity_mask(grid, generator, probabilities, self.mask_rules))
            other_frames = torch.cat([frames[:row], frames[row + 1 :]]).flatten(0, 1)
            warped.append(warp(frames[row], other_frames, generator, self.color_shift))
        batch.model_inputs |= {
            "frames": frames,
            "warped": torch.stack(warped),
            "masked": torch.stack(masked).flatten(1),
            "wrong_caption": self._wrong_captions(samples, batch),
        }
        return batch

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """Not supported, as procedures are interpolated from the original images.

        Raises:
            ConfigError: always.
        """
        raise frames_of_other_images(type(self).__name__, self.hparams["procedures"])

    def _wrong_captions(self, samples: Sequence[PairSample], batch: PairBatch) -> Tensor:
        """Index of the pair whose caption is the negative caption of each pair, ``(B,)``; -1 for none."""
        empty = [sample.id for sample, mask in zip(samples, batch.caption_mask, strict=True) if not mask.any()]
        if empty:
            raise DataError(f"{len(empty)} pairs have no caption, such as {', '.join(empty[:5])}; expected one each")
        lengths = 1 + batch.caption_mask[:, 0].sum(1)
        captions = [tokens[0, :length].tolist() for tokens, length in zip(batch.tokens, lengths, strict=True)]
        references = [self.tokenize(sample.captions) for sample in samples]
        # the caption of an unchanged pair is true for all unchanged pairs
        unchanged = [row for row, sample in enumerate(samples) if sample.change_type == NO_CHANGE]
        for row in unchanged:
            references[row] += [captions[other] for other in unchanged]
        return torch.tensor(self.captions_of_others(captions, references))

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Hidden states ``(B, F * n, D)`` of the masked procedures, with logits and targets in ``extras``.

        Returns:
            features with the extras ``align (B, 2)``, logits for the caption and for the negative caption;
            ``consistency (B, 2)``, logits for the intact and for the broken procedure; and ``targets (B, F * n)``, ids
            of the tokenizer.
        """
        net, inputs = self.built_net, batch.model_inputs
        words, word_mask = batch.tokens[:, 0, 1:], batch.caption_mask[:, 0, 1:] & self.hparams["read_caption"]  # (B, T)
        features = net.tokenizer_features(inputs["frames"])  # (B, F, latent, h, w)
        negative = inputs["wrong_caption"].clamp(min=0)
        # (3B, ...): unchanged, with the negative caption, and broken
        hidden = net(
            torch.cat([features, features, net.tokenizer_features(inputs["warped"])]),
            inputs["masked"].repeat(3, 1),
            words=torch.cat([words, words[negative], words]),
            word_mask=torch.cat([word_mask, word_mask[negative], word_mask]),
        )
        aligned, misaligned, _ = net.align_head(hidden.align)[:, 0].split(len(batch))
        intact, _, broken = net.consistency_head(hidden.consistency)[:, 0].split(len(batch))
        extras = {
            "align": torch.stack([aligned, misaligned], 1),
            "consistency": torch.stack([intact, broken], 1),
            "targets": net.targets(inputs["frames"], features),
        }
        return PairFeatures(hidden.visual[: len(batch)], extras=extras)

    def losses(self, features: PairFeatures, batch: PairBatch) -> dict[str, Tensor]:
        """The three losses of Eq. 5, and the accuracy of each task in percent.

        A fully masked procedure counts for reconstruction only, since it contains nothing to align or to check.
        """
        masked, extras = batch.model_inputs["masked"], features.extras
        targets = extras["targets"][masked]  # (M,), the M masked patches of the batch
        logits = self.built_net.code_head(features.memory[masked])  # (M, codebook)
        visible = ~masked.all(1)  # (B,)
        has_negative = visible & (batch.model_inputs["wrong_caption"] >= 0)
        aligned, misaligned = extras["align"].unbind(1)
        intact, broken = extras["consistency"].unbind(1)
        return {
            "msm": masked_sequence_loss(logits, targets),
            "align": discrimination_loss(aligned, misaligned, visible, has_negative),
            "consistency": self.consistency_loss(intact, broken, visible),
            "patches_right": _percent(logits.argmax(-1) == targets),
            "alignment_right": _percent(torch.cat([aligned[visible] > 0, misaligned[has_negative] <= 0])),
            "consistency_right": _percent(torch.cat([intact[visible] > 0, broken[visible] <= 0])),
        }

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        """Weighted sum of the three losses.

        ProCap Eq. 5
        """
        return self._log_and_sum(self.losses(features, batch), batch, "train")

    def _log_and_sum(self, losses: dict[str, Tensor], batch: PairBatch, split: str) -> Tensor:
        weights = dict(zip(("msm", "align", "consistency"), self.hparams["loss_weights"], strict=True))
        weights["align"] *= self.hparams["read_caption"]
        self.log_dict(
            {f"{split}/{name}": value.detach() for name, value in losses.items()},
            batch_size=len(batch),
            sync_dist=split != "train",
        )
        return torch.stack([weight * losses[name] for name, weight in weights.items()]).sum()

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._log_split_losses(batch, "val")

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._log_split_losses(batch, "test")

    def _log_split_losses(self, batch: PairBatch, split: str) -> None:
        loss = self._log_and_sum(self.losses(self.encode(batch), batch), batch, split)
        self.log(f"{split}/loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """No captions are generated, so there are none to score."""

    def on_test_epoch_end(self) -> None:
        """No captions are generated, so there are none to score."""

    @torch.no_grad()
    def reconstruct(self, batch: PairBatch) -> Tensor:
        """Frames decoded from predicted ids at masked patches and true ids elsewhere, uint8 ``(B, k + 2, 3, H, W)``."""
        net, masked, frames = self.built_net, batch.model_inputs["masked"], batch.model_inputs["frames"]
        features = net.tokenizer_features(frames)
        word_mask = batch.caption_mask[:, 0, 1:] & self.hparams["read_caption"]
        hidden = net(features, masked, batch.tokens[:, 0, 1:], word_mask)
        ids = torch.where(masked, net.code_head(hidden.visual).argmax(-1), net.targets(frames, features))
        images = net.tokenizer.decode(ids.view(-1, *self.grid))
        return (images * 255).round().to(torch.uint8).unflatten(0, frames.shape[:2])


def _seed(sample: PairSample) -> int:
    """Seed of masks and warps, different from the seed of the keyframes; in evaluation it depends only on the id."""
    seed = sample.meta.get("seed")
    return zlib.crc32(f"{sample.id}/{seed}".encode())


def _percent(correct: Tensor) -> Tensor:
    return 100 * correct.float().sum() / max(1, len(correct))

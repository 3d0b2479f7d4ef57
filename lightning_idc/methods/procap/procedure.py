"""ProCap, first stage: learn how change happens by reconstructing masked procedures (section 3.1)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_idc.images.types import PairBatch, PairFeatures, PairSample
from lightning_idc.methods.procap.keyframes import CLIP_SCALE, Keyframes, Similarities
from lightning_idc.methods.procap.masks import PROBABILITIES, RULES, MaskRule, multi_granularity_mask
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.procedure_net import (
    ProcedureNet,
    ProcedureReader,
    discrimination_loss,
    masked_sequence_loss,
)
from lightning_idc.methods.procap.stages import frames_of_own_images, image_size_of, start_from_clip, tokenizer_of
from lightning_idc.methods.procap.warps import shifted_color, warp
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.schedules import Warmup
from lightning_idc.nn.image_tokenizer import CONFIG_KEY
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import ConfigError, DataError, check_number


@dataclass(frozen=True)
class WarmupHold(Warmup):
    """Linear rise from a share of the rate, then the rate; the paper's rise is from 1e-6 to 1e-4 in 5,000 steps.

    Args:
        warmup: share of the run spent rising.
        start: multiplier at the first step.
    """

    warmup: float = 0.025
    start: float = 0.01

    def __call__(self, progress: float) -> float:
        return self.start + (1 - self.start) * min(1.0, progress / max(self.warmup, 1e-12))


def captions_of_others(said: Sequence[list[int]], own: Sequence[list[list[int]]]) -> list[int]:
    """For each pair the next one whose caption is not said of it; -1 where the batch has none.

    Args:
        said: the caption that was drawn for each pair, as ids.
        own: all captions of each pair.
    """
    count = len(said)
    found = []
    for row, captions in enumerate(own):
        later = ((row + step) % count for step in range(1, count))
        found.append(next((other for other in later if said[other] not in [said[row], *captions]), -1))
    return found


def mean_consistency_loss(whole: Tensor, broken: Tensor, seen: Tensor) -> Tensor:
    """Eq. 8, a mean over the procedures that are not fully masked."""
    return discrimination_loss(whole, broken, seen, seen)


class ProcedureModel(PairCaptioner):
    """Reconstructs masked frames of procedures given their caption, and tells whole procedures from broken ones.

    It reads captions and writes none; its encoder is what the second stage begins with.
    :class:`~lightning_idc.methods.procap.official.module.OfficialProcedureModel` is what the authors' code computes.

    Args:
        procedures: folder that ``FrameInterpolator`` wrote, with all pairs of the splits in use.
        tokenizer: checkpoint of ``TokenizerTraining``.
        keyframes: k, frames drawn of each procedure and visit.
        scale: of the similarities in eq. 2; a mix of several has a scale of its own.
        trunk: OpenAI's CLIP weights, a state dict with whose first visual blocks the layers begin.
        width: of the encoder.
        layers: of the encoder.
        heads: of the encoder.
        dropout: share of activations dropped.
        loss_weights: of masked sequence modelling, alignment and consistency; those of the class when None.
        mask_probabilities: of entire, random patch, in-block and out-of-block masking.
        first_caption: always read the first caption of a pair, instead of one drawn anew at each visit.
        read_caption: read it at all; without it (Table 10) there is nothing to align, and that loss is left out.
        frames: l, where fewer frames than the folder has are to be chosen from (Figure 4).
        relative_places: learn in the attention how two patches stand to each other, as `PairTransformer` does, which
            the paper does not. Both stages must agree.
        similarity: that frames are chosen by, as of :class:`~lightning_idc.methods.procap.keyframes.Keyframes`.
        options: of :class:`~lightning_idc.models.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)
    computation_hparams = ("heads",)
    edition: ClassVar[str] = "paper"
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
        keyframes: int = 2,
        scale: float = CLIP_SCALE,
        trunk: str | None = None,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        dropout: float = 0.0,
        loss_weights: tuple[float, float, float] | None = None,
        mask_probabilities: tuple[float, float, float, float] = PROBABILITIES,
        first_caption: bool = False,
        read_caption: bool = True,
        frames: int | None = None,
        similarity: Similarities = None,
        relative_places: bool = False,
        captions_per_pair: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(captions_per_pair=captions_per_pair, **options)
        if captions_per_pair != 1:
            raise ConfigError(f"a procedure is read with one caption; captions_per_pair is {captions_per_pair}")
        check_number("keyframes", keyframes, minimum=0)
        # plain types only: a checkpoint must load without running code, and must not ask for the trunk again
        weights = list(loss_weights or self.default_loss_weights)
        counted = weights if read_caption else weights[::2]
        if len(weights) != 3 or not all(weight >= 0 for weight in weights) or not any(counted):
            raise ConfigError(
                f"loss_weights is {weights}; expected three numbers, 0 or more, of which one is above 0: of masked "
                "sequence modelling, alignment and consistency; without `read_caption` there is nothing to align"
            )
        self.hparams["loss_weights"] = weights
        shares = list(mask_probabilities)
        if len(shares) != len(self.mask_rules) or min(shares) < 0 or not 0 < sum(shares) < math.inf:
            raise ConfigError(
                f"mask_probabilities is {shares}; expected {len(self.mask_rules)} shares of which one is above 0: of "
                "entire, random patch, in-block and out-of-block masking"
            )
        self.hparams["mask_probabilities"] = shares
        self._trunk: str | None = self.hparams.pop("trunk")
        self._keyframes: Keyframes | None = None

    def build_net(self, vocabulary: Vocabulary) -> ProcedureReader:
        options = self.hparams
        tokenizer, options["tokenizer"] = tokenizer_of(options["tokenizer"])
        encoder = self.encoder_class(
            tokenizer.latent,
            tokenizer.grid(*image_size_of(options)),
            options["keyframes"] + 2,
            options["width"],
            options["layers"],
            options["heads"],
            dropout=options["dropout"],
            relative_places=options["relative_places"],
        )
        if self._trunk is not None:
            start_from_clip(encoder, self._trunk)
        return self.net_class(tokenizer, encoder, len(vocabulary))

    def adopt(self, hparams: dict[str, Any]) -> None:
        super().adopt(hparams)
        self.hparams["tokenizer"] = hparams["tokenizer"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CONFIG_KEY] = self.built_net.tokenizer.config

    @property
    def keyframes(self) -> Keyframes:
        """What chooses the frames of a pair."""
        if self._keyframes is None:
            options = (self.hparams[name] for name in ("procedures", "keyframes", "scale", "frames", "similarity"))
            self._keyframes = Keyframes(*options)
        return self._keyframes

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid of a frame."""
        return self.built_net.encoder.grid

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch with keyframes, their masks, broken procedures and whose caption serves as the wrong one.

        All choices come from the samples' seeds, so that neither workers nor processes change them.

        Raises:
            DataError: a pair has no caption, or no procedure.
        """
        if self.hparams["first_caption"]:
            samples = [replace(sample, captions=sample.captions[:1]) for sample in samples]
        batch = super().collate(samples)
        frames = torch.stack([self.keyframes.of(sample) for sample in samples])
        grid = (frames.shape[1], *self.grid)
        masked, warped = [], []
        for row, sample in enumerate(samples):
            generator = torch.Generator().manual_seed(_seed(sample))
            chances = tuple(self.hparams["mask_probabilities"])
            masked.append(multi_granularity_mask(grid, generator, chances, self.mask_rules))
            others = torch.cat([frames[:row], frames[row + 1 :]]).flatten(0, 1)
            warped.append(warp(frames[row], others, generator, self.color_shift))
        batch.model_inputs |= {
            "frames": frames,
            "warped": torch.stack(warped),
            "masked": torch.stack(masked).flatten(1),
            "wrong_caption": self._wrong_captions(samples, batch),
        }
        return batch

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """Refuse other images: procedures are read, not pairs.

        Raises:
            ConfigError: always.
        """
        raise frames_of_own_images(type(self).__name__, self.hparams["procedures"])

    def _wrong_captions(self, samples: Sequence[PairSample], batch: PairBatch) -> Tensor:
        """Whose caption is the wrong one for each pair, ``(B,)``; -1 where there is none."""
        empty = [sample.id for sample, mask in zip(samples, batch.caption_mask, strict=True) if not mask.any()]
        if empty:
            raise DataError(f"a procedure is learned with a caption; there is none for {', '.join(empty[:5])}")
        lengths = 1 + batch.caption_mask[:, 0].sum(1)
        said = [tokens[0, :length].tolist() for tokens, length in zip(batch.tokens, lengths, strict=True)]
        own = [self.tokenize(sample.captions) for sample in samples]
        # what is said of one unchanged pair is true of all
        unchanged = [row for row, sample in enumerate(samples) if sample.change_type == NO_CHANGE]
        for row in unchanged:
            own[row] += [said[other] for other in unchanged]
        return torch.tensor(self.captions_of_others(said, own))

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Hidden states of the masked procedures; ``extras`` has the logits of both tokens and the targets.

        Returns:
            features whose ``align (B, 2)`` is for the pair's caption and the wrong one, ``consistency (B, 2)`` for the
            procedure as it is and the broken one, and ``targets (B, F * n)`` are the tokenizer's ids.
        """
        net, inputs = self.built_net, batch.model_inputs
        words, word_mask = batch.tokens[:, 0, 1:], batch.caption_mask[:, 0, 1:] & self.hparams["read_caption"]
        features, other = net.tokenizer_features(inputs["frames"]), inputs["wrong_caption"].clamp(min=0)
        # three readings in one pass: as it is, with another caption, and broken
        hidden = net(
            torch.cat([features, features, net.tokenizer_features(inputs["warped"])]),
            inputs["masked"].repeat(3, 1),
            torch.cat([words, words[other], words]),
            torch.cat([word_mask, word_mask[other], word_mask]),
        )
        aligned, misaligned, _ = net.align_head(hidden.align)[:, 0].split(len(batch))
        whole, _, broken = net.consistency_head(hidden.consistency)[:, 0].split(len(batch))
        extras = {
            "align": torch.stack([aligned, misaligned], 1),
            "consistency": torch.stack([whole, broken], 1),
            "targets": net.targets(inputs["frames"], features),
        }
        return PairFeatures(hidden.visual[: len(batch)], extras=extras)

    def losses(self, features: PairFeatures, batch: PairBatch) -> dict[str, Tensor]:
        """The three losses of eq. 5, and how often each task is solved, in %.

        A procedure of which everything is masked shows nothing that could be aligned or consistent, so it counts for
        reconstruction only. A caption that is also said of the pair itself is not a wrong one.
        """
        masked, extras = batch.model_inputs["masked"], features.extras
        targets = extras["targets"][masked]
        logits = self.built_net.code_head(features.memory[masked])
        seen = ~masked.all(1)
        known = seen & (batch.model_inputs["wrong_caption"] >= 0)
        aligned, misaligned = extras["align"].unbind(1)
        whole, broken = extras["consistency"].unbind(1)
        return {
            "msm": masked_sequence_loss(logits, targets),
            "align": discrimination_loss(aligned, misaligned, seen, known),
            "consistency": self.consistency_loss(whole, broken, seen),
            "patches_right": _percent(logits.argmax(-1) == targets),
            "alignment_right": _percent(torch.cat([aligned[seen] > 0, misaligned[known] <= 0])),
            "consistency_right": _percent(torch.cat([whole[seen] > 0, broken[seen] <= 0])),
        }

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        """Weighted sum of the three losses.

        ProCap Eq. 5
        """
        return self._weighted(self.losses(features, batch), batch, "train")

    def _weighted(self, found: dict[str, Tensor], batch: PairBatch, split: str) -> Tensor:
        weights = dict(zip(("msm", "align", "consistency"), self.hparams["loss_weights"], strict=True))
        weights["align"] *= self.hparams["read_caption"]
        self.log_dict(
            {f"{split}/{name}": value.detach() for name, value in found.items()},
            batch_size=len(batch),
            sync_dist=split != "train",
        )
        return torch.stack([weight * found[name] for name, weight in weights.items()]).sum()

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._measure(batch, "val")

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        self._measure(batch, "test")

    def _measure(self, batch: PairBatch, split: str) -> None:
        loss = self._weighted(self.losses(self.encode(batch), batch), batch, split)
        self.log(f"{split}/loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """No captions are written, so there are none to score."""

    def on_test_epoch_end(self) -> None:
        """No captions are written, so there are none to score."""

    @torch.no_grad()
    def reconstruct(self, batch: PairBatch) -> Tensor:
        """Frames uint8 ``(B, k + 2, 3, H, W)`` whose masked patches are the most likely ones, all others the true."""
        net, masked, frames = self.built_net, batch.model_inputs["masked"], batch.model_inputs["frames"]
        features = net.tokenizer_features(frames)
        word_mask = batch.caption_mask[:, 0, 1:] & self.hparams["read_caption"]
        hidden = net(features, masked, batch.tokens[:, 0, 1:], word_mask)
        ids = torch.where(masked, net.code_head(hidden.visual).argmax(-1), net.targets(frames, features))
        images = net.tokenizer.decode(ids.view(-1, *self.grid))
        return (images * 255).round().to(torch.uint8).unflatten(0, frames.shape[:2])


def _seed(sample: PairSample) -> int:
    """Seed of masks and warps, another stream than that of the keyframes; fixed by the id in evaluation."""
    seed = sample.meta.get("seed")
    return zlib.crc32(f"{sample.id}/{seed}".encode())


def _percent(right: Tensor) -> Tensor:
    return 100 * right.float().sum() / max(1, len(right))

"""ProCap, first stage: learn how change happens by reconstructing masked procedures (section 3.1)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_idc.captioner import PairCaptioner
from lightning_idc.methods.procap.keyframes import CLIP_SCALE, Keyframes
from lightning_idc.methods.procap.module import image_size_of, tokenizer_of
from lightning_idc.methods.procap.net import ProcedureEncoder
from lightning_idc.methods.procap.procedure_net import ProcedureNet, discrimination_loss, masked_sequence_loss
from lightning_idc.methods.procap.warps import warp
from lightning_idc.nn.image_tokenizer import CONFIG_KEY
from lightning_idc.nn.masks import PROBABILITIES, multi_granularity_mask
from lightning_idc.nn.vocabulary import PAD, Vocabulary
from lightning_idc.pairs import PairBatch, PairError, PairFeatures, PairSample
from lightning_idc.schedules import Schedule


@dataclass(frozen=True)
class WarmupHold(Schedule):
    """Linear rise from a share of the rate, then the rate; the paper's rise is from 1e-6 to 1e-4 in 5,000 steps.

    Args:
        warmup: share of the run spent rising.
        start: multiplier at the first step.
    """

    warmup: float = 0.025
    start: float = 0.01

    def __call__(self, progress: float) -> float:
        return self.start + (1 - self.start) * min(1.0, progress / max(self.warmup, 1e-12))


class ProcedureModel(PairCaptioner):
    """Reconstructs masked frames of procedures given their caption, and tells whole procedures from broken ones.

    It reads captions and writes none; its encoder is what the second stage begins with.

    Args:
        procedures: folder that ``FrameInterpolator`` wrote, with all pairs of the splits in use.
        tokenizer: checkpoint of ``TokenizerTraining``.
        keyframes: k, frames drawn of each procedure and visit.
        scale: of the similarities in eq. 2.
        width: of the encoder.
        layers: of the encoder.
        heads: of the encoder.
        dropout: share of activations dropped.
        loss_weights: of masked sequence modelling, alignment and consistency.
        mask_probabilities: of entire, random patch, in-block and out-of-block masking.
        options: of :class:`~lightning_idc.captioner.PairCaptioner`.
    """

    vision_modules = ("net.encoder",)

    def __init__(
        self,
        procedures: str,
        tokenizer: str | dict[str, Any] | None = None,
        keyframes: int = 2,
        scale: float = CLIP_SCALE,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        dropout: float = 0.0,
        loss_weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
        mask_probabilities: tuple[float, float, float, float] = PROBABILITIES,
        captions_per_pair: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(captions_per_pair=captions_per_pair, **options)
        if captions_per_pair != 1:
            raise PairError(f"a procedure is read with one caption; captions_per_pair is {captions_per_pair}")
        # plain types only: a checkpoint must load without running code
        self.hparams["loss_weights"], self.hparams["mask_probabilities"] = list(loss_weights), list(mask_probabilities)
        self._keyframes: Keyframes | None = None

    def build_net(self, vocabulary: Vocabulary) -> ProcedureNet:
        options = self.hparams
        tokenizer, options["tokenizer"] = tokenizer_of(options["tokenizer"])
        encoder = ProcedureEncoder(
            tokenizer.latent,
            tokenizer.grid(*image_size_of(options)),
            options["keyframes"] + 2,
            options["width"],
            options["layers"],
            options["heads"],
            dropout=options["dropout"],
        )
        return ProcedureNet(tokenizer, encoder, len(vocabulary))

    def _adopt(self, hparams: dict[str, Any]) -> None:
        super()._adopt(hparams)
        self.hparams["tokenizer"] = hparams["tokenizer"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CONFIG_KEY] = self._built_net.tokenizer.config

    @property
    def keyframes(self) -> Keyframes:
        """What chooses the frames of a pair."""
        if self._keyframes is None:
            self._keyframes = Keyframes(self.hparams["procedures"], self.hparams["keyframes"], self.hparams["scale"])
        return self._keyframes

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid of a frame."""
        return self._built_net.encoder.grid

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch with keyframes, their masks, broken procedures and whose caption serves as the wrong one.

        All choices come from the samples' seeds, so that neither workers nor processes change them.

        Raises:
            PairError: a pair has no caption, or no procedure.
        """
        batch = super().collate(samples)
        frames = torch.stack([self.keyframes.of(sample) for sample in samples])
        grid = (frames.shape[1], *self.grid)
        masked, warped = [], []
        for row, sample in enumerate(samples):
            generator = torch.Generator().manual_seed(_seed(sample))
            masked.append(multi_granularity_mask(grid, generator, tuple(self.hparams["mask_probabilities"])))
            others = torch.cat([frames[:row], frames[row + 1 :]]).flatten(0, 1)
            warped.append(warp(frames[row], others, generator))
        batch.model_inputs |= {
            "frames": frames,
            "warped": torch.stack(warped),
            "masked": torch.stack(masked).flatten(1),
            "wrong_caption": self._wrong_captions(samples, batch),
        }
        return batch

    def _wrong_captions(self, samples: Sequence[PairSample], batch: PairBatch) -> Tensor:
        """For each pair the next one whose caption is not said of it, ``(B,)``; -1 where the batch has none."""
        empty = [sample.id for sample, mask in zip(samples, batch.caption_mask, strict=True) if not mask.any()]
        if empty:
            raise PairError(f"a procedure is learned with a caption; there is none for {', '.join(empty[:5])}")
        count = len(samples)
        said = [tokens[0][tokens[0] != PAD].tolist() for tokens in batch.tokens]
        found = []
        for row, sample in enumerate(samples):
            own = [said[row], *self.tokenize(sample.captions)]
            later = ((row + step) % count for step in range(1, count))
            found.append(next((other for other in later if said[other] not in own), -1))
        return torch.tensor(found)

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Hidden states of the masked procedures; ``extras`` has the logits of both tokens and the targets.

        Returns:
            features whose ``align (B, 2)`` is for the pair's caption and the wrong one, ``consistency (B, 2)`` for the
            procedure as it is and the broken one, and ``targets (B, F * n)`` are the tokenizer's ids.
        """
        net, inputs = self._built_net, batch.model_inputs
        words, word_mask = batch.tokens[:, 0, 1:], batch.caption_mask[:, 0, 1:]
        features, other = net.look(inputs["frames"]), inputs["wrong_caption"].clamp(min=0)
        # three readings in one pass: as it is, with another caption, and broken
        hidden = net(
            torch.cat([features, features, net.look(inputs["warped"])]),
            inputs["masked"].repeat(3, 1),
            torch.cat([words, words[other], words]),
            torch.cat([word_mask, word_mask[other], word_mask]),
        )
        aligned, misaligned, _ = net.align_head(hidden.align)[:, 0].split(len(batch))
        whole, _, broken = net.consistency_head(hidden.consistency)[:, 0].split(len(batch))
        extras = {
            "align": torch.stack([aligned, misaligned], 1),
            "consistency": torch.stack([whole, broken], 1),
            "targets": net.targets(features),
        }
        return PairFeatures(hidden.visual[: len(batch)], extras=extras)

    def losses(self, features: PairFeatures, batch: PairBatch) -> dict[str, Tensor]:
        """The three losses of eq. 5, and how often each task is solved, in %.

        A procedure of which everything is masked shows nothing that could be aligned or consistent, so it counts for
        reconstruction only. A caption that is also said of the pair itself is not a wrong one.
        """
        masked, extras = batch.model_inputs["masked"], features.extras
        targets = extras["targets"][masked]
        logits = self._built_net.code_head(features.memory[masked])
        seen = ~masked.all(1)
        known = seen & (batch.model_inputs["wrong_caption"] >= 0)
        aligned, misaligned = extras["align"].unbind(1)
        whole, broken = extras["consistency"].unbind(1)
        return {
            "msm": masked_sequence_loss(logits, targets),
            "align": discrimination_loss(aligned, misaligned, seen, known),
            "consistency": discrimination_loss(whole, broken, seen, seen),
            "patches_right": _percent(logits.argmax(-1) == targets),
            "alignment_right": _percent(torch.cat([aligned[seen] > 0, misaligned[known] <= 0])),
            "consistency_right": _percent(torch.cat([whole[seen] > 0, broken[seen] <= 0])),
        }

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """The loss of eq. 5, in the place where a captioner has that of its captions."""
        return self._weighted(self.losses(features, batch), batch, "train")

    def _weighted(self, found: dict[str, Tensor], batch: PairBatch, split: str) -> Tensor:
        weights = dict(zip(("msm", "align", "consistency"), self.hparams["loss_weights"], strict=True))
        self.log_dict(
            {f"{split}/{name}": value.detach() for name, value in found.items()},
            batch_size=len(batch),
            sync_dist=split != "train",
        )
        return torch.stack([weight * found[name] for name, weight in weights.items()]).sum()

    def _evaluate(self, batch: PairBatch, split: str) -> None:
        loss = self._weighted(self.losses(self.encode(batch), batch), batch, split)
        self.log(f"{split}/loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def _finish(self, split: str) -> None:
        """Nothing to score: no captions were written."""

    @torch.no_grad()
    def reconstruct(self, batch: PairBatch) -> Tensor:
        """Frames uint8 ``(B, k + 2, 3, H, W)`` whose masked patches are the most likely ones, all others the true."""
        net, masked, frames = self._built_net, batch.model_inputs["masked"], batch.model_inputs["frames"]
        features = net.look(frames)
        hidden = net(features, masked, batch.tokens[:, 0, 1:], batch.caption_mask[:, 0, 1:])
        ids = torch.where(masked, net.code_head(hidden.visual).argmax(-1), net.targets(features))
        images = net.tokenizer.decode(ids.view(-1, *self.grid))
        return (images * 255).round().to(torch.uint8).unflatten(0, frames.shape[:2])


def _seed(sample: PairSample) -> int:
    """Seed of masks and warps, another stream than that of the keyframes; fixed by the id in evaluation."""
    seed = sample.meta.get("seed")
    return zlib.crc32(f"{sample.id}/{seed}".encode())


def _percent(right: Tensor) -> Tensor:
    return 100 * right.float().sum() / max(1, len(right))

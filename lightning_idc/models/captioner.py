"""PairCaptioner: the base class of everything that says what changed between two images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import plain_hparams
from lightning_idc.images.input_spec import InputSpec, noted
from lightning_idc.images.types import Caption, PairBatch, PairFeatures, PairSample, stack_images
from lightning_idc.models.captions import (
    chosen_captions,
    learned_vocabulary,
    mass_missing,
    pad_captions,
    pair_losses,
    refuse_without_caption,
)
from lightning_idc.models.distributed import gathered
from lightning_idc.models.evaluation import CorpusEvaluation
from lightning_idc.models.module import PairModule
from lightning_idc.nn.decoding.beam_search import beam_search
from lightning_idc.nn.decoding.decoding import Decoded, greedy
from lightning_idc.nn.decoding.sampling import sample
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import ConfigError, check_number

if TYPE_CHECKING:
    from PIL.Image import Image

    from lightning_idc.metrics.captions import Scores


AS_TRAINED = ("no_change_captions", "image_size", "input_spec", "max_length")
"""Hyper-parameters that a checkpoint brings along with the weights, where nobody asks for others."""


class PairCaptioner(PairModule):
    """Trains, decodes and scores a captioner of image pairs.

    A small captioner writes :meth:`build_net`; one with a tokenizer or processor of its own writes
    :meth:`make_net` and overrides :meth:`encode` and :meth:`collate`.

    After an evaluation ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``, ``references``,
    ``change_type``, ``loss``), sorted by id and equal on all processes, and ``scores`` the corpus scores.

    Args:
        captions_per_pair: captions drawn per pair and step; all of them share one encoding of the pair.
        max_length: maximum number of tokens of a generated caption; the longest training caption when None.
        num_beams: beams at validation, test and prediction; 1 decodes greedily.
        vocabulary: words with their special tokens, ``clip``, or BERT's ``vocab.txt`` or the folder that holds it; made
            from the training captions when None.
        min_word_count: how often a word must be said in the training captions to be in a vocabulary made from them.
        no_change_captions: sentences that say nothing changed, for ``change_score``; from the data when None.
        image_size: height and width that images given to :meth:`describe` are resized to; from the data when None.
        input_spec: what the images of the training were like, as of
            :class:`~lightning_idc.images.input_spec.InputSpec`; written by training, kept by
            checkpoints, and applied to whatever is described or predicted.
        options: of :class:`~lightning_idc.models.module.PairModule`.

    Raises:
        ConfigError: a number is out of range.
    """

    word_hparams: tuple[str, ...] = ("vocabulary",)
    # once each per training step on every process; decoding, whose length differs, keeps the weights gathered instead
    sharded_methods: tuple[str, ...] = ("encode", "logits")

    def __init__(
        self,
        captions_per_pair: int = 2,
        max_length: int | None = None,
        num_beams: int = 1,
        vocabulary: list[str] | str | None = None,
        min_word_count: int = 1,
        no_change_captions: list[str] | None = None,
        image_size: tuple[int, int] | None = None,
        input_spec: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_number("captions_per_pair", captions_per_pair, minimum=1)
        check_number("num_beams", num_beams, minimum=1)
        check_number("min_word_count", min_word_count, minimum=1)
        if max_length is not None:
            check_number("max_length", max_length, minimum=1)
        for side in image_size or ():
            check_number("a side of image_size", side, minimum=1)
        super().__init__(**options)
        self.vocabulary: Vocabulary | None = None
        self.evaluation = CorpusEvaluation()
        self._noted_input = False
        self._unasked = [name for name in AS_TRAINED if self.hparams.get(name) is None]

    # ---- what a subclass writes -------------------------------------------------------------------------

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        """Make the network of a small captioner; ``nn/decoding/decoding.py`` says what it must offer (CaptionNet)."""
        raise ConfigError(
            f"{type(self).__name__} has no build_net; write it, or override make_net, encode, log_probs and generate"
        )

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Everything that reads pixels, once per pair."""
        features: PairFeatures = self.built_net.encode(batch.images)
        return features

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """Batch whose pairs show other images, for add-ons and controls that put some in place of the batch's own.

        Overridden by captioners that also read something that was made of the images beforehand.

        Args:
            batch: as :meth:`collate` made it.
            images: uint8 ``(B, 2, C, H, W)``.

        Raises:
            ConfigError: what the captioner reads cannot be made of other images.
        """
        return replace(batch, images=images)

    def encode_repeated(self, batch: PairBatch) -> PairFeatures:
        """:meth:`encode` of pairs that share images, for a captioner that can read each of them once."""
        return self.encode(batch)

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability of every token given those before it, teacher-forced.

        Args:
            features: B pairs.
            tokens: ``(B, K, T)``.
            mask: bool ``(B, K, T)``, tokens that are asked for; a captioner may leave out the others and give them 0.

        Returns:
            ``(B, K, T)``; 0 at position 0, the begin token.
        """
        logits = self.built_net.logits(features, tokens[..., :-1])
        picked = -nn.functional.cross_entropy(
            logits.flatten(0, -2).float(), tokens[..., 1:].flatten(), reduction="none"
        )
        return nn.functional.pad(picked.view(tokens[..., 1:].shape), (1, 0))

    def generate(
        self,
        features: PairFeatures,
        max_length: int | None = None,
        num_beams: int | None = None,
        change_scores: bool = False,
        samples: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> list[Caption]:
        """Say what changed: one caption per pair, or ``samples`` random ones, those of a pair together.

        Args:
            features: B pairs.
            max_length: most tokens, the end token included.
            num_beams: 1 decodes greedily.
            change_scores: also score the known no-change sentences.
            samples: captions drawn at random per pair; None searches for the likeliest one.
            temperature: of samples, as in :meth:`sample`.
            top_p: of samples.
            generator: of samples.

        Raises:
            ConfigError: samples are drawn and ``num_beams`` is given too.
        """
        vocabulary = self.built_vocabulary
        if samples is None:
            decoded = self._searched(features, max_length, num_beams or self.hparams["num_beams"])
        elif num_beams is not None:
            raise ConfigError(f"samples is {samples} and num_beams {num_beams}; give one of them")
        else:
            decoded = self.sample(features, samples, temperature, top_p, generator, max_length)
        scores = self.change_scores(features) if change_scores else [None] * len(features)
        scores = [score for score in scores for _ in range(samples or 1)]
        return [
            Caption(vocabulary.decode(ids), log_prob, score)
            for ids, log_prob, score in zip(decoded.ids, decoded.mean_log_probs, scores, strict=True)
        ]

    def _most_tokens(self, asked: int | None) -> int:
        """Most tokens of a caption: those asked for, or those of the captioner."""
        found: int | None = asked or self.hparams["max_length"]
        if found is None:
            raise ConfigError(
                f"max_length is not known: this {type(self).__name__} has seen no training captions of a data module; "
                "set max_length, such as 32"
            )
        return found

    def _searched(self, features: PairFeatures, max_length: int | None, beams: int) -> Decoded:
        net, special = self.built_net, self.built_vocabulary.special
        length = self._most_tokens(max_length)
        with gathered(net):  # captions of different length would make processes wait for each other
            if beams == 1:
                return greedy(net, features, length, special)
            return beam_search(net, features, length, beams, special=special)

    def sample(
        self,
        features: PairFeatures,
        samples: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        max_length: int | None = None,
        uniforms: Tensor | None = None,
    ) -> Decoded:
        """Token ids of captions drawn at random, ``samples`` per pair, those of a pair together.

        Args:
            features: B pairs.
            samples: captions per pair.
            temperature: divides log-probabilities.
            top_p: probability of the likely tokens that are drawn from.
            generator: of all chance; torch's global one when None.
            max_length: most tokens, the end token included.
            uniforms: numbers that decide instead of the generator, ``(B * samples, max_length)``.
        """
        length = self._most_tokens(max_length)
        net, special = self.built_net, self.built_vocabulary.special
        with gathered(net):  # captions of different length would make processes wait for each other
            return sample(net, features, length, samples, temperature, top_p, generator, special, uniforms)

    def asked(self, batch: PairBatch) -> list[tuple[list[Tensor], str]]:
        """Images of each pair, uint8 ``(C, H, W)`` each, and what is asked about them: what a server is sent."""
        return [(list(pair), "") for pair in batch.images]

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Token ids of captions, begin and end tokens included."""
        return [self.built_vocabulary.encode(caption) for caption in captions]

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch; runs in the data loader's workers.

        Raises:
            DataError: the pairs differ in size.
        """
        samples = self.at_trained_size(samples)
        wanted = self.hparams["captions_per_pair"]
        chosen = [chosen_captions(sample, wanted) for sample in samples]
        rows = [self.tokenize(captions) for captions in chosen]
        tokens, mask = pad_captions(rows, captions=wanted)
        return PairBatch(
            images=stack_images(samples),
            tokens=tokens,
            caption_mask=mask,
            ids=[sample.id for sample in samples],
            references=[sample.captions for sample in samples],
            change_types=[sample.change_type for sample in samples],
            chosen=chosen,
            meta=[sample.meta for sample in samples],
        )

    # ---- what follows from it ---------------------------------------------------------------------------

    def score(self, features: PairFeatures, tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability of K captions per pair, ``(B, K)``."""
        return (self.log_probs(features, tokens, mask) * mask).sum(-1)

    def no_change_tokens(self) -> list[list[int]]:
        """Token ids of the known no-change sentences, each once: other capitals or unknown words make no other one."""
        rows = self.tokenize(self.hparams["no_change_captions"] or [])
        return [list(row) for row in dict.fromkeys(map(tuple, rows))]

    @torch.no_grad()
    def change_scores(self, features: PairFeatures) -> list[float | None]:
        """1 minus the probability mass of the known no-change sentences, per pair."""
        known = self._no_change(len(features))
        return [None] * len(features) if known is None else mass_missing(self.score(features, *known))

    @torch.no_grad()
    def losses_and_change_scores(self, features: PairFeatures, batch: PairBatch) -> tuple[Tensor, list[float | None]]:
        """:meth:`caption_losses` and :meth:`change_scores` from one call of :meth:`log_probs`.

        The no-change sentences stand behind the captions of each pair, so that a test scores every pair once.
        """
        known = self._no_change(len(features))
        if known is None:
            return self.caption_losses(features, batch), [None] * len(features)
        longest = max(batch.tokens.shape[-1], known[0].shape[-1])
        tokens, mask = (
            torch.cat([nn.functional.pad(part, (0, longest - part.shape[-1])) for part in parts], 1)
            for parts in ((batch.tokens, known[0]), (batch.caption_mask, known[1]))
        )
        sums, captions = self.score(features, tokens, mask), batch.tokens.shape[1]
        return pair_losses(sums[:, :captions], batch.caption_mask), mass_missing(sums[:, captions:])

    def _no_change(self, pairs: int) -> tuple[Tensor, Tensor] | None:
        """Tokens and mask of the no-change sentences for each pair, ``(B, K, T)``; None where none is known."""
        rows = self.no_change_tokens()
        if not rows:
            return None
        tokens, mask = pad_captions([rows], captions=len(rows))
        shape = (pairs, *tokens.shape[1:])
        return tokens.expand(shape).to(self.device), mask.expand(shape).to(self.device)

    def changed_cells(self, batch: PairBatch) -> Tensor | None:
        """Expected number of changes in each cell of a grid, ``(B, h, w)``; None where there is no such map."""
        return None

    def caption_losses(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """Loss of each pair, ``(B,)``: the mean over captions of the mean over tokens; 0 where there is no caption."""
        return pair_losses(self.score(features, batch.tokens, batch.caption_mask), batch.caption_mask)

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """Mean over pairs of the mean over captions of the mean over tokens of the negative log-probability.

        ProCap Eq. 10

        A mean of means, so that accumulated and distributed steps equal one big step.

        Raises:
            DataError: a pair has no caption.
        """
        refuse_without_caption(batch)
        return self.caption_losses(features, batch).mean()

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        loss = self.caption_loss(features, batch)
        self.log("train/caption_loss", loss.detach(), batch_size=len(batch))
        return loss

    def batch_ids(self, batch: Any) -> list[str]:
        return list(batch.ids)

    def on_train_start(self) -> None:
        super().on_train_start()
        self._noted_input = False

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._refuse_other_batch(batch)

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._refuse_other_batch(batch)

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._refuse_other_batch(batch)

    def _refuse_other_batch(self, batch: Any) -> None:
        """Refuse a batch of another kind, such as that of a loader whose data module no trainer knows."""
        if not isinstance(batch, PairBatch):
            raise ConfigError(
                f"{type(self).__name__} got a batch that is a {type(batch).__name__}; expected what its `collate` "
                "makes: hand over the data module itself, as in trainer.fit(model, data), or loaders with "
                "collate_fn=model.collate"
            )

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Note what the images that the network is trained on are like, which a checkpoint then brings along."""
        self._refuse_other_batch(batch)
        # what a start from other weights brought was of other images
        known = self.hparams["input_spec"] if self._noted_input else None
        self.hparams["input_spec"] = noted(known, self.batch_image_size(batch), self.data)
        self._noted_input = True

    def batch_image_size(self, batch: PairBatch) -> list[int] | None:
        """Height and width of the images of a batch; None where they differ."""
        return [int(side) for side in batch.images.shape[-2:]]

    @property
    def input_spec(self) -> InputSpec:
        """What the images of the training were like, and so how others are prepared."""
        return InputSpec.of(self.hparams)

    def at_trained_size(self, samples: Sequence[PairSample]) -> Sequence[PairSample]:
        """Pairs of a test or prediction at the size that the network was trained on, unless the data names a size."""
        if self._trainer is None or self.fitting or getattr(self.data, "image_size", None) is not None:
            return samples
        spec = self.input_spec
        return [spec.scaled(sample) for sample in samples]

    def predict_step(self, batch: PairBatch, batch_idx: int) -> list[dict[str, Any]]:
        captions = self.generate(self.encode(batch), change_scores=True)
        return [
            {"id": name, "caption": c.text, "log_prob": c.log_prob, "change_score": c.change_score}
            for name, c in zip(batch.ids, captions, strict=True)
        ]

    def describe(self, before: str | Path | Image | Tensor, after: str | Path | Image | Tensor) -> Caption:
        """Say what changed between two images, without a Trainer; images are prepared as those of the training.

        Args:
            before: path, PIL image or uint8 tensor ``(3, H, W)``.
            after: the same.

        Raises:
            DataError: an image cannot be read.
        """
        return self.describe_all([self.input_spec.read(before, after)])[0]

    @torch.no_grad()
    def describe_all(self, samples: Sequence[PairSample]) -> list[Caption]:
        """Say what changed in pairs of one batch, without a Trainer.

        Args:
            samples: pairs as ``input_spec.read`` prepares them.
        """
        if not samples:
            return []
        was_training = self.training
        self.eval()
        try:
            batch = self.collate(samples).to(self.device)
            return self.generate(self.encode(batch), change_scores=True)
        finally:
            self.train(was_training)

    # ---- evaluation -------------------------------------------------------------------------------------

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """Records of the last evaluation, one per pair."""
        return self.evaluation.predictions

    @property
    def scores(self) -> Scores | None:
        """Corpus scores of the last evaluation; None where no pair had a reference."""
        return self.evaluation.scores

    def on_validation_epoch_start(self) -> None:
        self.evaluation.start(test=False)

    def on_test_epoch_start(self) -> None:
        self.evaluation.start(test=True)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        # computed for all batches alike: sharded weights are gathered by every process or by none
        losses = self.caption_losses(features, batch)
        self.evaluation.update(batch, self.generate(features), losses)

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        losses, scores = self.losses_and_change_scores(features, batch)
        self.evaluation.update(batch, self.generate(features), losses, scores)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        for name, value in self.evaluation.finish().items():
            # equal on all processes, which all scored the whole corpus; Lightning warns if it need not average them
            self.log(f"{split}/{name}", value, prog_bar=name == "CIDEr-D", sync_dist=True)

    # ---- making it --------------------------------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        vocabulary = learned_vocabulary(self.hparams, self.data, self.fitting)
        if vocabulary is None:
            return None
        self.hparams["vocabulary"] = vocabulary.key
        self.vocabulary = vocabulary
        return self.build_net(vocabulary)

    @property
    def built_vocabulary(self) -> Vocabulary:
        """The words; an error says how to get them where there is no network yet."""
        assert self.built_net is not None and self.vocabulary is not None
        return self.vocabulary

    def load_start(self) -> dict[str, Tensor] | None:
        wanted = self.hparams["max_length"]
        state = super().load_start()
        if state is not None:
            # descriptions of a pre-training may be longer than the captions that are wanted now
            self.hparams["max_length"] = wanted or self.hparams["max_length"]
        return state

    def adopt(self, hparams: dict[str, Any]) -> None:
        super().adopt(hparams)
        for name in AS_TRAINED:
            if hparams.get(name) is not None:
                self.hparams[name] = hparams[name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self.fitting:
            return  # a run that goes on has them of its data
        found = plain_hparams(checkpoint, "the checkpoint")
        self.hparams.update({name: found[name] for name in self._unasked if found.get(name) is not None})

"""PairCaptioner: the base class of everything that says what changed between two images.

A training step is :meth:`PairModule.training_step`: add-ons change the batch, :meth:`PairCaptioner.encode` reads the
images once, add-ons change the features, :meth:`PairCaptioner.caption_loss` scores K captions per pair. The other jobs
are parts, each in a file of its own: :class:`CaptionCodec` (captions and token ids), :class:`CaptionDecoder` (features
to captions) and :class:`Evaluator` (captions to scores).

Shapes: B pairs, K captions per pair, T tokens per caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_idc.checkpoints.reading import plain_hparams
from lightning_idc.images.input_spec import InputSpec, noted
from lightning_idc.images.types import Caption, PairBatch, PairFeatures, PairSample
from lightning_idc.models.captions import change_probability, check_captions, join_captions, pair_losses
from lightning_idc.models.codec import CaptionCodec, learn_vocabulary
from lightning_idc.models.decoder import CaptionDecoder
from lightning_idc.models.evaluation import Evaluator
from lightning_idc.models.module import PairModule
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

    from lightning_idc.metrics.captions import Scores


AS_TRAINED = ("no_change_captions", "image_size", "input_spec", "max_length")
"""Hyper-parameters that a checkpoint brings along with the weights, unless an argument sets them."""


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
    takes_prompt: ClassVar[bool] = False
    """Whether ``prompt`` of :meth:`describe` can ask for something else than usual."""
    max_caption_tokens: ClassVar[int | None] = None
    """Maximum length of a training caption, begin and end token included; longer ones are cut. None keeps all."""
    # once each per training step on every process; decoding, whose length differs, keeps the weights gathered instead
    sharded_methods: tuple[str, ...] = ("encode", "logits")

    def __init__(
        self,
        captions_per_pair: PositiveInt = 2,
        max_length: PositiveInt | None = None,
        num_beams: PositiveInt = 1,
        vocabulary: list[str] | str | None = None,
        min_word_count: PositiveInt = 1,
        no_change_captions: list[str] | None = None,
        image_size: tuple[PositiveInt, PositiveInt] | None = None,
        input_spec: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_arguments(PairCaptioner.__init__, locals())
        super().__init__(**options)
        self.codec: CaptionCodec | None = None
        self.evaluator = Evaluator()
        self._has_seen_input = False
        self._defaults = [name for name in AS_TRAINED if self.hparams.get(name) is None]

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
            temperature: of samples, as of :meth:`CaptionDecoder.sample`.
            top_p: of samples.
            generator: of samples.

        Raises:
            ConfigError: samples are drawn and ``num_beams`` is given too.
        """
        if samples is None:
            decoded = self.decoder.search(features, max_length, num_beams)
        elif num_beams is not None:
            raise ConfigError(f"samples is {samples} and num_beams {num_beams}; give one of them")
        else:
            decoded = self.decoder.sample(features, samples, temperature, top_p, generator, max_length)
        scores = self.change_scores(features) if change_scores else [None] * len(features)
        scores = [score for score in scores for _ in range(samples or 1)]
        return [
            Caption(self.built_vocabulary.decode(ids), log_prob, score)
            for ids, log_prob, score in zip(decoded.ids, decoded.mean_log_probs, scores, strict=True)
        ]

    def asked(self, batch: PairBatch) -> list[tuple[list[Tensor], str]]:
        """Images of each pair, uint8 ``(C, H, W)`` each, and what is asked about them: what a server is sent."""
        return [(list(pair), "") for pair in batch.images]

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Token ids of captions, begin and end tokens included."""
        return self.built_codec.tokenize(captions)

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch; runs in the data loader's workers.

        Raises:
            DataError: the pairs differ in size.
        """
        return self.built_codec.collate(self.at_trained_size(samples))

    # ---- what follows from it ---------------------------------------------------------------------------

    def score(self, features: PairFeatures, tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability of K captions per pair, ``(B, K)``."""
        return (self.log_probs(features, tokens, mask) * mask).sum(-1)

    @torch.no_grad()
    def change_scores(self, features: PairFeatures) -> list[float | None]:
        """1 minus the probability of the known no-change sentences, per pair."""
        known = self.built_codec.no_change_batch(len(features), self.device)
        return [None] * len(features) if known is None else change_probability(self.score(features, *known))

    @torch.no_grad()
    def losses_and_change_scores(self, features: PairFeatures, batch: PairBatch) -> tuple[Tensor, list[float | None]]:
        """:meth:`caption_losses` and :meth:`change_scores` from one call of :meth:`log_probs`.

        The no-change sentences follow the captions of each pair, so that a test scores every pair once.
        """
        known = self.built_codec.no_change_batch(len(features), self.device)
        if known is None:
            return self.caption_losses(features, batch), [None] * len(features)
        tokens, mask = join_captions((batch.tokens, batch.caption_mask), known)
        sums, num_captions = self.score(features, tokens, mask), batch.tokens.shape[1]
        return pair_losses(sums[:, :num_captions], batch.caption_mask), change_probability(sums[:, num_captions:])

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
        check_captions(batch)
        return self.caption_losses(features, batch).mean()

    def training_loss(self, features: Any, batch: Any) -> Tensor:
        loss = self.caption_loss(features, batch)
        self.log("train/caption_loss", loss.detach(), batch_size=len(batch))
        return loss

    def batch_ids(self, batch: Any) -> list[str]:
        return list(batch.ids)

    def on_train_start(self) -> None:
        super().on_train_start()
        self._has_seen_input = False

    def check_batch(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """Check the kind of a batch: a loader whose data module no trainer knows makes others.

        Raises:
            ConfigError: the batch is not a :class:`PairBatch`.
        """
        if not isinstance(batch, PairBatch):
            raise ConfigError(
                f"{type(self).__name__} got a batch that is a {type(batch).__name__}; expected what its `collate` "
                "makes: hand over the data module itself, as in trainer.fit(model, data), or loaders with "
                "collate_fn=model.collate"
            )

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = check_batch

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Store what the images that the network is trained on are like."""
        self.check_batch(batch)
        # what a start from other weights brought was of other images
        seen = self.hparams["input_spec"] if self._has_seen_input else None
        self.store_hparams(input_spec=noted(seen, self.batch_image_size(batch), self.data))
        self._has_seen_input = True

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

    def describe(
        self,
        before: str | Path | Image | Tensor,
        after: str | Path | Image | Tensor,
        prompt: str | None = None,
    ) -> Caption:
        """Say what changed between two images, without a Trainer; images are prepared as those of the training.

        Args:
            before: path, PIL image or uint8 tensor ``(3, H, W)``.
            after: the same.
            prompt: question about the pair; the usual one when None.

        Raises:
            DataError: an image cannot be read.
            ConfigError: there is a prompt, and the captioner reads none.
        """
        return self.describe_all([self.input_spec.read(before, after)], prompt)[0]

    @torch.no_grad()
    def describe_all(self, samples: Sequence[PairSample], prompt: str | None = None) -> list[Caption]:
        """Say what changed in pairs of one batch, without a Trainer.

        Args:
            samples: pairs as ``input_spec.read`` prepares them.
            prompt: question about each pair; the usual one when None.

        Raises:
            ConfigError: there is a prompt, and the captioner reads none.
        """
        if prompt is not None:
            samples = self.with_prompt(samples, prompt)
        if not samples:
            return []
        was_training = self.training
        self.eval()
        try:
            batch = self.collate(samples).to(self.device)
            return self.generate(self.encode(batch), change_scores=True)
        finally:
            self.train(was_training)

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> list[PairSample]:
        """Pairs with a question of their own, which wins over the captioner's.

        Raises:
            ConfigError: the captioner reads none.
        """
        if not self.takes_prompt:
            raise ConfigError(f"a {type(self).__name__} is not asked in words; leave the prompt out")
        return [replace(sample, prompt=prompt) for sample in samples]

    # ---- evaluation -------------------------------------------------------------------------------------

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """Records of the last evaluation, one per pair."""
        return self.evaluator.predictions

    @property
    def scores(self) -> Scores | None:
        """Corpus scores of the last evaluation; None where no pair had a reference."""
        return self.evaluator.scores

    def on_validation_epoch_start(self) -> None:
        self.evaluator.start(test=False)

    def on_test_epoch_start(self) -> None:
        self.evaluator.start(test=True)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        # computed for all batches alike: sharded weights are gathered by every process or by none
        losses = self.caption_losses(features, batch)
        self.evaluator.update(batch, self.generate(features), losses)

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        losses, scores = self.losses_and_change_scores(features, batch)
        self.evaluator.update(batch, self.generate(features), losses, scores)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        for name, value in self.evaluator.finish().items():
            # equal on all processes, which all scored the whole corpus; Lightning warns if it need not average them
            self.log(f"{split}/{name}", value, prog_bar=name == "CIDEr-D", sync_dist=True)

    # ---- making it --------------------------------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        vocabulary, learned = learn_vocabulary(self.hparams, self.data, self.fitting)
        if vocabulary is None:
            return None
        self.store_hparams(**learned, vocabulary=vocabulary.key)
        self.use_vocabulary(vocabulary)
        return self.build_net(vocabulary)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Turn captions into ids of this vocabulary; called by :meth:`make_net`."""
        self.codec = CaptionCodec(vocabulary, self.hparams, self.max_caption_tokens)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The words; None as long as there is no network."""
        return None if self.codec is None else self.codec.vocabulary

    @property
    def built_codec(self) -> CaptionCodec:
        """The codec; an error says how to get its words where there is no network yet."""
        assert self.built_net is not None and self.codec is not None
        return self.codec

    @property
    def built_vocabulary(self) -> Vocabulary:
        """The words; an error as of :attr:`built_codec`."""
        return self.built_codec.vocabulary

    @property
    def decoder(self) -> CaptionDecoder:
        """Decoder of the network as it is now."""
        return CaptionDecoder(self.built_net, self.built_vocabulary.special, self.hparams)

    def load_start(self) -> dict[str, Tensor] | None:
        max_length = self.hparams["max_length"]
        state = super().load_start()
        if max_length is not None:
            # descriptions of a pre-training may be longer than the captions to come
            self.store_hparams(max_length=max_length)
        return state

    def adopt_hparams(self, hparams: dict[str, Any]) -> None:
        super().adopt_hparams(hparams)
        self.store_hparams(**{name: hparams[name] for name in AS_TRAINED if hparams.get(name) is not None})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self.fitting:
            return  # a run that goes on has them of its data
        stored = plain_hparams(checkpoint, "the checkpoint")
        self.store_hparams(**{name: stored[name] for name in self._defaults if stored.get(name) is not None})

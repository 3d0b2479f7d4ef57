"""PairCaptioner: base class of all captioners of image pairs.

A training step (:meth:`PairModule.training_step`):

1. add-ons change the batch;
2. :meth:`PairCaptioner.encode`: images (B, 2, 3, H, W) -> features, once per pair;
3. add-ons change the features;
4. :meth:`PairCaptioner.caption_loss`: log-probabilities (B, K, T) of K captions per pair -> a scalar.

Three parts have files of their own: :class:`CaptionCodec` (captions to token ids), :class:`CaptionDecoder` (features to
captions) and :class:`Evaluator` (captions to scores).

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
from lightning_idc.images.input_spec import InputSpec, update_input_spec
from lightning_idc.images.types import Caption, PairBatch, PairFeatures, PairSample, ProvidesCaptions
from lightning_idc.models.captions import change_probability, check_captions, join_captions, pair_losses
from lightning_idc.models.codec import CaptionCodec, grow_weights, learn_vocabulary, report_unknown_words
from lightning_idc.models.decoder import CaptionDecoder
from lightning_idc.models.evaluation import Evaluator
from lightning_idc.models.module import PairModule
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

    from lightning_idc.metrics.captions import Scores


CHECKPOINT_HPARAMS = ("no_change_captions", "image_size", "input_spec", "max_length")
"""Hyper-parameters that a loaded checkpoint sets together with the weights, unless an argument does."""


class PairCaptioner(PairModule):
    """Trains, decodes and scores a captioner of image pairs.

    A small captioner implements :meth:`build_net`; one with its own tokenizer or processor implements
    :meth:`make_net` and overrides :meth:`encode` and :meth:`collate`.

    After an evaluation ``predictions`` holds one record per pair (``id``, ``caption``, ``log_prob``, ``references``,
    ``change_type``, ``loss``), sorted by id and equal on all processes, and ``scores`` the corpus scores.

    Args:
        captions_per_pair: captions sampled per pair and step; they share one encoding of the pair.
        max_length: maximum number of tokens of a generated caption; the longest training caption when None.
        num_beams: beams at validation, test and prediction; 1 decodes greedily.
        vocabulary: words with their special tokens, ``clip``, or BERT's ``vocab.txt`` or its folder; built from the
            training captions when None. New words of the training captions are added to those of ``init_from``.
        min_word_count: minimum number of occurrences of a word in a vocabulary built from the training captions.
        no_change_captions: sentences that mean "nothing changed", for ``change_score``; from the data when None.
        image_size: height and width that images given to :meth:`describe` are resized to; from the data when None.
        input_spec: properties of the training images, see
            :class:`~lightning_idc.images.input_spec.InputSpec`; set by training, stored in
            checkpoints, and applied to images that are described or predicted.
        options: of :class:`~lightning_idc.models.module.PairModule`.

    Raises:
        ConfigError: a number is out of range.
    """

    token_hparams: tuple[str, ...] = ("vocabulary",)
    takes_prompt: ClassVar[bool] = False
    """Whether :meth:`describe` accepts a ``prompt``."""
    reads_noise: ClassVar[bool] = False
    """Whether :meth:`encode` hides the patches that ``batch.noise`` masks."""
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
        self._unset_hparams = [name for name in CHECKPOINT_HPARAMS if self.hparams.get(name) is None]

    # ---- to be implemented by subclasses ----------------------------------------------------------------

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        """Build the network of a small captioner, a ``CaptionNet`` of ``nn/decoding/decoding.py``."""
        raise ConfigError(
            f"{type(self).__name__} has no build_net; implement it, or override make_net, encode, log_probs and "
            f"generate"
        )

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Features of the pairs; all computation on pixels happens here, once per pair."""
        features: PairFeatures = self.built_net.encode(batch.images)
        return features

    def with_images(self, batch: PairBatch, images: Tensor) -> PairBatch:
        """A copy of a batch with other images, for add-ons and controls that replace them.

        Overridden by captioners whose batches hold other values that were computed from the images.

        Args:
            batch: result of :meth:`collate`.
            images: new images, uint8 ``(B, 2, C, H, W)``.

        Raises:
            ConfigError: the other parts of the batch cannot be computed from the new images.
        """
        return replace(batch, images=images)

    def encode_repeated(self, batch: PairBatch) -> PairFeatures:
        """:meth:`encode` for pairs that share images; overridden by captioners that can encode each image once."""
        return self.encode(batch)

    def log_probs(self, features: PairFeatures, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probability of every token given those before it, teacher-forced.

        Args:
            features: B pairs.
            tokens: ``(B, K, T)``.
            mask: bool ``(B, K, T)``, the tokens to score; a captioner may skip the others and return 0 for them.

        Returns:
            ``(B, K, T)``; 0 at position 0, the begin token.
        """
        logits = self.built_net.logits(features, tokens[..., :-1])
        targets = tokens[..., 1:]
        token_log_probs = -nn.functional.cross_entropy(  # (B * K * (T - 1),)
            logits.flatten(0, -2).float(), targets.flatten(), reduction="none"
        )
        return nn.functional.pad(token_log_probs.view(targets.shape), (1, 0))  # (B, K, T)

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
        """Captions of the pairs: one per pair, or ``samples`` random ones, with those of a pair next to each other.

        Args:
            features: B pairs.
            max_length: maximum number of tokens, the end token included.
            num_beams: 1 decodes greedily.
            change_scores: also compute the change scores from the no-change sentences.
            samples: captions sampled per pair; None decodes greedily or by beam search.
            temperature: see :meth:`CaptionDecoder.sample`.
            top_p: see :meth:`CaptionDecoder.sample`.
            generator: see :meth:`CaptionDecoder.sample`.

        Raises:
            ConfigError: both ``samples`` and ``num_beams`` are given.
        """
        if samples is None:
            decoded = self.decoder.search(features, max_length, num_beams)
        elif num_beams is not None:
            raise ConfigError(f"samples is {samples} and num_beams {num_beams}; give one of them")
        else:
            decoded = self.decoder.sample(
                features,
                samples,
                temperature=temperature,
                top_p=top_p,
                generator=generator,
                max_length=max_length,
            )
        scores = self.change_scores(features) if change_scores else [None] * len(features)
        scores = [score for score in scores for _ in range(samples or 1)]
        return [
            Caption(self.built_vocabulary.decode(ids), log_prob, score)
            for ids, log_prob, score in zip(decoded.ids, decoded.mean_log_probs, scores, strict=True)
        ]

    def images_and_prompts(self, batch: PairBatch) -> list[tuple[list[Tensor], str]]:
        """Images of each pair, uint8 ``(C, H, W)`` each, and the prompt: the contents of a request to a server."""
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

    # ---- scores and losses ------------------------------------------------------------------------------

    def score(self, features: PairFeatures, tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability of K captions per pair, ``(B, K)``."""
        return (self.log_probs(features, tokens, mask) * mask).sum(-1)

    @torch.no_grad()
    def change_scores(self, features: PairFeatures) -> list[float | None]:
        """1 minus the probability of the no-change sentences, per pair; None if there are none."""
        no_change = self.built_codec.no_change_batch(len(features), self.device)
        return [None] * len(features) if no_change is None else change_probability(self.score(features, *no_change))

    @torch.no_grad()
    def losses_and_change_scores(self, features: PairFeatures, batch: PairBatch) -> tuple[Tensor, list[float | None]]:
        """:meth:`caption_losses` and :meth:`change_scores` from one call of :meth:`log_probs`.

        The no-change sentences are appended to the captions of each pair, so that a test scores every pair once.
        """
        no_change = self.built_codec.no_change_batch(len(features), self.device)
        if no_change is None:
            return self.caption_losses(features, batch), [None] * len(features)
        tokens, mask = join_captions((batch.tokens, batch.caption_mask), no_change)  # (B, K + no-change, T)
        sums, num_captions = self.score(features, tokens, mask), batch.tokens.shape[1]
        return pair_losses(sums[:, :num_captions], batch.caption_mask), change_probability(sums[:, num_captions:])

    def changed_cells(self, batch: PairBatch) -> Tensor | None:
        """Expected number of changes in each cell of a grid, ``(B, h, w)``; None if the captioner has no such map."""
        return None

    def change_boxes(self, batch: PairBatch) -> list[list[list[float]]] | None:
        """Boxes x1 y1 x2 y2 of the changes of each pair, in pixels; None if the captioner predicts no boxes."""
        return None

    def caption_losses(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """Loss of each pair, ``(B,)``: mean over captions of the mean over tokens; 0 for a pair without captions."""
        return pair_losses(self.score(features, batch.tokens, batch.caption_mask), batch.caption_mask)

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """Mean over pairs of the mean over captions of the mean over tokens of the negative log-probability.

        ProCap Eq. 10

        A mean of means, so that accumulated and distributed steps equal one large step.

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

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if isinstance(self.data, ProvidesCaptions) and type(self.built_vocabulary) is Vocabulary:
            report_unknown_words(self.built_vocabulary, self.data.train_captions())

    def on_train_start(self) -> None:
        super().on_train_start()
        self._has_seen_input = False

    def check_batch(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """Check the class of a batch, which is another one if a loader was passed without ``collate_fn``.

        Raises:
            ConfigError: the batch is not a :class:`PairBatch`.
        """
        if not isinstance(batch, PairBatch):
            raise ConfigError(
                f"{type(self).__name__} got a batch that is a {type(batch).__name__}; expected the result of "
                "its `collate`: pass the data module itself, as in trainer.fit(model, data), or loaders with "
                "collate_fn=model.collate"
            )

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = check_batch

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Store the properties of the training images."""
        self.check_batch(batch)
        # an input_spec that came with the weights of init_from describes other images
        previous = self.hparams["input_spec"] if self._has_seen_input else None
        self.store_hparams(input_spec=update_input_spec(previous, self.batch_image_size(batch), self.data))
        self._has_seen_input = True

    def batch_image_size(self, batch: PairBatch) -> list[int] | None:
        """Height and width of the images of a batch; None if they differ."""
        return [int(side) for side in batch.images.shape[-2:]]

    @property
    def input_spec(self) -> InputSpec:
        """Properties of the training images, which decide how other images are prepared."""
        return InputSpec.from_hparams(self.hparams)

    def at_trained_size(self, samples: Sequence[PairSample]) -> Sequence[PairSample]:
        """Pairs of a test or prediction, resized to the training size unless the data module sets a size."""
        if self._trainer is None or self.is_fitting or getattr(self.data, "image_size", None) is not None:
            return samples
        spec = self.input_spec
        return [spec.resized(sample) for sample in samples]

    def predict_step(self, batch: PairBatch, batch_idx: int) -> list[dict[str, Any]]:
        captions = self.generate(self.encode(batch), change_scores=True)
        return [
            {"id": id, "caption": caption.text, "log_prob": caption.log_prob, "change_score": caption.change_score}
            for id, caption in zip(batch.ids, captions, strict=True)
        ]

    def describe(
        self,
        before: str | Path | Image | Tensor,
        after: str | Path | Image | Tensor,
        prompt: str | None = None,
    ) -> Caption:
        """Describe the change between two images, without a Trainer; images are prepared as in training.

        Args:
            before: path, PIL image or uint8 tensor ``(3, H, W)``.
            after: the same.
            prompt: question about the pair; the default prompt when None.

        Raises:
            DataError: an image cannot be read.
            ConfigError: there is a prompt, and the captioner accepts none.
        """
        return self.describe_all([self.input_spec.read(before, after)], prompt)[0]

    @torch.no_grad()
    def describe_all(self, samples: Sequence[PairSample], prompt: str | None = None) -> list[Caption]:
        """Describe the change in each pair of one batch, without a Trainer.

        Args:
            samples: pairs prepared by ``input_spec.read``.
            prompt: question about each pair; the default prompt when None.

        Raises:
            ConfigError: there is a prompt, and the captioner accepts none.
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

    def prepared(self, samples: Sequence[PairSample]) -> Sequence[PairSample]:
        """Pairs with what this captioner computes from their images alone, for several calls about the same pairs."""
        return samples

    def with_prompt(self, samples: Sequence[PairSample], prompt: str) -> list[PairSample]:
        """Pairs with this prompt, which replaces the prompt of the captioner.

        Raises:
            ConfigError: the captioner accepts no prompt.
        """
        if not self.takes_prompt:
            raise ConfigError(f"{type(self).__name__} takes no prompt; leave the prompt out")
        return [replace(sample, prompt=prompt) for sample in samples]

    # ---- evaluation -------------------------------------------------------------------------------------

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """Records of the last evaluation, one per pair."""
        return self.evaluator.predictions

    @property
    def scores(self) -> Scores | None:
        """Corpus scores of the last evaluation; None if no pair had a reference."""
        return self.evaluator.scores

    def on_validation_epoch_start(self) -> None:
        self.evaluator.start(test=False)

    def on_test_epoch_start(self) -> None:
        self.evaluator.start(test=True)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        # for every batch, even one without references: all processes must gather sharded weights together
        losses = self.caption_losses(features, batch)
        self.evaluator.update(batch, self.generate(features), losses)

    def test_step(self, batch: PairBatch, batch_idx: int) -> None:
        features = self.encode(batch)
        losses, scores = self.losses_and_change_scores(features, batch)
        self.evaluator.update(batch, self.generate(features), losses, scores, self.change_boxes(batch))

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        for name, value in self.evaluator.finish().items():
            # every process scored all pairs, so the values are equal; without sync_dist Lightning warns
            self.log(f"{split}/{name}", value, prog_bar=name == "CIDEr-D", sync_dist=True)

    # ---- building the network ---------------------------------------------------------------------------

    def make_net(self) -> nn.Module | None:
        vocabulary, learned = learn_vocabulary(self.hparams, self.data, self.is_fitting, self.init_from is not None)
        if vocabulary is None:
            return None
        self.store_hparams(**learned, vocabulary=vocabulary.key)
        self.use_vocabulary(vocabulary)
        return self.build_net(vocabulary)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Use this vocabulary to turn captions into ids; called by :meth:`make_net`."""
        self.codec = CaptionCodec(vocabulary, self.hparams, self.max_caption_tokens)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary; None before the network is built."""
        return None if self.codec is None else self.codec.vocabulary

    @property
    def built_codec(self) -> CaptionCodec:
        """The codec; before the network is built, an error that says how to build it."""
        assert self.built_net is not None and self.codec is not None
        return self.codec

    @property
    def built_vocabulary(self) -> Vocabulary:
        """The vocabulary; raises like :attr:`built_codec`."""
        return self.built_codec.vocabulary

    @property
    def decoder(self) -> CaptionDecoder:
        """Decoder of the current network."""
        return CaptionDecoder(self.built_net, self.built_vocabulary.special, self.hparams)

    def load_initial_weights(self) -> dict[str, Tensor] | None:
        arguments = {name: self.hparams[name] for name in ("max_length", "no_change_captions")}
        state = super().load_initial_weights()
        if state is None:
            return None
        if self.is_fitting and isinstance(self.data, ProvidesCaptions):
            # those of the checkpoint are of other captions
            self.store_hparams(max_length=None)
            arguments["no_change_captions"] = arguments["no_change_captions"] or self.data.no_change_captions()
        self.store_hparams(**{name: value for name, value in arguments.items() if value})
        return state

    def fit_weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return grow_weights(state, self.state_dict(), len(self.built_vocabulary))

    def adopt_hparams(self, hparams: dict[str, Any]) -> None:
        super().adopt_hparams(hparams)
        self.store_hparams(**{name: hparams[name] for name in CHECKPOINT_HPARAMS if hparams.get(name) is not None})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self.is_fitting:
            return  # a resumed run computes them from its data
        stored = plain_hparams(checkpoint, "the checkpoint")
        self.store_hparams(**{name: stored[name] for name in self._unset_hparams if stored.get(name) is not None})

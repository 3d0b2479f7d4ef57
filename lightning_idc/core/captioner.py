"""PairCaptioner: the one base class of everything that says what changed between two images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from lightning_idc.core.adapters import TakesAdapters
from lightning_idc.core.addon import (
    ADDON_METHODS,
    TrainingStep,
    add_losses,
    addons_of,
    after_encoding,
    before_encoding,
    gathered,
    reconcile_addons,
    replaced_objective,
    shard,
)
from lightning_idc.core.checkpoint import LoadsAndSaves
from lightning_idc.core.decoding import Decoded, beam_search, greedy
from lightning_idc.core.evaluation import Evaluation
from lightning_idc.core.schedules import Constant, Schedule, scheduled
from lightning_idc.core.types import Caption, PairBatch, PairError, PairFeatures, PairSample, stack_images
from lightning_idc.core.vocabulary import Vocabulary, load_vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image

# once each per training step on every process; decoding, whose length differs, keeps the weights gathered instead
NET_METHODS = ("encode", "logits")


@runtime_checkable
class ProvidesCaptions(Protocol):
    """What a small captioner asks of a data module before its layers can be made."""

    image_size: tuple[int, int] | None

    def train_captions(self) -> list[str]: ...

    def no_change_captions(self) -> list[str]: ...


class PairCaptioner(TakesAdapters, LoadsAndSaves, Evaluation, LightningModule):
    """Trains, decodes and scores a captioner of image pairs.

    A small captioner writes :meth:`build_net`; one with a tokenizer or processor of its own writes
    :meth:`make_net` and overrides :meth:`encode` and :meth:`collate`.

    Args:
        captions_per_pair: captions drawn per pair and step; all of them share one look at the pair.
        max_length: most tokens of a generated caption; the longest training caption when None.
        num_beams: beams at validation, test and prediction; 1 decodes greedily.
        learning_rates: factor of the learning rate by parameter group: ``vision``, ``language``,
            ``adapters.<name>``, ``addons.<name>``.
        vocabulary: words with their special tokens, ``clip``, or BERT's ``vocab.txt`` or the folder that holds it; made
            from the training captions when None.
        no_change_captions: sentences that say nothing changed, for ``change_score``; from the data when None.
        image_size: height and width that images given to :meth:`describe` are resized to; from the data when None.
        adapters: what the adapters are made from, by name; callbacks and checkpoints write it.
        init_from: checkpoint whose weights (with vocabulary and adapters) training starts from.
        settle_adapters: make the adapters of ``init_from`` part of the network, so that switching off those that
            come later gives back what training started from.
        optimizer: makes the optimizer from parameter groups.
        schedule: multiplier of the learning rate over the run.
    """

    net: nn.Module | None  # type: ignore[assignment]
    vision_modules: tuple[str, ...] = ("net.backbone",)
    """Paths of the sub-modules whose parameters form the group ``vision``."""

    def __init__(
        self,
        captions_per_pair: int = 2,
        max_length: int | None = None,
        num_beams: int = 1,
        learning_rates: dict[str, float] | None = None,
        vocabulary: list[str] | str | None = None,
        no_change_captions: list[str] | None = None,
        image_size: tuple[int, int] | None = None,
        adapters: dict[str, dict[str, Any]] | None = None,
        init_from: str | None = None,
        settle_adapters: bool = False,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        schedule: Schedule = Constant(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        # optimizer and schedule are objects, which a checkpoint of plain types cannot hold
        self.save_hyperparameters(ignore=["optimizer", "schedule", "init_from", "settle_adapters"])
        self.optimizer, self.schedule = optimizer, schedule
        self.init_from: str | None = init_from
        self._settles = settle_adapters
        self.net = None
        self.adapter = nn.ModuleDict()
        self.vocabulary: Vocabulary | None = None
        self._doubtful: tuple[Tensor, list[str]] | None = None
        self.register_load_state_dict_pre_hook(reconcile_addons)

    # ---- what a subclass writes -------------------------------------------------------------------------

    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        """Make the network of a small captioner; ``core/decoding.py`` says what it must offer (CaptionNet)."""
        raise PairError(f"{type(self).__name__} has no build_net; write it, or override encode, log_probs and generate")

    def encode(self, batch: PairBatch) -> PairFeatures:
        """Everything that looks at pixels, once per pair."""
        return self._built_net.encode(batch.images)

    def log_probs(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Log-probability of every token given those before it, teacher-forced.

        Args:
            features: B pairs.
            tokens: ``(B, K, T)``.

        Returns:
            ``(B, K, T)``; 0 at position 0, the begin token.
        """
        logits = self._built_net.logits(features, tokens[..., :-1])
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
    ) -> list[Caption]:
        """Say what changed, one caption per pair.

        Args:
            features: B pairs.
            max_length: most tokens, the end token included.
            num_beams: 1 decodes greedily.
            change_scores: also score the known no-change sentences.
        """
        vocabulary, net = self._built_vocabulary, self._built_net
        length = max_length or self.hparams["max_length"]
        beams = num_beams or self.hparams["num_beams"]
        with gathered(net):  # captions of different length would make processes wait for each other
            decoded: Decoded = (
                greedy(net, features, length, vocabulary.special)
                if beams == 1
                else beam_search(net, features, length, beams, special=vocabulary.special)
            )
        scores = self.change_scores(features) if change_scores else [None] * len(features)
        return [
            Caption(vocabulary.decode(ids), log_prob, score)
            for ids, log_prob, score in zip(decoded.ids, decoded.mean_log_probs, scores, strict=True)
        ]

    def tokenize(self, captions: Sequence[str]) -> list[list[int]]:
        """Token ids of captions, begin and end tokens included."""
        return [self._built_vocabulary.encode(caption) for caption in captions]

    def collate(self, samples: Sequence[PairSample]) -> PairBatch:
        """Make a batch; runs in the data loader's workers.

        Raises:
            PairError: the pairs differ in size.
        """
        wanted = self.hparams["captions_per_pair"]
        rows = [self.tokenize(chosen_captions(sample, wanted)) for sample in samples]
        tokens, mask = pad_captions(rows, captions=wanted)
        return PairBatch(
            images=stack_images(samples),
            tokens=tokens,
            caption_mask=mask,
            ids=[sample.id for sample in samples],
            references=[sample.captions for sample in samples],
            change_types=[sample.change_type for sample in samples],
        )

    # ---- what follows from it ---------------------------------------------------------------------------

    def score(self, features: PairFeatures, tokens: Tensor, mask: Tensor) -> Tensor:
        """Summed log-probability of K captions per pair, ``(B, K)``."""
        return (self.log_probs(features, tokens) * mask).sum(-1)

    @torch.no_grad()
    def change_scores(self, features: PairFeatures) -> list[float | None]:
        """1 minus the probability mass of the known no-change sentences, per pair."""
        sentences = self.hparams["no_change_captions"]
        if not sentences:
            return [None] * len(features)
        tokens, mask = pad_captions([self.tokenize(sentences)], captions=len(sentences))
        shape = (len(features), *tokens.shape[1:])
        scores = self.score(features, tokens.expand(shape).to(self.device), mask.expand(shape).to(self.device))
        return (1.0 - scores.exp().sum(-1)).clamp(0.0, 1.0).tolist()

    def caption_loss(self, features: PairFeatures, batch: PairBatch) -> Tensor:
        """Mean over pairs of the mean over captions of the mean over tokens of the negative log-probability.

        A mean of means, so that accumulated and distributed steps equal one big step.
        """
        mask = batch.caption_mask
        token_count = mask.sum(-1)
        per_caption = -(self.log_probs(features, batch.tokens) * mask).sum(-1) / token_count.clamp(min=1)
        caption_count = (token_count > 0).sum(-1)
        if (caption_count == 0).any():
            empty = [name for name, count in zip(batch.ids, caption_count.tolist(), strict=True) if count == 0]
            raise PairError(f"no caption to train on for {', '.join(empty[:5])}; add captions or leave these pairs out")
        return (per_caption.sum(-1) / caption_count).mean()

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        step = TrainingStep(self, batch, batch_idx)
        before_encoding(step)
        step.features = self.encode(step.batch)
        after_encoding(step)
        step.loss = replaced_objective(step)
        if step.loss is None:
            step.loss = self.caption_loss(step.features, step.batch)
            self.log("train/caption_loss", step.loss.detach(), batch_size=len(batch))
        loss = add_losses(step)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch))
        self._refuse_nonfinite(loss, batch.ids)
        return loss

    def predict_step(self, batch: PairBatch, batch_idx: int) -> list[dict[str, Any]]:
        captions = self.generate(self.encode(batch), change_scores=True)
        return [
            {"id": name, "caption": c.text, "log_prob": c.log_prob, "change_score": c.change_score}
            for name, c in zip(batch.ids, captions, strict=True)
        ]

    @torch.no_grad()
    def describe(self, before: str | Path | Image | Tensor, after: str | Path | Image | Tensor) -> Caption:
        """Say what changed between two images, without a Trainer.

        Args:
            before: path, PIL image or uint8 tensor ``(3, H, W)``.
            after: the same.

        Raises:
            PairError: an image cannot be read.
        """
        from lightning_idc.core.images import as_pair

        was_training = self.training
        self.eval()
        try:
            size = self.hparams["image_size"]
            images = as_pair(before, after, size=None if size is None else (int(size[0]), int(size[1])))
            batch = self.collate([PairSample("pair", *images)]).to(self.device)
            return self.generate(self.encode(batch), change_scores=True)[0]
        finally:
            self.train(was_training)

    # ---- making, sharding, optimising -------------------------------------------------------------------

    def build(self) -> None:
        """Make the network with its adapters, once, from what is known: hyper-parameters, ``init_from`` or the data."""
        if self.net is None:
            wanted, self.hparams["adapters"] = self.hparams["adapters"], None
            start = self.load_start()
            self.net = self.make_net()
            if self.net is not None and start is not None:
                self.install_adapters()  # those that the weights belong to
                self.load_state_dict(start)
                if self._settles:
                    self.settle_adapters()
            self.record_adapters(wanted)
        if self.net is not None:
            self.install_adapters()

    def make_net(self) -> nn.Module | None:
        """Make the network; None while it cannot be known, as a checkpoint may still bring its vocabulary."""
        options, words = self.hparams, self.hparams["vocabulary"]
        vocabulary = None if words is None else load_vocabulary(words)
        trainer = self._trainer
        data = trainer.datamodule if trainer is not None else None  # type: ignore[attr-defined]
        # fitting learns what nobody has told; a test needs the words alone, and its data may have no captions for it
        unknown = None in (options["max_length"], options["no_change_captions"])
        learns = words is None or (trainer is not None and trainer.state.fn == TrainerFn.FITTING and unknown)
        if learns and isinstance(data, ProvidesCaptions):
            captions = data.train_captions()
            if not captions and vocabulary is None:
                raise PairError("the training split has no captions; a captioner needs some to learn its words from")
            vocabulary = vocabulary or Vocabulary.build(captions)
            options["no_change_captions"] = options["no_change_captions"] or data.no_change_captions()
            options["image_size"] = options["image_size"] or data.image_size
            if options["max_length"] is None:
                options["max_length"] = max((len(vocabulary.encode(caption)) for caption in captions), default=None)
        if vocabulary is None:
            return None
        options["vocabulary"] = vocabulary.key
        self.vocabulary = vocabulary
        return self.build_net(vocabulary)

    def configure_model(self) -> None:
        self.build()
        if self.device_mesh is not None and self.net is not None:
            shard(self.net, self.device_mesh, NET_METHODS)
            for adapter in self.adapter.values():
                shard(adapter, self.device_mesh, ())
            for addon in addons_of(self).values():
                shard(addon, self.device_mesh, ADDON_METHODS)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Trainable parameters by name of group: ``vision``, ``language``, ``adapters.<name>``, ``addons.<name>``."""
        groups: dict[str, list[nn.Parameter]] = {}
        for path, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups.setdefault(self._group_of(path), []).append(parameter)
        unknown = set(self.hparams["learning_rates"] or {}) - set(groups)
        if unknown:
            raise PairError(f"learning_rates names {sorted(unknown)}; the parameter groups are {sorted(groups)}")
        return [{"name": name, "params": parameters} for name, parameters in groups.items()]

    def _group_of(self, path: str) -> str:
        if path.startswith("aux_addons."):
            return f"addons.{path.split('.')[1]}"
        if path.startswith("adapter."):
            return f"adapters.{path.split('.')[1]}"
        return "vision" if path.startswith(tuple(f"{module}." for module in self.vision_modules)) else "language"

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameter_groups())  # type: ignore[arg-type]
        for group in optimizer.param_groups:
            group["lr"] *= (self.hparams["learning_rates"] or {}).get(group["name"], 1.0)
        schedules = [self.schedule_of(group["name"]) for group in optimizer.param_groups]
        return scheduled(optimizer, schedules, self.trainer)

    def schedule_of(self, group: str) -> Schedule:
        """Schedule of a group of parameters."""
        return self.schedule

    # ---- bookkeeping ------------------------------------------------------------------------------------

    @property
    def _built_net(self) -> Any:
        if self.net is None:
            raise PairError(
                f"{type(self).__name__} has no network yet: give `vocabulary`, load a checkpoint, or fit it with a "
                "data module that has train_captions()"
            )
        return self.net

    @property
    def _built_vocabulary(self) -> Vocabulary:
        assert self._built_net is not None and self.vocabulary is not None
        return self.vocabulary

    def _refuse_nonfinite(self, loss: Tensor, ids: list[str]) -> None:
        """Stop at a NaN loss. On an accelerator the check runs one step late, so that it never waits for it."""
        late, self._doubtful = self._doubtful, (loss.detach(), ids)
        if loss.device.type == "cpu":
            self.check_loss()
        elif late is not None:
            _check_finite(*late)

    def check_loss(self) -> None:
        """Raise if the last training loss was not finite; also asked before a checkpoint is written."""
        if self._doubtful is not None:
            _check_finite(*self._doubtful)


def _check_finite(loss: Tensor, ids: list[str]) -> None:
    if not torch.isfinite(loss):
        raise PairError(
            f"the training loss became {loss.item()} on the pairs {', '.join(ids[:8])}; nothing was saved after it. "
            "Lower the learning rate, clip gradients (trainer.gradient_clip_val) or look at these pairs"
        )


def chosen_captions(sample: PairSample, wanted: int) -> list[str]:
    """Captions of a pair for one step: ``wanted`` of them drawn by ``meta["seed"]``, the first ones without a seed."""
    seed = sample.meta.get("seed")
    if seed is None or len(sample.captions) <= wanted:
        return sample.captions[:wanted]
    order = torch.randperm(len(sample.captions), generator=torch.Generator().manual_seed(seed))
    return [sample.captions[i] for i in order[:wanted].tolist()]


def pad_captions(rows: Iterable[Sequence[Sequence[int]]], captions: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Pad token ids of B pairs into ``(B, K, T)`` with the mask of the tokens to be predicted.

    Args:
        rows: per pair at most K lists of ids, begin and end tokens included.
        captions: K.
        pad: id of padding.
    """
    rows = list(rows)
    length = max((len(ids) for row in rows for ids in row), default=2)
    tokens = torch.full((len(rows), captions, length), pad, dtype=torch.long)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for b, row in enumerate(rows):
        for k, ids in enumerate(row):
            tokens[b, k, : len(ids)] = torch.tensor(ids)
            mask[b, k, 1 : len(ids)] = True
    return tokens, mask

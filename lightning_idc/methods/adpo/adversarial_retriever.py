"""AdversarialRetriever: learns to pick the captions that the policy finds hardest to reject (ADPO 4.2 to 4.4).

One training step of the retriever q, the second update of Algorithm 1 (the first is in ``preference_addon.py``):

1. :meth:`Retriever.draw` draws one rejected caption per chosen caption from q (Eq. 3),
2. :meth:`Retriever.update` receives the policy's loss on each of them as its reward R (Eq. 6),
3. :meth:`Retriever.losses` raises the expected reward by REINFORCE (Eq. 7, ``reinforce.py``).

Shapes: B pairs, N candidate captions, K rejected captions per pair, D channels of an embedding.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.methods.adpo.losses import adversarial_reward
from lightning_idc.methods.adpo.negatives import NegativeSource, RejectedCaptions, build_pool, sample_candidates
from lightning_idc.methods.adpo.pool import (
    CaptionPool,
    Weighting,
    normalize,
    sample_negatives,
)
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.preference_addon import CHECK_EVERY
from lightning_idc.methods.adpo.reinforce import Baseline, RunningMean, entropy, reinforce
from lightning_idc.methods.adpo.retriever import EncoderHeads, FeatureHeads, PairTextMatcher
from lightning_idc.methods.policy.policy_callback import train_data
from lightning_idc.models.addon import Addon, TrainingStep
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import mean_over_processes
from lightning_idc.models.loading import load_module
from lightning_idc.models.trial import trial_features
from lightning_idc.nn.retrieval import symmetric_cross_entropy
from lightning_idc.synthesis.models.base import TextEncoder
from lightning_idc.utils.bounds import NonNegativeFloat, PositiveShare, Share, TwoOrMore, check_arguments
from lightning_idc.utils.errors import CheckpointError, ConfigError, reads_file

MIN_EFFECTIVE_CANDIDATES = 8.0
"""Effective number of candidates below which a retriever has collapsed: it draws the same captions for all pairs."""


class Retriever(Addon, NegativeSource):
    """Draws negatives from q, a softmax over similarities, and learns from the policy's losses on them.

    Args:
        pool: captions of the training split.
        matcher: encoder of pairs and of the pool's captions.
        baseline: baseline of the rewards.
        candidates: |N|, number of captions that are drawn from the pool for a batch; q chooses among them.
        scale: factor of the cosine similarities.
        temperature: tau; with an infinite temperature q is uniform.
        alignment: weight of the contrastive loss between pairs and their references.
        fraction: fraction of the negatives that the retriever draws; the source that it replaces draws the rest.
        weight: factor of the losses; 0 equals absent.
    """

    sharded_methods = ("draw", "losses")
    clip_separately = True

    def __init__(
        self,
        pool: CaptionPool,
        matcher: PairTextMatcher,
        baseline: Baseline,
        candidates: int,
        scale: float,
        temperature: float,
        alignment: float,
        fraction: float = 1.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight)
        self.pool, self.matcher, self.baseline = pool, matcher, baseline
        self.candidates, self.inverse_temperature, self.alignment = candidates, scale / temperature, alignment
        self.fraction = fraction
        # negatives, their rewards (B, K) and the mask of those that count (B, K), from `update` to `losses` of a step
        self._outcome: tuple[RejectedCaptions, Tensor, Tensor] | None = None
        self._num_steps, self._effective_candidates, self._has_warned = 0, 0.0, False

    def draw(self, step: TrainingStep[PairCaptioner], count: int, generator: torch.Generator) -> RejectedCaptions:
        # RandomCaption draws the same random numbers, so that a uniform retriever equals it
        indices, allowed = sample_candidates(step, self.pool, self.candidates, generator)  # (N,), (B, N)
        logits = self.logits(step, indices)  # (B, N)
        columns, log_probs = sample_negatives(logits, allowed.to(logits.device), count, generator)  # (B, K), (B, N)
        return RejectedCaptions(
            [[self.pool.texts[index] for index in row] for row in indices[columns].tolist()],
            log_probs=log_probs.gather(1, columns.to(logits.device)),
            distribution=_by_caption(log_probs.detach(), indices),
        )

    def update(self, negatives: RejectedCaptions, losses: Tensor, present: Tensor) -> None:
        self._outcome = negatives, adversarial_reward(losses), present

    def logits(self, step: TrainingStep[PairCaptioner], indices: Tensor) -> Tensor:
        """Logits of q for the captions of the pool at ``indices (N,)``: ``(B, N)``."""
        # sizes before padding; a captioner pads batches of mixed sizes
        sizes = step.batch.model_inputs.get("sizes")
        pairs = self.matcher.embed_pairs(step.features, step.batch.images, sizes)  # (B, D)
        captions = self.matcher.embed_captions(indices.to(pairs.device))  # (N, D)
        return self.inverse_temperature * (pairs @ captions.T)

    def losses(self, step: TrainingStep[PairCaptioner]) -> dict[str, Tensor]:
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return {}
        losses = {"reinforce": self._reinforce_loss(step, *outcome)}
        if self.alignment:
            losses["alignment"] = self.alignment * self._alignment_loss(step)
        return losses

    def _reinforce_loss(
        self, step: TrainingStep[PairCaptioner], negatives: RejectedCaptions, rewards: Tensor, present: Tensor
    ) -> Tensor:
        assert negatives.log_probs is not None and negatives.distribution is not None
        self._log(step, negatives, rewards=rewards, present=present)
        rewards = rewards[present]  # (N,)
        baseline = self.baseline(rewards)
        if not len(rewards):  # a mixture drew all negatives of this step from its other source
            return 0.0 * negatives.log_probs.sum()
        return reinforce(negatives.log_probs[present], rewards, baseline)

    def _log(
        self, step: TrainingStep[PairCaptioner], negatives: RejectedCaptions, rewards: Tensor, present: Tensor
    ) -> None:
        assert negatives.distribution is not None
        entropies = entropy(negatives.distribution)  # (B,)
        metrics = {
            "reward": (rewards * present).sum() / present.sum().clamp(min=1),
            "entropy": entropies.mean(),
            "effective_pool": entropies.exp().mean(),
            "hardness": entropies.new_tensor(_word_overlap(step.batch, negatives.texts)),
        }
        # one all-reduce for all metrics
        means = dict(zip(metrics, mean_over_processes(torch.stack(list(metrics.values()))), strict=True))
        step.module.log_dict(
            {f"train/retriever/{name}": mean for name, mean in means.items()}, batch_size=len(step.batch)
        )
        self._check_collapse(means["effective_pool"], num_candidates=negatives.distribution.shape[1])

    def _check_collapse(self, effective_candidates: Tensor, num_candidates: int) -> None:
        """Warn once if the retriever draws the same few captions at two consecutive checks."""
        self._num_steps += 1
        if self._has_warned or self._num_steps % CHECK_EVERY:
            return
        previous, self._effective_candidates = self._effective_candidates, float(effective_candidates)
        highest, minimum = max(previous, self._effective_candidates), min(MIN_EFFECTIVE_CANDIDATES, num_candidates / 4)
        if previous and highest < minimum and self.inverse_temperature:
            self._has_warned = True
            warnings.warn(
                f"the retriever chooses among {self._effective_candidates:.1f} of {num_candidates} candidates "
                "(effective number): it draws the same few captions for every pair. Give it an `encoder` or more "
                "`alignment`, lower `scale` or raise `temperature`",
                stacklevel=2,
            )

    def _alignment_loss(self, step: TrainingStep[PairCaptioner]) -> Tensor:
        """Contrastive loss of pairs and their first references, which keeps q a measure of similarity."""
        batch: PairBatch = step.batch
        indices = self.pool.indices_of([references[0] for references in batch.references])  # (B,)
        logits = self.logits(step, indices)  # (B, B)
        # the caption of another pair is not a negative if it is also a reference of this pair
        is_other_pair = ~torch.eye(len(indices), dtype=torch.bool)
        is_false_negative = ~self.pool.is_negative(indices, batch.references, allow_none=True) & is_other_pair
        return symmetric_cross_entropy(logits.masked_fill(is_false_negative.to(logits.device), float("-inf")))


def _by_caption(log_probs: Tensor, indices: Tensor) -> Tensor:
    """Log-probabilities ``(B, M)`` of the M distinct captions among N candidates ``(B, N)``; candidates may repeat."""
    captions, inverse = indices.unique(return_inverse=True)  # (M,), (N,)
    probabilities = log_probs.new_zeros(len(log_probs), len(captions))
    return probabilities.index_add(1, inverse.to(log_probs.device), log_probs.exp()).log()


def _word_overlap(batch: PairBatch, rejected: list[list[str]]) -> float:
    """Hardness of the negatives: mean Jaccard index of the words of rejected and chosen captions."""
    overlaps = []
    for chosen_row, rejected_row in zip(batch.chosen, rejected, strict=True):
        for chosen_text, rejected_text in zip(chosen_row, rejected_row, strict=False):
            chosen_words, rejected_words = set(normalize(chosen_text).split()), set(normalize(rejected_text).split())
            overlaps.append(len(chosen_words & rejected_words) / max(1, len(chosen_words | rejected_words)))
    return sum(overlaps) / max(1, len(overlaps))


class AdversarialRetriever(AddonCallback):
    """Makes PreferenceOptimization adversarial: its negatives come from a retriever that is rewarded for hard ones.

    Add it to the callbacks next to `PreferenceOptimization`, in any order. Its learning rate is the captioner's times
    ``learning_rates["addons.<name>"]``: the paper's 1e-4 over a policy's 5e-6 is a factor of 20. Its gradient is
    clipped separately, as if it had the second optimizer of the paper's Algorithm 1.

    Args:
        encoder: checkpoint of a Clip4IdcRetrieval whose embeddings are projected; None for small heads on the
            captioner's features.
        train_encoder: whether the encoder's image tower is trained too.
        candidates: |N|, number of captions that are drawn from the pool for a batch; the paper's best is 128.
        scale: factor of the cosine similarities. When None, 100 with an encoder, as in CLIP's logits, and 10 without:
            the cosines of untrained heads carry no meaning, and with 100 q would be almost a single caption.
        temperature: tau; about 2 in the paper.
        baseline: baseline of the rewards; :class:`RunningMean` when None.
        alignment: weight of a contrastive loss between pairs and captions. When None, 0 with an encoder (REINFORCE
            alone, as in the paper) and 1 without, where nothing else teaches similarity.
        fraction: fraction of the negatives that the retriever draws; PreferenceOptimization's ``negatives`` draws the
            rest.
        weighting: how candidates are drawn from the training captions, as in :class:`CaptionPool`.
        no_change_fraction: as in :class:`CaptionPool`.
        too_similar: as in :class:`CaptionPool`. Without it, a better retriever samples more paraphrases of the chosen
            caption.
        threshold: as in :class:`CaptionPool`.
        weights: checkpoint of a run with a retriever of the same name, whose weights are loaded.
        name: key under ``aux_addons``.
        weight: factor of the retriever's losses; 0 equals absent.
    """

    def __init__(
        self,
        encoder: str | None = None,
        train_encoder: bool = False,
        candidates: TwoOrMore = 128,
        scale: NonNegativeFloat | None = None,
        temperature: float = 2.0,
        baseline: Baseline | None = None,
        alignment: NonNegativeFloat | None = None,
        fraction: PositiveShare = 1.0,
        weighting: Weighting = "stratified",
        no_change_fraction: Share | None = None,
        too_similar: TextEncoder | None = None,
        threshold: PositiveShare | None = None,
        weights: str | None = None,
        name: str = "retriever",
        weight: float = 1.0,
    ) -> None:
        check_arguments(AdversarialRetriever.__init__, locals())
        super().__init__(name, weight)
        if not temperature > 0:  # infinity is allowed: the choice is uniform
            raise ConfigError(f"temperature is {temperature}; expected a number above 0, such as 2")
        if train_encoder and encoder is None:
            raise ConfigError("train_encoder is true and encoder None; name the checkpoint of an encoder")
        self.encoder, self.train_encoder = encoder, train_encoder
        self.candidates, self.temperature, self.fraction = candidates, temperature, fraction
        self.scale = scale if scale is not None else 10.0 if encoder is None else 100.0
        self.baseline = RunningMean() if baseline is None else baseline
        self.alignment = alignment if alignment is not None else 1.0 if encoder is None else 0.0
        self.weighting, self.no_change_fraction, self.weights = weighting, no_change_fraction, weights
        self.too_similar, self.threshold = too_similar, threshold

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks: list[Any] = cast(Any, trainer).callbacks
        if not any(isinstance(callback, PreferenceOptimization) for callback in callbacks):
            raise ConfigError("AdversarialRetriever draws negatives for PreferenceOptimization; add that callback too")
        super().setup(trainer, pl_module, stage)

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            raise ConfigError(f"AdversarialRetriever trains with a PairCaptioner; this is a {type(module).__name__}")
        return self.retriever(module, train_data(module))

    def retriever(self, captioner: PairCaptioner, data: PairDataModule) -> Retriever:
        """A retriever that draws from the captions of the training split, with the weights of ``weights``.

        Args:
            captioner: captioner whose features it reads.
            data: data module with the training split.
        """
        pool = build_pool(data, self.weighting, self.no_change_fraction, self.too_similar, self.threshold)
        addon = Retriever(
            pool=pool,
            matcher=self._matcher(captioner, data, pool),
            baseline=self.baseline,
            candidates=self.candidates,
            scale=self.scale,
            temperature=self.temperature,
            alignment=self.alignment,
            fraction=self.fraction,
            weight=self.weight,
        )
        if self.weights is not None:
            addon.load_state_dict(_retriever_state(self.weights, self.name))
        return addon

    def _matcher(self, captioner: PairCaptioner, data: PairDataModule, pool: CaptionPool) -> PairTextMatcher:
        sample = data.pairs_of("train").load(0)
        if self.encoder is None:
            return FeatureHeads(pool.texts, memory_width(captioner, sample))
        from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

        encoder = load_module(Clip4IdcRetrieval, self.encoder)
        height, width = encoder.built_net.clip.visual.image_size
        images = torch.stack([sample.before, sample.after])[None]
        return EncoderHeads(
            pool.texts,
            encoder,
            train_encoder=self.train_encoder,
            image_size=(height, width),
            images=images,
            device=captioner.device,
        )


def memory_width(captioner: PairCaptioner, sample: PairSample) -> int:
    """Width of a captioner's features, measured on a pair."""
    return trial_features(captioner, captioner.collate([sample])).memory.shape[-1]


@reads_file("path")
def _retriever_state(path: str, name: str) -> dict[str, Any]:
    prefix = f"aux_addons.{name}."
    state = read_checkpoint(path)["state_dict"]
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if not weights:
        raise CheckpointError(f"{path!r} holds no retriever called {name!r}")
    return weights

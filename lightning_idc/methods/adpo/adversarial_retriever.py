"""AdversarialRetriever: learns to pick the captions that the policy finds hardest to refuse (ADPO 4.2 to 4.4)."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.losses import adversarial_reward
from lightning_idc.methods.adpo.negatives import Draw, NegativeSource, offer, pool_of
from lightning_idc.methods.adpo.pool import NO_CHANGE_SHARE, CaptionPool, Weighting, choose, same_words
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
from lightning_idc.utils.errors import CheckpointError, ConfigError, check_number, check_positive, reads_file

FEWEST = 8.0
"""Effective number of candidates below which a retriever has collapsed: it rejects the same captions for all pairs."""


class Retriever(Addon, NegativeSource):
    """Draws negatives from the softmax of similarity over temperature and learns from what they did to the policy.

    Args:
        pool: captions of the training split.
        matcher: embeds pairs and the pool's captions.
        baseline: that rewards are compared with.
        candidates: |N|, captions drawn for a batch, of which each pair gets one.
        scale: of cosines.
        temperature: tau; infinite makes the choice uniform.
        alignment: weight of the matching loss between pairs and their own captions.
        share: of the negatives that come from it; the others come from where they came without it.
        weight: factor of its losses; 0 equals absent.
    """

    sharded_methods = ("draw", "losses")
    clipped_apart = True

    def __init__(
        self,
        pool: CaptionPool,
        matcher: PairTextMatcher,
        baseline: Baseline,
        candidates: int,
        scale: float,
        temperature: float,
        alignment: float,
        share: float = 1.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight)
        self.pool, self.matcher, self.baseline = pool, matcher, baseline
        self.candidates, self.sharpness, self.alignment = candidates, scale / temperature, alignment
        self.share = share
        self._outcome: tuple[Draw, Tensor, Tensor] | None = None
        self._steps, self._effective = 0, 0.0

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> Draw:
        # the numbers that RandomCaption would draw, so that a uniform retriever is exactly that
        places, allowed = offer(step, self.pool, self.candidates, generator)
        logits = self.logits(step, places)
        columns, log_probs = choose(logits, allowed.to(logits.device), count, generator)
        return Draw(
            [[self.pool.texts[place] for place in row] for row in places[columns].tolist()],
            log_probs=log_probs.gather(1, columns.to(logits.device)),
            distribution=_by_caption(log_probs.detach(), places),
        )

    def update(self, draw: Draw, losses: Tensor, present: Tensor) -> None:
        self._outcome = draw, adversarial_reward(losses), present

    def logits(self, step: TrainingStep, places: Tensor) -> Tensor:
        """Of q, for the captions at these places of the pool: ``(B, N)``."""
        # of pairs of mixed sizes a captioner says the own size of each
        sizes = step.batch.model_inputs.get("sizes")
        pairs = self.matcher.embed_pairs(step.features, step.batch.images, sizes)
        captions = self.matcher.embed_captions(places.to(pairs.device))
        return self.sharpness * (pairs @ captions.T)

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return {}
        found = {"reinforce": self._reinforced(step, *outcome)}
        if self.alignment:
            found["alignment"] = self.alignment * self._aligned(step)
        return found

    def _reinforced(self, step: TrainingStep, draw: Draw, rewards: Tensor, present: Tensor) -> Tensor:
        assert draw.log_probs is not None and draw.distribution is not None
        spread = entropy(draw.distribution)
        figures = [(rewards * present).sum() / present.sum().clamp(min=1), spread.mean(), spread.exp().mean()]
        hardness = spread.new_tensor(_overlap(step.batch, draw.texts))
        values = mean_over_processes(torch.stack([*figures, hardness]))
        names = [f"train/retriever/{name}" for name in ("reward", "entropy", "effective_pool", "hardness")]
        step.host.log_dict(dict(zip(names, values, strict=True)), batch_size=len(step.batch))
        self._warn(values[2], draw.distribution.shape[1])
        rewards = rewards[present]
        baseline = self.baseline(rewards)
        if not len(rewards):  # a mixture took all negatives of this step from elsewhere
            return 0.0 * draw.log_probs.sum()
        return reinforce(draw.log_probs[present], rewards, baseline)

    def _warn(self, effective: Tensor, candidates: int) -> None:
        """Look now and then, since each look waits for the accelerator, whether the draws have become the same few."""
        self._steps += 1
        if self._steps % CHECK_EVERY:
            return
        before, self._effective = self._effective, float(effective)
        if before and max(before, self._effective) < min(FEWEST, candidates / 4) and self.sharpness:
            self._steps = -(10**9)  # once is enough
            warnings.warn(
                f"the retriever chooses among {self._effective:.1f} of {candidates} candidates (effective number): it "
                "rejects the same few captions for every pair. Give it an `encoder` or more `alignment`, lower `scale` "
                "or raise `temperature`",
                stacklevel=2,
            )

    def _aligned(self, step: TrainingStep) -> Tensor:
        """Matching of pairs with their first reference; keeps similarity meaning similarity."""
        batch: PairBatch = step.batch
        places = self.pool.places_of([own[0] for own in batch.references])
        logits = self.logits(step, places)
        # another pair's caption that is right here as well must not count against it
        right = ~self.pool.wrong(places, batch.references, empty=True) & ~torch.eye(len(places), dtype=torch.bool)
        return symmetric_cross_entropy(logits.masked_fill(right.to(logits.device), float("-inf")))


def _by_caption(log_probs: Tensor, places: Tensor) -> Tensor:
    """Log-probabilities ``(B, M)`` of the M different captions among N candidates, some of which are the same."""
    captions, inverse = places.unique(return_inverse=True)
    sums = log_probs.new_zeros(len(log_probs), len(captions))
    return sums.index_add(1, inverse.to(log_probs.device), log_probs.exp()).log()


def _overlap(batch: PairBatch, rejected: list[list[str]]) -> float:
    """Mean share of words that a negative has in common with its chosen caption: hard whatever the policy thinks."""
    shares = []
    for chosen, others in zip(batch.chosen, rejected, strict=True):
        for own, other in zip(chosen, others, strict=False):
            right, wrong = set(same_words(own).split()), set(same_words(other).split())
            shares.append(len(right & wrong) / max(1, len(right | wrong)))
    return sum(shares) / max(1, len(shares))


class AdversarialRetriever(AddonCallback):
    """Makes PreferenceOptimization adversarial: the negatives come from a retriever that is rewarded for hard ones.

    Add it beside `PreferenceOptimization`, in any order. Its learning rate is the captioner's times
    ``learning_rates["addons.<name>"]``: the paper's 1e-4 over a policy's 5e-6 is a factor of 20. Its gradient is
    clipped by itself, as of the second optimizer of the paper's Algorithm 1.

    Args:
        encoder: checkpoint of Clip4IdcRetrieval to project from; None for small heads on the captioner's own features.
        train_encoder: also train how the encoder sees pairs.
        candidates: |N|, captions drawn for a batch; the paper's best is 128.
        scale: of cosines. None is 100 with an encoder, as in CLIP's logits, and 10 without: heads from nothing begin
            with cosines that mean nothing, and 100 would make a choice among two or three captions of them.
        temperature: tau; the paper's is about 2.
        baseline: :class:`RunningMean` when None.
        alignment: weight of a matching loss between pairs and captions. None is 0 with an encoder, REINFORCE alone as
            in the paper, and 1 without, where nothing else says what is similar.
        share: of the negatives that come from the retriever; the others come from PreferenceOptimization's own source.
        weighting: how candidates are drawn from the training captions, as of :class:`CaptionPool`.
        no_change_share: as of :class:`CaptionPool`.
        weights: checkpoint whose retriever of the same name this one starts from.
        name: key under ``aux_addons``.
        weight: 0 equals absent.
    """

    def __init__(
        self,
        encoder: str | None = None,
        train_encoder: bool = False,
        candidates: int = 128,
        scale: float | None = None,
        temperature: float = 2.0,
        baseline: Baseline | None = None,
        alignment: float | None = None,
        share: float = 1.0,
        weighting: Weighting = "stratified",
        no_change_share: float = NO_CHANGE_SHARE,
        weights: str | None = None,
        name: str = "retriever",
        weight: float = 1.0,
    ) -> None:
        super().__init__(name, weight)
        check_number("candidates", candidates, minimum=2)
        if not temperature > 0:  # an infinite one is a retriever that chooses uniformly
            raise ConfigError(f"temperature is {temperature}; expected a number above 0, such as 2")
        check_positive("share", share, maximum=1)
        for key, value in (("scale", scale), ("alignment", alignment)):
            if value is not None:
                check_number(key, value, minimum=0)
        self.encoder, self.train_encoder = encoder, train_encoder
        self.candidates, self.temperature, self.share = candidates, temperature, share
        self.scale = scale if scale is not None else 10.0 if encoder is None else 100.0
        self.baseline = RunningMean() if baseline is None else baseline
        self.alignment = alignment if alignment is not None else 1.0 if encoder is None else 0.0
        self.weighting, self.no_change_share, self.weights = weighting, no_change_share, weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks: list[Any] = cast(Any, trainer).callbacks
        if not any(isinstance(callback, PreferenceOptimization) for callback in callbacks):
            raise ConfigError("AdversarialRetriever plays against PreferenceOptimization; add that callback beside it")
        super().setup(trainer, pl_module, stage)

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise ConfigError(f"AdversarialRetriever works for a PairCaptioner; {type(host).__name__} is none")
        pool = pool_of(train_data(host), self.weighting, self.no_change_share)
        addon = Retriever(
            pool,
            self._matcher(host, pool),
            self.baseline,
            self.candidates,
            self.scale,
            self.temperature,
            self.alignment,
            self.share,
            self.weight,
        )
        if self.weights is not None:
            addon.load_state_dict(_weights_of(self.weights, self.name))
        return addon

    def _matcher(self, host: PairCaptioner, pool: CaptionPool) -> PairTextMatcher:
        if self.encoder is None:
            return FeatureHeads(pool.texts, memory_width(host))
        from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval

        encoder = load_module(Clip4IdcRetrieval, self.encoder)
        height, width = encoder.built_net.clip.visual.image_size
        sample = train_data(host).pairs_of("train").load(0)
        images = torch.stack([sample.before, sample.after])[None]
        device = host.trainer.strategy.root_device
        return EncoderHeads(pool.texts, encoder, self.train_encoder, (height, width), images, device)


def memory_width(host: PairCaptioner) -> int:
    """Width of a captioner's features, seen on one training pair."""
    sample = train_data(host).pairs_of("train").load(0)
    return trial_features(host, host.collate([sample])).memory.shape[-1]


@reads_file("path")
def _weights_of(path: str, name: str) -> dict[str, Any]:
    prefix = f"aux_addons.{name}."
    state = read_checkpoint(path)["state_dict"]
    found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if not found:
        raise CheckpointError(f"{path!r} holds no retriever called {name!r}")
    return found

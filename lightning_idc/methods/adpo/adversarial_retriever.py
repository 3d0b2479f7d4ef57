"""AdversarialRetriever: learns to pick the captions that the policy finds hardest to refuse (ADPO 4.2 to 4.4)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_idc.core.addon import Addon, TrainingStep, addons_of
from lightning_idc.core.addon_callback import AddonCallback
from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.io import read_checkpoint
from lightning_idc.core.loading import load_module
from lightning_idc.core.types import PairBatch, PairError
from lightning_idc.errors import reads_file
from lightning_idc.methods.adpo.negatives import Retrieved, candidates_of
from lightning_idc.methods.adpo.pool import CaptionPool, choose, same_words
from lightning_idc.methods.adpo.preference import Preference, train_data
from lightning_idc.methods.adpo.reinforce import Baseline, RunningMean, entropy, reinforce
from lightning_idc.methods.adpo.retriever import EncoderHeads, FeatureHeads, PairTextMatcher
from lightning_idc.nn.retrieval import symmetric_cross_entropy


class Retriever(Addon):
    """Draws negatives from the softmax of similarity over temperature and learns from what they did to the policy.

    Args:
        pool: captions of the training split.
        matcher: embeds pairs and the pool's captions.
        baseline: that rewards are compared with.
        candidates: |N|, captions drawn for a batch, of which each pair gets one.
        scale: of cosines.
        temperature: tau; infinite makes the choice uniform.
        alignment: weight of the matching loss between pairs and their own captions.
        weight: factor of its losses; 0 equals absent.
    """

    def __init__(
        self,
        pool: CaptionPool,
        matcher: PairTextMatcher,
        baseline: Baseline,
        candidates: int,
        scale: float,
        temperature: float,
        alignment: float,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight)
        self.pool, self.matcher, self.baseline = pool, matcher, baseline
        self.candidates, self.sharpness, self.alignment = candidates, scale / temperature, alignment
        self.picked: list[list[str]] = []
        self._drawn: tuple[Tensor, Tensor] | None = None

    def features(self, step: TrainingStep) -> Any:
        """Pick the negatives of this step; here, since this method gathers the weights of a sharded add-on."""
        batch: PairBatch = step.batch
        # the numbers that RandomCaption would draw, so that a uniform retriever is exactly that
        generator = preference_of(step.host).numbers(step)
        places = candidates_of(step, self.pool, self.candidates, generator)
        logits = self.logits(step, places)
        allowed = self.pool.wrong(places, batch.references).to(logits.device)
        columns, log_probs = choose(logits, allowed, batch.tokens.shape[1], generator)
        self._drawn = log_probs.gather(1, columns.to(logits.device)), log_probs.detach()
        self.picked = [[self.pool.texts[place] for place in row] for row in places[columns].tolist()]
        return step.features

    def logits(self, step: TrainingStep, places: Tensor) -> Tensor:
        """Of q (Eq. 3), for the captions at these places of the pool: ``(B, N)``."""
        pairs = self.matcher.embed_pairs(step.features, step.batch.images)
        captions = self.matcher.embed_captions(places.to(pairs.device))
        return self.sharpness * (pairs @ captions.T)

    def losses(self, step: TrainingStep) -> dict[str, Tensor]:
        found = self._reinforced(step)
        if self.alignment:
            found["alignment"] = self.alignment * self._aligned(step)
        return found

    def _reinforced(self, step: TrainingStep) -> dict[str, Tensor]:
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return {}
        chosen, all_log_probs = drawn
        outcome = preference_of(step.host).outcome
        assert outcome is not None
        # the reward is the policy's own loss, - log sigmoid(M) for DPO: one game for every preference loss (Eq. 6)
        present = outcome.present
        rewards = outcome.losses.float()[present]
        spread = entropy(all_log_probs)
        values: dict[str, Tensor | float] = {
            "reward": rewards.mean(),
            "entropy": spread.mean(),
            "effective_pool": spread.exp().mean(),
            "hardness": _overlap(step.batch, outcome.rejected),
        }
        for name, value in values.items():
            step.host.log(f"train/retriever/{name}", value, batch_size=len(step.batch))
        return {"reinforce": reinforce(chosen[present], rewards, self.baseline(rewards))}

    def _aligned(self, step: TrainingStep) -> Tensor:
        """Matching of pairs with their first reference; keeps similarity meaning similarity."""
        batch: PairBatch = step.batch
        places = self.pool.places_of([own[0] for own in batch.references])
        logits = self.logits(step, places)
        # another pair's caption that is right here as well must not count against it
        right = ~self.pool.wrong(places, batch.references, empty=True) & ~torch.eye(len(places), dtype=torch.bool)
        return symmetric_cross_entropy(logits.masked_fill(right.to(logits.device), float("-inf")))


def preference_of(host: LightningModule) -> Preference:
    """The preference optimisation that a retriever works for.

    Raises:
        PairError: the host has none.
    """
    for addon in addons_of(host).values():
        if isinstance(addon, Preference):
            return addon
    raise PairError("AdversarialRetriever plays against PreferenceOptimization; list that callback before it")


def _overlap(batch: PairBatch, rejected: list[list[str]]) -> float:
    """Mean share of words that a negative has in common with the first reference: hard whatever the policy thinks."""
    shares = []
    for own, others in zip(batch.references, rejected, strict=True):
        right, wrong = set(same_words(own[0]).split()), set(same_words(others[0]).split())
        shares.append(len(right & wrong) / max(1, len(right | wrong)))
    return sum(shares) / len(shares)


class AdversarialRetriever(AddonCallback):
    """Makes PreferenceOptimization adversarial: the negatives come from a retriever that is rewarded for hard ones.

    List it after `PreferenceOptimization`. Its learning rate is the captioner's times
    ``learning_rates["addons.<name>"]``: the paper's 1e-4 over a policy's 5e-6 is a factor of 20.

    Args:
        encoder: checkpoint of Clip4IdcRetrieval to project from; None for small heads on the captioner's own features.
        train_encoder: also train how the encoder sees pairs.
        candidates: |N|, captions drawn for a batch; the paper's best is 128.
        scale: of cosines, as in CLIP's logits.
        temperature: tau; the paper's is about 2.
        baseline: :class:`RunningMean` when None.
        alignment: weight of a matching loss between pairs and captions, without which heads from nothing have no
            notion of similar; 0 for REINFORCE alone, as in the paper.
        weights: checkpoint whose retriever of the same name this one starts from.
        name: key under ``aux_addons``.
        weight: 0 equals absent.
    """

    def __init__(
        self,
        encoder: str | None = None,
        train_encoder: bool = False,
        candidates: int = 128,
        scale: float = 100.0,
        temperature: float = 2.0,
        baseline: Baseline | None = None,
        alignment: float = 0.0,
        weights: str | None = None,
        name: str = "retriever",
        weight: float = 1.0,
    ) -> None:
        super().__init__(name, weight)
        if candidates < 2:
            raise PairError(f"candidates is {candidates}; expected at least two captions to choose from")
        if temperature <= 0:
            raise PairError(f"temperature is {temperature}; expected a positive number, such as 2")
        self.encoder, self.train_encoder = encoder, train_encoder
        self.candidates, self.scale, self.temperature = candidates, scale, temperature
        self.baseline = RunningMean() if baseline is None else baseline
        self.alignment, self.weights = alignment, weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        super().setup(trainer, pl_module, stage)
        if self.weight:
            preference_of(pl_module).negatives = Retrieved(self.name)

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise PairError(f"AdversarialRetriever works for a PairCaptioner; {type(host).__name__} is none")
        preference_of(host)
        pool = CaptionPool(train_data(host).train_captions())
        addon = Retriever(
            pool,
            self._matcher(host, pool),
            self.baseline,
            self.candidates,
            self.scale,
            self.temperature,
            self.alignment,
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
        return EncoderHeads(pool.texts, encoder, self.train_encoder)


def memory_width(host: PairCaptioner) -> int:
    """Width of a captioner's features, seen on one training pair."""
    sample = train_data(host).pairs_of("train").load(0)
    modes = {module: module.training for module in host.modules()}
    host.eval()  # batch statistics must not see this pair
    try:
        with torch.no_grad():
            return host.encode(host.collate([sample]).to(host.device)).memory.shape[-1]
    finally:
        for module, mode in modes.items():
            module.training = mode


@reads_file("path")
def _weights_of(path: str, name: str) -> dict[str, Any]:
    prefix = f"aux_addons.{name}."
    state = read_checkpoint(path)["state_dict"]
    found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if not found:
        raise PairError(f"{path!r} holds no retriever called {name!r}")
    return found

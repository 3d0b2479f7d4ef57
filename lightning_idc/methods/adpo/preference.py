"""PreferenceOptimization: prefer what is true of a pair to what is not (DPO; ADPO section 4.1), on any captioner."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_idc.core.addon import AUX, Addon, TrainingStep
from lightning_idc.core.addon_callback import AddonCallback
from lightning_idc.core.captioner import PairCaptioner, pad_captions
from lightning_idc.core.types import PairBatch, PairError
from lightning_idc.files import save_json
from lightning_idc.methods.adpo.losses import PreferenceLoss, divergence, dpo, mean_of_means, per_token
from lightning_idc.methods.adpo.negatives import NegativeSource, RandomCaption
from lightning_idc.methods.adpo.references import FrozenCopy, ReferencePolicy

if TYPE_CHECKING:
    from lightning_idc.data.core.datamodule import PairDataModule

NEGATIVES = "negatives.json"
LOOK_EVERY = 20
"""Steps between looks at whether the chosen captions' probability falls; each look waits for the accelerator."""


@dataclass(slots=True)
class Outcome:
    """What the comparisons of the last step came to.

    Args:
        losses: of each comparison ``(B, K)``, without gradient.
        present: bool ``(B, K)``, False where a pair has fewer chosen captions.
        rejected: captions, K per pair.
    """

    losses: Tensor
    present: Tensor
    rejected: list[list[str]]


class Preference(Addon):
    """Replaces the caption loss by a loss on pairs of chosen and rejected captions.

    Args:
        loss: of each comparison.
        beta: inverse temperature of the implied reward.
        negatives: gives the rejected captions.
        reference: what the policy shall not leave too far.
        length_normalise: compare means per token instead of sums.
        caption_weight: of the caption loss of the chosen captions.
        falling: nats by which the chosen captions may become less likely before a warning.
    """

    chosen_ratio: Tensor

    def __init__(
        self,
        loss: PreferenceLoss,
        beta: float,
        negatives: NegativeSource,
        reference: ReferencePolicy,
        length_normalise: bool,
        caption_weight: float,
        falling: float,
    ) -> None:
        super().__init__()
        self.loss, self.beta, self.negatives, self.reference = loss, beta, negatives, reference
        self.length_normalise, self.caption_weight, self.falling = length_normalise, caption_weight, falling
        self.outcome: Outcome | None = None
        self.met: dict[str, dict[str, Any]] = {}
        self._steps, self._warned = 0, False
        # within the add-on's building this follows from the run's seed and the add-on's name
        self._seed = torch.initial_seed()
        self.register_buffer("chosen_ratio", torch.zeros(()))

    def numbers(self, step: TrainingStep) -> torch.Generator:
        """What the negatives of a step are drawn from; a retriever draws from it too, so uniform ones equal random."""
        trainer = step.host.trainer
        key = f"{self._seed}/{trainer.current_epoch}/{step.index}/{trainer.global_rank}"
        return torch.Generator().manual_seed(zlib.crc32(key.encode()))

    def objective(self, step: TrainingStep) -> Tensor:
        host, batch = step.host, step.batch
        assert isinstance(host, PairCaptioner)
        count = batch.tokens.shape[1]
        self.reference.advance(step)
        rejected = self.negatives.draw(step, count, self.numbers(step))
        tokens, mask = beside(batch, host.tokenize([text for row in rejected for text in row]))
        # one look at the pair and one pass over the captions for chosen and rejected together
        policy = host.score(step.features, tokens, mask)
        reference = self.reference.score(step, tokens, mask)
        if self.length_normalise:
            policy, reference = per_token(policy, mask), per_token(reference, mask)
        chosen, refused = (policy - reference).split(count, 1)
        present = mask[:, :count].any(-1)
        losses = self.loss(chosen - refused, self.beta)
        self.outcome = Outcome(losses.detach(), present, rejected)
        self._record(batch, rejected, chosen - refused)
        self._log(step, policy.detach(), reference, present)
        loss = mean_of_means(losses, present)
        if self.caption_weight:
            told = policy if self.length_normalise else per_token(policy, mask)
            loss = loss - self.caption_weight * mean_of_means(told[:, :count], present)
        return loss

    def _record(self, batch: PairBatch, rejected: list[list[str]], log_ratio: Tensor) -> None:
        margins = (self.beta * log_ratio.detach()[:, 0]).tolist()
        for id, own, others, margin in zip(batch.ids, batch.references, rejected, margins, strict=True):
            self.met[id] = {"positive": own[0], "negative": others[0], "margin": margin}

    def _log(self, step: TrainingStep, policy: Tensor, reference: Tensor, present: Tensor) -> None:
        chosen, refused = (policy - reference).chunk(2, 1)
        told, denied = policy.chunk(2, 1)
        far = divergence(policy, reference).chunk(2, 1)
        values = {
            "reward_chosen": self.beta * chosen,
            "reward_rejected": self.beta * refused,
            "margin": self.beta * (chosen - refused),
            "accuracy": (chosen > refused).float(),
            "log_prob_chosen": told,
            "log_prob_rejected": denied,
            "kl_proxy": (far[0] + far[1]) / 2,
        }
        means = {f"train/preference/{name}": mean_of_means(value, present) for name, value in values.items()}
        step.host.log_dict(means, batch_size=len(policy))
        # in bf16-true the buffer is bfloat16 and the ratio is not
        self.chosen_ratio.lerp_(mean_of_means(chosen, present).to(self.chosen_ratio.dtype), 0.05)
        self._steps += 1
        if not self._warned and self._steps % LOOK_EVERY == 0:
            self._warn(float(self.chosen_ratio))

    def _warn(self, ratio: float) -> None:
        if ratio < -self.falling:
            self._warned = True
            warnings.warn(
                f"the chosen captions have become {-ratio:.1f} nats less likely than under the reference policy: the "
                "loss pushes the rejected ones down by pushing everything down (likelihood displacement). Lower the "
                "learning rate, raise beta, or set caption_weight",
                stacklevel=2,
            )


def beside(batch: PairBatch, rejected: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Chosen captions and as many rejected ones per pair, ``(B, 2 K, T)``, with the mask of the tokens to predict.

    Args:
        batch: with K chosen captions per pair; where one is absent its rejected one is masked as well.
        rejected: B * K lists of token ids, begin and end included.
    """
    pairs, count, _ = batch.tokens.shape
    device = batch.tokens.device
    rows = [rejected[start : start + count] for start in range(0, pairs * count, count)]
    tokens, mask = (part.to(device) for part in pad_captions(rows, count))
    mask = mask & batch.caption_mask.any(-1, keepdim=True)
    length = max(tokens.shape[-1], batch.tokens.shape[-1])

    def joined(first: Tensor, second: Tensor) -> Tensor:
        both = [nn.functional.pad(part, (0, length - part.shape[-1])) for part in (first, second)]
        return torch.cat(both, 1)

    return joined(batch.tokens, tokens), joined(batch.caption_mask, mask)


class PreferenceOptimization(AddonCallback):
    """Trains a captioner by direct preference optimisation instead of by the caption loss.

    The chosen captions are those that the batch holds (``captions_per_pair`` of them), each against one rejected
    caption. Start it from a supervised captioner with ``init_from``, which then is the reference policy.

    Args:
        loss: of each comparison; ``dpo``, ``ipo`` or ``SmoothedDPO`` of ``methods.adpo.losses``, or your own.
        beta: inverse temperature of the implied reward; the paper gives none, 0.1 is what DPO is mostly run with.
        negatives: gives the rejected captions; :class:`RandomCaption` when None. `AdversarialRetriever` takes its
            place.
        reference: what the policy shall not leave too far; :class:`FrozenCopy` when None.
        length_normalise: compare mean log-probabilities per token instead of sums.
        caption_weight: of the caption loss of the chosen captions, an anchor that the papers do without.
        dropout: leave dropout on. Off, the policy starts at the reference exactly; activation checkpointing of
            transformers needs it on.
        falling: nats by which the chosen captions may become less likely, on average, before a warning.
        name: key under ``aux_addons``.
        weight: 0 equals absent.
    """

    def __init__(
        self,
        loss: PreferenceLoss = dpo,
        beta: float = 0.1,
        negatives: NegativeSource | None = None,
        reference: ReferencePolicy | None = None,
        length_normalise: bool = False,
        caption_weight: float = 0.0,
        dropout: bool = False,
        falling: float = 3.0,
        name: str = "preference",
        weight: float = 1.0,
    ) -> None:
        super().__init__(name, weight)
        if beta <= 0:
            raise PairError(f"beta is {beta}; expected a positive number, such as 0.1")
        self.loss, self.beta = loss, beta
        self.negatives = RandomCaption() if negatives is None else negatives
        self.reference = FrozenCopy() if reference is None else reference
        self.length_normalise, self.caption_weight = length_normalise, caption_weight
        self.dropout, self.falling = dropout, falling

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise PairError(f"PreferenceOptimization trains a PairCaptioner; {type(host).__name__} is none")
        self.negatives.connect(train_data(host))
        self.reference.connect(host)
        return Preference(
            self.loss,
            self.beta,
            self.negatives,
            self.reference,
            self.length_normalise,
            self.caption_weight,
            self.falling,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # nothing of it is needed, and no training data is there, in any other stage
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.dropout and self.weight:
            for name, child in pl_module.named_children():
                if name != AUX:
                    child.eval()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.reference.save()

    def state_dict(self) -> dict[str, Any]:
        return self.reference.beyond_weights()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reference.restore(state_dict)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.reference.save()
        addon = pl_module.get_submodule(f"{AUX}.{self.name}")
        assert isinstance(addon, Preference)
        if trainer.is_global_zero and addon.met:
            save_json(Path(trainer.default_root_dir) / NEGATIVES, addon.met)


def train_data(host: LightningModule) -> PairDataModule:
    """Data module that a captioner is trained on.

    Raises:
        PairError: there is none, so nobody knows the captions of the training split.
    """
    from lightning_idc.data.core.datamodule import PairDataModule

    data = host.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, PairDataModule):
        raise PairError(
            f"negatives are drawn from the training captions of a PairDataModule; the trainer has "
            f"{'none' if data is None else type(data).__name__}"
        )
    return data

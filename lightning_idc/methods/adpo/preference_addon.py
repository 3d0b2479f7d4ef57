"""Preference: the add-on that compares chosen with rejected captions (ADPO section 4.1)."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_idc.core.addon import ADDON_METHODS, Addon, TrainingStep
from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.captions import pad_captions
from lightning_idc.core.distributed import mean_over_processes
from lightning_idc.core.types import PairBatch
from lightning_idc.methods.adpo.comparison import Comparison
from lightning_idc.methods.adpo.losses import PreferenceLoss, divergence
from lightning_idc.methods.adpo.negatives import Mixture, NegativeSource
from lightning_idc.methods.adpo.pool import same_words
from lightning_idc.methods.adpo.preference_losses import sft
from lightning_idc.methods.adpo.record import NegativeRecord
from lightning_idc.methods.adpo.references import ReferencePolicy
from lightning_idc.metrics.no_change import NO_CHANGE

OTHER_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "identical": lambda images: images[:, :1].expand_as(images),
    "swapped": lambda images: images.flip(1),
}
"""Pairs of images for which the captions of a changed pair are wrong: nothing changes, or it changes the other way."""
LOOK_EVERY = 20
"""Steps between looks at whether the chosen captions' probability falls; each look waits for the accelerator."""


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
        image_weight: of the preference for the pair itself over another pair of images.
        other_images: which that is, one of :data:`OTHER_IMAGES`.
        no_change: sentences that say that nothing changed.
        anchor: weight, in units of beta, of what takes the place of comparisons of such a sentence with a change.
    """

    chosen_ratio: Tensor
    sharded_methods = (*ADDON_METHODS, "validate")

    def __init__(
        self,
        loss: PreferenceLoss,
        beta: float,
        negatives: NegativeSource,
        reference: ReferencePolicy,
        length_normalise: bool,
        caption_weight: float,
        falling: float,
        image_weight: float = 0.0,
        other_images: str = "identical",
        no_change: Sequence[str] = (),
        anchor: float = 0.0,
    ) -> None:
        super().__init__()
        self.no_change, self.anchor = frozenset(map(same_words, no_change)), anchor
        self.image_weight, self.other_images = image_weight, other_images
        self.loss, self.beta, self.negatives, self.reference = loss, beta, negatives, reference
        self.length_normalise, self.caption_weight, self.falling = length_normalise, caption_weight, falling
        self.record = NegativeRecord()
        self._opponent: tuple[NegativeSource, ...] = ()
        self._steps, self._warned = 0, False
        # within the add-on's building this follows from the run's seed and the add-on's name
        self._seed = torch.initial_seed()
        self.register_buffer("chosen_ratio", torch.zeros(()))

    def play_against(self, opponent: NegativeSource, share: float) -> None:
        """Take negatives from an add-on of the same host, which trains beside this one.

        Args:
            opponent: gives the rejected captions from now on.
            share: of them; the others come from where they came before.
        """
        # in a tuple: it is a module of the host and must not become one of this add-on as well
        self._opponent = (opponent if share == 1 else Mixture([opponent, self.negatives], [share, 1 - share]),)

    @property
    def source(self) -> NegativeSource:
        """Where the rejected captions come from."""
        return self._opponent[0] if self._opponent else self.negatives

    def numbers(self, step: TrainingStep, split: str = "") -> torch.Generator:
        """What the negatives of a step are drawn from."""
        trainer = step.host.trainer
        key = f"{self._seed}{split}/{trainer.current_epoch}/{step.index}/{trainer.global_rank}"
        return torch.Generator().manual_seed(zlib.crc32(key.encode()))

    def objective(self, step: TrainingStep) -> Tensor:
        batch = step.batch
        source = self.source
        draw = source.draw(step, batch.tokens.shape[1], self.numbers(step))
        comparison = self.compared(step, draw.texts, draw.margin)
        losses = self.losses_of(comparison)
        crossing, kept = self.anchored(batch, draw.texts, comparison)
        source.update(draw, losses.detach(), comparison.present & ~crossing)
        losses = torch.where(crossing, kept, losses)
        self.record.update(batch, draw.texts, self.beta * comparison.log_ratio.detach())
        self._log(step, comparison)
        loss = comparison.mean(losses if draw.weights is None else draw.weights * losses)
        if self.caption_weight:
            loss = loss + self.caption_weight * comparison.mean(sft(comparison))
        if self.image_weight:
            loss = loss + self.image_weight * self._image_side(step, comparison)
        return loss

    def _image_side(self, step: TrainingStep, comparison: Comparison) -> Tensor:
        """Loss of preferring a pair to another pair of images for which its captions are wrong."""
        batch, host, count = step.batch, cast(Any, step.host), step.batch.tokens.shape[1]
        other = host.with_images(batch, OTHER_IMAGES[self.other_images](batch.images).contiguous())
        # by another name, or kept scores of the one would take the place of the other's
        other = replace(other, ids=[f"{id} {self.other_images}" for id in batch.ids])
        look = TrainingStep(host, other, step.index, host.encode(other), name=step.name)
        # nothing changed in an unchanged pair the other way round either
        changed = torch.tensor([kind != NO_CHANGE for kind in batch.change_types], device=batch.images.device)
        tokens, mask = batch.tokens, batch.caption_mask & changed[:, None, None]
        policy, reference = host.score(look.features, tokens, mask), self.reference.score(look, tokens, mask)
        found = Comparison(
            comparison.chosen[:, :count],
            policy,
            comparison.reference_chosen[:, :count],
            reference,
            comparison.chosen_lengths[:, :count],
            mask.sum(-1),
            mask.any(-1),
        )
        step.host.log("train/rewards/image_accuracies", found.mean((found.log_ratio.detach() > 0).float()))
        return found.mean(self.losses_of(found))

    def anchored(self, batch: PairBatch, rejected: list[list[str]], comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Comparisons of "nothing changed" with a change, and what takes the place of their losses.

        All of them can be won without looking at the pair, by saying the one or the other more often. So they are not
        won at all, but stay as the reference policy has them: in an unchanged pair the probability of the sentence that
        says so, in a changed pair its odds against the chosen caption. The loss is the squared log-ratio of these.

        Returns:
            bool and float ``(B, S K)``.
        """
        device = comparison.present.device
        if not self.anchor or not self.no_change:
            none = torch.zeros_like(comparison.present)
            return none, none.float()
        unchanged = [any(self._says_no_change(text) for text in own) for own in batch.references]
        chosen = torch.tensor(unchanged, device=device)[:, None]
        other = torch.tensor([[self._says_no_change(text) for text in row] for row in rejected], device=device)
        probability = torch.where(chosen, comparison.chosen_ratio, comparison.rejected_ratio).square()
        odds = torch.where(chosen, probability, comparison.log_ratio.square())
        return chosen ^ other, self.anchor * self.beta * (probability + odds) / 2

    def _says_no_change(self, caption: str) -> bool:
        return same_words(caption) in self.no_change

    def losses_of(self, comparison: Comparison) -> Tensor:
        """Loss of each comparison ``(B, K)``."""
        return self.loss(comparison.per_token() if self.length_normalise else comparison, self.beta)

    def compared(self, step: TrainingStep, rejected: list[list[str]], margin: Tensor | None = None) -> Comparison:
        """Score chosen and rejected captions under policy and reference.

        One look at the pair and one pass over the captions serve chosen and rejected captions together.
        """
        host = step.host
        assert isinstance(host, PairCaptioner)
        tokens, mask = beside(step.batch, host.tokenize([text for row in rejected for text in row]))
        policy = host.score(step.features, tokens, mask)
        reference = self.reference.score(step, tokens, mask)
        return Comparison.of(policy, reference, mask.sum(-1), margin, step.batch.tokens.shape[1])

    @torch.no_grad()
    def validate(self, step: TrainingStep, source: NegativeSource) -> dict[str, Tensor]:
        """The figures of a training step, of a batch of validation.

        Args:
            step: with a batch; its features are made here.
            source: of the negatives. Not the opponent, whose draws change from step to step.
        """
        step.features = cast(Any, step.host).encode(step.batch)
        draw = source.draw(step, step.batch.tokens.shape[1], self.numbers(step, "val"))
        comparison = self.compared(step, draw.texts)
        return {**self.figures(comparison), "preference_loss": comparison.mean(self.losses_of(comparison))}

    def figures(self, comparison: Comparison) -> dict[str, Tensor]:
        """What TRL logs of comparisons, by its names."""
        shown = comparison.per_token() if self.length_normalise else comparison
        chosen, rejected = shown.chosen_ratio.detach(), shown.rejected_ratio.detach()
        far = divergence(shown.chosen, shown.reference_chosen) + divergence(shown.rejected, shown.reference_rejected)
        values = {
            "rewards/chosen": self.beta * chosen,
            "rewards/rejected": self.beta * rejected,
            "rewards/margins": self.beta * (chosen - rejected),
            "rewards/accuracies": (chosen > rejected).float(),
            "logps/chosen": shown.chosen.detach(),
            "logps/rejected": shown.rejected.detach(),
            "kl_proxy": far.detach() / 2,
        }
        return {name: shown.mean(value) for name, value in values.items()}

    def _log(self, step: TrainingStep, comparison: Comparison) -> None:
        figures = self.figures(comparison)
        means = mean_over_processes(torch.stack(list(figures.values())))
        logged = {f"train/{name}": mean for name, mean in zip(figures, means, strict=True)}
        step.host.log_dict(logged, batch_size=len(comparison.chosen))
        # in bf16-true the buffer is bfloat16 and the ratio is not
        self.chosen_ratio.lerp_((logged["train/rewards/chosen"] / self.beta).to(self.chosen_ratio.dtype), 0.05)
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
    """Chosen and rejected captions of each pair, ``(B, K + S K, T)``, with the mask of the tokens to predict.

    Args:
        batch: with K chosen captions per pair; where one is absent its rejected ones are masked as well.
        rejected: B * S * K lists of token ids, begin and end included.
    """
    pairs, chosen, _ = batch.tokens.shape
    device, count = batch.tokens.device, len(rejected) // pairs
    rows = [rejected[start : start + count] for start in range(0, pairs * count, count)]
    tokens, mask = (part.to(device) for part in pad_captions(rows, count))
    mask = mask & batch.caption_mask.any(-1, keepdim=True).repeat(1, count // chosen, 1)
    length = max(tokens.shape[-1], batch.tokens.shape[-1])

    def joined(first: Tensor, second: Tensor) -> Tensor:
        both = [nn.functional.pad(part, (0, length - part.shape[-1])) for part in (first, second)]
        return torch.cat(both, 1)

    return joined(batch.tokens, tokens), joined(batch.caption_mask, mask)

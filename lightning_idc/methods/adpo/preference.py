"""PreferenceOptimization: prefer what is true of a pair to what is not (DPO; ADPO section 4.1), on any captioner."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.losses import PreferenceLoss, dpo
from lightning_idc.methods.adpo.negatives import NegativeSource, RandomCaption
from lightning_idc.methods.adpo.preference_addon import OTHER_IMAGES, Preference
from lightning_idc.methods.policy.policy_callback import PolicyCallback, train_data
from lightning_idc.methods.policy.references import FrozenCopy, NoReference, ReferencePolicy
from lightning_idc.models.addon import Addon, TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.errors import ConfigError, check_number, check_positive


class PreferenceOptimization(PolicyCallback):
    """Trains a captioner by direct preference optimisation instead of by the caption loss.

    The chosen captions are those that the batch holds (``captions_per_pair`` of them), each against one rejected
    caption. Start it from a supervised captioner with ``init_from``, which then is the reference policy.

    Args:
        loss: of each comparison; ``dpo`` of ``methods.adpo.losses``, one of ``methods.adpo.preference_losses``, or your
            own function of a :class:`Comparison` and beta.
        beta: inverse temperature of the implied reward; the paper gives none, 0.1 is what DPO is mostly run with.
        negatives: gives the rejected captions; :class:`RandomCaption` when None. An `AdversarialRetriever` among the
            callbacks takes its place.
        reference: what the policy shall not leave too far; :class:`FrozenCopy` when None.
        length_normalise: compare mean log-probabilities per token instead of sums.
        caption_weight: of the caption loss of the chosen captions, an anchor that the papers do without.
        dropout: leave dropout on. Off, the policy starts at the reference exactly; activation checkpointing of
            transformers needs it on.
        displacement_threshold: nats by which the chosen captions may become less likely, on average, before a warning.
        validation: also log the figures of comparisons on validation pairs, against random negatives.
        image_weight: of a loss that prefers the pair itself to another pair of images, for the same caption (mDPO's
            conditional preference). Costs a look at those; pairs without a change are left out.
        other_images: ``identical``, the first image twice, or ``swapped``.
        anchor: weight, in units of beta, of a squared log-ratio that takes the place of comparisons of "nothing
            changed" with a change: it holds that sentence where the reference policy has it. With 0 they are compared
            as other captions are, which shifts how often a captioner says so (README). Without effect where no
            training pair is unchanged, and with :class:`NoReference`.
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
        displacement_threshold: float = 3.0,
        validation: bool = False,
        image_weight: float = 0.0,
        other_images: str = "identical",
        anchor: float = 3.0,
        name: str = "preference",
        weight: float = 1.0,
    ) -> None:
        super().__init__(FrozenCopy() if reference is None else reference, dropout, name, weight)
        check_positive("beta", beta)
        check_number("caption_weight", caption_weight, minimum=0)
        check_number("image_weight", image_weight, minimum=0)
        if other_images not in OTHER_IMAGES:
            raise ConfigError(f"other_images is {other_images!r}; expected one of {', '.join(OTHER_IMAGES)}")
        check_number("anchor", anchor, minimum=0)
        self.image_weight, self.other_images, self.anchor = image_weight, other_images, anchor
        self.loss, self.beta = loss, beta
        self.negatives = RandomCaption() if negatives is None else negatives
        self.length_normalise, self.caption_weight = length_normalise, caption_weight
        self.displacement_threshold = displacement_threshold
        self.val_negatives = RandomCaption() if validation else None

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise ConfigError(f"PreferenceOptimization trains a PairCaptioner; {type(host).__name__} is none")
        for source in (self.negatives, self.val_negatives):
            if source is not None:
                source.connect(train_data(host))
        assert self.reference is not None
        self.reference.connect(host)
        return Preference(
            loss=self.loss,
            beta=self.beta,
            negatives=self.negatives,
            reference=self.reference,
            length_normalise=self.length_normalise,
            caption_weight=self.caption_weight,
            displacement_threshold=self.displacement_threshold,
            image_weight=self.image_weight,
            other_images=self.other_images,
            no_change=train_data(host).no_change_captions(),
            anchor=0.0 if isinstance(self.reference, NoReference) else self.anchor,
        )

    def adopt(self, host: LightningModule, addon: Addon) -> None:
        assert isinstance(addon, Preference)
        self.negatives, self.reference = addon.negatives, addon.reference
        if self.val_negatives is not None:
            self.val_negatives.connect(train_data(host))

    def addon(self, host: LightningModule) -> Preference:
        """The add-on that this callback attached."""
        found = addons_of(host)[self.name]
        assert isinstance(found, Preference)
        return found

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Connect the adversary, an add-on that gives negatives; by now all add-ons are attached."""
        adversaries = {
            name: addon
            for name, addon in addons_of(pl_module).items()
            if isinstance(addon, NegativeSource) and addon.weight
        }
        if len(adversaries) > 1:
            raise ConfigError(f"add-ons {list(adversaries)} all give negatives; at most one may: remove the others")
        for adversary in adversaries.values():
            self.addon(pl_module).set_adversary(adversary, adversary.share)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: PairBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.val_negatives is None or not self.weight or trainer.sanity_checking:
            return
        step = TrainingStep(pl_module, batch, batch_idx, name=self.name)
        metrics = self.addon(pl_module).validate(step, self.val_negatives)
        logged = {f"val/{name}": value for name, value in metrics.items()}
        pl_module.log_dict(logged, batch_size=len(batch), sync_dist=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.addon(pl_module).record.save(trainer.default_root_dir)

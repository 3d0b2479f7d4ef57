"""PreferenceOptimization: prefer what is true of a pair to what is not (DPO; ADPO section 4.1), on any captioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer

from lightning_idc.core.addon import AUX, Addon, TrainingStep, addons_of
from lightning_idc.core.addon_callback import AddonCallback
from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.types import PairBatch
from lightning_idc.errors import ConfigError
from lightning_idc.methods.adpo.losses import PreferenceLoss, dpo
from lightning_idc.methods.adpo.negatives import NegativeSource, RandomCaption
from lightning_idc.methods.adpo.preference_addon import OTHER_IMAGES, Preference
from lightning_idc.methods.adpo.references import FrozenCopy, ReferencePolicy

if TYPE_CHECKING:
    from lightning_idc.data.core.datamodule import PairDataModule


class PreferenceOptimization(AddonCallback):
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
        falling: nats by which the chosen captions may become less likely, on average, before a warning.
        validation: also log the figures of comparisons on validation pairs, against random negatives.
        image_weight: of a loss that prefers the pair itself to another pair of images, for the same caption (mDPO's
            conditional preference). Costs a look at those; pairs without a change are left out.
        other_images: ``identical``, the first image twice, or ``swapped``.
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
        validation: bool = False,
        image_weight: float = 0.0,
        other_images: str = "identical",
        name: str = "preference",
        weight: float = 1.0,
    ) -> None:
        super().__init__(name, weight)
        if beta <= 0:
            raise ConfigError(f"beta is {beta}; expected a positive number, such as 0.1")
        if other_images not in OTHER_IMAGES:
            raise ConfigError(f"other_images is {other_images!r}; expected one of {', '.join(OTHER_IMAGES)}")
        self.image_weight, self.other_images = image_weight, other_images
        self.loss, self.beta = loss, beta
        self.negatives = RandomCaption() if negatives is None else negatives
        self.reference = FrozenCopy() if reference is None else reference
        self.length_normalise, self.caption_weight = length_normalise, caption_weight
        self.dropout, self.falling = dropout, falling
        self.rivals = RandomCaption() if validation else None

    def build(self, host: LightningModule) -> Addon:
        if not isinstance(host, PairCaptioner):
            raise ConfigError(f"PreferenceOptimization trains a PairCaptioner; {type(host).__name__} is none")
        for source in (self.negatives, self.rivals):
            if source is not None:
                source.connect(train_data(host))
        self.reference.connect(host)
        return Preference(
            self.loss,
            self.beta,
            self.negatives,
            self.reference,
            self.length_normalise,
            self.caption_weight,
            self.falling,
            self.image_weight,
            self.other_images,
        )

    def adopt(self, host: LightningModule, addon: Addon) -> None:
        assert isinstance(addon, Preference)
        self.negatives, self.reference = addon.negatives, addon.reference
        if self.rivals is not None:
            self.rivals.connect(train_data(host))

    def addon(self, host: LightningModule) -> Preference:
        """The add-on that this callback attached."""
        found = addons_of(host)[self.name]
        assert isinstance(found, Preference)
        return found

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # nothing of it is needed, and no training data is there, in any other stage
            super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over the source of negatives that trains beside this one; by now all add-ons are attached."""
        opponents = {
            name: addon
            for name, addon in addons_of(pl_module).items()
            if isinstance(addon, NegativeSource) and addon.weight
        }
        if len(opponents) > 1:
            raise ConfigError(f"add-ons {list(opponents)} all give negatives; at most one may: remove the others")
        for opponent in opponents.values():
            self.addon(pl_module).play_against(opponent, opponent.share)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.dropout and self.weight:
            for name, child in pl_module.named_children():
                if name != AUX:
                    child.eval()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self.weight:
            self.reference.follow(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: PairBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.rivals is None or not self.weight or trainer.sanity_checking:
            return
        step = TrainingStep(pl_module, batch, batch_idx, name=self.name)
        figures = self.addon(pl_module).validate(step, self.rivals)
        logged = {f"val/{name}": value for name, value in figures.items()}
        pl_module.log_dict(logged, batch_size=len(batch), sync_dist=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.reference.save()

    def state_dict(self) -> dict[str, Any]:
        return self.reference.beyond_weights()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reference.restore(state_dict)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.reference.save()
        self.addon(pl_module).record.save(trainer.default_root_dir)


def train_data(host: LightningModule) -> PairDataModule:
    """Data module that a captioner is trained on.

    Raises:
        ConfigError: there is none, so nobody knows the captions of the training split.
    """
    from lightning_idc.data.core.datamodule import PairDataModule

    data = host.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, PairDataModule):
        raise ConfigError(
            f"negatives are drawn from the training captions of a PairDataModule; the trainer has "
            f"{'none' if data is None else type(data).__name__}"
        )
    return data

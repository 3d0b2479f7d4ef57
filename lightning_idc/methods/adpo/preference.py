"""PreferenceOptimization: the callback of DPO and ADPO (section 4.1), for any captioner."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.negatives import FromData, NegativeSource, RandomCaption
from lightning_idc.methods.adpo.preference_addon import Preference, PreferenceOptions
from lightning_idc.methods.policy.policy_callback import PolicyCallback, train_data
from lightning_idc.methods.policy.references import FrozenCopy, NoReference, ReferencePolicy
from lightning_idc.models.addon import Addon, TrainingStep, addons_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.utils.errors import ConfigError


def default_negatives(data: PairDataModule) -> NegativeSource:
    """:class:`FromData` if one of the first 100 training pairs has rejected captions, else :class:`RandomCaption`."""
    source = data.pairs_of("train")
    has_rejected = any(source.meta(index).get("rejected") for index in range(min(len(source), 100)))
    return FromData() if has_rejected else RandomCaption()


class PreferenceOptimization(PolicyCallback):
    """Trains a captioner by direct preference optimisation instead of by the caption loss.

    The last comparison of each pair is written to ``negatives.json`` in the folder of the logger, or in
    ``default_root_dir`` without a logger.

    Each chosen caption of the batch (``captions_per_pair`` per pair) is compared with one rejected caption. Start from
    a supervised captioner (``init_from``); its weights are the reference policy (TRL's ``ref_model``).

    Args:
        negatives: source of the rejected captions. When None, :class:`FromData` if the training data has rejected
            captions, else :class:`RandomCaption`. An `AdversarialRetriever` among the callbacks replaces it.
        reference: reference policy; :class:`FrozenCopy` when None.
        dropout: whether dropout stays on. With dropout off, the policy starts exactly at the reference. Activation
            checkpointing of transformers needs it on.
        validation: whether preference metrics are also logged on validation pairs, with random negatives.
        name: key under ``aux_addons``.
        weight: factor of the loss; 0 equals absent.
        options: fields of :class:`~lightning_idc.methods.adpo.preference_addon.PreferenceOptions`.
    """

    options_class = PreferenceOptions

    def __init__(
        self,
        negatives: NegativeSource | None = None,
        reference: ReferencePolicy | None = None,
        dropout: bool = False,
        validation: bool = False,
        name: str = "preference",
        weight: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(FrozenCopy() if reference is None else reference, dropout, name, weight)
        self.options = PreferenceOptions(**options)
        self._negatives = negatives
        self.val_negatives = RandomCaption() if validation else None

    def build(self, module: LightningModule) -> Addon:
        if not isinstance(module, PairCaptioner):
            raise ConfigError(f"PreferenceOptimization trains a PairCaptioner; this is a {type(module).__name__}")
        self.negatives = default_negatives(train_data(module)) if self._negatives is None else self._negatives
        for source in (self.negatives, self.val_negatives):
            if source is not None:
                source.setup(train_data(module))
        assert self.reference is not None
        self.reference.setup(module)
        if self.options.anchor and isinstance(self.reference, NoReference):
            raise ConfigError(
                f"anchor is {self.options.anchor:g}, which keeps the policy at its reference, and reference is "
                "NoReference; leave anchor out"
            )
        return Preference(self.options, self.negatives, self.reference, train_data(module).no_change_captions())

    def reuse(self, module: LightningModule, addon: Addon) -> None:
        assert isinstance(addon, Preference)
        self.negatives, self.reference = addon.negatives, addon.reference
        if self.val_negatives is not None:
            self.val_negatives.setup(train_data(module))

    def addon(self, module: LightningModule) -> Preference:
        """The add-on that this callback attached."""
        addon = addons_of(module)[self.name]
        assert isinstance(addon, Preference)
        return addon

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the source of negatives by the adversary, if an add-on draws negatives.

        All add-ons are attached by now, whatever the order of the callbacks.
        """
        adversaries = {
            name: addon
            for name, addon in addons_of(pl_module).items()
            if isinstance(addon, NegativeSource) and addon.weight
        }
        if len(adversaries) > 1:
            raise ConfigError(f"add-ons {list(adversaries)} all draw negatives; keep one of them")
        for adversary in adversaries.values():
            if isinstance(self.negatives, FromData) and adversary.fraction == 1:
                rank_zero_warn(
                    f"the rejected captions of the data are not used: {type(adversary).__name__} draws all of them; "
                    "give it a fraction below 1"
                )
            self.addon(pl_module).set_adversary(adversary, adversary.fraction)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.weight:
            self.addon(pl_module).end_optimizer_step()

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
        assert isinstance(pl_module, PairCaptioner)
        step = TrainingStep(pl_module, batch, batch_idx, name=self.name)
        metrics = self.addon(pl_module).validate(step, self.val_negatives)
        logged = {f"val/{name}": value for name, value in metrics.items()}
        pl_module.log_dict(logged, batch_size=len(batch), sync_dist=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.addon(pl_module).record.save(trainer.log_dir or trainer.default_root_dir)

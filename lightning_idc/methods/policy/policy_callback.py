"""PolicyCallback: base of preference and policy optimisation; switches dropout off and saves the reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer

from lightning_idc.methods.policy.references import ReferencePolicy
from lightning_idc.models.addon import AUX
from lightning_idc.models.addon_callback import AddonCallback
from lightning_idc.utils.errors import ConfigError

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule


class PolicyCallback(AddonCallback):
    """Attaches an add-on that trains a captioner as a policy; subclasses implement ``build``.

    Args:
        reference: reference policy; None without one.
        dropout: whether dropout stays on. With dropout off, the policy starts exactly at the reference. Activation
            checkpointing of transformers needs it on.
        name: key under ``aux_addons``.
        weight: factor of the loss; 0 equals absent.
    """

    def __init__(self, reference: ReferencePolicy | None, dropout: bool, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.reference, self.dropout = reference, dropout

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # other stages need no add-on and have no training data
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.dropout and self.weight:
            for name, child in pl_module.named_children():
                if name != AUX:
                    child.eval()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self.weight and self.reference is not None:
            self.reference.update(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._save_reference()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save_reference()

    def _save_reference(self) -> None:
        if self.reference is not None:
            self.reference.save()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.reference is None else self.reference.extra_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.reference is not None:
            self.reference.load_extra_state(state_dict)


def train_data(module: LightningModule) -> PairDataModule:
    """Data module of the trainer.

    Raises:
        ConfigError: the trainer has no PairDataModule.
    """
    from lightning_idc.data.datamodule import PairDataModule

    data = module.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, PairDataModule):
        raise ConfigError(
            "negatives and rewards need the training split of a PairDataModule; the trainer has "
            f"{'none' if data is None else type(data).__name__}"
        )
    return data

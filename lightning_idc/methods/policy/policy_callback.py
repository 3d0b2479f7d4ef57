"""PolicyCallback: what preference and policy optimisation ask of a run: dropout off, and a reference that is kept."""

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
    """Attaches an add-on that trains a captioner as a policy; subclasses write ``build``.

    Args:
        reference: what the policy is compared with; None without one.
        dropout: leave dropout on. Off, the policy starts at the reference exactly; activation checkpointing of
            transformers needs it on.
        name: key under ``aux_addons``.
        weight: 0 equals absent.
    """

    def __init__(self, reference: ReferencePolicy | None, dropout: bool, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.reference, self.dropout = reference, dropout

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # nothing of it is needed, and no training data is there, in any other stage
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.dropout and self.weight:
            for name, child in pl_module.named_children():
                if name != AUX:
                    child.eval()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *unused: Any) -> None:
        if self.weight and self.reference is not None:
            self.reference.follow(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._save()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save()

    def _save(self) -> None:
        if self.reference is not None:
            self.reference.save()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.reference is None else self.reference.beyond_weights()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.reference is not None:
            self.reference.restore(state_dict)


def train_data(host: LightningModule) -> PairDataModule:
    """Data module that a captioner is trained on.

    Raises:
        ConfigError: there is none, so the captions of the training split are unknown.
    """
    from lightning_idc.data.datamodule import PairDataModule

    data = host.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, PairDataModule):
        raise ConfigError(
            f"negatives and rewards come from the training split of a PairDataModule; the trainer has "
            f"{'none' if data is None else type(data).__name__}"
        )
    return data

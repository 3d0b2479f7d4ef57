"""ValidationSelection: prevents model selection on the test split."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.metrics.protocols import protocol_named
from lightning_idc.utils.errors import ConfigError, IDCError


class ValidationSelection(Callback):
    """Raises an error before training if a checkpoint or early stopping would be selected on the test split.

    That is the case if a callback monitors a test metric, or if most validation pairs are also test pairs, with equal
    ids and captions. ``lightning-idc fit`` adds this callback. Published protocols with selection on the test split can
    be repeated by naming them; every result then contains the name.

    Args:
        protocol: protocol of the training.
    """

    def __init__(self, protocol: str = "coco") -> None:
        self.protocol = protocol_named(protocol)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.protocol.selection == "test":
            return
        choosers = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint | EarlyStopping)]  # type: ignore[attr-defined]
        watched = [chooser.monitor for chooser in choosers if chooser.monitor]
        tested = [name for name in watched if name.startswith("test")]
        if tested:
            raise ConfigError(
                f"{tested[0]} is watched to choose the model, but a model chosen on the test split is not tested by "
                f"it; watch a value of the validation split, such as val/CIDEr-D. {_LEGACY}"
            )
        data = getattr(trainer, "datamodule", None)  # absent where loaders were given
        if watched and isinstance(data, PairDataModule):
            shared, pairs = _shared(data)
            if 2 * shared > pairs:
                raise ConfigError(
                    f"{shared} of {pairs} validation pairs are pairs of the test split, and {watched[0]} is watched to "
                    f"choose the model; give a validation split of its own. {_LEGACY}"
                )


_LEGACY = (
    "To repeat a published protocol that chose on the test split, add the callback "
    "lightning_idc.callbacks.selection.ValidationSelection with protocol: legacy/procap or legacy/clip4idc"
)


def _shared(data: PairDataModule) -> tuple[int, int]:
    """Number of validation pairs that are also test pairs, and number of validation pairs."""
    validation = _facts(data, "val")
    return len(validation & _facts(data, "test")), len(validation)


def _facts(data: PairDataModule, split: Split) -> set[Any]:
    """Ids with captions, since ids alone may be numbers that restart in every split."""
    try:
        source = data.pairs_of(split)
    except IDCError:  # the split does not exist
        return set()
    return {(id, *texts) for index, id in enumerate(source.ids) if (texts := source.captions(index))}

"""ValidationSelection: prevents model selection on the test split."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import Split
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
        selectors = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint | EarlyStopping)]  # type: ignore[attr-defined]
        monitored = [selector.monitor for selector in selectors if selector.monitor]
        test_metrics = [name for name in monitored if name.startswith("test")]
        if test_metrics:
            raise ConfigError(
                f"{test_metrics[0]} is monitored to select the model, but a model selected on the test split cannot be "
                f"evaluated on it; monitor a metric of the validation split, such as val/CIDEr-D. {_LEGACY}"
            )
        data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
        if monitored and isinstance(data, PairDataModule):
            num_shared, num_pairs = _count_shared(data)
            if 2 * num_shared > num_pairs:
                raise ConfigError(
                    f"{num_shared} of {num_pairs} validation pairs are also test pairs, and {monitored[0]} is "
                    f"monitored to select the model; use a separate validation split. {_LEGACY}"
                )


_LEGACY = (
    "To reproduce a published protocol with selection on the test split, add the callback "
    "lightning_idc.callbacks.selection.ValidationSelection with protocol: legacy/procap or legacy/clip4idc"
)


def _count_shared(data: PairDataModule) -> tuple[int, int]:
    """Number of validation pairs that are also test pairs, and number of validation pairs."""
    validation = _ids_with_captions(data, "val")
    return len(validation & _ids_with_captions(data, "test")), len(validation)


def _ids_with_captions(data: PairDataModule, split: Split) -> set[Any]:
    """Ids with captions, since ids alone may be numbers that restart in every split."""
    try:
        source = data.pairs_of(split)
    except IDCError:  # the split does not exist
        return set()
    return {(id, *texts) for index, id in enumerate(source.ids) if (texts := source.captions(index))}

"""ValidationSelection: a captioner is not chosen on the pairs that it is tested on."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.metrics.protocols import protocol_named
from lightning_idc.utils.errors import ConfigError, IDCError


class ValidationSelection(Callback):
    """Refuses to train when a checkpoint or a stop would be chosen on the test split.

    That is so where a callback watches a value of the test, and where the validation split holds mostly pairs of the
    test split, with the same ids and captions. ``lightning-idc fit`` adds this callback by itself. Published protocols
    that did choose on the test split can be repeated by their name, which then stands in every result.

    Args:
        protocol: that the training follows.
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
    """Pairs of the validation split that the test split has, too, and all of them."""
    validation = _facts(data, "val")
    return len(validation & _facts(data, "test")), len(validation)


def _facts(data: PairDataModule, split: Split) -> set[Any]:
    """Ids with captions; ids alone may be numbers that every split begins anew."""
    try:
        source = data.pairs_of(split)
    except IDCError:  # without such a split there is nothing to share
        return set()
    return {(id, *texts) for index, id in enumerate(source.ids) if (texts := source.captions(index))}
